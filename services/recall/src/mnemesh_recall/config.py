"""The settings of the recall service. Only this module reads the environment."""

from dataclasses import dataclass

from mnemesh_kit.services import service
from mnemesh_kit.sql import SqlConfig
from mnemesh_retrieval.config import EmbedderConfig, IndexConfig, SearchConfig


@dataclass(frozen=True, kw_only=True)
class Config(SqlConfig, EmbedderConfig, IndexConfig, SearchConfig):
    """Every field is MNEMESH_RECALL_<FIELD> or, for all services at once, MNEMESH_<FIELD>."""

    port: int = service("recall").port
    retention_days: float = 0.0
    """Messages that are older than this by their own time are deleted unless a window shows them; 0 keeps all."""
    qdrant_prefix: str = "recall"
