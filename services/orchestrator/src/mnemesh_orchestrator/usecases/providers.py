"""Registering, changing, reading and checking providers."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from mnemesh_kit.clock import Clock
from mnemesh_kit.errors import FailedPrecondition, InvalidArgument
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.ids import IdSource, derive_id
from mnemesh_kit.principal import Principal

from mnemesh_orchestrator.errors import SecretUnreadable
from mnemesh_orchestrator.llm.credentials import CredentialSafe, bare_settings, with_credentials
from mnemesh_orchestrator.llm.errors import ProviderError
from mnemesh_orchestrator.llm.model_catalog import ModelCatalog, OrganizationModels, OwnProvider
from mnemesh_orchestrator.llm.provider import Provider, language_models, make_client, read_models, shown_url
from mnemesh_orchestrator.llm.registry import MNEMESH
from mnemesh_orchestrator.llm.rehearsal import REHEARSAL_HANDLE
from mnemesh_orchestrator.llm.settings import ProviderSettings
from mnemesh_orchestrator.model.providers import (
    Credentials,
    ProviderCategory,
    ProviderDraft,
    ProviderRecord,
    ProviderView,
    ServedModel,
)
from mnemesh_orchestrator.store.base import ProviderStore
from mnemesh_orchestrator.store.base.providers import name_taken, provider_missing

_NOTHING = Credentials()


@dataclass(frozen=True, slots=True)
class Refreshed:
    """A provider whose models were read anew, and the handles that came and went."""

    provider: ProviderView
    added: tuple[str, ...]
    removed: tuple[str, ...]


class ProviderService:
    """The providers of organizations beside the operator's."""

    def __init__(
        self,
        store: ProviderStore,
        models: ModelCatalog,
        safe: CredentialSafe,
        clock: Clock,
        ids: IdSource,
        hosts: Collection[str] = (),
    ) -> None:
        self._store = store
        self._models = models
        self._safe = safe
        self._clock = clock
        self._ids = ids
        self._hosts = frozenset(host.lower() for host in hosts)

    def fingerprint(self, secret: str) -> str:
        """Stands for a credential where requests are compared, and tells nothing of it. Raises SecretsKeyMissing."""
        return self._safe.fingerprint(secret)

    async def get(self, caller: Principal, provider_id: str) -> ProviderView:
        """A provider, the operator's or the organization's own, or NotFound."""
        views = await self.list(caller)
        found = next((view for view in views if view.id == provider_id), None)
        if found is None:
            raise provider_missing(provider_id)
        return found

    async def list(self, caller: Principal) -> tuple[ProviderView, ...]:
        """All that the organization may use, the operator's first."""
        offer = await self._models.of(caller.organization_id)
        base = (_base_view(name, self._base(name)) for name in self._models.base.names)
        return (*base, *(_own_view(own) for own in offer.own.values()))

    async def create(
        self, caller: Principal, key: RequestKey | None, draft: ProviderDraft, credentials: Credentials
    ) -> ProviderView:
        """Registers a provider and reads its models; one that cannot be reached is registered all the same.

        Raises:
            AlreadyExists: the name is taken, or is that of an operator's provider.
            SecretsKeyMissing: credentials were given, and this server cannot store any.
        """
        organization_id = caller.organization_id
        if (before := await self._store.replayed(key)) is not None:
            return await self.get(caller, before[0])
        offer = await self._models.of(organization_id)
        if draft.name in self._models.base.names or draft.name in offer.own:
            raise name_taken(draft.name)
        self._require_place(draft)
        now = self._clock.now()
        record = ProviderRecord(
            id=self._ids.new("provider"),
            organization_id=organization_id,
            draft=draft,
            created_at=now,
            updated_at=now,
        )
        record = await self._read(replace(record, credentials=self._safe.sealed(record, credentials)))
        provider_id = await self._store.create(key, record)
        self._models.forget(organization_id)
        return await self.get(caller, provider_id)

    async def update(
        self,
        caller: Principal,
        key: RequestKey | None,
        provider_id: str,
        change: Callable[[ProviderDraft], ProviderDraft],
        credentials: Credentials,
    ) -> ProviderView:
        """Applies a change; where it is then reached otherwise, reads its models as `create` does.

        Raises:
            NotFound
            FailedPrecondition: it is the operator's.
            SecretsKeyMissing: as in `create`.
        """
        if await self._store.replayed(key) is not None:
            return await self.get(caller, provider_id)
        self._require_own(provider_id)
        before = await self._store.get(caller.organization_id, provider_id)
        draft = change(before.draft)
        self._require_place(draft)
        changed = replace(before, draft=draft, credentials=self._safe.sealed(before, credentials))
        is_reached_otherwise = credentials != _NOTHING or replace(draft, disabled=before.draft.disabled) != before.draft
        if is_reached_otherwise:
            changed = await self._read(replace(changed, served=(), refreshed_at=None))

        def apply(record: ProviderRecord) -> ProviderRecord:
            merged = replace(record, draft=change(record.draft), credentials=self._safe.sealed(record, credentials))
            if not is_reached_otherwise:
                return merged
            return replace(
                merged,
                served=changed.served,
                refreshed_at=changed.refreshed_at,
                refresh_error=changed.refresh_error,
            )

        await self._store.update(key, caller.organization_id, provider_id, apply)
        self._models.forget(caller.organization_id)
        return await self.get(caller, provider_id)

    async def delete(self, caller: Principal, key: RequestKey | None, provider_id: str) -> None:
        """Deletes an own provider and its credentials; one that is not there is none any more.

        Raises:
            FailedPrecondition: it is the operator's.
        """
        self._require_own(provider_id)
        await self._store.delete(key, caller.organization_id, provider_id)
        self._models.forget(caller.organization_id)

    async def refresh(self, caller: Principal, key: RequestKey | None, provider_id: str) -> Refreshed:
        """Reads the models of a provider anew. Where that fails, nothing is changed.

        Raises:
            NotFound
            ProviderError: why it failed.
        """
        if (before := await self._store.replayed(key)) is not None:
            return await self._replayed(caller, before)
        offer = await self._models.of(caller.organization_id)
        if (name := self._base_name(provider_id)) is not None:
            return await self._refresh_base(caller, key, name)
        own = _own(offer, provider_id)
        own.require_readable()
        had = {f"{own.record.name}/{model}" for model in own.provider.offered}
        async with own.provider.use() as client:
            served = await read_models(client, own.provider.settings)
        now = self._clock.now()
        has = {f"{own.record.name}/{model.name}" for model in language_models(own.provider.settings, served)}
        added, removed = tuple(sorted(has - had)), tuple(sorted(had - has))

        def apply(record: ProviderRecord) -> ProviderRecord:
            return replace(record, served=served, refreshed_at=now, refresh_error=None)

        result = _result(provider_id, added, removed)
        await self._store.update(key, caller.organization_id, provider_id, apply, result)
        self._models.forget(caller.organization_id)
        return Refreshed(await self.get(caller, provider_id), added, removed)

    async def check(self, caller: Principal, provider_id: str, credentials: Credentials) -> tuple[str, ...]:
        """Asks a provider which models it has, with these credentials where given; stores nothing.

        Raises:
            NotFound
            ProviderError: why it does not answer.
        """
        offer = await self._models.of(caller.organization_id)
        if (name := self._base_name(provider_id)) is not None:
            base = self._base(name)
            if base is None:
                return (REHEARSAL_HANDLE.partition("/")[2],)
            return await self._asked(with_credentials(base.settings, credentials))
        own = _own(offer, provider_id)
        if credentials.api_key is None:
            own.require_readable()
        return await self._asked(with_credentials(own.provider.settings, credentials))

    async def check_draft(self, draft: ProviderDraft, credentials: Credentials) -> tuple[str, ...]:
        """As `check`, of a provider that is not registered."""
        self._require_place(draft)
        return await self._asked(with_credentials(bare_settings(draft), credentials))

    async def _asked(self, settings: ProviderSettings) -> tuple[str, ...]:
        return tuple(model.name for model in await self._served(settings))

    async def _served(self, settings: ProviderSettings) -> tuple[ServedModel, ...]:
        client = make_client(settings, self._models.base.settings.limits)
        try:
            return await read_models(client, settings)
        finally:
            await client.close()

    async def _read(self, record: ProviderRecord) -> ProviderRecord:
        """The record with what its provider serves, or why that cannot be known."""
        try:
            served = await self._served(self._safe.settings(record))
        except (ProviderError, SecretUnreadable) as error:
            return replace(record, refresh_error=error.message)
        return replace(record, served=served, refreshed_at=self._clock.now(), refresh_error=None)

    async def _refresh_base(self, caller: Principal, key: RequestKey | None, name: str) -> Refreshed:
        base = self._base(name)
        added: tuple[str, ...] = ()
        removed: tuple[str, ...] = ()
        if base is not None:
            had = {f"{name}/{model}" for model in base.offered}
            base.note(await read_models(base.client, base.settings), self._clock.now())
            has = {f"{name}/{model}" for model in base.offered}
            added, removed = tuple(sorted(has - had)), tuple(sorted(had - has))
        provider_id = base_id(name)
        await self._store.record(key, _result(provider_id, added, removed))
        return Refreshed(await self.get(caller, provider_id), added, removed)

    async def _replayed(self, caller: Principal, result: Sequence[str]) -> Refreshed:
        added = tuple(item[1:] for item in result[1:] if item.startswith("+"))
        removed = tuple(item[1:] for item in result[1:] if item.startswith("-"))
        return Refreshed(await self.get(caller, result[0]), added, removed)

    def _base(self, name: str) -> Provider | None:
        return self._models.base.remote.get(name)

    def _base_name(self, provider_id: str) -> str | None:
        return next((name for name in self._models.base.names if base_id(name) == provider_id), None)

    def _require_own(self, provider_id: str) -> None:
        if (name := self._base_name(provider_id)) is not None:
            raise FailedPrecondition(f"The provider {name} is the operator's.", resource_id=provider_id)

    def _require_place(self, draft: ProviderDraft) -> None:
        """Refuses a provider of which nobody says where it is, or which is where the operator allows none."""
        if bare_settings(draft).endpoint is None:
            raise InvalidArgument(f"provider.base_url is required of type {draft.type}.", field="provider.base_url")
        host = None if draft.base_url is None else urlsplit(draft.base_url).hostname
        if self._hosts and host is not None and host.lower() not in self._hosts:
            raise InvalidArgument(
                f"provider.base_url: the operator of this server allows no providers at {host}.",
                field="provider.base_url",
            )


def base_id(name: str) -> str:
    """The id of an operator's provider: the same in every process."""
    return derive_id("provider", "base", name)


def _own(offer: OrganizationModels, provider_id: str) -> OwnProvider:
    found = next((own for own in offer.own.values() if own.record.id == provider_id), None)
    if found is None:
        raise provider_missing(provider_id)
    return found


def _result(provider_id: str, added: Sequence[str], removed: Sequence[str]) -> tuple[str, ...]:
    return (provider_id, *(f"+{handle}" for handle in added), *(f"-{handle}" for handle in removed))


def _base_view(name: str, provider: Provider | None) -> ProviderView:
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
            api=settings.spoken,
            base_url=shown_url(settings.base_url),
            api_version=settings.api_version,
            region=settings.region,
        ),
        category=ProviderCategory.BASE,
        has_api_key=settings.api_key is not None,
        has_headers=bool(settings.headers),
        model_count=len(provider.offered),
        refreshed_at=provider.refreshed_at,
    )


def _own_view(own: OwnProvider) -> ProviderView:
    record, sealed = own.record, own.record.credentials
    return ProviderView(
        id=record.id,
        draft=replace(record.draft, api=own.provider.settings.spoken),
        category=ProviderCategory.BYOK,
        has_api_key=sealed.api_key is not None,
        has_access_key=sealed.access_key is not None,
        has_headers=bool(sealed.headers),
        model_count=len(own.provider.offered),
        refreshed_at=record.refreshed_at,
        refresh_error=own.problem or record.refresh_error,
        created_at=record.created_at,
        updated_at=record.updated_at,
    )
