"""One provider: its client, the models that it last listed, their figures and their capabilities."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from importlib.resources import files
from typing import Any, Final

from mnemesh_types.agents import ModelPrice, ModelSettings
from mnemesh_types.usage import Usage

from mnemesh_orchestrator.llm.anthropic_messages import AnthropicMessagesClient, thinks
from mnemesh_orchestrator.llm.assembly import objects_of
from mnemesh_orchestrator.llm.calls import SdkModel
from mnemesh_orchestrator.llm.errors import (
    ProviderBadAnswer,
    ProviderError,
    ProviderRefused,
    ProviderTimeout,
    ProviderUnavailable,
)
from mnemesh_orchestrator.llm.openai_chat import OpenAiChatClient, reasons
from mnemesh_orchestrator.llm.openai_responses import OpenAiResponsesClient
from mnemesh_orchestrator.llm.port import CallLimits, Sleep
from mnemesh_orchestrator.llm.settings import Api, Listing, ProviderSettings, dialect_for
from mnemesh_orchestrator.model.models import FigureSource, ModelInfo, ServedModel

_VERSION: Final = re.compile(r"-(?:latest|\d{4}-\d{2}-\d{2}|\d{8}|\d{4})(?:-v\d+(?::\d+)?)?$|-v\d+:\d+$")
"""The end of a name that says which version of a model is meant."""

# The names that vLLM, OpenRouter and Together, Groq, Mistral and others use.
_WINDOWS: Final = ("max_model_len", "context_length", "context_window", "max_context_length", "max_context_window")
_OUTPUTS: Final = ("max_completion_tokens", "max_output_tokens")
_NOT_CHAT: Final = frozenset({"embedding", "embeddings", "image", "audio", "moderation", "rerank", "transcribe"})
OLLAMA_WINDOW: Final = 4096
"""Ollama's window for a model that is not loaded and has no setting. It truncates longer prompts silently."""
_CONCURRENT_DETAILS: Final = 4


_DEFAULTS: Final = {"openai": "gpt-6-luna", "anthropic": "claude-haiku-5-5"}
# A vendor's list contains these in addition to its language models, with similar names.
_NOT_LANGUAGE_MODEL: Final = re.compile(r"audio|realtime|transcribe|tts|image|embedding|moderation|instruct|search")
_RETRY_SECONDS: Final = 60.0
_LIST_SECONDS: Final = 300.0
"""Local servers load their models with other windows while mnemesh runs."""
_MAX_CACHED_INFOS: Final = 256
_ALL_MODELS: Final = "/v1/models?limit=1000"

# Names of models and families that read images, wherever they are served.
_SEES: Final = re.compile(
    r"(?:^|[/:._-])(?:claude|gemini|pixtral|llava|bakllava|moondream|minicpm-v|internvl|glm-[\d.]+v|grok-[4-9]|"
    r"gemma-?[34]|llama-?4|phi-[\d.]*-?(?:vision|multimodal)|mistral-(?:small-3\.[12]|medium-3|large-3)|"
    r"(?:chat)?gpt-(?:4o|4\.[15]|4-turbo|[5-9])|o1(?!-(?:mini|preview))|o3(?!-mini)|o4)|vision|[-_.\d]vl\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class ModelFigures:
    """The context window of a model, and its prices for short requests."""

    context_window: int | None
    price: ModelPrice


def model_figures(type_: str, name: str) -> ModelFigures | None:
    """Returns the figures of a model, or of the model of which `name` is a version; None if they are not known.

    Args:
        type_: the type of the provider.
        name: the provider's name of the model.
    """
    models = _figures().get(type_, {})
    row = models.get(name) or models.get(_VERSION.sub("", name))
    if row is None:
        return None
    window, *prices = row
    return ModelFigures(window, ModelPrice(*prices))


def cost_of(usage: Usage, price: ModelPrice | None) -> int | None:
    """Returns the cost of tokens in billionths of a US dollar; None if the tokens or a price are not known.

    Cached tokens whose price is not known cost as much as others.
    """
    if price is None or price.input is None or price.output is None:
        return None
    if usage.prompt_tokens is None or usage.completion_tokens is None:
        return None
    read, written = usage.cached_input_tokens or 0, usage.cache_write_tokens or 0
    plain = max(0, usage.prompt_tokens - read - written)
    millionths = (
        plain * price.input
        + read * (price.input if price.cached_input is None else price.cached_input)
        + written * (price.input if price.cache_write is None else price.cache_write)
        + usage.completion_tokens * price.output
    )
    return round(millionths / 1_000)


@cache
def _figures() -> dict[str, dict[str, list[int | None]]]:
    text = files(__package__).joinpath("model_figures.json").read_text()
    figures: dict[str, dict[str, list[int | None]]] = json.loads(text)
    return figures


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model, or the family of all models whose names start with `name`. `is_listed` offers it in lists of models."""

    name: str
    context_window: int
    max_output_tokens: int | None = None
    is_listed: bool = False


UNKNOWN_OFFICIAL_WINDOW: Final = 128_000
UNKNOWN_COMPATIBLE_WINDOW: Final = 32_000
UNKNOWN_ANTHROPIC_WINDOW: Final = 200_000
REHEARSAL_WINDOW: Final = 128_000

OPENAI: Final = (
    KnownModel("gpt-6", 400_000),
    KnownModel("gpt-6-luna", 400_000, is_listed=True),
    KnownModel("gpt-6.1-sol", 400_000, is_listed=True),
    KnownModel("gpt-6.1-terra", 400_000, is_listed=True),
    KnownModel("gpt-5", 400_000, is_listed=True),
    KnownModel("gpt-5-mini", 400_000, is_listed=True),
    KnownModel("gpt-5-nano", 400_000, is_listed=True),
    KnownModel("gpt-5.2", 400_000, is_listed=True),
    KnownModel("gpt-5.5", 400_000, is_listed=True),
    KnownModel("gpt-5-chat", 128_000),
    KnownModel("gpt-5.1-chat", 128_000),
    KnownModel("gpt-5.2-chat", 128_000),
    KnownModel("gpt-5.3-chat", 128_000),
    KnownModel("gpt-4.1", 1_047_576, is_listed=True),
    KnownModel("gpt-4.1-mini", 1_047_576, is_listed=True),
    KnownModel("gpt-4.1-nano", 1_047_576, is_listed=True),
    KnownModel("gpt-4o", 128_000, is_listed=True),
    KnownModel("gpt-4o-mini", 128_000, is_listed=True),
    KnownModel("chatgpt-4o", 128_000),
    KnownModel("gpt-4-turbo", 128_000),
    KnownModel("gpt-4-1106", 128_000),
    KnownModel("gpt-4-0125", 128_000),
    KnownModel("gpt-4-32k", 32_768),
    KnownModel("gpt-4", 8_192),
    KnownModel("gpt-3.5-turbo", 16_385),
    KnownModel("o1", 200_000),
    KnownModel("o1-mini", 128_000),
    KnownModel("o1-preview", 128_000),
    KnownModel("o3", 200_000, is_listed=True),
    KnownModel("o3-mini", 200_000, is_listed=True),
    KnownModel("o4-mini", 200_000, is_listed=True),
)

ANTHROPIC: Final = (
    KnownModel("claude-", 200_000, 32_000),
    KnownModel("claude-3", 200_000, 4_096),
    KnownModel("claude-3-5", 200_000, 8_192),
    KnownModel("claude-3-7", 200_000, 32_000),
    KnownModel("claude-haiku-4-5", 200_000, 32_000, is_listed=True),
    KnownModel("claude-sonnet-4-5", 200_000, 32_000, is_listed=True),
    KnownModel("claude-opus-4-5", 200_000, 32_000, is_listed=True),
    KnownModel("claude-sonnet-4-6", 200_000, 32_000, is_listed=True),
    KnownModel("claude-opus-4-8", 200_000, 32_000, is_listed=True),
    KnownModel("claude-haiku-5-5", 200_000, 32_000, is_listed=True),
    KnownModel("claude-sonnet-5-5", 200_000, 32_000, is_listed=True),
    KnownModel("claude-opus-5-5", 200_000, 32_000, is_listed=True),
)


def known_model(table: tuple[KnownModel, ...], name: str) -> KnownModel | None:
    """Returns the entry with the longest name that `name` starts with."""
    candidates = [entry for entry in table if name.startswith(entry.name)]
    return max(candidates, key=lambda entry: len(entry.name), default=None)


async def list_served_models(client: SdkModel, listing: Listing) -> tuple[ServedModel, ...]:
    """Returns the models of an endpoint in its own order.

    Raises:
        ProviderError: the endpoint could not be called.
    """
    if listing is Listing.LM_STUDIO and (models := await _lm_studio_models(client)) is not None:
        return models
    models = models_of_page(client.name, await client.get("/models"))
    return await _with_ollama_windows(client, models) if listing is Listing.OLLAMA else models


def models_of_page(provider: str, page: Any) -> tuple[ServedModel, ...]:
    """Returns the rows of GET /models, which some servers return without an envelope.

    Raises:
        ProviderBadAnswer: the answer is not a list.
    """
    rows = page.get("data") if isinstance(page, Mapping) else page
    if not isinstance(rows, list):
        raise ProviderBadAnswer(f"{provider} returned no list of models.", provider=provider)
    return tuple(_model_of_row(row) for row in objects_of(rows) if isinstance(row.get("id"), str) and _is_chat(row))


def _model_of_row(row: Mapping[str, Any]) -> ServedModel:
    top = row.get("top_provider")
    outputs = {**row, **{key: top.get(key) for key in _OUTPUTS}} if isinstance(top, Mapping) else row
    return ServedModel(
        str(row["id"]).removeprefix("models/"), _positive_int(row, *_WINDOWS), _positive_int(outputs, *_OUTPUTS)
    )


def _is_chat(row: Mapping[str, Any]) -> bool:
    return str(row.get("type") or "").lower() not in _NOT_CHAT


async def _with_ollama_windows(client: SdkModel, models: tuple[ServedModel, ...]) -> tuple[ServedModel, ...]:
    """Adds the windows that Ollama uses: of the loaded model, otherwise of the model file."""
    root = str(client.sdk_client.client.base_url).rstrip("/").removesuffix("/v1")
    try:
        running = await client.get(f"{root}/api/ps")
    except ProviderError:  # A proxy in between may allow /v1 only.
        return models
    loaded = {
        str(row.get("name")): _positive_int(row, "context_length")
        for row in objects_of(running.get("models") if isinstance(running, Mapping) else None)
    }
    semaphore = asyncio.Semaphore(_CONCURRENT_DETAILS)

    async def with_window(model: ServedModel) -> ServedModel:
        if (window := loaded.get(model.name)) is None:
            async with semaphore:
                window = await _ollama_window(client, root, model.name)
        return replace(model, context_window=window)

    return tuple(await asyncio.gather(*(with_window(model) for model in models)))


async def _ollama_window(client: SdkModel, root: str, name: str) -> int:
    try:
        details = await client.post(f"{root}/api/show", {"model": name})
    except ProviderError:
        return OLLAMA_WINDOW
    details = details if isinstance(details, Mapping) else {}
    for line in str(details.get("parameters") or "").splitlines():
        fields = line.split()
        if len(fields) == 2 and fields[0] == "num_ctx" and fields[1].isdecimal():
            return int(fields[1])
    info = details.get("model_info")
    lengths = [
        value
        for key, value in (info.items() if isinstance(info, Mapping) else ())
        if str(key).endswith(".context_length") and isinstance(value, int)
    ]
    return min([OLLAMA_WINDOW, *lengths])


async def _lm_studio_models(client: SdkModel) -> tuple[ServedModel, ...] | None:
    """Reads LM Studio's own API, the newer one first. Returns None if it has neither."""
    root = str(client.sdk_client.client.base_url).rstrip("/").removesuffix("/v1")
    for path, key, name_key in (("/api/v1/models", "models", "key"), ("/api/v0/models", "data", "id")):
        try:
            page = await client.get(f"{root}{path}")
        except ProviderError:
            continue
        rows = objects_of(page.get(key) if isinstance(page, Mapping) else None)
        models = tuple(
            ServedModel(str(row[name_key]), _lm_studio_window(row))
            for row in rows
            if row.get(name_key) and _is_chat(row)
        )
        if models:
            return models
    return None


def _lm_studio_window(row: Mapping[str, Any]) -> int | None:
    """Returns the window of the loaded model if it is loaded, otherwise the longest possible one."""
    for instance in objects_of(row.get("loaded_instances")):
        config = instance.get("config")
        if isinstance(config, Mapping) and (window := _positive_int(config, "context_length")) is not None:
            return window
    return _positive_int(row, "loaded_context_length", "max_context_length")


def _positive_int(row: Mapping[str, Any], *names: str) -> int | None:
    for name in names:
        value = row.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


_TABLES: Final = {"openai": OPENAI, "anthropic": ANTHROPIC, "azure": OPENAI}


def make_client(settings: ProviderSettings, limits: CallLimits, sleep: Sleep = asyncio.sleep) -> SdkModel:
    """Creates the client of a provider for its API. Nothing is opened or imported before its first call."""
    match settings.api_in_use:
        case Api.MESSAGES:
            return AnthropicMessagesClient(settings, limits, sleep)
        case Api.RESPONSES:
            return OpenAiResponsesClient(settings, limits, sleep)
        case _:
            return OpenAiChatClient(settings, limits, sleep)


async def read_models(client: SdkModel, settings: ProviderSettings) -> tuple[ServedModel, ...]:
    """Returns the models that a provider lists, in its own order.

    Raises:
        ProviderError: the provider could not be called, or returned no list. A provider without a list raises
            ProviderBadAnswer.
    """
    await asyncio.to_thread(client.prepare)  # Importing an SDK takes a second.
    try:
        if isinstance(client, AnthropicMessagesClient):
            return models_of_page(settings.name, await client.get(_ALL_MODELS))
        return await list_served_models(client, settings.dialect.listing)
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
    async def borrow_client(self) -> AsyncIterator[SdkModel]:
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
    return next(((figure, source) for figure, source in figures if figure), (None, FigureSource.DEFAULT))


def _default_window(settings: ProviderSettings) -> int:
    match settings.dialect.type:
        case "anthropic":
            return UNKNOWN_ANTHROPIC_WINDOW
        case "openai" | "azure":
            return UNKNOWN_OFFICIAL_WINDOW
        case _:
            return UNKNOWN_COMPATIBLE_WINDOW


def reads_images(info: ModelInfo) -> bool:
    """Returns whether a model accepts images: as its organization says, or else by its name.

    No API says it in a common form. A model with an unknown name is taken for one that reads text only.
    """
    known = info.capabilities.get("image_input")
    if known is not None:
        return known
    return info.api != Api.REHEARSAL and _SEES.search(info.provider_model) is not None


def with_capabilities(info: ModelInfo) -> ModelInfo:
    """Returns the model with all its capabilities: those of its provider's API, overridden by the organization's.

    They say what the API accepts. No API reports how well a model does something.
    """
    dialect = dialect_for(*info.vendor)
    is_remote = info.api != Api.REHEARSAL
    known = {
        "streaming": True,
        "tool_calling": True,
        "parallel_tool_calls": is_remote and dialect.parallel_flag,
        "forced_tool_choice": is_remote,
        "strict_tool_schemas": is_remote and dialect.strict_tools,
        "structured_output": is_remote and dialect.json_schema,
        "reasoning": is_remote and (reasons(info) or thinks(info)),
        "image_input": reads_images(info),
        "temperature": is_remote and not reasons(info),
    }
    return replace(info, capabilities={**known, **info.capabilities})
