"""Builds the configured embedder and reranker, and opens the configured vector index when a service starts."""

from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from mnemesh_kit.config import ConfigError, StartupError
from mnemesh_kit.extras import install_hint

from mnemesh_retrieval.config import EmbedderConfig, IndexConfig, SearchConfig
from mnemesh_retrieval.embedder import Embedder
from mnemesh_retrieval.errors import (
    EmbedderMisconfigured,
    RerankerMisconfigured,
    VectorIndexError,
)
from mnemesh_retrieval.registry import make_embedder
from mnemesh_retrieval.rerankers.registry import RerankerSettings, make_reranker
from mnemesh_retrieval.rerankers.reranking import MAX_CANDIDATES, Reranking

if TYPE_CHECKING:
    from mnemesh_retrieval.server import ServerIndex

_MAX_RERANKER_MS: Final = 60_000
_RESERVE_BYTES: Final = 128 << 20
"""The free space that the embedded index leaves on its disk. With less, records are still stored, and the index is
updated after there is space again."""
I_co = TypeVar("I_co", covariant=True)


class EmbeddedEngine(Protocol[I_co]):
    """An index class that keeps its data in one directory: FlatIndex or EdgeIndex."""

    async def open(self, directory: Path, *, flush_interval_seconds: float = 10.0, reserve_bytes: int = 0) -> I_co:
        """Opens the index in `directory`, creating it if absent. Raises IndexLocked."""


def embedder_from_config(config: EmbedderConfig) -> Embedder:
    """Returns the configured default embedder. Loads and connects nothing.

    Raises:
        ConfigError: the settings name no embedder that can be built.
    """
    try:
        return make_embedder(config.embedder, config.embedder_settings)
    except EmbedderMisconfigured as error:
        raise ConfigError(f"MNEMESH_EMBEDDER: {error}.") from error


def reranking_from_config(config: SearchConfig) -> Reranking:
    """Returns the use of the configured reranker, or of none. Loads and connects nothing.

    Raises:
        ConfigError: the settings name no reranker that can be built, or a number is out of range.
    """
    if not config.reranker:
        return Reranking(None)
    if not 1 <= config.reranker_timeout_ms <= _MAX_RERANKER_MS:
        raise ConfigError(f"MNEMESH_RERANKER_TIMEOUT_MS must be between 1 and {_MAX_RERANKER_MS:,}.")
    if not 2 <= config.reranker_candidates <= MAX_CANDIDATES:
        raise ConfigError(f"MNEMESH_RERANKER_CANDIDATES must be between 2 and {MAX_CANDIDATES}.")
    seconds = config.reranker_timeout_ms / 1000
    settings = RerankerSettings(
        base_url=config.reranker_base_url,
        api_key=config.reranker_api_key,
        directory=config.reranker_directory,
        timeout_seconds=seconds,
    )
    try:
        reranker = make_reranker(config.reranker, settings)
    except RerankerMisconfigured as error:
        raise ConfigError(f"MNEMESH_RERANKER: {error}.") from error
    return Reranking(
        reranker,
        timeout_seconds=seconds,
        candidates=config.reranker_candidates,
    )


async def open_index(config: IndexConfig, directory: Path, engine: EmbeddedEngine[I_co]) -> "I_co | ServerIndex":
    """Opens the index on the configured Qdrant server, or the embedded `engine` in `directory` if none is configured.

    Raises:
        StartupError: another process holds the directory, the server does not answer or is too old, or the client
            library of the server is not installed.
    """
    try:
        if config.qdrant_url:
            return await _open_server_index(config)
        return await engine.open(
            directory,
            flush_interval_seconds=config.index_flush_seconds,
            reserve_bytes=_RESERVE_BYTES,
        )
    except VectorIndexError as error:
        raise StartupError(f"The vector index cannot be opened: {error}.") from error


async def _open_server_index(config: IndexConfig) -> "ServerIndex":
    try:
        from mnemesh_retrieval.server import ServerIndex, ServerSettings  # noqa: PLC0415 - optional, and heavy
    except ModuleNotFoundError as error:
        raise StartupError(
            "MNEMESH_QDRANT_URL is set, but qdrant-client is not installed. "
            f"{install_hint('mnemesh-retrieval', 'qdrant')}"
        ) from error
    settings = ServerSettings(
        url=config.qdrant_url,
        api_key=config.qdrant_api_key,
        grpc_port=config.qdrant_grpc_port,
        prefix=config.qdrant_prefix,
        flush_seconds=config.index_flush_seconds,
    )
    return await ServerIndex.open(settings)
