"""The store of identities."""

from collections.abc import Callable, Sequence
from typing import Protocol

from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.paging import Page, PageQuery

from mnemesh_orchestrator.model.identities import Identity, IdentityFilter, IdentityOrder


class IdentityStore(Protocol):
    """Identities, and their attachments to agents.

    Example:
        >>> identity, is_new = await identities.create(key, identity, [agent.id])
        >>> (await identities.agents(identity.organization_id, identity.id, PageQuery(10, ascending=True))).items
        ('agent-…',)
    """

    async def create(
        self, key: RequestKey | None, identity: Identity, agent_ids: Sequence[str], *, merges: bool = False
    ) -> tuple[Identity, bool]:
        """Stores an identity and attaches it to agents. Returns the stored identity, and whether it is new.

        If `merges` is True, an identity with the same key and project keeps its id and creation time, and takes all
        other values.

        Raises:
            IdentifierKeyTaken: An identity with the same key and project exists, and `merges` is False.
            NotFound: An agent does not exist.
            RequestIdReused: The key was used before with other content.
        """
        ...

    async def get(self, organization_id: str, identity_id: str) -> Identity:
        """Returns an identity. Raises NotFound."""
        ...

    async def list(
        self, organization_id: str, filter_: IdentityFilter, order_by: IdentityOrder, page: PageQuery
    ) -> Page[Identity]:
        """Returns a page of identities. Searches ignore case."""
        ...

    async def count(self, organization_id: str, filter_: IdentityFilter) -> int:
        """Returns the number of identities."""
        ...

    async def update(
        self,
        key: RequestKey | None,
        organization_id: str,
        identity_id: str,
        change: Callable[[Identity], Identity],
        agent_ids: Sequence[str] | None = None,
    ) -> Identity:
        """Applies a pure function to an identity, stores the result, and returns it.

        With `agent_ids`, the identity is attached to exactly these agents afterwards.

        Raises:
            NotFound: The identity or an agent does not exist.
            IdentifierKeyTaken: Another identity of the project has the new key.
            RequestIdReused: The key was used before with other content.
        """
        ...

    async def delete(self, key: RequestKey | None, organization_id: str, identity_id: str) -> None:
        """Deletes an identity and detaches it from its agents. A missing identity is no error."""
        ...

    async def attach(self, key: RequestKey | None, organization_id: str, identity_id: str, agent_id: str) -> None:
        """Attaches an identity to an agent. A repeated attachment changes nothing. Raises NotFound."""
        ...

    async def detach(self, key: RequestKey | None, organization_id: str, identity_id: str, agent_id: str) -> None:
        """Detaches an identity from an agent. Raises NotFound, also if it is not attached."""
        ...

    async def is_recorded(self, key: RequestKey | None) -> bool:
        """Returns whether a request was recorded before. Raises RequestIdReused."""
        ...

    async def record(self, key: RequestKey | None) -> None:
        """Records a request whose effect was in another service. Raises RequestIdReused."""
        ...

    async def agents(self, organization_id: str, identity_id: str, page: PageQuery) -> Page[str]:
        """Returns a page of the ids of the agents of an identity, ordered by id. Raises NotFound."""
        ...
