"""Makes embedders from their handles: `provider/model`."""

from __future__ import annotations

from dataclasses import dataclass

from mnemesh_retrieval.embedder import Embedder
from mnemesh_retrieval.errors import EmbedderMisconfigured

WORDLLAMA = "mnemesh/wordllama-256"
HASHING = "mnemesh/hashing-256"

OPENAI_BASE_URL = "https://api.openai.com/v1"
OPENAI_DIMENSIONS = {
    "text-embedding-3-small": 1536,
    "text-embedding-3-large": 3072,
    "text-embedding-ada-002": 1536,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedderSettings:
    """What embedders over HTTP need; the offline ones need nothing."""

    base_url: str = ""
    """Base URL of an OpenAI-compatible API, `…/v1`. Empty: OpenAI's own, for `openai/…` handles only."""
    api_key: str = ""
    dimension: int = 0
    """The vector length of a model that this library does not know; 0 means the model's own."""

    def __repr__(self) -> str:
        return f"EmbedderSettings(base_url={self.base_url!r}, api_key={'***' if self.api_key else ''!r})"


def make_embedder(handle: str, settings: EmbedderSettings | None = None) -> Embedder:
    """Build the embedder that a handle names. Nothing is loaded or connected before its first `embed`.

    Raises:
        EmbedderMisconfigured: an unknown handle, or settings that it needs are missing.
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
        from mnemesh_retrieval.embedders.wordllama import WordLlamaEmbedder  # noqa: PLC0415 - loaded when configured

        return WordLlamaEmbedder()
    if handle == HASHING:
        from mnemesh_retrieval.embedders.hashing import HashingEmbedder  # noqa: PLC0415 - loaded when configured

        return HashingEmbedder()
    raise EmbedderMisconfigured(f"no built-in embedder {handle!r}; there are {WORDLLAMA} and {HASHING}")


def _over_http(handle: str, provider: str, model: str, settings: EmbedderSettings) -> Embedder:
    from mnemesh_retrieval.embedders.openai_compatible import OpenAICompatibleEmbedder  # noqa: PLC0415

    base_url = settings.base_url or (OPENAI_BASE_URL if provider == "openai" else "")
    if not base_url:
        raise EmbedderMisconfigured(f"embedder {handle!r} needs the base URL of an OpenAI-compatible API")
    native = OPENAI_DIMENSIONS.get(model, 0)
    dimension = settings.dimension or native
    if dimension <= 0:
        raise EmbedderMisconfigured(f"embedder {handle!r} needs its vector dimension to be configured")
    if not settings.api_key and base_url == OPENAI_BASE_URL:
        raise EmbedderMisconfigured(f"embedder {handle!r} needs an API key")
    return OpenAICompatibleEmbedder(
        handle=handle,
        model=model,
        base_url=base_url,
        api_key=settings.api_key,
        dimension=dimension,
        ask_dimension=native not in (0, dimension),
    )
