"""The services of a mesh: their names, default ports, Python packages and proto services. The only such list."""

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Final

from mnemesh_kit.config import ConfigError
from mnemesh_kit.retries import service_descriptor

MESH: Final = "mesh"
"""The name of a process that runs several services."""
READY_VARIABLE: Final = "MNEMESH_READY_FD"
"""The variable with the file descriptor to which a process writes a byte when all of its services serve."""


class Protocol(StrEnum):
    """The protocol of a service, which decides how its health is asked for."""

    GRPC = "grpc"
    """grpc.health.v1."""
    HTTP = "http"
    """GET /readyz: 200 if the service is ready."""


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """The fixed facts about one service of the mesh."""

    name: str
    """The service's short name, as in MNEMESH_<NAME>_PORT: `blocks`."""
    port: int
    """The default port."""
    package: str
    """The Python package that runs the service with `python -m`: `mnemesh_blocks`."""
    proto_services: tuple[str, ...]
    """Full names of the gRPC services that it serves, without health, reflection and server information."""
    metrics_offset: int
    """Its metrics port in a mesh on one machine, counted from that of the orchestrator."""
    settings: tuple[str, ...] | None = None
    """The fields of its Config that `ServerConfig` lacks. `mnemesh up` passes no other variables of mnemesh to it.

    None: the service gets every variable, because vendors of models and processors have variables of their own.
    """
    protocol: Protocol = Protocol.GRPC
    has_database: bool = True
    variables: tuple[str, ...] = ()
    """Variables without the prefix of mnemesh that it reads."""
    calls_hosts: bool = False
    """The service calls servers outside the mesh, so it needs the variables of proxies."""

    @property
    def distribution(self) -> str:
        """The name of the Python distribution that contains the package: `mnemesh-blocks`."""
        return self.package.replace("_", "-")

    @property
    def default_target(self) -> str:
        """The address `host:port` of a service on this machine that listens on its default port."""
        return f"127.0.0.1:{self.port}"

    @property
    def port_variable(self) -> str:
        """The environment variable that sets the port."""
        return f"MNEMESH_{self.name.upper()}_PORT"

    @property
    def target_variable(self) -> str:
        """The environment variable with which callers find the service."""
        return f"MNEMESH_{self.name.upper()}_TARGET"


_DATABASE_SETTINGS: Final = ("database_url", "database_pool_size", "sqlite_synchronous")
_VECTOR_SETTINGS: Final = (
    *_DATABASE_SETTINGS,
    *("qdrant_url", "qdrant_api_key", "qdrant_grpc_port", "qdrant_prefix", "index_flush_seconds"),
    *("embedder", "embedder_base_url", "embedder_api_key", "embedder_dimension"),
    *("reranker", "reranker_base_url", "reranker_api_key", "reranker_directory", "reranker_timeout_ms"),
    "reranker_candidates",
)

SERVICES: Final[tuple[ServiceSpec, ...]] = (
    ServiceSpec(
        "gateway",
        8283,
        "mnemesh_gateway",
        (),
        5,
        (
            *("orchestrator_target", "blocks_target", "recall_target", "archival_target"),
            *("allowed_hosts", "allowed_origins", "max_connections", "max_connections_per_address"),
            "strict_parameters",
            *("tls_cert_file", "tls_key_file", "letta_profile", "callback_hosts"),
        ),
        protocol=Protocol.HTTP,
        variables=("PROXY_DEBUG_SESSIONS",),
        has_database=False,
    ),
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
            "mnemesh.agents.v1.BudgetService",
            "mnemesh.agents.v1.ScheduleService",
            "mnemesh.agents.v1.WebhookService",
        ),
        0,
    ),
    ServiceSpec(
        "files",
        50055,
        "mnemesh_files",
        (
            "mnemesh.files.v1.FolderService",
            "mnemesh.files.v1.FileService",
            "mnemesh.files.v1.AgentFileService",
        ),
        6,
        (
            *_DATABASE_SETTINGS,
            *("archival_target", "orchestrator_target", "max_file_mb", "organization_mb"),
            *("s3_bucket", "s3_prefix", "s3_endpoint_url", "s3_region", "s3_access_key_id", "s3_secret_access_key"),
            *("workers", "imports", "private_networks"),
            *("min_sandbox", "parse_memory_mb"),
            *("warm_processes", "vision_base_url", "vision_model", "vision_api_key", "cgroup"),
        ),
        calls_hosts=True,
    ),
    ServiceSpec(
        "blocks",
        50051,
        "mnemesh_blocks",
        ("mnemesh.blocks.v1.BlockService",),
        1,
        _DATABASE_SETTINGS,
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
        2,
        (*_VECTOR_SETTINGS, "retention_days"),
        calls_hosts=True,
    ),
    ServiceSpec(
        "archival",
        50053,
        "mnemesh_archival",
        (
            "mnemesh.archival.v1.ArchiveService",
            "mnemesh.archival.v1.PassageService",
            "mnemesh.archival.v1.EmbeddingService",
        ),
        3,
        _VECTOR_SETTINGS,
        calls_hosts=True,
        variables=("OPENAI_API_KEY",),
    ),
    ServiceSpec(
        "tools",
        50054,
        "mnemesh_tools",
        (
            "mnemesh.tools.v1.ToolService",
            "mnemesh.tools.v1.ExecutionService",
            "mnemesh.tools.v1.McpServerService",
            "mnemesh.tools.v1.WebService",
        ),
        4,
        (
            *_DATABASE_SETTINGS,
            *("min_sandbox", "max_concurrent"),
            *("embedder", "embedder_base_url", "embedder_api_key", "embedder_dimension"),
            *("warm_processes", "cpu_seconds", "memory_mb", "cgroup"),
            *(
                "packages",
                "package_index",
                "package_hosts",
                "npm_registry",
                "node",
            ),
            *("network", "private_networks", "secrets_key_file"),
            *("mcp_stdio", "mcp_trusted_organizations", "mcp_memory_mb"),
            *("web_search", "web_search_url", "web_search_key"),
        ),
    ),
)
"""Callers come before the services that they call. This is the order in which a mesh stops; it starts in reverse."""

SERVICE_NAMES: Final[tuple[str, ...]] = tuple(spec.name for spec in SERVICES)
STORE_NAMES: Final[tuple[str, ...]] = tuple(spec.name for spec in SERVICES if spec.has_database)
"""The services that have a database."""
GRPC_SERVICES: Final[tuple[str, ...]] = (
    *(name for spec in SERVICES for name in spec.proto_services),
    "mnemesh.server.v1.AuditService",
    "mnemesh.server.v1.ServerService",
)
"""The full names of all gRPC services of a mesh, without health and reflection."""


def service(name: str) -> ServiceSpec:
    """Returns the service with this name.

    Raises:
        KeyError: the mesh has no such service.
    """
    for spec in SERVICES:
        if spec.name == name:
            return spec
    raise KeyError(name)


@cache
def import_contracts(names: tuple[str, ...]) -> None:
    """Imports the generated code of gRPC services, so that their descriptors can be found by their names."""
    for package in dict.fromkeys(name.rpartition(".")[0] for name in names):
        found = importlib.import_module(package)
        for module in pkgutil.iter_modules(found.__path__):
            if module.name.endswith("_service_pb2"):
                importlib.import_module(f"{package}.{module.name}")
    unknown = [name for name in names if service_descriptor(name) is None]
    if unknown:
        raise LookupError(f"no generated code of {', '.join(unknown)}")


_LARGEST_PORT: Final = 65535


def ports_from_env(env: Mapping[str, str]) -> dict[str, int]:
    """Returns the ports of the services for which MNEMESH_<SERVICE>_PORT is set.

    Raises:
        ConfigError: one is not a port number.
    """
    ports: dict[str, int] = {}
    for spec in SERVICES:
        text = env.get(spec.port_variable)
        if not text:
            continue
        if not text.isdecimal() or not 0 < int(text) <= _LARGEST_PORT:
            raise ConfigError(f"{spec.port_variable} must be a port number from 1 to {_LARGEST_PORT}, not {text!r}.")
        ports[spec.name] = int(text)
    return ports
