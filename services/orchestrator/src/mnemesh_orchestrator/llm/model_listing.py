"""Lists the models of a server and the context windows that it really offers."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from mnemesh_orchestrator.llm.dialects import Listing
from mnemesh_orchestrator.llm.errors import ProviderBadAnswer, ProviderError
from mnemesh_orchestrator.llm.openai_client import OpenAiEndpoint
from mnemesh_orchestrator.model.providers import ServedModel

# The names that vLLM, OpenRouter and Together, Groq, Mistral and others use.
_WINDOWS: Final = ("max_model_len", "context_length", "context_window", "max_context_length", "max_context_window")
_OUTPUTS: Final = ("max_completion_tokens", "max_output_tokens")
_NOT_CHAT: Final = frozenset({"embedding", "embeddings", "image", "audio", "moderation", "rerank", "transcribe"})
OLLAMA_WINDOW: Final = 4096
"""Ollama's window for a model that is not loaded and has no setting. It truncates longer prompts silently."""
_CONCURRENT_DETAILS: Final = 4


async def served_models(endpoint: OpenAiEndpoint, listing: Listing) -> tuple[ServedModel, ...]:
    """Returns the models of an endpoint in its own order.

    Raises:
        ProviderError: the endpoint could not be called.
    """
    if listing is Listing.LM_STUDIO and (models := await _lm_studio_models(endpoint)) is not None:
        return models
    models = models_of_page(endpoint.name, await endpoint.get("/models"))
    return await _with_ollama_windows(endpoint, models) if listing is Listing.OLLAMA else models


def models_of_page(provider: str, page: Any) -> tuple[ServedModel, ...]:
    """Returns the rows of GET /models, which some servers return without an envelope.

    Raises:
        ProviderBadAnswer: the answer is not a list.
    """
    rows = page.get("data") if isinstance(page, Mapping) else page
    if not isinstance(rows, list):
        raise ProviderBadAnswer(f"{provider} returned no list of models.", provider=provider)
    return tuple(_model_of_row(row) for row in _rows(rows) if isinstance(row.get("id"), str) and _is_chat(row))


def _model_of_row(row: Mapping[str, Any]) -> ServedModel:
    top = row.get("top_provider")
    outputs = {**row, **{key: top.get(key) for key in _OUTPUTS}} if isinstance(top, Mapping) else row
    return ServedModel(
        str(row["id"]).removeprefix("models/"), _positive_int(row, *_WINDOWS), _positive_int(outputs, *_OUTPUTS)
    )


def _is_chat(row: Mapping[str, Any]) -> bool:
    return str(row.get("type") or "").lower() not in _NOT_CHAT


async def _with_ollama_windows(endpoint: OpenAiEndpoint, models: tuple[ServedModel, ...]) -> tuple[ServedModel, ...]:
    """Adds the windows that Ollama uses: of the loaded model, otherwise of the model file."""
    root = str(endpoint.client.base_url).rstrip("/").removesuffix("/v1")
    try:
        running = await endpoint.get(f"{root}/api/ps")
    except ProviderError:  # A proxy in between may allow /v1 only.
        return models
    loaded = {
        str(row.get("name")): _positive_int(row, "context_length")
        for row in _rows(running.get("models") if isinstance(running, Mapping) else None)
    }
    semaphore = asyncio.Semaphore(_CONCURRENT_DETAILS)

    async def with_window(model: ServedModel) -> ServedModel:
        if (window := loaded.get(model.name)) is None:
            async with semaphore:
                window = await _ollama_window(endpoint, root, model.name)
        return replace(model, context_window=window)

    return tuple(await asyncio.gather(*(with_window(model) for model in models)))


async def _ollama_window(endpoint: OpenAiEndpoint, root: str, name: str) -> int:
    try:
        details = await endpoint.post(f"{root}/api/show", {"model": name})
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


async def _lm_studio_models(endpoint: OpenAiEndpoint) -> tuple[ServedModel, ...] | None:
    """Reads LM Studio's own API, the newer one first. Returns None if it has neither."""
    root = str(endpoint.client.base_url).rstrip("/").removesuffix("/v1")
    for path, key, name_key in (("/api/v1/models", "models", "key"), ("/api/v0/models", "data", "id")):
        try:
            page = await endpoint.get(f"{root}{path}")
        except ProviderError:
            continue
        rows = _rows(page.get(key) if isinstance(page, Mapping) else None)
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
    for instance in _rows(row.get("loaded_instances")):
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


def _rows(value: object) -> list[Mapping[str, Any]]:
    return [row for row in value if isinstance(row, Mapping)] if isinstance(value, list) else []
