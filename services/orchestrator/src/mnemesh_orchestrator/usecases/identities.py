"""Identities: made, found, changed and deleted, and attached to agents here and to blocks in their own room."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from mnemesh_kit.clock import Clock
from mnemesh_kit.errors import NotFound
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.ids import IdSource
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.principal import Principal

from mnemesh_orchestrator.model.erasure import Erased
from mnemesh_orchestrator.model.identities import Identity, IdentityFilter
from mnemesh_orchestrator.ports.blocks import CoreMemoryPort
from mnemesh_orchestrator.store.base import IdentityStore
from mnemesh_orchestrator.usecases.agent_lifecycle import AgentLifecycle

_MOST_AGENTS = PageQuery(1_000, ascending=True)


class IdentityService:
    """Identities of an organization.

    The blocks of an identity are kept by the blocks room. What concerns both is done here first and there next, each
    under a request of its own: a repeat finishes what was cut off.
    """

    def __init__(
        self, store: IdentityStore, birth: AgentLifecycle, blocks: CoreMemoryPort, clock: Clock, ids: IdSource
    ) -> None:
        self._store = store
        self._birth = birth
        self._blocks = blocks
        self._clock = clock
        self._ids = ids

    async def create(
        self,
        caller: Principal,
        key: RequestKey | None,
        draft: Identity,
        agent_ids: Sequence[str],
        block_ids: Sequence[str],
        *,
        merges: bool = False,
    ) -> tuple[Identity, bool]:
        """Stores `draft` under a new id, or under that of the one with its key where it `merges`; whether it is new.

        Raises:
            IdentifierKeyTaken: there is one with its key, and it does not merge.
            NotFound: an agent or block is not there; then nothing has changed.
        """
        for block_id in block_ids:
            await self._blocks.identities_of(block_id)
        now, subject = self._clock.now(), caller.subject_id
        origin = replace(draft.provenance, created_by_id=subject, last_updated_by_id=subject)
        identity = replace(
            draft,
            id=self._ids.new("identity"),
            organization_id=caller.organization_id,
            created_at=now,
            updated_at=now,
            provenance=origin,
        )
        stored, is_new = await self._store.create(key, identity, agent_ids, merges=merges)
        for block_id in block_ids:
            await self._attach_block(stored.id, block_id)
        return stored, is_new

    async def get(self, caller: Principal, identity_id: str) -> Identity:
        """An identity, or NotFound."""
        return await self._store.get(caller.organization_id, identity_id)

    async def list(
        self,
        caller: Principal,
        where: IdentityFilter,
        order_by: str,
        page: PageQuery,
    ) -> Page[Identity]:
        """A page of identities."""
        return await self._store.list(caller.organization_id, where, order_by, page)

    async def count(self, caller: Principal, where: IdentityFilter) -> int:
        """How many identities match."""
        return await self._store.count(caller.organization_id, where)

    async def of_block(self, block_id: str, where: IdentityFilter) -> IdentityFilter:
        """The filter narrowed to the identities of a block."""
        theirs = await self._blocks.identities_of(block_id)
        if where.identity_ids is not None:
            theirs = tuple(identity_id for identity_id in theirs if identity_id in where.identity_ids)
        return replace(where, identity_ids=theirs)

    async def update(
        self,
        caller: Principal,
        key: RequestKey | None,
        identity_id: str,
        change: Callable[[Identity], Identity],
        agent_ids: Sequence[str] | None = None,
        block_ids: Sequence[str] | None = None,
    ) -> Identity:
        """Applies a change, and attaches the identity to exactly these agents and blocks, where they are given.

        Raises:
            NotFound: of the identity, an agent or a block.
            IdentifierKeyTaken
        """
        for block_id in block_ids or ():
            await self._blocks.identities_of(block_id)

        def stamped(identity: Identity) -> Identity:
            changed = change(identity)
            origin = replace(changed.provenance, last_updated_by_id=caller.subject_id)
            return replace(changed, provenance=origin, updated_at=self._clock.now())

        updated = await self._store.update(key, caller.organization_id, identity_id, stamped, agent_ids)
        if block_ids is not None:
            for block_id in set(await self._blocks.identified(identity_id)) - set(block_ids):
                await self._detach_block(identity_id, block_id)
            for block_id in block_ids:
                await self._attach_block(identity_id, block_id)
        return updated

    async def delete(self, caller: Principal, key: RequestKey | None, identity_id: str) -> None:
        """Deletes an identity and detaches it everywhere; there being none is as good."""
        for block_id in await self._blocks.identified(identity_id):
            await self._detach_block(identity_id, block_id)
        await self._store.delete(key, caller.organization_id, identity_id)

    async def erase(self, caller: Principal, identity_id: str) -> Erased:
        """Erases its agents with all that only they have, its blocks, and itself last: a repeat goes on.

        Raises:
            NotFound
            Unavailable: a room is away.
        """
        erased = Erased()
        while agents := (await self.agent_ids(caller, identity_id)).items:
            for agent_id in agents:
                erased += await self._birth.delete(caller, agent_id)
        for block_id in await self._blocks.identified(identity_id):
            deleted = await self._blocks.delete(f"{identity_id}/{block_id}/erase", block_id)
            erased += Erased(deleted_blocks=int(deleted))
        await self._store.delete(None, caller.organization_id, identity_id)
        return erased

    async def attach(
        self, caller: Principal, key: RequestKey | None, identity_id: str, *, agent_id: str = "", block_id: str = ""
    ) -> None:
        """Attaches an identity to an agent or a block; where it is attached, nothing changes. Raises NotFound."""
        if agent_id:
            await self._store.attach(key, caller.organization_id, identity_id, agent_id)
            return
        await self._store.get(caller.organization_id, identity_id)
        await self._attach_block(identity_id, block_id)

    async def detach(
        self, caller: Principal, key: RequestKey | None, identity_id: str, *, agent_id: str = "", block_id: str = ""
    ) -> None:
        """Detaches an identity from an agent or a block. Raises NotFound, also where it is not attached."""
        if agent_id:
            await self._store.detach(key, caller.organization_id, identity_id, agent_id)
            return
        await self._store.get(caller.organization_id, identity_id)
        if await self._store.repeated(key):
            return
        if not await self._detach_block(identity_id, block_id):
            raise NotFound(f"The identity is not attached to block {block_id}.", resource_id=block_id)
        await self._store.note(key)

    async def agent_ids(self, caller: Principal, identity_id: str, page: PageQuery = _MOST_AGENTS) -> Page[str]:
        """A page of the ids of its agents, or NotFound."""
        return await self._store.agents(caller.organization_id, identity_id, page)

    async def block_ids(self, caller: Principal, identity_id: str) -> tuple[str, ...]:
        """The ids of its blocks, or NotFound."""
        await self._store.get(caller.organization_id, identity_id)
        return await self._blocks.identified(identity_id)

    async def _attach_block(self, identity_id: str, block_id: str) -> bool:
        return await self._blocks.identify(f"{identity_id}/{block_id}/attach", block_id, identity_id, attach=True)

    async def _detach_block(self, identity_id: str, block_id: str) -> bool:
        return await self._blocks.identify(f"{identity_id}/{block_id}/detach", block_id, identity_id, attach=False)
