"""The contract of the store of providers and overrides: each method is one transaction, within one organization."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from mnemesh_kit.idempotency import RequestKey

from mnemesh_orchestrator.model.providers import ModelOverride, OwnModels, ProviderRecord


class ProviderStore(Protocol):
    """What organizations registered. Every change raises its organization's revision in its own transaction."""

    async def own(self, organization_id: str) -> OwnModels:
        """All that an organization registered and said, by creation; revision 0 where it never did."""
        ...

    async def revisions(self) -> Mapping[str, int]:
        """By organization, the revision that it is at. Of those that never changed anything, nothing."""
        ...

    async def recorded_result(self, key: RequestKey | None) -> tuple[str, ...] | None:
        """The result of a request that took effect before; None where it did not.

        Raises:
            RequestIdReused: it was made with other content.
        """
        ...

    async def get(self, organization_id: str, provider_id: str) -> ProviderRecord:
        """A registered provider, or NotFound."""
        ...

    async def create(self, key: RequestKey | None, record: ProviderRecord) -> str:
        """Stores a provider; gives its id, or that of the first try.

        Raises:
            AlreadyExists: its name is taken in the organization.
        """
        ...

    async def update(
        self,
        key: RequestKey | None,
        organization_id: str,
        provider_id: str,
        change: Callable[[ProviderRecord], ProviderRecord],
        result: Sequence[str] = (),
    ) -> ProviderRecord:
        """Applies a change to the record as it stands at that moment; a replay changes nothing.

        `result` is what `replayed` gives from then on. The id, name and times of creation stay.

        Raises:
            NotFound
        """
        ...

    async def delete(self, key: RequestKey | None, organization_id: str, provider_id: str) -> None:
        """Deletes a provider, its credentials, and what was said of its models. One that is not there is no error."""
        ...

    async def record_result(self, key: RequestKey | None, result: Sequence[str]) -> None:
        """Keeps the result of a request whose effect is not in this store."""
        ...

    async def override(
        self,
        key: RequestKey | None,
        organization_id: str,
        handle: str,
        change: Callable[[ModelOverride], ModelOverride],
    ) -> None:
        """Applies a change to what the organization says of a model; a replay changes nothing."""
        ...
