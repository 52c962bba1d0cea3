"""The settings of the archival service; the only reader of the environment."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from mnemesh_kit.config import ServerConfig


@dataclass(frozen=True, kw_only=True)
class Config(ServerConfig):
    """Every field is MNEMESH_ARCHIVAL_<FIELD> or, for all services at once, MNEMESH_<FIELD>."""

    port: int = 50053
    database_url: str | None = None
    """`sqlite:////path` or `postgresql://…`; by default archival.db in the data directory."""
    sqlite_synchronous: Literal["NORMAL", "FULL"] = "NORMAL"
    """FULL also survives a loss of power, for a disk flush per write."""
    embedder: str = "mnemesh/wordllama-256"
    """The embedder of archives that name none, as `provider/model`."""
    embedder_base_url: str = ""
    """Base URL of an OpenAI-compatible embeddings API, `…/v1`."""
    embedder_api_key: str = field(default="", repr=False)
    embedder_dimension: int = 0
    """The vector length of a model behind that API that mnemesh does not know."""
    qdrant_url: str = ""
    """`http://host:6333` of a Qdrant server; by default the vectors are in the data directory."""
    qdrant_api_key: str = field(default="", repr=False)
    qdrant_grpc_port: int = 6334
    qdrant_prefix: str = "archival"
    """Begins the names of the service's collections, where several deployments share a server."""
    tombstone_days: float = 30.0
    """How long a deleted passage's id stays spent; longer than any caller retries."""
    index_flush_seconds: float = 10.0
    """How often the vector index reaches the disk platter: what a loss of power can take."""

    @property
    def database(self) -> str:
        """The URL of the service's own database."""
        return self.database_url or f"sqlite:///{self.data_path / 'archival.db'}"

    @property
    def index_path(self) -> Path:
        """Where the embedded vector index lies."""
        return self.data_path / "archival-index"
