"""The settings of the recall service; the only reader of the environment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mnemesh_kit.config import ServerConfig
from mnemesh_retrieval.config import EmbedderConfig, IndexConfig


@dataclass(frozen=True, kw_only=True)
class Config(ServerConfig, EmbedderConfig, IndexConfig):
    """Every field is MNEMESH_RECALL_<FIELD> or, for all services at once, MNEMESH_<FIELD>."""

    port: int = 50052
    database_url: str | None = None
    """`sqlite:////path` or `postgresql://…`; by default recall.db in the data directory."""
    sqlite_synchronous: Literal["NORMAL", "FULL"] = "NORMAL"
    """FULL also survives a loss of power, for a disk flush per write."""
    retention_days: float = 0.0
    """Messages older than so many days, by their own time, are deleted unless a window shows them; 0 keeps all."""
    repeat_days: float = 7.0
    """How long a committed step is known by its id, so that a repeat is answered and not refused. The newest step of
    each conversation is known for as long as the conversation."""
    qdrant_prefix: str = "recall"

    @property
    def database(self) -> str:
        """The URL of the service's own database."""
        return self.database_url or f"sqlite:///{self.data_path / 'recall.db'}"
