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
    max_per_organization: int = 0
    """The maximum of one organization. 0: three quarters of `max_concurrent` with authentication, else all."""
    max_wait_seconds: float = 20.0
    """The longest wait of an execution for others to end; then it is refused."""
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
    cgroup: str = ""
    """A directory of cgroups of version 2 for those of tools. Unset: the service's own, if systemd delegated it."""

    def __post_init__(self) -> None:
        """Refuses limits that no tool could run with."""
        if self.max_per_organization < 0 or self.max_wait_seconds <= 0:
            raise ValueError(
                "MNEMESH_TOOLS_MAX_PER_ORGANIZATION must not be negative, and MNEMESH_TOOLS_MAX_WAIT_SECONDS must be "
                "greater than 0."
            )
        for name in ("max_concurrent", "cpu_seconds", "max_processes", "disk_mb", "first_uid"):
            if getattr(self, name) < 1:
                raise ValueError(f"MNEMESH_TOOLS_{name.upper()} must be at least 1.")
        if self.memory_mb < 64:
            raise ValueError("MNEMESH_TOOLS_MEMORY_MB must be at least 64.")

    @property
    def slots_per_organization(self) -> int:
        """The number of executions that one organization can have at the same time."""
        if self.max_per_organization:
            return self.max_per_organization
        return self.max_concurrent if self.auth_key_file is None else max(1, self.max_concurrent * 3 // 4)

    @property
    def sandbox(self) -> SandboxSettings:
        """The limits of every execution."""
        return SandboxSettings(
            minimum=Level[self.min_sandbox.upper()],
            first_uid=self.first_uid,
            cpu_seconds=self.cpu_seconds,
            memory_mb=self.memory_mb,
            processes=self.max_processes,
            disk_mb=self.disk_mb,
            cgroup=self.cgroup,
        )
