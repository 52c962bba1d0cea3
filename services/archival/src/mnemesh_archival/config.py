"""The settings of the archival service; the only reader of the environment."""

from dataclasses import dataclass
from pathlib import Path

from mnemesh_kit.services import service
from mnemesh_kit.sql import SqlConfig
from mnemesh_retrieval.config import EmbedderConfig, IndexConfig, SearchConfig


@dataclass(frozen=True, kw_only=True)
class Config(SqlConfig, EmbedderConfig, IndexConfig, SearchConfig):
    """Every field is MNEMESH_ARCHIVAL_<FIELD> or, for all services at once, MNEMESH_<FIELD>.

    `embedder` is that of archives that name none.
    """

    port: int = service("archival").port
    qdrant_prefix: str = "archival"

    @property
    def index_path(self) -> Path:
        """The directory of the embedded vector index."""
        return self.data_path / "archival-index"
