"""Builds the configured embedder and opens the configured vector index when a service starts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from mnemesh_kit.config import ConfigError, StartupError

from mnemesh_retrieval.config import EmbedderConfig, IndexConfig
from mnemesh_retrieval.embedder import Embedder
from mnemesh_retrieval.errors import EmbedderMisconfigured, VectorIndexError
from mnemesh_retrieval.registry import make_embedder

if TYPE_CHECKING:
    from mnemesh_retrieval.server import ServerIndex

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


async def open_index(config: IndexConfig, directory: Path, engine: EmbeddedEngine[I_co]) -> I_co | ServerIndex:
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
            reserve_bytes=config.index_reserve_mb << 20,
        )
    except VectorIndexError as error:
        raise StartupError(f"The vector index cannot be opened: {error}.") from error


async def _open_server_index(config: IndexConfig) -> ServerIndex:
    try:
        from mnemesh_retrieval.server import ServerIndex, ServerSettings  # noqa: PLC0415 - optional, and heavy
    except ModuleNotFoundError as error:
        raise StartupError(
            "MNEMESH_QDRANT_URL is set, but qdrant-client is not installed. Install mnemesh-recall[qdrant] and "
            "mnemesh-archival[qdrant]; in a checkout, `make run` and `make up` install it."
        ) from error
    settings = ServerSettings(
        url=config.qdrant_url,
        api_key=config.qdrant_api_key,
        grpc_port=config.qdrant_grpc_port,
        prefix=config.qdrant_prefix,
        flush_seconds=config.index_flush_seconds,
    )
    return await ServerIndex.open(settings)
