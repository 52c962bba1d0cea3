"""The settings of the tools service; the only reader of the environment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mnemesh_kit.config import ServerConfig

from mnemesh_tools.sandbox import Level, SandboxSettings


@dataclass(frozen=True, kw_only=True)
class Config(ServerConfig):
    """Every field is MNEMESH_TOOLS_<FIELD> or, for all services at once, MNEMESH_<FIELD>."""

    port: int = 50054
    database_url: str | None = None
    """`sqlite:////path` or `postgresql://…`; by default tools.db in the data directory."""
    sqlite_synchronous: Literal["NORMAL", "FULL"] = "NORMAL"
    """FULL also survives a loss of power, for a disk flush per write."""
    min_sandbox: Literal["minimal", "restricted", "full"] = "restricted"
    """Tools do not run where the host isolates them less; definitions are served all the same."""
    max_concurrent: int = 8
    """Tools that run at once; further ones wait for their turn."""
    cpu_seconds: int = 60
    """Processor time of each process of a tool."""
    memory_mb: int = 512
    """Address space of each process of a tool."""
    max_processes: int = 32
    """Processes and threads of one tool together."""
    disk_mb: int = 64
    """What one tool may write to its temporary directory."""
    first_uid: int = 61_000
    """The first of 1000 uids that tools run under where the service runs as root."""

    def __post_init__(self) -> None:
        """Refuses bounds that no tool could live in."""
        for name in ("max_concurrent", "cpu_seconds", "max_processes", "disk_mb", "first_uid"):
            if getattr(self, name) < 1:
                raise ValueError(f"MNEMESH_TOOLS_{name.upper()} must be at least 1.")
        if self.memory_mb < 64:
            raise ValueError("MNEMESH_TOOLS_MEMORY_MB must be at least 64.")

    @property
    def database(self) -> str:
        """The URL of the service's own database."""
        return self.database_url or f"sqlite:///{self.data_path / 'tools.db'}"

    @property
    def sandbox(self) -> SandboxSettings:
        """The bounds of every tool."""
        return SandboxSettings(
            minimum=Level[self.min_sandbox.upper()],
            max_concurrent=self.max_concurrent,
            first_uid=self.first_uid,
            cpu_seconds=self.cpu_seconds,
            memory_mb=self.memory_mb,
            processes=self.max_processes,
            disk_mb=self.disk_mb,
        )
