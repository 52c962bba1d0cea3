"""The embedders that archives may name: the built-in ones, and the one that recall and archival are configured with."""

import asyncio
from dataclasses import dataclass
from typing import Final

from mnemesh_orchestrator.errors import EmbedderUnknown
from mnemesh_orchestrator.model.models import EmbeddingModel

_REMEMBERED: Final = 100
"""The number of handles that are known to be usable and not checked again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredEmbedder:
    """The embedder that recall and archival are configured with."""

    handle: str
    base_url: str = ""
    dimension: int = 0
    has_key: bool = False
    """OpenAI's key, or one of the embedder's own, is set."""


class EmbedderDirectory:
    """The embedders that agents and archives may name."""

    def __init__(self, configured: ConfiguredEmbedder) -> None:
        self._configured = configured
        self._usable: set[str] = set()

    async def models(self) -> tuple[EmbeddingModel, ...]:
        """Returns the available embedders by handle. One with an invalid configuration is left out."""
        # In a thread, because the first call imports numpy.
        return await asyncio.to_thread(embedding_models, self._configured)

    async def require(self, handle: str | None) -> None:
        """Raises EmbedderUnknown if archival's settings do not allow to build the embedder. None is the default."""
        if handle is not None and handle not in self._usable:
            await asyncio.to_thread(_require, handle, self._configured)
            if len(self._usable) < _REMEMBERED:
                self._usable.add(handle)


def _require(handle: str, configured: ConfiguredEmbedder) -> None:
    # It imports numpy, which no turn needs.
    from mnemesh_retrieval.errors import EmbedderMisconfigured
    from mnemesh_retrieval.registry import EmbedderSettings, make_embedder

    # Nothing is embedded here. That there is a key suffices; the services have one for the embedder of their settings.
    key = "-" if configured.has_key or handle == configured.handle else ""
    settings = EmbedderSettings(base_url=configured.base_url, api_key=key, dimension=configured.dimension)
    try:
        make_embedder(handle, settings)
    except EmbedderMisconfigured as error:
        raise EmbedderUnknown(handle, str(error)) from error


def embedding_models(configured: ConfiguredEmbedder) -> tuple[EmbeddingModel, ...]:
    """Returns the available embedders by handle. One with an invalid configuration is left out."""
    # It imports numpy, which no turn needs.
    from mnemesh_retrieval.embedders.openai_compatible import BATCH_TEXTS
    from mnemesh_retrieval.errors import EmbedderMisconfigured
    from mnemesh_retrieval.registry import HASHING, OPENAI_BASE_URL, WORDLLAMA, EmbedderSettings, make_embedder

    # Nothing is embedded here, so no key is needed.
    settings = EmbedderSettings(base_url=configured.base_url, api_key="-", dimension=configured.dimension)
    models = []
    offered = {WORDLLAMA, HASHING, configured.handle}
    if configured.has_key and not configured.base_url:
        offered |= {"openai/text-embedding-3-small", "openai/text-embedding-3-large"}
    for handle in sorted(offered):
        try:
            dimension = make_embedder(handle, settings).dimension
        except EmbedderMisconfigured:
            continue
        is_offline = handle.startswith("mnemesh/")
        models.append(
            EmbeddingModel(
                handle=handle,
                provider_type="mnemesh" if is_offline else _type(handle, configured.base_url),
                dimension=dimension,
                batch_size=0 if is_offline else BATCH_TEXTS,
                is_offline=is_offline,
                is_default=handle == configured.handle,
                endpoint=None if is_offline else (configured.base_url or OPENAI_BASE_URL),
            )
        )
    return tuple(models)


def _type(handle: str, base_url: str) -> str:
    return "openai" if handle.startswith("openai/") and not base_url else "openai_compatible"
