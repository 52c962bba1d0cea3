"""The providers that are configured: from a model's handle to what is known of it and the client to ask."""

import asyncio
import re
import time
from collections.abc import Callable
from typing import Final

from engram_orchestrator.llm.anthropic_messages import AnthropicMessagesClient
from engram_orchestrator.llm.attempts import CallLimits, Sleep
from engram_orchestrator.llm.catalog import (
    ANTHROPIC,
    OPENAI,
    REHEARSAL_WINDOW,
    UNKNOWN_ANTHROPIC_WINDOW,
    UNKNOWN_COMPATIBLE_WINDOW,
    UNKNOWN_OFFICIAL_WINDOW,
    known,
)
from engram_orchestrator.llm.dialects import Api, Listing
from engram_orchestrator.llm.errors import ModelUnknown, ProviderError
from engram_orchestrator.llm.listing import ServedModel, served_models
from engram_orchestrator.llm.openai_chat import OpenAiChatClient
from engram_orchestrator.llm.openai_responses import OpenAiResponsesClient
from engram_orchestrator.llm.port import LlmClient
from engram_orchestrator.llm.rehearsal import REHEARSAL_HANDLE, RehearsalClient
from engram_orchestrator.llm.settings import LlmSettings, ProviderSettings
from engram_orchestrator.model.models import FigureSource, ModelInfo, ModelSettings

RemoteClient = OpenAiChatClient | OpenAiResponsesClient | AnthropicMessagesClient

_DEFAULTS: Final = {"openai": "gpt-4.1", "anthropic": "claude-sonnet-4-5"}
_TABLES: Final = {"openai": OPENAI, "anthropic": ANTHROPIC, "azure": OPENAI}
_CREDENTIALS_IN_URL = re.compile(r"//[^/@]*@")
_ASKED_AGAIN_AFTER: Final = 60.0
_HOLDS_FOR: Final = 300.0
"""Local servers load their models with other windows while engram runs."""


def make_client(settings: ProviderSettings, limits: CallLimits, sleep: Sleep = asyncio.sleep) -> RemoteClient:
    """A client of a provider, by the API that it is to speak. Nothing is opened or imported before its first call."""
    match settings.spoken:
        case Api.MESSAGES:
            return AnthropicMessagesClient(settings, limits, sleep)
        case Api.RESPONSES:
            return OpenAiResponsesClient(settings, limits, sleep)
        case _:
            return OpenAiChatClient(settings, limits, sleep)


class Providers:
    """Resolves handles. Clients are made once per provider, and their SDKs imported when first used."""

    def __init__(
        self, settings: LlmSettings, *, sleep: Sleep = asyncio.sleep, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings = settings
        self._monotonic = monotonic
        self._providers = {provider.name: provider for provider in settings.providers}
        self._remote = {
            name: make_client(provider, settings.limits, sleep) for name, provider in self._providers.items()
        }
        self._rehearsal = RehearsalClient()
        self._served: dict[str, dict[str, ServedModel]] = {}
        self._asked_at: dict[str, float] = {}
        self._asking: dict[str, asyncio.Lock] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The configured providers, engram's own among them."""
        return ("engram", *self._providers)

    def resolve(self, handle: str) -> tuple[ModelInfo, LlmClient]:
        """What is known of a model, and the client that asks it.

        Raises:
            ModelUnknown: the handle is no "provider/model", or its provider is not configured.
        """
        provider, _, name = handle.partition("/")
        client = self._rehearsal if handle == REHEARSAL_HANDLE else self._remote.get(provider)
        if not name or client is None:
            raise ModelUnknown(
                f'No configured provider serves the model "{handle}". Handles are "provider/model"; '
                f"configured: {', '.join(self.names)}.",
                model=handle,
            )
        return self._info(provider, name), client

    async def resolve_for_turn(self, handle: str) -> tuple[ModelInfo, LlmClient]:
        """As `resolve`, with the figures of a server that tells its own: it is asked once, and again if it was away.

        Raises:
            ModelUnknown: as `resolve`.
        """
        provider = handle.partition("/")[0]
        if self._lists(provider) and handle not in self._settings.context_windows:
            await self._learn(provider)
        return self.resolve(handle)

    async def default_handle(self) -> str:
        """The model for who names none: the configured one, else OpenAI's, else Anthropic's, else the first other's.

        A server that lists its models is asked, and its first one taken; without any provider it is the rehearsal.
        """
        if self._settings.default_model is not None:
            return self._settings.default_model
        for provider in sorted(self._providers, key=lambda name: (name != "openai", name != "anthropic")):
            if self._lists(provider):
                await self._learn(provider, anew=True)
            served = self._served.get(provider)
            name = next(iter(served), None) if served else _DEFAULTS.get(self._providers[provider].type)
            if name is not None:
                return f"{provider}/{name}"
        return REHEARSAL_HANDLE

    async def list_models(self) -> tuple[ModelInfo, ...]:
        """The models on offer, by handle: from engram's table, or from a server's own list.

        That list is as it was last read; it is read here where it never was.
        """
        listing = [provider for provider in self._providers if self._lists(provider)]
        await asyncio.gather(*(self._learn(provider) for provider in listing))
        models = {REHEARSAL_HANDLE: self.resolve(REHEARSAL_HANDLE)[0]}
        for provider, settings in self._providers.items():
            table = () if self._lists(provider) else _TABLES.get(settings.dialect.type, ())
            for name in (*(entry.name for entry in table if entry.is_listed), *self._served.get(provider, ())):
                models[f"{provider}/{name}"] = self._info(provider, name)
        if (chosen := self._settings.default_model) is not None and chosen not in models:
            provider, _, name = chosen.partition("/")
            if provider in self._providers and name:
                models[chosen] = self._info(provider, name)
        return tuple(models[handle] for handle in sorted(models))

    async def prepare(self, handle: str) -> None:
        """Imports the SDK behind a handle in a thread, so that the first turn does not pay for it.

        Raises:
            ModelUnknown: as `resolve`.
        """
        _, client = self.resolve(handle)
        if isinstance(client, RemoteClient):
            await asyncio.to_thread(client.prepare)

    async def close(self) -> None:
        """Closes every connection pool."""
        for client in self._remote.values():
            await client.close()

    def _lists(self, provider: str) -> bool:
        """Whether the provider tells its models by a list of its own."""
        settings = self._providers.get(provider)
        speaks_openai = isinstance(self._remote.get(provider), OpenAiChatClient | OpenAiResponsesClient)
        return settings is not None and speaks_openai and settings.dialect.listing is not Listing.TABLE

    async def _learn(self, provider: str, *, anew: bool = False) -> None:
        """Reads a provider's list where that was not done yet; one that is away is asked again only a minute later."""
        client = self._remote[provider]
        if isinstance(client, AnthropicMessagesClient):
            return
        async with self._asking.setdefault(provider, asyncio.Lock()):
            listing = self._providers[provider].dialect.listing
            now, asked_at = self._monotonic(), self._asked_at.get(provider)
            holds_for = _ASKED_AGAIN_AFTER if provider not in self._served else _HOLDS_FOR
            holds = asked_at is not None and now - asked_at < holds_for
            if not anew and (holds or (listing is Listing.MODELS and provider in self._served)):
                return
            self._asked_at[provider] = now
            try:
                served = await served_models(client.endpoint, listing)
            except ProviderError:  # a server that lists nothing may still answer to a name
                return
            self._served[provider] = {model.name: model for model in served}

    def _info(self, provider: str, name: str) -> ModelInfo:
        handle = f"{provider}/{name}"
        if provider == "engram":
            defaults = ModelSettings(context_window=REHEARSAL_WINDOW)
            source = FigureSource.TABLE
            return ModelInfo(handle, provider, name, Api.REHEARSAL, defaults, None, "engram", source)
        settings = self._providers[provider]
        endpoint = settings.endpoint
        entry = known(_TABLES.get(settings.dialect.type, ()), name)
        served = self._served.get(provider, {}).get(name)
        window, window_source = _first(
            (self._settings.context_windows.get(handle), FigureSource.OVERRIDE),
            (served.context_window if served else None, FigureSource.PROVIDER),
            (entry.context_window if entry else None, FigureSource.TABLE),
            (_unknown_window(settings), FigureSource.DEFAULT),
        )
        longest = entry.max_output_tokens if entry else None
        output, output_source = _first(
            (served.max_output_tokens if served else None, FigureSource.PROVIDER), (longest, FigureSource.TABLE)
        )
        return ModelInfo(
            handle,
            provider,
            name,
            settings.spoken,
            ModelSettings(context_window=window, max_output_tokens=longest),
            None if endpoint is None else _CREDENTIALS_IN_URL.sub("//", endpoint),
            settings.dialect.type,
            window_source,
            output,
            output_source,
        )


def _first(*figures: tuple[int | None, FigureSource]) -> tuple[int | None, FigureSource]:
    """The first figure that there is, with where it comes from."""
    return next(((figure, source) for figure, source in figures if figure), (None, FigureSource.DEFAULT))


def _unknown_window(settings: ProviderSettings) -> int:
    match settings.dialect.type:
        case "anthropic":
            return UNKNOWN_ANTHROPIC_WINDOW
        case "openai" | "azure":
            return UNKNOWN_OFFICIAL_WINDOW
        case _:
            return UNKNOWN_COMPATIBLE_WINDOW
