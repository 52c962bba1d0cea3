"""The providers that organizations register, and those of the operator."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from mnemesh_kit.clock import Clock
from mnemesh_kit.errors import FailedPrecondition, InvalidArgument
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.ids import IdSource
from mnemesh_kit.principal import Principal

from mnemesh_orchestrator.errors import ProviderNameTaken, ProviderNotFound
from mnemesh_orchestrator.llm.credentials import CredentialSealer, bare_settings, with_credentials
from mnemesh_orchestrator.llm.dialects import DIALECTS
from mnemesh_orchestrator.llm.model_catalog import ModelCatalog, OrganizationModels, OwnProvider
from mnemesh_orchestrator.llm.provider import Provider, language_models, read_models
from mnemesh_orchestrator.llm.rehearsal import REHEARSAL_HANDLE
from mnemesh_orchestrator.model.filters import require_searchable_fields
from mnemesh_orchestrator.model.provider_rules import (
    require_credentials_for_new_host,
    require_valid_changes,
    require_valid_credentials,
    require_valid_provider,
)
from mnemesh_orchestrator.model.providers import (
    Credentials,
    ProviderDraft,
    ProviderFilter,
    ProviderRecord,
    ProviderView,
    Refresh,
)
from mnemesh_orchestrator.store.base import ProviderStore
from mnemesh_orchestrator.usecases.provider_reader import ProviderReader
from mnemesh_orchestrator.usecases.provider_views import base_id, base_view, own_view

_NO_CREDENTIALS = Credentials()


class ProviderService:
    """Registers, changes, refreshes and checks providers."""

    def __init__(
        self,
        store: ProviderStore,
        models: ModelCatalog,
        sealer: CredentialSealer,
        clock: Clock,
        ids: IdSource,
        hosts: Collection[str] = (),
    ) -> None:
        self._store = store
        self._models = models
        self._sealer = sealer
        self._reader = ProviderReader(models, sealer, clock)
        self._clock = clock
        self._ids = ids
        self._hosts = frozenset(host.lower() for host in hosts)

    def fingerprint(self, secret: str) -> str:
        """Returns a text that identifies a credential and reveals nothing of it. Raises SecretsKeyMissing."""
        return self._sealer.fingerprint(secret)

    async def get(self, caller: Principal, provider_id: str) -> ProviderView:
        """Returns a provider of the operator or the organization. Raises NotFound."""
        for view in await self._views(caller):
            if view.id == provider_id:
                return view
        raise ProviderNotFound(provider_id)

    async def list(self, caller: Principal, filter_: ProviderFilter) -> tuple[ProviderView, ...]:
        """Returns the providers that the organization can use, the operator's first. Raises InvalidArgument."""
        require_searchable_fields(filter_, "")
        return tuple(view for view in await self._views(caller) if filter_.matches(view))

    async def _views(self, caller: Principal) -> tuple[ProviderView, ...]:
        models = await self._models.of(caller.organization_id)
        base = (base_view(name, self._base(name)) for name in self._models.base.names)
        return (*base, *(own_view(own) for own in models.own.values()))

    async def create(
        self, caller: Principal, key: RequestKey | None, draft: ProviderDraft, credentials: Credentials
    ) -> ProviderView:
        """Registers a provider, reads its models, and returns it. An unreachable provider is registered, too.

        Raises:
            InvalidArgument: A field of the draft or a credential breaks its rule.
            AlreadyExists: Another provider of the organization or the operator has the name.
            SecretsKeyMissing: There are credentials, and this server has no key to store them with.
        """
        self._require_valid(draft, credentials)
        organization_id = caller.organization_id
        if (before := await self._store.recorded_result(key)) is not None:
            return await self.get(caller, before[0])
        models = await self._models.of(organization_id)
        if draft.name in self._models.base.names or draft.name in models.own:
            raise ProviderNameTaken(draft.name)
        self._require_endpoint(draft)
        now = self._clock.now()
        record = ProviderRecord(
            id=self._ids.new("provider"),
            organization_id=organization_id,
            draft=draft,
            created_at=now,
            updated_at=now,
        )
        record = await self._reader.read(replace(record, credentials=self._sealer.seal(record, credentials)))
        provider_id = await self._store.create(key, record)
        self._models.invalidate(organization_id)
        return await self.get(caller, provider_id)

    async def update(
        self,
        caller: Principal,
        key: RequestKey | None,
        provider_id: str,
        changes: Mapping[str, Any],
        credentials: Credentials,
    ) -> ProviderView:
        """Changes fields and credentials of a provider, and returns it.

        The models are read again if the change can affect them.

        Args:
            caller: The caller.
            key: Identifies the request.
            provider_id: The provider.
            changes: New values by the field names of `ProviderDraft`.
            credentials: The credentials that change.

        Raises:
            InvalidArgument: A value or a credential breaks its rule, or a stored credential would go to a new host.
            NotFound: The provider does not exist.
            FailedPrecondition: The provider is the operator's.
            SecretsKeyMissing: There are credentials, and this server has no key to store them with.
        """
        require_valid_changes(changes)
        require_valid_credentials(credentials)
        if await self._store.recorded_result(key) is not None:
            return await self.get(caller, provider_id)
        self._require_own(provider_id)
        before = await self._store.get(caller.organization_id, provider_id)
        draft = replace(before.draft, **changes)
        self._require_endpoint(draft)
        require_credentials_for_new_host(before, draft, credentials)
        changed = replace(before, draft=draft, credentials=self._sealer.seal(before, credentials))
        is_connection_changed = (
            credentials != _NO_CREDENTIALS or replace(draft, disabled=before.draft.disabled) != before.draft
        )
        if is_connection_changed:
            changed = await self._reader.read(replace(changed, served=(), refreshed_at=None))

        def apply(record: ProviderRecord) -> ProviderRecord:
            merged = replace(
                record, draft=replace(record.draft, **changes), credentials=self._sealer.seal(record, credentials)
            )
            if not is_connection_changed:
                return merged
            return replace(
                merged,
                served=changed.served,
                refreshed_at=changed.refreshed_at,
                refresh_error=changed.refresh_error,
            )

        await self._store.update(key, caller.organization_id, provider_id, apply)
        self._models.invalidate(caller.organization_id)
        return await self.get(caller, provider_id)

    async def delete(self, caller: Principal, key: RequestKey | None, provider_id: str) -> None:
        """Deletes a provider and its credentials. A missing provider is no error.

        Raises:
            FailedPrecondition: The provider is the operator's.
        """
        self._require_own(provider_id)
        await self._store.delete(key, caller.organization_id, provider_id)
        self._models.invalidate(caller.organization_id)

    async def refresh(self, caller: Principal, key: RequestKey | None, provider_id: str) -> Refresh:
        """Reads the models of a provider again. Returns the provider and the differences.

        Raises:
            NotFound: The provider does not exist.
            ProviderError: The provider did not respond as expected. Nothing is changed.
        """
        if (before := await self._store.recorded_result(key)) is not None:
            return await self._replayed(caller, before)
        models = await self._models.of(caller.organization_id)
        if (name := self._base_name(provider_id)) is not None:
            return await self._refresh_base(caller, key, name)
        own = _own(models, provider_id)
        own.require_readable()
        old = {f"{own.record.name}/{model}" for model in own.provider.offered_models}
        async with own.provider.borrow_client() as client:
            served = await read_models(client, own.provider.settings)
        now = self._clock.now()
        new = {f"{own.record.name}/{model.name}" for model in language_models(own.provider.settings, served)}
        added, removed = tuple(sorted(new - old)), tuple(sorted(old - new))

        def apply(record: ProviderRecord) -> ProviderRecord:
            return replace(record, served=served, refreshed_at=now, refresh_error=None)

        result = _result(provider_id, added, removed)
        await self._store.update(key, caller.organization_id, provider_id, apply, result)
        self._models.invalidate(caller.organization_id)
        return Refresh(await self.get(caller, provider_id), added, removed)

    async def check(self, caller: Principal, provider_id: str, credentials: Credentials) -> tuple[str, ...]:
        """Returns the models that a provider lists, with `credentials` instead of its own if set. Stores nothing.

        Raises:
            InvalidArgument: A credential breaks its rule.
            NotFound: The provider does not exist.
            ProviderError: The provider did not respond as expected.
        """
        require_valid_credentials(credentials)
        models = await self._models.of(caller.organization_id)
        if (name := self._base_name(provider_id)) is not None:
            base = self._base(name)
            if base is None:
                return (REHEARSAL_HANDLE.partition("/")[2],)
            return await self._reader.model_names(with_credentials(base.settings, credentials))
        own = _own(models, provider_id)
        if credentials.api_key is None:
            own.require_readable()
        return await self._reader.model_names(with_credentials(own.provider.settings, credentials))

    async def check_draft(
        self,
        caller: Principal,  # noqa: ARG002
        draft: ProviderDraft,
        credentials: Credentials,
    ) -> tuple[str, ...]:
        """Returns the models that a provider lists that is not registered. Raises the errors of `check`."""
        self._require_valid(draft, credentials)
        self._require_endpoint(draft)
        return await self._reader.model_names(with_credentials(bare_settings(draft), credentials))

    async def _refresh_base(self, caller: Principal, key: RequestKey | None, name: str) -> Refresh:
        base = self._base(name)
        added: tuple[str, ...] = ()
        removed: tuple[str, ...] = ()
        if base is not None:
            old = {f"{name}/{model}" for model in base.offered_models}
            base.set_listed_models(await read_models(base.client, base.settings), self._clock.now())
            new = {f"{name}/{model}" for model in base.offered_models}
            added, removed = tuple(sorted(new - old)), tuple(sorted(old - new))
        provider_id = base_id(name)
        await self._store.record_result(key, _result(provider_id, added, removed))
        return Refresh(await self.get(caller, provider_id), added, removed)

    async def _replayed(self, caller: Principal, result: Sequence[str]) -> Refresh:
        added = tuple(item[1:] for item in result[1:] if item.startswith("+"))
        removed = tuple(item[1:] for item in result[1:] if item.startswith("-"))
        return Refresh(await self.get(caller, result[0]), added, removed)

    def _base(self, name: str) -> Provider | None:
        return self._models.base.remote.get(name)

    def _base_name(self, provider_id: str) -> str | None:
        return next((name for name in self._models.base.names if base_id(name) == provider_id), None)

    def _require_own(self, provider_id: str) -> None:
        if (name := self._base_name(provider_id)) is not None:
            raise FailedPrecondition(
                f"Provider {name} belongs to the operator. It cannot be changed.", resource_id=provider_id
            )

    def _require_valid(self, draft: ProviderDraft, credentials: Credentials) -> None:
        require_valid_provider(draft)
        if draft.type not in DIALECTS:
            raise InvalidArgument(f"provider.type must be one of {', '.join(DIALECTS)}.", field="provider.type")
        require_valid_credentials(credentials)

    def _require_endpoint(self, draft: ProviderDraft) -> None:
        """Raises InvalidArgument if the provider has no URL, or a host that the operator does not allow."""
        if bare_settings(draft).endpoint is None:
            raise InvalidArgument(f"provider.base_url is required for type {draft.type}.", field="provider.base_url")
        host = None if draft.base_url is None else urlsplit(draft.base_url).hostname
        if self._hosts and host is not None and host.lower() not in self._hosts:
            raise InvalidArgument(
                f"provider.base_url must have a host that the operator of this server allows, not {host}.",
                field="provider.base_url",
            )


def _own(models: OrganizationModels, provider_id: str) -> OwnProvider:
    for own in models.own.values():
        if own.record.id == provider_id:
            return own
    raise ProviderNotFound(provider_id)


def _result(provider_id: str, added: Sequence[str], removed: Sequence[str]) -> tuple[str, ...]:
    return (provider_id, *(f"+{handle}" for handle in added), *(f"-{handle}" for handle in removed))
