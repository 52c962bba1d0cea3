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

    @property
    def agents(self) -> Any:
        """mnemesh.agents.v1.AgentService."""
        return self["mnemesh.agents.v1.AgentService"]

    @property
    def runs(self) -> Any:
        """mnemesh.agents.v1.RunService."""
        return self["mnemesh.agents.v1.RunService"]

    @property
    def blocks(self) -> Any:
        """mnemesh.blocks.v1.BlockService."""
        return self["mnemesh.blocks.v1.BlockService"]

    @property
    def messages(self) -> Any:
        """mnemesh.recall.v1.MessageService."""
        return self["mnemesh.recall.v1.MessageService"]

    @property
    def archives(self) -> Any:
        """mnemesh.archival.v1.ArchiveService."""
        return self["mnemesh.archival.v1.ArchiveService"]

    @property
    def passages(self) -> Any:
        """mnemesh.archival.v1.PassageService."""
        return self["mnemesh.archival.v1.PassageService"]

    @property
    def embeddings(self) -> Any:
        """mnemesh.archival.v1.EmbeddingService."""
        return self["mnemesh.archival.v1.EmbeddingService"]

    @property
    def tools(self) -> Any:
        """mnemesh.tools.v1.ToolService."""
        return self["mnemesh.tools.v1.ToolService"]

    @property
    def execution(self) -> Any:
        """mnemesh.tools.v1.ExecutionService."""
        return self["mnemesh.tools.v1.ExecutionService"]

    @property
    def folders(self) -> Any:
        """mnemesh.files.v1.FolderService."""
        return self["mnemesh.files.v1.FolderService"]

    @property
    def files(self) -> Any:
        """mnemesh.files.v1.FileService."""
        return self["mnemesh.files.v1.FileService"]

    @property
    def agent_files(self) -> Any:
        """mnemesh.files.v1.AgentFileService."""
        return self["mnemesh.files.v1.AgentFileService"]
