"""Identities, and their attachments to agents and to blocks."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Any

from mnemesh_kit.call_context import Principal
from mnemesh_kit.errors import NotFound
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.ids import IdSource
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.text import require_searchable_fields
from mnemesh_kit.time import Clock

from mnemesh_orchestrator.clients.blocks import BlocksClient
from mnemesh_orchestrator.clients.recall import RecallClient
from mnemesh_orchestrator.model.creation import Erased
from mnemesh_orchestrator.model.identities import (
    Identity,
    IdentityFilter,
    IdentityOrder,
    PropertyChange,
    changed_properties,
    require_valid_identity,
    require_valid_properties,
    require_valid_targets,
)
from mnemesh_orchestrator.model.runs import RunFilter
from mnemesh_orchestrator.store.identities import IdentityStore
from mnemesh_orchestrator.store.run_relations import RunRetention
from mnemesh_orchestrator.store.runs import RunStore
from mnemesh_orchestrator.store.schedules import ScheduleStore
from mnemesh_orchestrator.usecases.agent_creation import AgentLifecycle
from mnemesh_orchestrator.usecases.approvals import ApprovalService

_FIRST_AGENTS = PageQuery(1_000, ascending=True)


@dataclass(frozen=True, eq=False)
class IdentityService:
    """The identities of an organization.

    The blocks service stores which blocks an identity is attached to. A change of both is made here first, then there,
    under different request ids, so that a repeat finishes what was interrupted.
    """

    store: IdentityStore
    runs: RunStore
    retention: RunRetention
    schedules: ScheduleStore
    lifecycle: AgentLifecycle
    approvals: ApprovalService
    blocks: BlocksClient
    recall: RecallClient
    clock: Clock
    ids: IdSource

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
        """Creates an identity and attaches it. Returns the identity, and whether it is new.

        Args:
            key: Identifies the request.
            draft: The identity, without id, organization and times.
            agent_ids: The agents to attach it to.
            block_ids: The blocks to attach it to.
            merges: True replaces an existing identity with the same key and project, which keeps its id.

        Raises:
            IdentifierKeyTaken: An identity with the same key and project exists, and `merges` is False.
        """
        require_valid_identity({field.name: getattr(draft, field.name) for field in fields(draft)})
        require_valid_targets(agent_ids, "identity.agent_ids")
        require_valid_targets(block_ids, "identity.block_ids")
        for block_id in block_ids:
            await self.blocks.identities_of(block_id)
        now, subject = self.clock.now(), caller.subject_id
        origin = replace(draft.provenance, created_by_id=subject, last_updated_by_id=subject)
        identity = replace(
            draft,
            id=self.ids.new("identity"),
            organization_id=caller.organization_id,
            created_at=now,
            updated_at=now,
            provenance=origin,
        )
        stored, is_new = await self.store.create(key, identity, agent_ids, merges=merges)
        for block_id in block_ids:
            await self._attach_block(stored.id, block_id)
        return stored, is_new

    async def get(self, caller: Principal, identity_id: str) -> Identity:
        """Returns an identity. Raises NotFound."""
        return await self.store.get(caller.organization_id, identity_id)

    async def list(
        self,
        caller: Principal,
        filter_: IdentityFilter,
        order_by: IdentityOrder,
        page: PageQuery,
        *,
        block_id: str | None = None,
    ) -> Page[Identity]:
        """Returns a page of identities, of those that are attached to `block_id` if it is set."""
        return await self.store.list(caller.organization_id, await self._filter(filter_, block_id), order_by, page)

    async def count(self, caller: Principal, filter_: IdentityFilter, *, block_id: str | None = None) -> int:
        """Returns the number of identities. Raises the errors of `list`."""
        return await self.store.count(caller.organization_id, await self._filter(filter_, block_id))

    async def _filter(self, filter_: IdentityFilter, block_id: str | None) -> IdentityFilter:
        require_searchable_fields(filter_)
        if block_id is None:
            return filter_
        ids = await self.blocks.identities_of(block_id)
        if filter_.identity_ids is not None:
            ids = tuple(identity_id for identity_id in ids if identity_id in filter_.identity_ids)
        return replace(filter_, identity_ids=ids)

    async def update(
        self,
        caller: Principal,
        key: RequestKey | None,
        identity_id: str,
        changes: Mapping[str, Any],
        agent_ids: Sequence[str] | None = None,
        block_ids: Sequence[str] | None = None,
    ) -> Identity:
        """Changes fields of an identity, and returns the identity.

        Args:
            key: Identifies the request.
            changes: New values by the field names of `Identity`. The value of `provenance` is a mapping of those of its
                fields that change.
            agent_ids: The agents that it is attached to afterwards; None keeps them.
            block_ids: The blocks that it is attached to afterwards; None keeps them.

        Raises:
            IdentifierKeyTaken: Another identity of the project has the new key.
        """
        require_valid_identity(changes)
        require_valid_targets(agent_ids, "identity.agent_ids")
        require_valid_targets(block_ids, "identity.block_ids")
        for block_id in block_ids or ():
            await self.blocks.identities_of(block_id)
        values = dict(changes)
        provenance = values.pop("provenance", {})

        def change(identity: Identity) -> Identity:
            return replace(identity, **values, provenance=replace(identity.provenance, **provenance))

        updated = await self.store.update(
            key, caller.organization_id, identity_id, self._stamped(caller, change), agent_ids
        )
        if block_ids is not None:
            for block_id in set(await self.blocks.list_by_identity(identity_id)) - set(block_ids):
                await self._detach_block(identity_id, block_id)
            for block_id in block_ids:
                await self._attach_block(identity_id, block_id)
        return updated

    async def change_properties(
        self, caller: Principal, key: RequestKey | None, identity_id: str, changes: Sequence[PropertyChange]
    ) -> Identity:
        """Sets and removes properties of an identity, and returns the identity."""
        require_valid_properties(changes, "properties")

        def change(identity: Identity) -> Identity:
            return replace(identity, properties=changed_properties(identity.properties, changes))

        return await self.store.update(key, caller.organization_id, identity_id, self._stamped(caller, change))

    def _stamped(self, caller: Principal, change: Callable[[Identity], Identity]) -> Callable[[Identity], Identity]:
        def stamped(identity: Identity) -> Identity:
            changed = change(identity)
            provenance = replace(changed.provenance, last_updated_by_id=caller.subject_id)
            return replace(changed, provenance=provenance, updated_at=self.clock.now())

        return stamped

    async def delete(self, caller: Principal, key: RequestKey | None, identity_id: str) -> None:
        """Deletes an identity and detaches it from its agents and blocks. A missing identity is not an error."""
        for block_id in await self.blocks.list_by_identity(identity_id):
            await self._detach_block(identity_id, block_id)
        await self.store.delete(key, caller.organization_id, identity_id)

    async def erase(self, caller: Principal, identity_id: str) -> Erased:
        """Erases an identity with everything that belongs to it, and returns the counts.

        Agents and blocks of others, too, are kept and lose the identity. In all agents that are kept, the messages that
        the identity sent are erased with what derives from them. A repeat continues an interrupted erasure.

        Raises:
            RunUnderWay: A run with a message of the identity has not ended, in an agent that is kept.
        """
        organization_id = caller.organization_id
        await self.store.get(organization_id, identity_id)
        await self.store.record(None)
        erased = Erased()
        while agents := (await self.agent_ids(caller, identity_id)).items:
            for agent_id in agents:
                if await self.store.count(organization_id, IdentityFilter(agent_id=agent_id)) > 1:
                    await self.store.detach(None, organization_id, identity_id, agent_id)
                else:
                    erased += await self.lifecycle.delete(caller, agent_id)
        await self.schedules.erase_sender(organization_id, identity_id)
        if sent := await self.retention.list_sent_by(organization_id, identity_id):
            # An approval that waits would be about calls that no window has any more.
            await self.approvals.cancel(caller, RunFilter(), sent)
        for run_id in await self.retention.list_sent_by(organization_id, identity_id):
            with suppress(NotFound):
                await self.runs.delete(organization_id, run_id)
                erased += Erased(runs=1)
        erased += await self.recall.erase_sender(identity_id)
        for block_id in await self.blocks.list_by_identity(identity_id):
            erased += await self._erase_block(identity_id, block_id)
        await self.store.delete(None, organization_id, identity_id)
        return erased

    async def _erase_block(self, identity_id: str, block_id: str) -> Erased:
        if len(await self.blocks.identities_of(block_id)) > 1:
            return Erased(detached_blocks=int(await self._detach_block(identity_id, block_id)))
        return Erased(deleted_blocks=int(await self.blocks.delete(f"{identity_id}/{block_id}/erase", block_id)))

    async def attach(
        self, caller: Principal, key: RequestKey | None, identity_id: str, *, agent_id: str = "", block_id: str = ""
    ) -> None:
        """Attaches an identity to an agent or a block. A repeated attachment changes nothing. Raises NotFound."""
        if agent_id:
            await self.store.attach(key, caller.organization_id, identity_id, agent_id)
            return
        await self.store.get(caller.organization_id, identity_id)
        await self._attach_block(identity_id, block_id)
        await self.store.record(key)

    async def detach(
        self, caller: Principal, key: RequestKey | None, identity_id: str, *, agent_id: str = "", block_id: str = ""
    ) -> None:
        """Detaches an identity from an agent or a block. Raises NotFound, also if it is not attached."""
        if agent_id:
            await self.store.detach(key, caller.organization_id, identity_id, agent_id)
            return
        await self.store.get(caller.organization_id, identity_id)
        if await self.store.is_recorded(key):
            return
        if not await self._detach_block(identity_id, block_id):
            raise NotFound(f"The identity is not attached to block {block_id}.", resource_id=block_id)
        await self.store.record(key)

    async def agent_ids(self, caller: Principal, identity_id: str, page: PageQuery = _FIRST_AGENTS) -> Page[str]:
        """Returns a page of the ids of the agents of an identity. Raises NotFound."""
        return await self.store.agents(caller.organization_id, identity_id, page)

    async def block_ids(self, caller: Principal, identity_id: str) -> tuple[str, ...]:
        """Returns the ids of the blocks of an identity. Raises NotFound."""
        await self.store.get(caller.organization_id, identity_id)
        return await self.blocks.list_by_identity(identity_id)

    async def _attach_block(self, identity_id: str, block_id: str) -> bool:
        return await self.blocks.identify(f"{identity_id}/{block_id}/attach", block_id, identity_id, attach=True)

    async def _detach_block(self, identity_id: str, block_id: str) -> bool:
        return await self.blocks.identify(f"{identity_id}/{block_id}/detach", block_id, identity_id, attach=False)
