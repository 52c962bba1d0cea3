"""What each organization may use: the operator's providers, its own beside them, and what it says of models."""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

import structlog
from mnemesh_kit.errors import MnemeshError

from mnemesh_orchestrator.errors import SecretUnreadable
from mnemesh_orchestrator.llm.attempts import Sleep
from mnemesh_orchestrator.llm.credentials import bare_settings
from mnemesh_orchestrator.llm.errors import ProviderAuth
from mnemesh_orchestrator.llm.port import LlmClient, LlmEvent, LlmRequest
from mnemesh_orchestrator.llm.provider import Provider
from mnemesh_orchestrator.llm.registry import Providers, preference, unserved
from mnemesh_orchestrator.llm.rehearsal import REHEARSAL_HANDLE
from mnemesh_orchestrator.llm.settings import ProviderSettings
from mnemesh_orchestrator.model.models import ModelInfo
from mnemesh_orchestrator.model.providers import ModelOverride, OwnModels, ProviderRecord
from mnemesh_orchestrator.store.base import ProviderStore

_log = structlog.get_logger("mnemesh.models")

LOOK_SECONDS: Final = 2.0
"""How often a replica looks whether another one changed something."""
_OLDEST: Final = 6.0
"""Nobody resolves by what was last confirmed longer ago: where looking has failed, whoever asks looks first."""

Opening = Callable[[ProviderRecord], ProviderSettings]
"""Opens the credentials of a record. SecretUnreadable where that cannot be done."""


class ModelCatalog:
    """Resolves handles for organizations, from what is held in memory.

    What this process changes counts at once. What another replica changes counts after LOOK_SECONDS, or after
    _OLDEST at the latest where the database is slow.

    Args:
        base: the operator's providers.
        store: what organizations registered.
        opening: makes settings of a record.
        is_shared: other processes write to the store as well.
        sleep: as in `Providers`; `monotonic` likewise.
    """

    def __init__(
        self,
        base: Providers,
        store: ProviderStore,
        opening: Opening,
        *,
        is_shared: bool = False,
        sleep: Sleep = asyncio.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.base = base
        self._store = store
        self._opening = opening
        self._is_shared = is_shared
        self._sleep = sleep
        self._monotonic = monotonic
        self._held: dict[str, _Held] = {}
        self._own: dict[str, dict[str, OwnProvider]] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._changes: defaultdict[str, int] = defaultdict(int)
        self._looked_at = monotonic()

    async def of(self, organization_id: str) -> "OrganizationModels":
        """What the organization may use at this moment; read where it was not yet, or has changed."""
        if self._is_shared and self._monotonic() - self._looked_at > _OLDEST:
            await self.look()
        held = self._held.get(organization_id)
        if held is not None:
            return held.offer
        async with self._locks[organization_id]:
            while (held := self._held.get(organization_id)) is None:
                began_at = self._changes[organization_id]
                read = await self._store.own(organization_id)
                if began_at == self._changes[organization_id]:
                    self._held[organization_id] = _Held(read.revision, await self._offer(organization_id, read))
        return held.offer

    def held(self, organization_id: str) -> "OrganizationModels":
        """What `of` gave last; the operator's alone where nobody asked yet."""
        held = self._held.get(organization_id)
        return OrganizationModels(self.base, {}, {}) if held is None else held.offer

    async def resolve(self, organization_id: str, handle: str) -> tuple[ModelInfo, LlmClient]:
        """What is known of a model in an organization, and the client that asks it. Raises ModelUnknown."""
        return (await self.of(organization_id)).resolve(handle)

    async def resolve_for_turn(self, organization_id: str, handle: str) -> tuple[ModelInfo, LlmClient]:
        """As `resolve`, with the figures of a server that tells its own. Raises ModelUnknown."""
        return await (await self.of(organization_id)).resolve_for_turn(handle)

    async def default_handle(self, organization_id: str) -> str:
        """The model of who names none: the operator's, else one of the organization's own, else the rehearsal."""
        return await (await self.of(organization_id)).default_handle()

    def forget(self, organization_id: str) -> None:
        """Has what the organization may use read again: something of it was changed."""
        self._changes[organization_id] += 1
        self._held.pop(organization_id, None)

    async def look(self) -> None:
        """Forgets what another process changed."""
        began_at = self._monotonic()
        revisions = await self._store.revisions()
        for organization_id, held in tuple(self._held.items()):
            if revisions.get(organization_id, 0) > held.revision:
                self.forget(organization_id)
        self._looked_at = began_at

    async def watch(self) -> None:
        """Looks again and again; a task for the background. Nothing to do where no other process writes."""
        while self._is_shared:
            await self._sleep(LOOK_SECONDS)
            try:
                await self.look()
            except MnemeshError as error:
                _log.warning("looking for changed providers failed", error=error.message)
            except Exception:
                _log.exception("looking for changed providers failed")

    async def close(self) -> None:
        """Closes every connection pool."""
        for own in self._own.values():
            for each in own.values():
                await each.provider.client.close()
        await self.base.close()

    async def _offer(self, organization_id: str, read: OwnModels) -> "OrganizationModels":
        before = self._own.get(organization_id, {})
        now = {record.id: self._opened(record, before.get(record.id)) for record in read.providers}
        self._own[organization_id] = now
        for provider_id, each in before.items():
            if provider_id not in now or now[provider_id].provider is not each.provider:
                await each.provider.retire()
        own = {each.record.name: each for each in now.values()}
        return OrganizationModels(self.base, own, {override.handle: override for override in read.overrides})

    def _opened(self, record: ProviderRecord, before: "OwnProvider | None") -> "OwnProvider":
        """A provider as its record says. Where it is reached as before, its connections are kept."""
        problem = None
        try:
            settings = self._opening(record)
        except SecretUnreadable as error:
            problem, settings = error.message, bare_settings(record.draft)
        seen = (record.refreshed_at, record.served)
        is_as_before = before is not None and (before.record.refreshed_at, before.record.served) == seen
        if before is not None and before.provider.settings == settings:
            provider = before.provider
        else:
            is_as_before = False
            limits = self.base.settings.limits
            provider = Provider(settings, limits, self._sleep, self._monotonic, provider_id=record.id)
        if record.refreshed_at is not None and not is_as_before:
            provider.note(record.served, record.refreshed_at)
        return OwnProvider(record, provider, OwnClient(self, record, provider), problem)


@dataclass(frozen=True, slots=True)
class OwnProvider:
    """A registered provider in use. `problem` says why its credentials cannot be read."""

    record: ProviderRecord
    provider: Provider
    client: "OwnClient"
    problem: str | None

    def require_readable(self) -> None:
        """Raises ProviderAuth where its credentials cannot be read."""
        if self.problem is not None:
            name = self.record.name
            raise ProviderAuth(f"The key of {name} has to be stored anew. {self.problem}", provider=name)


class OwnClient:
    """An LlmClient on a registered provider. Each call goes to what the provider is at that moment.

    A run may hold it for hours: a key that was replaced is not used again, and of a provider that was deleted or
    disabled nothing is asked.
    """

    def __init__(self, models: ModelCatalog, record: ProviderRecord, provider: Provider) -> None:
        self._models = models
        self._record = record
        self._provider = provider

    def stream(self, request: LlmRequest) -> AsyncIterator[LlmEvent]:
        """Asks the model; see the port. Raises ModelUnknown where the provider is gone."""
        return self._ask(request)

    def render(self, request: LlmRequest) -> str:
        """The request body as JSON text."""
        return self._provider.client.render(request)

    async def close(self) -> None:
        """The connections are the provider's."""

    async def _ask(self, request: LlmRequest) -> AsyncIterator[LlmEvent]:
        offer = await self._models.of(self._record.organization_id)
        own = offer.own_provider(request.model.handle)
        own.require_readable()
        async with own.provider.use() as client:
            events = client.stream(request)
            async with aclosing(events):  # type: ignore[type-var]
                async for event in events:
                    yield event


class OrganizationModels:
    """What one organization may use, as of one revision. An own provider goes before the operator's of that name."""

    def __init__(self, base: Providers, own: Mapping[str, OwnProvider], overrides: Mapping[str, ModelOverride]) -> None:
        self._base = base
        self._own = own
        self._overrides = overrides

    @property
    def names(self) -> tuple[str, ...]:
        """Every provider by name: the operator's, then those of the organization."""
        enabled = (name for name, own in self._own.items() if not own.record.draft.disabled)
        return tuple(dict.fromkeys((*self._base.names, *enabled)))

    @property
    def own(self) -> Mapping[str, OwnProvider]:
        """The organization's own providers by name, disabled ones among them."""
        return self._own

    def own_provider(self, handle: str) -> OwnProvider:
        """The own provider that serves a handle. Raises ModelUnknown."""
        own = self._own.get(handle.partition("/")[0])
        if own is None or own.record.draft.disabled or handle.endswith("/"):
            raise unserved(handle, self.names)
        return own

    def resolve(self, handle: str) -> tuple[ModelInfo, LlmClient]:
        """What is known of a model, and the client that asks it. Raises ModelUnknown."""
        provider, _, name = handle.partition("/")
        if provider not in self._own:
            if provider not in self._base.names:
                raise unserved(handle, self.names)
            info, client = self._base.resolve(handle)
            return self._said(info), client
        own = self.own_provider(handle)
        if not name:
            raise unserved(handle, self.names)
        return self._said(own.provider.info(name)), own.client

    async def resolve_for_turn(self, handle: str) -> tuple[ModelInfo, LlmClient]:
        """As `resolve`, with the figures of a server that tells its own. Raises ModelUnknown."""
        provider = handle.partition("/")[0]
        if (override := self._overrides.get(handle)) is None or override.context_window is None:
            if provider in self._own:
                if self._own[provider].problem is None:
                    await self.own_provider(handle).provider.learn()
            elif provider in self._base.names:
                await self._base.resolve_for_turn(handle)
        return self.resolve(handle)

    async def default_handle(self) -> str:
        """The operator's default; where that would be the rehearsal, a model of an own provider."""
        chosen = await self._base.default_handle()
        if chosen != REHEARSAL_HANDLE or self._base.settings.default_model is not None:
            return chosen
        for name in sorted(self._own, key=preference):
            own = self._own[name]
            model = own.provider.default_model
            if not own.record.draft.disabled and own.problem is None and model is not None:
                return f"{name}/{model}"
        return chosen

    async def list_models(self) -> tuple[ModelInfo, ...]:
        """The models on offer, by handle, hidden ones among them; own ones as their provider was last read."""
        found = {info.handle: info for info in await self._base.list_models() if info.provider not in self._own}
        for name, own in self._own.items():
            if not own.record.draft.disabled:
                models = {f"{name}/{model}" for model in own.provider.offered}
                said = {handle for handle in self._overrides if handle.startswith(f"{name}/")}
                found.update((handle, self.resolve(handle)[0]) for handle in models | said)
        return tuple(self._said(found[handle]) for handle in sorted(found))

    def _said(self, info: ModelInfo) -> ModelInfo:
        override = self._overrides.get(info.handle)
        return info if override is None else override.over(info)


@dataclass(frozen=True, slots=True)
class _Held:
    revision: int
    offer: OrganizationModels
