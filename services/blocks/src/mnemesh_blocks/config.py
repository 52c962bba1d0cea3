"""The settings of the blocks service. Only this module reads the environment."""

from dataclasses import dataclass

from mnemesh_kit.services import service
from mnemesh_kit.sql import SqlConfig


@dataclass(frozen=True, kw_only=True)
class Config(SqlConfig):
    """The settings. Each is read from `MNEMESH_BLOCKS_<FIELD>`, or else from `MNEMESH_<FIELD>`."""

    port: int = service("blocks").port
