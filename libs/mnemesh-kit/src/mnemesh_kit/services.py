"""The services of a mesh: their names, default ports, Python packages and proto services. The only such list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """The fixed facts about one service of the mesh."""

    name: str
    """The service's short name, as in MNEMESH_<NAME>_PORT: `blocks`."""
    port: int
    """The default gRPC port."""
    package: str
    """The Python package that runs the service with `python -m`: `mnemesh_blocks`."""
    proto_services: tuple[str, ...]
    """Full names of the gRPC services that it serves, without health, reflection and server information."""
    settings: tuple[str, ...] | None = None
    """The fields of its Config that `ServerConfig` lacks. `mnemesh up` passes no other variables of mnemesh to it.

    None: the service gets every variable, because vendors of models and processors have variables of their own.
    """
    calls_hosts: bool = False
    """The service calls servers outside the mesh, so it needs the variables of proxies."""

    @property
    def distribution(self) -> str:
        """The name of the Python distribution that contains the package: `mnemesh-blocks`."""
        return self.package.replace("_", "-")

    @property
    def default_target(self) -> str:
        """The gRPC target of a service on this machine that listens on its default port."""
        return f"127.0.0.1:{self.port}"

    @property
    def port_variable(self) -> str:
        """The environment variable that sets the port."""
        return f"MNEMESH_{self.name.upper()}_PORT"

    @property
    def target_variable(self) -> str:
        """The environment variable with which callers find the service."""
        return f"MNEMESH_{self.name.upper()}_TARGET"


_DATABASE_SETTINGS: Final = ("database_url", "sqlite_synchronous")
_VECTOR_SETTINGS: Final = (
    *_DATABASE_SETTINGS,
    *("qdrant_url", "qdrant_api_key", "qdrant_grpc_port", "qdrant_prefix", "index_flush_seconds", "index_reserve_mb"),
    *("embedder", "embedder_base_url", "embedder_api_key", "embedder_dimension"),
)

SERVICES: Final[tuple[ServiceSpec, ...]] = (
    ServiceSpec(
        "orchestrator",
        50050,
        "mnemesh_orchestrator",
        (
            "mnemesh.agents.v1.AgentService",
            "mnemesh.agents.v1.RunService",
            "mnemesh.agents.v1.ModelService",
            "mnemesh.agents.v1.ConversationService",
            "mnemesh.agents.v1.GroupService",
            "mnemesh.agents.v1.IdentityService",
        ),
    ),
    ServiceSpec(
        "blocks",
        50051,
        "mnemesh_blocks",
        ("mnemesh.blocks.v1.BlockService",),
        (*_DATABASE_SETTINGS, "tombstone_days"),
    ),
    ServiceSpec(
        "recall",
        50052,
        "mnemesh_recall",
        (
            "mnemesh.recall.v1.MessageService",
            "mnemesh.recall.v1.TraceService",
            "mnemesh.recall.v1.EpisodeService",
        ),
        (*_VECTOR_SETTINGS, "retention_days", "repeat_days"),
        calls_hosts=True,
    ),
    ServiceSpec(
        "archival",
        50053,
        "mnemesh_archival",
        ("mnemesh.archival.v1.ArchiveService", "mnemesh.archival.v1.PassageService"),
        (*_VECTOR_SETTINGS, "tombstone_days"),
        calls_hosts=True,
    ),
    ServiceSpec(
        "tools",
        50054,
        "mnemesh_tools",
        (
            "mnemesh.tools.v1.ToolService",
            "mnemesh.tools.v1.ExecutionService",
            "mnemesh.tools.v1.McpServerService",
        ),
        (
            *_DATABASE_SETTINGS,
            *("min_sandbox", "max_concurrent", "max_per_organization", "max_wait_seconds", "first_uid"),
            *("cpu_seconds", "memory_mb", "max_processes", "disk_mb", "cgroup"),
        ),
    ),
)
"""Callers come before the services that they call. This is the order in which a mesh stops; it starts in reverse."""

SERVICE_NAMES: Final[tuple[str, ...]] = tuple(spec.name for spec in SERVICES)


def service(name: str) -> ServiceSpec:
    """Returns the service with this name.

    Raises:
        KeyError: the mesh has no such service.
    """
    for spec in SERVICES:
        if spec.name == name:
            return spec
    raise KeyError(name)
