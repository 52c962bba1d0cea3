"""The models of each organization: the operator's providers, its own providers, and its overrides."""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Final

import structlog
from mnemesh_kit.errors import MnemeshError
from mnemesh_kit.secret_variables import SecretUnreadable
from mnemesh_types.agents import CompactionSettings, ModelSettings

from mnemesh_orchestrator.llm.calls import SdkModel
from mnemesh_orchestrator.llm.errors import ModelUnknown, ProviderAuth, ProviderUnavailable
from mnemesh_orchestrator.llm.port import AttemptBudget, LlmClient, LlmEvent, LlmRequest, Sleep
from mnemesh_orchestrator.llm.provider import REHEARSAL_WINDOW, Provider
from mnemesh_orchestrator.llm.rehearsal import REHEARSAL_HANDLE, RehearsalClient
from mnemesh_orchestrator.llm.settings import Api, LlmSettings, ProviderSettings, bare_settings
from mnemesh_orchestrator.model.episodes import MemoryExtractionSettings
from mnemesh_orchestrator.model.models import (
    FigureSource,
    ModelInfo,
    ModelOverride,
    OwnModels,
    ProviderRecord,
    require_settings_of,
)
from mnemesh_orchestrator.store.providers import ProviderStore

MNEMESH = "mnemesh"
_DEFAULT_SECONDS: Final = 8.0
"""The time for a list of models while a caller waits for the default. It is less than the deadline of a call."""

_log = structlog.get_logger("mnemesh.models")

CHECK_SECONDS: Final = 2.0
"""Seconds between two checks for changes by other replicas."""
_MAX_AGE: Final = 6.0
"""Seconds after which a confirmed state is too old to resolve a handle. After failed checks, a caller checks first."""

OpenSettings = Callable[[ProviderRecord], ProviderSettings]
"""Opens the credentials of a record. Raises SecretUnreadable if that is impossible."""


class Providers:
    """Resolves handles for every organization. `llm/model_catalog.py` adds those of an organization."""

    def __init__(
        self, settings: LlmSettings, *, sleep: Sleep = asyncio.sleep, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings = settings
        self._providers = {
            provider.name: Provider(provider, settings.limits, sleep, monotonic) for provider in settings.providers
        }
        self._rehearsal = RehearsalClient()

    @property
    def names(self) -> tuple[str, ...]:
        """The configured providers, including mnemesh's own."""
        return (MNEMESH, *self._providers)

    @property
    def remote(self) -> Mapping[str, Provider]:
        """The configured providers by name, without mnemesh's own."""
        return self._providers

    @property
    def settings(self) -> LlmSettings:
        """The operator's settings."""
        return self._settings

    def resolve(self, handle: str) -> tuple[ModelInfo, LlmClient]:
        """Returns a model and its client.

        Raises:
            ModelUnknown: the handle is not "provider/model", or its provider is not configured.
        """
        if handle == REHEARSAL_HANDLE:
            return _rehearsal(), self._rehearsal
        provider, _, name = handle.partition("/")
        provider_entry = self._providers.get(provider)
        if not name or provider_entry is None:
            raise unknown_model(handle, self.names)
        return provider_entry.info(name, self._settings.context_windows.get(handle)), provider_entry.client

    async def resolve_for_turn(self, handle: str) -> tuple[ModelInfo, LlmClient]:
        """As `resolve`, with the figures of a server that reports its own.

        It is called once, and again if it was unreachable.

        Raises:
            ModelUnknown: as `resolve`.
        """
        provider = self._providers.get(handle.partition("/")[0])
        if provider is not None and handle not in self._settings.context_windows:
            await provider.load_models()
        return self.resolve(handle)

    async def default_handle(self) -> str:
        """Returns the default model: the configured one, or OpenAI's, Anthropic's, or the first other provider's.

        A server that lists its models is called, and its first model is used. Without any provider it is the rehearsal.

        Raises:
            ProviderUnavailable: a provider that precedes the others has not said yet which models it serves.
        """
        if self._settings.default_model is not None:
            return self._settings.default_model
        for provider in sorted(self._providers, key=default_precedence):
            with suppress(TimeoutError):
                async with asyncio.timeout(_DEFAULT_SECONDS):
                    await self._providers[provider].load_models(refresh=True)
            if not self._providers[provider].has_answered:
                raise _unknown_default(self._providers[provider].settings)
            if (name := self._providers[provider].default_model) is not None:
                return f"{provider}/{name}"
        return REHEARSAL_HANDLE

    async def list_models(self) -> tuple[ModelInfo, ...]:
        """Returns the available models by handle: from mnemesh's table, or from a server's own list.

        That list is as it was last read. It is read here if it never was.
        """
        await asyncio.gather(*(provider.load_models() for provider in self._providers.values()))
        handles = {REHEARSAL_HANDLE}
        for name, provider in self._providers.items():
            handles.update(f"{name}/{model}" for model in provider.offered_models)
        if (handle := self._settings.default_model) is not None:
            provider_name, _, model = handle.partition("/")
            if provider_name in self._providers and model:
                handles.add(handle)
        return tuple(self.resolve(handle)[0] for handle in sorted(handles))

    async def prepare(self, handle: str) -> None:
        """Imports the SDK of a handle in a thread, so that the first turn does not wait.

        Raises:
            ModelUnknown: as `resolve`.
        """
        _, client = self.resolve(handle)
        if isinstance(client, SdkModel):
            await asyncio.to_thread(client.prepare)

    async def close(self) -> None:
        """Closes all connection pools."""
        for provider in self._providers.values():
            await provider.client.close()


def unknown_model(handle: str, names: tuple[str, ...]) -> ModelUnknown:
    """Returns the error for a handle that none of these providers serves."""
    return ModelUnknown(
        f'The model "{handle}" was not found: no configured provider serves it. Handles are "provider/model"; '
        f"configured: {', '.join(names)}.",
        model=handle,
    )


def _unknown_default(settings: ProviderSettings) -> ProviderUnavailable:
    error = ProviderUnavailable(
        f"The default model is unknown for now: {settings.name} does not list its models at {settings.endpoint}. "
        "Try again, name the model, or set MNEMESH_MODEL.",
        provider=settings.name,
    )
    error.final = True
    return error


def default_precedence(name: str) -> tuple[bool, bool]:
    """Sorts providers by precedence for the default model."""
    return (name != "openai", name != "anthropic")


def _rehearsal() -> ModelInfo:
    provider, _, name = REHEARSAL_HANDLE.partition("/")
    defaults = ModelSettings(context_window=REHEARSAL_WINDOW)
    return ModelInfo(
        REHEARSAL_HANDLE, provider, name, Api.REHEARSAL, defaults, None, MNEMESH, window_source=FigureSource.TABLE
    )


class ModelCatalog:
    """Resolves handles for organizations from memory.

    A change by this process is visible at once. A change by another replica is visible after LOOK_SECONDS, or after
    _MAX_AGE at the latest if the database is slow.

    Args:
        base: the operator's providers.
        store: the providers and overrides of organizations.
        open_settings: creates settings from a record.
        is_shared: whether other processes write to the store.
        sleep: as in `Providers`.
        monotonic: the clock for the age of a state.
    """

    def __init__(
        self,
        base: Providers,
        store: ProviderStore,
        open_settings: OpenSettings,
        *,
        is_shared: bool = False,
        sleep: Sleep = asyncio.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.base = base
        self._store = store
        self._open_settings = open_settings
        self._is_shared = is_shared
        self._sleep = sleep
        self._monotonic = monotonic
        self._cached: dict[str, _CachedModels] = {}
        self._own: dict[str, dict[str, OwnProvider]] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._changes: defaultdict[str, int] = defaultdict(int)
        self._checked_at = monotonic()

    async def of(self, organization_id: str) -> "OrganizationModels":
        """Returns the models that an organization may use now. Reads them if they are unknown or have changed."""
        if self._is_shared and self._monotonic() - self._checked_at > _MAX_AGE:
            await self.check_for_changes()
        cached = self._cached.get(organization_id)
        if cached is not None:
            return cached.models
        async with self._locks[organization_id]:
            while (cached := self._cached.get(organization_id)) is None:
                change_count = self._changes[organization_id]
                own_models = await self._store.read_own(organization_id)
                if change_count == self._changes[organization_id]:
                    self._cached[organization_id] = _CachedModels(
                        own_models.revision, await self._read_models(organization_id, own_models)
                    )
        return cached.models

    def cached(self, organization_id: str) -> "OrganizationModels":
        """Returns the last result of `of`, or the operator's models if there is none."""
        cached = self._cached.get(organization_id)
        return OrganizationModels(self.base, {}, {}) if cached is None else cached.models

    async def resolve(self, organization_id: str, handle: str) -> tuple[ModelInfo, LlmClient]:
        """Returns a model of an organization and its client. Raises ModelUnknown."""
        return (await self.of(organization_id)).resolve(handle)

    async def resolve_for_turn(self, organization_id: str, handle: str) -> tuple[ModelInfo, LlmClient]:
        """As `resolve`, with the figures of a server that reports its own. Raises ModelUnknown."""
        return await (await self.of(organization_id)).resolve_for_turn(handle)

    async def default_handle(self, organization_id: str) -> str:
        """Returns the default model: the operator's, or one of the organization's own, or the rehearsal."""
        return await (await self.of(organization_id)).default_handle()

    def invalidate(self, organization_id: str) -> None:
        """Drops the cached models of an organization."""
        self._changes[organization_id] += 1
        self._cached.pop(organization_id, None)

    async def check_for_changes(self) -> None:
        """Drops the cached models of organizations that another process changed."""
        started_at = self._monotonic()
        revisions = await self._store.revisions()
        for organization_id, cached in tuple(self._cached.items()):
            if revisions.get(organization_id, 0) > cached.revision:
                self.invalidate(organization_id)
        self._checked_at = started_at

    async def watch(self) -> None:
        """Checks for changes periodically, as a background task. Returns at once if no other process writes."""
        while self._is_shared:
            await self._sleep(CHECK_SECONDS)
            try:
                await self.check_for_changes()
            except MnemeshError as error:
                _log.warning("provider_check_failed", error=error.message)
            except Exception:
                _log.exception("provider_check_failed")

    async def close(self) -> None:
        """Closes all connection pools."""
        for providers in self._own.values():
            for own in providers.values():
                await own.provider.client.close()
        await self.base.close()

    async def _read_models(self, organization_id: str, own_models: OwnModels) -> "OrganizationModels":
        previous = self._own.get(organization_id, {})
        current = {record.id: self._own_provider(record, previous.get(record.id)) for record in own_models.providers}
        self._own[organization_id] = current
        for provider_id, own in previous.items():
            if provider_id not in current or current[provider_id].provider is not own.provider:
                await own.provider.close_when_idle()
        by_name = {own.record.name: own for own in current.values()}
        return OrganizationModels(self.base, by_name, {override.handle: override for override in own_models.overrides})

    def _own_provider(self, record: ProviderRecord, previous: "OwnProvider | None") -> "OwnProvider":
        """Creates a provider from its record. Unchanged connection settings keep their connections."""
        problem = None
        try:
            settings = self._open_settings(record)
        except SecretUnreadable as error:
            problem, settings = error.message, bare_settings(record.draft)
        listing = (record.refreshed_at, record.served)
        is_unchanged = previous is not None and (previous.record.refreshed_at, previous.record.served) == listing
        if previous is not None and previous.provider.settings == settings:
            provider = previous.provider
        else:
            is_unchanged = False
            limits = self.base.settings.limits
            provider = Provider(settings, limits, self._sleep, self._monotonic, provider_id=record.id)
        if record.refreshed_at is not None and not is_unchanged:
            provider.set_listed_models(record.served, record.refreshed_at)
        return OwnProvider(record, provider, OwnClient(self, record, provider), problem)


@dataclass(frozen=True, slots=True)
class OwnProvider:
    """A registered provider in use. `problem` says why its credentials cannot be read."""

    record: ProviderRecord
    provider: Provider
    client: "OwnClient"
    problem: str | None

    def require_readable(self) -> None:
        """Raises ProviderAuth if the credentials cannot be read."""
        if self.problem is not None:
            name = self.record.name
            raise ProviderAuth(f"The key of {name} must be stored again. {self.problem}", provider=name)


@dataclass(frozen=True, eq=False)
class OwnClient:
    """An LlmClient of a registered provider. Each call uses the provider's current settings.

    A run may hold it for hours: a replaced key is not used again, and a deleted or disabled provider is not called.
    """

    models: ModelCatalog
    record: ProviderRecord
    provider: Provider

    def stream(self, request: LlmRequest, budget: AttemptBudget | None = None) -> AsyncIterator[LlmEvent]:
        """Calls the model; see the port. Raises ModelUnknown if the provider was deleted."""
        return self._stream(request, budget)

    def render(self, request: LlmRequest) -> str:
        """Returns the request body as JSON text."""
        return self.provider.client.render(request)

    async def close(self) -> None:
        """Does nothing: the connections belong to the provider."""

    async def _stream(self, request: LlmRequest, budget: AttemptBudget | None) -> AsyncIterator[LlmEvent]:
        models = await self.models.of(self.record.organization_id)
        own = models.own_provider(request.model.handle)
        own.require_readable()
        async with own.provider.borrow_client() as client:
            events = client.stream(request, budget)
            async with aclosing(events):  # type: ignore[type-var]
                async for event in events:
                    yield event


class OrganizationModels:
    """The models that one organization may use, at one revision.

    Its own provider precedes the operator's of that name.
    """

    def __init__(self, base: Providers, own: Mapping[str, OwnProvider], overrides: Mapping[str, ModelOverride]) -> None:
        self._base = base
        self._own = own
        self._overrides = overrides

    @property
    def names(self) -> tuple[str, ...]:
        """Returns every provider by name: the operator's, then those of the organization."""
        enabled = (name for name, own in self._own.items() if not own.record.draft.disabled)
        return tuple(dict.fromkeys((*self._base.names, *enabled)))

    @property
    def own(self) -> Mapping[str, OwnProvider]:
        """The organization's own providers by name, including disabled ones."""
        return self._own

    def own_provider(self, handle: str) -> OwnProvider:
        """Returns the own provider that serves a handle. Raises ModelUnknown."""
        own = self._own.get(handle.partition("/")[0])
        if own is None or own.record.draft.disabled or handle.endswith("/"):
            raise unknown_model(handle, self.names)
        return own

    def resolve(self, handle: str) -> tuple[ModelInfo, LlmClient]:
        """Returns a model and its client. Raises ModelUnknown."""
        provider, _, name = handle.partition("/")
        if provider not in self._own:
            if provider not in self._base.names:
                raise unknown_model(handle, self.names)
            info, client = self._base.resolve(handle)
            return self._with_override(info), client
        own = self.own_provider(handle)
        if not name:
            raise unknown_model(handle, self.names)
        return self._with_override(own.provider.info(name)), own.client

    async def resolve_for_turn(self, handle: str) -> tuple[ModelInfo, LlmClient]:
        """As `resolve`, with the figures of a server that reports its own. Raises ModelUnknown."""
        provider = handle.partition("/")[0]
        if (override := self._overrides.get(handle)) is None or override.context_window is None:
            if provider in self._own:
                if self._own[provider].problem is None:
                    await self.own_provider(handle).provider.load_models()
            elif provider in self._base.names:
                await self._base.resolve_for_turn(handle)
        return self.resolve(handle)

    async def default_handle(self) -> str:
        """Returns the operator's default. If that is the rehearsal, an own provider's model precedes it.

        Raises:
            ProviderUnavailable: the operator's default is unknown.
        """
        chosen = await self._base.default_handle()
        if chosen != REHEARSAL_HANDLE or self._base.settings.default_model is not None:
            return chosen
        for name in sorted(self._own, key=default_precedence):
            own = self._own[name]
            model = own.provider.default_model
            if not own.record.draft.disabled and own.problem is None and model is not None:
                return f"{name}/{model}"
        return chosen

    async def list_models(self) -> tuple[ModelInfo, ...]:
        """Returns the available models by handle, including hidden ones. Own providers are as they were last read."""
        models_by_handle = {
            info.handle: info for info in await self._base.list_models() if info.provider not in self._own
        }
        for name, own in self._own.items():
            if not own.record.draft.disabled:
                listed = {f"{name}/{model}" for model in own.provider.offered_models}
                overridden = {handle for handle in self._overrides if handle.startswith(f"{name}/")}
                models_by_handle.update((handle, self.resolve(handle)[0]) for handle in listed | overridden)
        return tuple(self._with_override(models_by_handle[handle]) for handle in sorted(models_by_handle))

    def _with_override(self, info: ModelInfo) -> ModelInfo:
        override = self._overrides.get(info.handle)
        return info if override is None else override.over(info)


@dataclass(frozen=True, slots=True)
class _CachedModels:
    revision: int
    models: OrganizationModels


def require_served(models: OrganizationModels, handle: str, field: str) -> ModelInfo:
    """Returns a model. Raises ModelUnknown if no provider serves it. Metadata: field."""
    try:
        return models.resolve(handle)[0]
    except ModelUnknown as error:
        raise ModelUnknown(f"{field}: {error.message}", model=handle, field=field) from error


def require_usable_settings(
    models: OrganizationModels, model: ModelInfo | None, settings: ModelSettings | None, field: str
) -> None:
    """Refuses settings that a model does not allow, or whose fallback model no provider serves. None is not checked.

    Raises:
        InvalidArgument: A figure is above that of the model. Metadata: field.
        ModelUnknown: No provider serves the fallback model. Metadata: field.
    """
    if settings is None:
        return
    if settings.fallback_model:
        require_served(models, settings.fallback_model, f"{field}.fallback_model")
    if model is not None:
        require_settings_of(model, settings, field)


def require_usable_summaries(
    models: OrganizationModels, settings: CompactionSettings | MemoryExtractionSettings | None, field: str
) -> None:
    """As `require_usable_settings`, for the settings of summaries or of extracted facts, and the model that they name.

    Raises:
        InvalidArgument: A figure is above that of the model. Metadata: field.
        ModelUnknown: No provider serves a model. Metadata: field.
    """
    if settings is not None:
        model = None if settings.model is None else require_served(models, settings.model, f"{field}.model")
        require_usable_settings(models, model, settings.model_settings, f"{field}.model_settings")
