"""The contract of what stores identities."""

from collections.abc import Callable, Sequence
from typing import Protocol

from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.paging import Page, PageQuery

from mnemesh_orchestrator.model.identities import Identity, IdentityFilter


class IdentityStore(Protocol):
    """Identities, and which agents they are attached to."""

    async def create(
        self, key: RequestKey | None, identity: Identity, agent_ids: Sequence[str], *, merges: bool = False
    ) -> tuple[Identity, bool]:
        """Stores an identity and attaches it to agents; what there is then, and whether it is new.

        Where it `merges`, one with the same key and project keeps its id and takes everything else over.

        Raises:
            IdentifierKeyTaken: there is one, and it does not merge.
            NotFound: an agent is not there.
        """
        ...

    async def get(self, organization_id: str, identity_id: str) -> Identity:
        """An identity, or NotFound."""
        ...

    async def list(self, organization_id: str, where: IdentityFilter, order_by: str, page: PageQuery) -> Page[Identity]:
        """A page by "created_at", "updated_at" or "name"."""
        ...

    async def count(self, organization_id: str, where: IdentityFilter) -> int:
        """How many identities match."""
        ...

    async def update(
        self,
        key: RequestKey | None,
        organization_id: str,
        identity_id: str,
        change: Callable[[Identity], Identity],
        agent_ids: Sequence[str] | None = None,
    ) -> Identity:
        """Applies a pure function to an identity; attaches it to exactly `agent_ids`, where they are given.

        Raises:
            NotFound: of the identity or an agent.
            IdentifierKeyTaken
        """
        ...

    async def delete(self, key: RequestKey | None, organization_id: str, identity_id: str) -> None:
        """Deletes an identity and detaches it from agents; there being none is as good."""
        ...

    async def attach(self, key: RequestKey | None, organization_id: str, identity_id: str, agent_id: str) -> None:
        """Attaches an identity to an agent; where it is attached, nothing changes. Raises NotFound of either."""
        ...

    async def detach(self, key: RequestKey | None, organization_id: str, identity_id: str, agent_id: str) -> None:
        """Detaches an identity from an agent. Raises NotFound, also where it is not attached."""
        ...

    async def is_recorded(self, key: RequestKey | None) -> bool:
        """Whether a request was noted before. Raises RequestIdReused."""
        ...

    async def record(self, key: RequestKey | None) -> None:
        """Notes a request whose effect was in another room."""
        ...

    async def agents(self, organization_id: str, identity_id: str, page: PageQuery) -> Page[str]:
        """A page of the ids of its agents, by id. Raises NotFound."""
        ...
