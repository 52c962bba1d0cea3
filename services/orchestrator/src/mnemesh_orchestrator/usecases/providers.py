"""The providers that organizations register, and those of the operator."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from mnemesh_kit.call_context import Principal
from mnemesh_kit.errors import FailedPrecondition, InvalidArgument
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.ids import IdSource, derive_id
from mnemesh_kit.network import host_problem
from mnemesh_kit.secret_variables import SecretUnreadable
from mnemesh_kit.text import require_no_nul, require_searchable_fields
from mnemesh_kit.time import Clock

from mnemesh_orchestrator.errors import ProviderNameTaken, ProviderNotFound
from mnemesh_orchestrator.llm.embedders import EmbedderDirectory
from mnemesh_orchestrator.llm.errors import ProviderError, ProviderTimeout
from mnemesh_orchestrator.llm.model_catalog import MNEMESH, ModelCatalog, OrganizationModels, OwnProvider
from mnemesh_orchestrator.llm.provider import Provider, language_models, make_client, read_models, with_capabilities
from mnemesh_orchestrator.llm.rehearsal import REHEARSAL_HANDLE
from mnemesh_orchestrator.llm.settings import (
    DIALECTS,
    SETTING_OF_HOSTS,
    CredentialSealer,
    ProviderSettings,
    bare_settings,
    with_credentials,
)
from mnemesh_orchestrator.model.models import (
    Credentials,
    EmbedderFilter,
    EmbeddingModel,
    ModelFilter,
    ModelInfo,
    ModelOverride,
    ProviderCategory,
    ProviderDraft,
    ProviderFilter,
    ProviderRecord,
    ProviderView,
    Refresh,
    ServedModel,
    require_credentials_for_new_host,
    require_valid_changes,
    require_valid_credentials,
    require_valid_override,
    require_valid_provider,
)
from mnemesh_orchestrator.store.providers import ProviderStore

LOOK_SECONDS: Final = 5.0
"""The time for the lists of a provider. A caller who registers it waits 10 s by default."""

_NO_CREDENTIALS = Credentials()


class ModelService:
    """Language models and embedding models."""

    def __init__(self, store: ProviderStore, models: ModelCatalog, embedders: EmbedderDirectory) -> None:
        self._store = store
        self._models = models
        self._embedders = embedders

    async def get(self, caller: Principal, handle: str) -> ModelInfo:
        """Returns a model with its capabilities. An empty handle means the default model of new agents.

        Raises:
            ModelUnknown: No provider of the organization serves the model.
        """
        models = await self._models.of(caller.organization_id)
        info, _ = await models.resolve_for_turn(handle or await models.default_handle())
        return with_capabilities(info)

    async def list(self, caller: Principal, filter_: ModelFilter) -> tuple[ModelInfo, ...]:
        """Returns the models that the organization can use, ordered by handle. Raises InvalidArgument."""
        require_searchable_fields(filter_, "")
        models = await (await self._models.of(caller.organization_id)).list_models()
        return tuple(with_capabilities(info) for info in models if filter_.matches(info))

    async def update(
        self,
        caller: Principal,
        key: RequestKey | None,
        handle: str,
        changes: Mapping[str, Any],
        capabilities: Mapping[str, bool],
    ) -> ModelInfo:
        """Changes the organization's override of a model, and returns the model.

        Args:
            key: Identifies the request.
            handle: The handle of the model.
            changes: New values by the field names of `ModelOverride`; None removes a value.
            capabilities: The capabilities that change.

        Raises:
            ModelUnknown: No provider of the organization serves the model.
        """
        if not require_no_nul(handle, "model.handle"):
            raise InvalidArgument("model.handle is required.", field="model.handle")
        require_valid_override(changes)

        def change(override: ModelOverride) -> ModelOverride:
            return replace(override, **changes, capabilities={**override.capabilities, **capabilities})

        organization_id = caller.organization_id
        await self._models.resolve(organization_id, handle)
        await self._store.override(key, organization_id, handle, change)
        self._models.invalidate(organization_id)
        return with_capabilities((await self._models.resolve(organization_id, handle))[0])

    async def embedders(self, caller: Principal, filter_: EmbedderFilter) -> tuple[EmbeddingModel, ...]:  # noqa: ARG002
        """Returns the embedding models of the server, ordered by handle. Every organization can use all of them."""
        return tuple(model for model in await self._embedders.models() if filter_.matches(model))


@dataclass(frozen=True, eq=False)
class ProviderReader:
    """Reads the models of providers, with clients that it opens and closes."""

    models: ModelCatalog
    sealer: CredentialSealer
    clock: Clock

    async def model_names(self, settings: ProviderSettings) -> tuple[str, ...]:
        """Returns the names of the models. Raises ProviderError."""
        return tuple(model.name for model in await self._list_models(settings))

    async def _list_models(self, settings: ProviderSettings) -> tuple[ServedModel, ...]:
        client = make_client(settings, self.models.base.settings.limits)
        await asyncio.to_thread(client.prepare)  # Importing an SDK may take seconds.
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                return await read_models(client, settings)
        except TimeoutError:
            message = f"{settings.name} did not list its models at {settings.endpoint} within {LOOK_SECONDS:g} s."
            raise ProviderTimeout(message, provider=settings.name) from None
        finally:
            await client.close()

    async def read(self, record: ProviderRecord) -> ProviderRecord:
        """Returns the record with the models that its provider lists, or with the error of asking for them."""
        try:
            served = await self._list_models(self.sealer.open_settings(record))
        except (ProviderError, SecretUnreadable) as error:
            return replace(record, refresh_error=error.message)
        return replace(record, served=served, refreshed_at=self.clock.now(), refresh_error=None)


def base_id(name: str) -> str:
    """Returns the id of a provider of the operator, which is the same in every process."""
    return derive_id("provider", "base", name)


def base_view(name: str, provider: Provider | None) -> ProviderView:
    """Returns the view of a provider of the operator. `provider` is None for the built-in rehearsal model."""
    provider_id = base_id(name)
    if provider is None:
        draft = ProviderDraft(name=MNEMESH, type=MNEMESH, api="rehearsal")
        return ProviderView(id=provider_id, draft=draft, category=ProviderCategory.BASE, model_count=1)
    settings = provider.settings
    return ProviderView(
        id=provider_id,
        draft=ProviderDraft(
            name=settings.name,
            type=settings.type,
            api=settings.api_in_use,
            base_url=settings.base_url,
            api_version=settings.api_version,
            region=settings.region,
        ),
        category=ProviderCategory.BASE,
        has_api_key=settings.api_key is not None,
        has_headers=bool(settings.headers),
        model_count=len(provider.offered_models),
        refreshed_at=provider.refreshed_at,
    )


def own_view(own: OwnProvider) -> ProviderView:
    """Returns the view of a provider of the organization."""
    record, sealed = own.record, own.record.credentials
    return ProviderView(
        id=record.id,
        draft=replace(record.draft, api=own.provider.settings.api_in_use),
        category=ProviderCategory.BYOK,
        has_api_key=sealed.api_key is not None,
        has_access_key=sealed.access_key is not None,
        has_headers=bool(sealed.headers),
        model_count=len(own.provider.offered_models),
        refreshed_at=record.refreshed_at,
        refresh_error=own.problem or record.refresh_error,
        created_at=record.created_at,
        updated_at=record.updated_at,
    )


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
            AlreadyExists: Another provider of the organization or the operator has the name.
            SecretsKeyMissing: There are credentials, and this server has no key to store them with.
        """
        self._require_valid(draft, credentials)
        organization_id = caller.organization_id
        if (before := await self._store.find_recorded_result(key)) is not None:
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
            key: Identifies the request.
            changes: New values by the field names of `ProviderDraft`.
            credentials: The credentials that change.

        Raises:
            FailedPrecondition: The provider is the operator's.
            SecretsKeyMissing: There are credentials, and this server has no key to store them with.
        """
        require_valid_changes(changes)
        require_valid_credentials(credentials)
        if await self._store.find_recorded_result(key) is not None:
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
        """Deletes a provider and its credentials. A missing provider is not an error.

        Raises:
            FailedPrecondition: The provider is the operator's.
        """
        self._require_own(provider_id)
        await self._store.delete(key, caller.organization_id, provider_id)
        self._models.invalidate(caller.organization_id)

    async def refresh(self, caller: Principal, key: RequestKey | None, provider_id: str) -> Refresh:
        """Reads the models of a provider again. Returns the provider and the differences.

        Raises:
            ProviderError: The provider did not respond as expected. Nothing is changed.
        """
        if (before := await self._store.find_recorded_result(key)) is not None:
            return await self._replay(caller, before)
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

    async def _replay(self, caller: Principal, result: Sequence[str]) -> Refresh:
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
        public_only = self._models.base.settings.limits.public_addresses_only
        url = draft.base_url
        if url and (problem := host_problem(url, self._hosts, SETTING_OF_HOSTS, public_only=public_only)):
            raise InvalidArgument(f"provider.base_url: {problem}.", field="provider.base_url")


def _own(models: OrganizationModels, provider_id: str) -> OwnProvider:
    for own in models.own.values():
        if own.record.id == provider_id:
            return own
    raise ProviderNotFound(provider_id)


def _result(provider_id: str, added: Sequence[str], removed: Sequence[str]) -> tuple[str, ...]:
    return (provider_id, *(f"+{handle}" for handle in added), *(f"-{handle}" for handle in removed))
