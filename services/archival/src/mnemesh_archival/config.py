"""The settings of the archival service; the only reader of the environment."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mnemesh_kit.config import ServerConfig
from mnemesh_retrieval.config import EmbedderConfig, IndexConfig


@dataclass(frozen=True, kw_only=True)
class Config(ServerConfig, EmbedderConfig, IndexConfig):
    """Every field is MNEMESH_ARCHIVAL_<FIELD> or, for all services at once, MNEMESH_<FIELD>."""

    port: int = 50053
    database_url: str | None = None
    """`sqlite:////path` or `postgresql://…`; by default archival.db in the data directory."""
    sqlite_synchronous: Literal["NORMAL", "FULL"] = "NORMAL"
    """FULL also survives a loss of power, for a disk flush per write."""
    qdrant_prefix: str = "archival"
    tombstone_days: float = 30.0
    """How long a deleted passage's id stays spent; longer than any caller retries."""

    @property
    def database(self) -> str:
        """The URL of the service's own database."""
        return self.database_url or f"sqlite:///{self.data_path / 'archival.db'}"

    @property
    def index_path(self) -> Path:
        """Where the embedded vector index lies."""
        return self.data_path / "archival-index"
