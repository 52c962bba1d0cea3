"""The store of providers and of overrides of models."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from mnemesh_kit.idempotency import RequestKey

from mnemesh_orchestrator.model.providers import ModelOverride, OwnModels, ProviderRecord


class ProviderStore(Protocol):
    """The providers of organizations, and their overrides of models.

    Every change raises the revision of its organization, in the same transaction.

    Example:
        >>> provider_id = await providers.create(key, record)
        >>> (await providers.own(record.organization_id)).revision
        1
    """

    async def own(self, organization_id: str) -> OwnModels:
        """Returns the providers, ordered by creation, and the overrides of an organization.

        Without changes, revision is 0.
        """
        ...

    async def revisions(self) -> Mapping[str, int]:
        """Returns the revisions by organization. Organizations without changes are left out."""
        ...

    async def recorded_result(self, key: RequestKey | None) -> tuple[str, ...] | None:
        """Returns the result of a request that took effect before, or None.

        Raises:
            RequestIdReused: The key was used before with other content.
        """
        ...

    async def get(self, organization_id: str, provider_id: str) -> ProviderRecord:
        """Returns a provider. Raises ProviderNotFound."""
        ...

    async def create(self, key: RequestKey | None, record: ProviderRecord) -> str:
        """Stores a provider and returns its id; for a repeat, the id of the first provider.

        Raises:
            ProviderNameTaken: Another provider of the organization has the name.
            RequestIdReused: The key was used before with other content.
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
        """Applies a pure function to a provider, stores the result, and returns it. A repeat changes nothing.

        The id, name, type and creation time do not change. `recorded_result` returns `result` afterwards.

        Raises:
            ProviderNotFound: The provider does not exist.
            RequestIdReused: The key was used before with other content.
        """
        ...

    async def delete(self, key: RequestKey | None, organization_id: str, provider_id: str) -> None:
        """Deletes a provider, its credentials and the overrides of its models. A missing provider is no error."""
        ...

    async def record_result(self, key: RequestKey | None, result: Sequence[str]) -> None:
        """Records the result of a request whose effect is not in this store. Raises RequestIdReused."""
        ...

    async def override(
        self,
        key: RequestKey | None,
        organization_id: str,
        handle: str,
        change: Callable[[ModelOverride], ModelOverride],
    ) -> None:
        """Applies a pure function to the override of a model.

        A repeat changes nothing. An empty override is deleted.
        """
        ...
