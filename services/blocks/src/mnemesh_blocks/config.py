"""The settings of the blocks service. Only this module reads the environment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mnemesh_kit.config import ServerConfig


@dataclass(frozen=True, kw_only=True)
class Config(ServerConfig):
    """The settings. Each is read from `MNEMESH_BLOCKS_<FIELD>`, or else from `MNEMESH_<FIELD>`."""

    port: int = 50051
    database_url: str | None = None
    """`sqlite:////path` or `postgresql://…`. The default is `blocks.db` in the data directory."""
    sqlite_synchronous: Literal["NORMAL", "FULL"] = "NORMAL"
    """FULL also survives a loss of power, at the cost of a disk flush per write."""
    tombstone_days: float = 30.0
    """The days for which writes for an erased agent are refused. They must exceed the time that callers retry."""

    @property
    def database(self) -> str:
        """The URL of the service's database."""
        return self.database_url or f"sqlite:///{self.data_path / 'blocks.db'}"
