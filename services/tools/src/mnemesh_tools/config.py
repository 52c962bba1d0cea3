"""The settings of the tools service. Only this module reads the environment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mnemesh_kit.services import service
from mnemesh_kit.sql import SqlConfig

from mnemesh_tools.sandbox import Level, SandboxSettings


@dataclass(frozen=True, kw_only=True)
class Config(SqlConfig):
    """The settings. Each is read from `MNEMESH_TOOLS_<FIELD>`, or else from `MNEMESH_<FIELD>`."""

    port: int = service("tools").port
    min_sandbox: Literal["minimal", "restricted", "full"] = "restricted"
    """The lowest isolation level at which tools are executed. Definitions are served at any level."""
    max_concurrent: int = 8
    """The maximum number of executions at the same time; further ones wait."""
    cpu_seconds: int = 60
    """The processor time of each process of a tool."""
    memory_mb: int = 512
    """The address space of each process of a tool."""
    max_processes: int = 32
    """The maximum number of processes and threads of one tool."""
    disk_mb: int = 64
    """The size of a tool's temporary directory."""
    first_uid: int = 61_000
    """The first of the 1000 uids that tools run under if the service runs as root."""

    def __post_init__(self) -> None:
        """Refuses limits that no tool could run with."""
        for name in ("max_concurrent", "cpu_seconds", "max_processes", "disk_mb", "first_uid"):
            if getattr(self, name) < 1:
                raise ValueError(f"MNEMESH_TOOLS_{name.upper()} must be at least 1.")
        if self.memory_mb < 64:
            raise ValueError("MNEMESH_TOOLS_MEMORY_MB must be at least 64.")

    @property
    def sandbox(self) -> SandboxSettings:
        """The limits of every execution."""
        return SandboxSettings(
            minimum=Level[self.min_sandbox.upper()],
            max_concurrent=self.max_concurrent,
            first_uid=self.first_uid,
            cpu_seconds=self.cpu_seconds,
            memory_mb=self.memory_mb,
            processes=self.max_processes,
            disk_mb=self.disk_mb,
        )
