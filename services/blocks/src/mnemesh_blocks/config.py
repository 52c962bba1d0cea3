"""The settings of the blocks service; the only reader of the environment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mnemesh_kit.config import ServerConfig


@dataclass(frozen=True, kw_only=True)
class Config(ServerConfig):
    """Every field is MNEMESH_BLOCKS_<FIELD> or, for all services at once, MNEMESH_<FIELD>."""

    port: int = 50051
    database_url: str | None = None
    """`sqlite:////path` or `postgresql://…`; by default blocks.db in the data directory."""
    sqlite_synchronous: Literal["NORMAL", "FULL"] = "NORMAL"
    """FULL also survives a loss of power, for a disk flush per write."""
    tombstone_days: float = 30.0
    """How long writes for an erased agent are refused; longer than any caller retries."""

    @property
    def database(self) -> str:
        """The URL of the service's own database."""
        return self.database_url or f"sqlite:///{self.data_path / 'blocks.db'}"
