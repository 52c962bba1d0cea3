"""What `mnemesh up` can be told, and what it tells each service through the environment."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mnemesh_kit.config import StartupError, read_config

ROOMS: Final = ("orchestrator", "blocks", "recall", "archival", "tools")
"""In the order in which they are stopped: who calls the others goes first."""


@dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """Every field is MNEMESH_<FIELD>. All else in the environment reaches the services as it is."""

    data_dir: str = "data"
    """Everything that the mesh keeps, its logs included; made when missing."""
    host: str = "127.0.0.1"
    """Where the services listen. Anything but loopback needs `auth_key_file`."""
    orchestrator_port: int = 50050
    blocks_port: int = 50051
    recall_port: int = 50052
    archival_port: int = 50053
    tools_port: int = 50054
    metrics_port: int | None = None
    """Prometheus metrics of the orchestrator; the other rooms follow on the next ports."""
    auth_key_file: str | None = None
    embedder: str = "mnemesh/wordllama-256"
    """The embedder of archives that name none."""
    start_seconds: float = 60.0
    """How long the services may take to become ready."""
    stop_seconds: float = 15.0
    """How long a service may take to end before it is killed."""

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ) -> MeshConfig:
        """The settings; raises ConfigError with one line for a value that cannot be meant."""
        return read_config(cls, env)

    @property
    def data_path(self) -> Path:
        """`data_dir` as an absolute path."""
        return Path(self.data_dir).expanduser().absolute()

    def port(self, room: str) -> int:
        """Where a room listens."""
        return int(getattr(self, f"{room}_port"))

    def address(self, room: str) -> str:
        """Where a room can be reached from this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104
        return f"[{host}]:{self.port(room)}" if ":" in host else f"{host}:{self.port(room)}"


def service_environment(config: MeshConfig, env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment that all services of the mesh share: where they listen, keep things, and find each other."""
    shared = {**env, "MNEMESH_HOST": config.host, "MNEMESH_DATA_DIR": str(config.data_path)}
    if config.auth_key_file is not None:
        shared["MNEMESH_AUTH_KEY_FILE"] = str(Path(config.auth_key_file).expanduser().absolute())
    for number, room in enumerate(ROOMS):
        name = room.upper()
        shared[f"MNEMESH_{name}_PORT"] = str(config.port(room))
        shared[f"MNEMESH_{name}_TARGET"] = config.address(room)
        if config.metrics_port is not None:
            shared[f"MNEMESH_{name}_METRICS_PORT"] = str(config.metrics_port + number)
    return shared


def module_of(room: str) -> str:
    """The package that runs a room, found but not imported.

    Raises:
        StartupError: it is not installed.
    """
    name = f"mnemesh_{room}"
    spec = importlib.util.find_spec(name)
    folders = spec.submodule_search_locations if spec is not None else None
    if not any(Path(folder, "__main__.py").is_file() for folder in folders or ()):
        raise StartupError(f"The service {room} is not installed (there is no package {name}).")
    return name
