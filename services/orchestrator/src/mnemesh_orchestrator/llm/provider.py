"""One provider: its client, the models that it last listed, and their figures."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime
from typing import Final

from mnemesh_orchestrator.llm.anthropic_messages import AnthropicMessagesClient
from mnemesh_orchestrator.llm.attempts import CallLimits, Sleep
from mnemesh_orchestrator.llm.dialects import Api, Listing
from mnemesh_orchestrator.llm.errors import (
    ProviderBadAnswer,
    ProviderError,
    ProviderRefused,
    ProviderTimeout,
    ProviderUnavailable,
)
from mnemesh_orchestrator.llm.known_models import (
    ANTHROPIC,
    OPENAI,
    UNKNOWN_ANTHROPIC_WINDOW,
    UNKNOWN_COMPATIBLE_WINDOW,
    UNKNOWN_OFFICIAL_WINDOW,
    known_model,
)
from mnemesh_orchestrator.llm.model_figures import model_figures
from mnemesh_orchestrator.llm.model_listing import models_of_page, served_models
from mnemesh_orchestrator.llm.openai_chat import OpenAiChatClient
from mnemesh_orchestrator.llm.openai_responses import OpenAiResponsesClient
from mnemesh_orchestrator.llm.settings import ProviderSettings
from mnemesh_orchestrator.model.models import FigureSource, ModelInfo, ModelSettings
from mnemesh_orchestrator.model.providers import ServedModel

RemoteClient = OpenAiChatClient | OpenAiResponsesClient | AnthropicMessagesClient

_DEFAULTS: Final = {"openai": "gpt-6-luna", "anthropic": "claude-haiku-5-5"}
_TABLES: Final = {"openai": OPENAI, "anthropic": ANTHROPIC, "azure": OPENAI}
# A vendor's list contains these in addition to its language models, with similar names.
_NOT_LANGUAGE_MODEL: Final = re.compile(r"audio|realtime|transcribe|tts|image|embedding|moderation|instruct|search")
_RETRY_SECONDS: Final = 60.0
_LIST_SECONDS: Final = 300.0
"""Local servers load their models with other windows while mnemesh runs."""
_MAX_CACHED_INFOS: Final = 256
_ALL_MODELS: Final = "/v1/models?limit=1000"


def make_client(settings: ProviderSettings, limits: CallLimits, sleep: Sleep = asyncio.sleep) -> RemoteClient:
    """Creates the client of a provider for its API. Nothing is opened or imported before its first call."""
    match settings.api_in_use:
        case Api.MESSAGES:
            return AnthropicMessagesClient(settings, limits, sleep)
        case Api.RESPONSES:
            return OpenAiResponsesClient(settings, limits, sleep)
        case _:
            return OpenAiChatClient(settings, limits, sleep)


async def read_models(client: RemoteClient, settings: ProviderSettings) -> tuple[ServedModel, ...]:
    """Returns the models that a provider lists, in its own order.

    Raises:
        ProviderError: the provider could not be called, or returned no list. A provider without a list raises
            ProviderBadAnswer.
    """
    await asyncio.to_thread(client.prepare)  # Importing an SDK takes a second.
    try:
        if isinstance(client, AnthropicMessagesClient):
            return models_of_page(settings.name, await client.get(_ALL_MODELS))
        return await served_models(client.endpoint, settings.dialect.listing)
    except ProviderRefused as error:
        raise ProviderBadAnswer(
            f"{settings.name} gives no list of models at {settings.endpoint}: {error.message}",
            provider=settings.name,
            status=error.status,
        ) from None


def language_models(settings: ProviderSettings, served: tuple[ServedModel, ...]) -> tuple[ServedModel, ...]:
    """Returns the models that agents may use. Of a vendor with a mixed list, these are the known ones."""
    table = _TABLES.get(settings.dialect.type)
    is_vendors_own = settings.endpoint == settings.dialect.base_url
    if settings.dialect.listing is not Listing.TABLE or table is None or not is_vendors_own:
        return served
    return tuple(
        model for model in served if known_model(table, model.name) and not _NOT_LANGUAGE_MODEL.search(model.name)
    )


class Provider:
    """A provider in use. Its client is created once, and its SDK imported by the first call."""

    def __init__(
        self,
        settings: ProviderSettings,
        limits: CallLimits,
        sleep: Sleep,
        monotonic: Callable[[], float],
        *,
        provider_id: str | None = None,
    ) -> None:
        self.settings = settings
        self.client = make_client(settings, limits, sleep)
        self.refreshed_at: datetime | None = None
        self._provider_id = provider_id
        self._monotonic = monotonic
        self._served: dict[str, ServedModel] | None = None
        self._has_list = True
        self._infos: dict[tuple[str, int | None], ModelInfo] = {}
        self._listed_at: float | None = None
        self._list_lock = asyncio.Lock()
        self._in_use = 0
        self._is_closing = False

    @property
    def lists_own_models(self) -> bool:
        """True if the provider's own list is offered instead of mnemesh's table."""
        is_openai = not isinstance(self.client, AnthropicMessagesClient)
        return is_openai and self.settings.dialect.listing is not Listing.TABLE

    @property
    def default_model(self) -> str | None:
        """Returns the default model: the first that the provider lists, or the one of its vendor's table.

        None if it lists none, or if its list is unknown: it may not serve the vendor's models.
        """
        if self.lists_own_models and self._has_list:
            return next(iter(self._served or ()), None)
        return _DEFAULTS.get(self.settings.type)

    @property
    def has_answered(self) -> bool:
        """True if what models the provider lists is known, also if it has no list."""
        return self._served is not None or not self._has_list or not self.lists_own_models

    @property
    def offered_models(self) -> tuple[str, ...]:
        """Returns the names of its models that are offered in lists."""
        if self.lists_own_models or self._served is not None:
            return tuple(self._served or ())
        return tuple(entry.name for entry in _TABLES.get(self.settings.dialect.type, ()) if entry.is_listed)

    def set_listed_models(self, served: tuple[ServedModel, ...], refreshed_at: datetime | None) -> None:
        """Stores the models that the provider listed."""
        self._served = {model.name: model for model in language_models(self.settings, served)}
        self.refreshed_at = refreshed_at
        self._infos.clear()

    async def load_models(self, *, refresh: bool = False) -> None:
        """Reads the list once. An unreachable provider is called again after a minute."""
        if not self.lists_own_models:
            return
        async with self._list_lock:
            now, listed_at = self._monotonic(), self._listed_at
            max_age = _RETRY_SECONDS if self._served is None else _LIST_SECONDS
            is_recent = listed_at is not None and now - listed_at < max_age
            is_final = self.settings.dialect.listing is Listing.MODELS and self._served is not None
            if not refresh and (is_recent or is_final):
                return
            self._listed_at = now
            try:
                self.set_listed_models(await read_models(self.client, self.settings), self.refreshed_at)
            except (ProviderUnavailable, ProviderTimeout):
                return
            except ProviderError:  # A server without a list may still serve the name.
                self._has_list = self._served is not None

    @asynccontextmanager
    async def borrow_client(self) -> AsyncIterator[RemoteClient]:
        """Provides the client, whose connections stay open while it is used."""
        self._in_use += 1
        try:
            yield self.client
        finally:
            self._in_use -= 1
            await self._close_if_done()

    async def close_when_idle(self) -> None:
        """Closes its connections when they are no longer used."""
        self._is_closing = True
        await self._close_if_done()

    async def _close_if_done(self) -> None:
        if self._is_closing and not self._in_use:
            await self.client.close()

    def info(self, name: str, window: int | None = None) -> ModelInfo:
        """Returns the figures of a model. `window` precedes every other source."""
        info = self._infos.get((name, window))
        if info is None:
            if len(self._infos) == _MAX_CACHED_INFOS:
                self._infos.clear()
            info = self._infos[name, window] = self._model_info(name, window)
        return info

    def _model_info(self, name: str, window: int | None) -> ModelInfo:
        settings = self.settings
        entry = known_model(_TABLES.get(settings.dialect.type, ()), name)
        figures = model_figures(settings.dialect.type, name)
        served = (self._served or {}).get(name)
        window, window_source = _first_known(
            (window, FigureSource.OVERRIDE),
            (served.context_window if served else None, FigureSource.PROVIDER),
            (figures.context_window if figures else None, FigureSource.TABLE),
            (entry.context_window if entry else None, FigureSource.TABLE),
            (_default_window(settings), FigureSource.DEFAULT),
        )
        longest = entry.max_output_tokens if entry else None
        output, output_source = _first_known(
            (served.max_output_tokens if served else None, FigureSource.PROVIDER), (longest, FigureSource.TABLE)
        )
        info = ModelInfo(
            f"{settings.name}/{name}",
            settings.name,
            name,
            settings.api_in_use,
            ModelSettings(context_window=window, max_output_tokens=longest),
            settings.endpoint,
            settings.dialect.type,
            window_source,
            output,
            output_source,
        )
        if figures is not None:
            info = replace(info, price=figures.price)
        return replace(info, provider_id=self._provider_id, last_seen_at=self.refreshed_at if served else None)


def _first_known(*figures: tuple[int | None, FigureSource]) -> tuple[int | None, FigureSource]:
    """Returns the first known figure and its source."""
    return next(((figure, source) for figure, source in figures if figure), (None, FigureSource.DEFAULT))


def _default_window(settings: ProviderSettings) -> int:
    match settings.dialect.type:
        case "anthropic":
            return UNKNOWN_ANTHROPIC_WINDOW
        case "openai" | "azure":
            return UNKNOWN_OFFICIAL_WINDOW
        case _:
            return UNKNOWN_COMPATIBLE_WINDOW
