"""The settings of the recall service; the only reader of the environment."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from mnemesh_kit.config import ServerConfig
from mnemesh_retrieval.registry import WORDLLAMA


@dataclass(frozen=True, kw_only=True)
class Config(ServerConfig):
    """Every field is MNEMESH_RECALL_<FIELD> or, for all services at once, MNEMESH_<FIELD>."""

    port: int = 50052
    database_url: str | None = None
    """`sqlite:////path` or `postgresql://…`; by default recall.db in the data directory."""
    sqlite_synchronous: Literal["NORMAL", "FULL"] = "NORMAL"
    """FULL also survives a loss of power, for a disk flush per write."""
    embedder: str = WORDLLAMA
    """`provider/model` of the embedder of message texts."""
    embedder_base_url: str = ""
    """Base URL of an OpenAI-compatible API, for embedders over HTTP."""
    embedder_api_key: str = field(default="", repr=False)
    embedder_dimension: int = 0
    """The length of the vectors of a model that is not known by name; 0 for the others."""
    retention_days: float = 0.0
    """Messages older than so many days, by their own time, are deleted unless a window shows them; 0 keeps all."""
    repeat_days: float = 7.0
    """How long a committed step is known by its id, so that a repeat is answered and not refused. The newest step of
    each conversation is known for as long as the conversation."""
    qdrant_url: str = ""
    """`http://host:6333` of a Qdrant server; by default the vectors are in the data directory."""
    qdrant_api_key: str = field(default="", repr=False)
    qdrant_grpc_port: int = 6334
    qdrant_prefix: str = "recall"
    """Begins the names of the service's collections, where several deployments share a server."""
    index_flush_seconds: float = 10.0
    """How often the vector index is brought to the disk platter; a loss of power can take so much of it."""

    @property
    def database(self) -> str:
        """The URL of the service's own database."""
        return self.database_url or f"sqlite:///{self.data_path / 'recall.db'}"
