"""Builds embedders from their handles: `provider/model`."""

from dataclasses import dataclass, field
from typing import Final

from mnemesh_kit.network import base_url_problem

from mnemesh_retrieval.embedder import HASHING, WORDLLAMA, Embedder
from mnemesh_retrieval.errors import EmbedderMisconfigured

__all__ = ["HASHING", "OPENAI_BASE_URL", "WORDLLAMA", "EmbedderSettings", "make_embedder"]

OPENAI_BASE_URL: Final = "https://api.openai.com/v1"
_OPENAI_DIMENSIONS: Final = {
    "text-embedding-3-small": 1536,
    "text-embedding-3-large": 3072,
    "text-embedding-ada-002": 1536,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedderSettings:
    """The settings of embedders over HTTP. The built-in embedders need none."""

    base_url: str = ""
    """Base URL of an OpenAI-compatible API, `…/v1`. If empty, OpenAI's own, for `openai/…` handles only."""
    api_key: str = field(default="", repr=False)
    dimension: int = 0
    """The vector length of a model that this library does not know; 0 for the model's own."""


def make_embedder(handle: str, settings: EmbedderSettings | None = None) -> Embedder:
    """Builds an embedder. It loads and connects nothing before its first `embed`.

    Raises:
        EmbedderMisconfigured: the handle is unknown, or settings that it needs are missing.
    """
    settings = settings or EmbedderSettings()
    provider, _, model = handle.partition("/")
    if not provider or not model:
        raise EmbedderMisconfigured(f"embedder {handle!r} is not of the form provider/model")
    if provider == "mnemesh":
        return _built_in(handle)
    return _over_http(handle, provider, model, settings)


def _built_in(handle: str) -> Embedder:
    if handle == WORDLLAMA:
        from mnemesh_retrieval.embedders.built_in import WordLlamaEmbedder  # noqa: PLC0415 - loaded when configured

        return WordLlamaEmbedder()
    if handle == HASHING:
        from mnemesh_retrieval.embedders.built_in import HashingEmbedder  # noqa: PLC0415 - loaded when configured

        return HashingEmbedder()
    raise EmbedderMisconfigured(f"there is no built-in embedder {handle!r}; use {WORDLLAMA} or {HASHING}")


def _over_http(handle: str, provider: str, model: str, settings: EmbedderSettings) -> Embedder:
    from mnemesh_retrieval.embedders.openai_compatible import OpenAICompatibleEmbedder  # noqa: PLC0415

    base_url = settings.base_url or (OPENAI_BASE_URL if provider == "openai" else "")
    if not base_url:
        raise EmbedderMisconfigured(
            f"embedder {handle!r} needs the base URL of an OpenAI-compatible API: set MNEMESH_EMBEDDER_BASE_URL"
        )
    problem = base_url_problem(base_url)
    if problem is not None:
        raise EmbedderMisconfigured(f"embedder {handle!r}: the base URL {problem}")
    native = _OPENAI_DIMENSIONS.get(model, 0)
    dimension = settings.dimension or native
    if dimension <= 0:
        raise EmbedderMisconfigured(f"embedder {handle!r} needs its vector dimension: set MNEMESH_EMBEDDER_DIMENSION")
    if not settings.api_key and base_url == OPENAI_BASE_URL:
        raise EmbedderMisconfigured(
            f"embedder {handle!r} needs an API key: set OPENAI_API_KEY, or MNEMESH_EMBEDDER_API_KEY, and restart "
            "the services. The key of a registered provider is used for models only"
        )
    return OpenAICompatibleEmbedder(
        handle=handle,
        model=model,
        base_url=base_url,
        api_key=settings.api_key,
        dimension=dimension,
        request_dimension=native not in (0, dimension),
    )
