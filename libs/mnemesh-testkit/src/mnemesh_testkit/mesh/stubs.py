"""Generated stubs of every service of a mesh, over the kit's channels."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

from mnemesh_kit.channels import Channels
from mnemesh_kit.services import SERVICES

_MODULES: Final[Mapping[str, str]] = {
    "AgentService": "agents.v1.agents_service",
    "RunService": "agents.v1.runs_service",
    "ConversationService": "agents.v1.conversations_service",
    "GroupService": "agents.v1.groups_service",
    "IdentityService": "agents.v1.identities_service",
    "BudgetService": "agents.v1.budgets_service",
    "ScheduleService": "agents.v1.schedules_service",
    "WebhookService": "agents.v1.webhooks_service",
    "ModelService": "agents.v1.models_service",
    "BlockService": "blocks.v1.blocks_service",
    "MessageService": "recall.v1.messages_service",
    "TraceService": "recall.v1.traces_service",
    "EpisodeService": "recall.v1.episodes_service",
    "ArchiveService": "archival.v1.archives_service",
    "PassageService": "archival.v1.passages_service",
    "EmbeddingService": "archival.v1.embeddings_service",
    "FolderService": "files.v1.folders_service",
    "FileService": "files.v1.files_service",
    "AgentFileService": "files.v1.agent_files_service",
    "ToolService": "tools.v1.tools_service",
    "ExecutionService": "tools.v1.execution_service",
    "McpServerService": "tools.v1.mcp_servers_service",
    "WebService": "tools.v1.web_service",
}

PROTO_SERVICES: Final[Mapping[str, tuple[str, str]]] = {
    name: (spec.name, f"mnemesh.{_MODULES[name.rpartition('.')[2]]}_pb2_grpc")
    for spec in SERVICES
    for name in spec.proto_services
}
"""Full name of a proto service → the service of the mesh that implements it, and the module of its stub."""


def _stub_of(service: str) -> property:
    return property(lambda stubs: stubs[service])


class Stubs:
    """One stub per proto service, created on first use.

    `stubs.runs.GetRun(request)` raises typed errors, sends the current principal and has a deadline, as calls between
    services do.
    """

    def __init__(self, addresses: Mapping[str, str], channels: Channels) -> None:
        self._addresses = addresses
        self._channels = channels
        self._stubs: dict[str, Any] = {}

    def __getitem__(self, service: str) -> Any:
        """Returns the stub of a proto service by its full name."""
        stub = self._stubs.get(service)
        if stub is None:
            owner, module = PROTO_SERVICES[service]
            kind = getattr(import_module(module), f"{service.rpartition('.')[2]}Stub")
            stub = self._stubs[service] = kind(self._channels.channel(self._addresses[owner]))
        return stub

    agents = _stub_of("mnemesh.agents.v1.AgentService")
    runs = _stub_of("mnemesh.agents.v1.RunService")
    blocks = _stub_of("mnemesh.blocks.v1.BlockService")
    messages = _stub_of("mnemesh.recall.v1.MessageService")
    archives = _stub_of("mnemesh.archival.v1.ArchiveService")
    passages = _stub_of("mnemesh.archival.v1.PassageService")
    embeddings = _stub_of("mnemesh.archival.v1.EmbeddingService")
    tools = _stub_of("mnemesh.tools.v1.ToolService")
    execution = _stub_of("mnemesh.tools.v1.ExecutionService")
    folders = _stub_of("mnemesh.files.v1.FolderService")
    files = _stub_of("mnemesh.files.v1.FileService")
    agent_files = _stub_of("mnemesh.files.v1.AgentFileService")
