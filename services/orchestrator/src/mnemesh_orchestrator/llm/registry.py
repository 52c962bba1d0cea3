"""The providers that the operator configured: resolves handles to models and clients."""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from mnemesh_orchestrator.llm.attempts import Sleep
from mnemesh_orchestrator.llm.dialects import Api
from mnemesh_orchestrator.llm.errors import ModelUnknown, ProviderUnavailable
from mnemesh_orchestrator.llm.known_models import REHEARSAL_WINDOW
from mnemesh_orchestrator.llm.port import LlmClient
from mnemesh_orchestrator.llm.provider import Provider, RemoteClient
from mnemesh_orchestrator.llm.rehearsal import REHEARSAL_HANDLE, RehearsalClient
from mnemesh_orchestrator.llm.settings import LlmSettings, ProviderSettings
from mnemesh_orchestrator.model.models import FigureSource, ModelInfo, ModelSettings

MNEMESH = "mnemesh"
_DEFAULT_SECONDS: Final = 8.0
"""The time for a list of models while a caller waits for the default. It is less than the deadline of a call."""


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
            ProviderUnavailable: no provider has a default model, and one has not said yet which models it serves.
        """
        if self._settings.default_model is not None:
            return self._settings.default_model
        for provider in sorted(self._providers, key=default_precedence):
            with suppress(TimeoutError):
                async with asyncio.timeout(_DEFAULT_SECONDS):
                    await self._providers[provider].load_models(refresh=True)
            if (name := self._providers[provider].default_model) is not None:
                return f"{provider}/{name}"
        silent = [name for name, provider in self._providers.items() if not provider.has_answered]
        if silent:
            raise _unknown_default(self._providers[silent[0]].settings)
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
        if isinstance(client, RemoteClient):
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
