"""Generated stubs of every service of a mesh, over the kit's channels."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

from engram_kit.channels import Channels

ROOMS: Final = ("blocks", "recall", "archival", "tools", "orchestrator")
"""In the order in which they start: who calls others comes last."""

SERVICES: Final[Mapping[str, tuple[str, str]]] = {
    "engram.agents.v1.AgentService": ("orchestrator", "engram.agents.v1.agents_service_pb2_grpc"),
    "engram.agents.v1.RunService": ("orchestrator", "engram.agents.v1.runs_service_pb2_grpc"),
    "engram.agents.v1.ConversationService": ("orchestrator", "engram.agents.v1.conversations_service_pb2_grpc"),
    "engram.agents.v1.GroupService": ("orchestrator", "engram.agents.v1.groups_service_pb2_grpc"),
    "engram.agents.v1.IdentityService": ("orchestrator", "engram.agents.v1.identities_service_pb2_grpc"),
    "engram.agents.v1.ModelService": ("orchestrator", "engram.agents.v1.models_service_pb2_grpc"),
    "engram.blocks.v1.BlockService": ("blocks", "engram.blocks.v1.blocks_service_pb2_grpc"),
    "engram.recall.v1.MessageService": ("recall", "engram.recall.v1.messages_service_pb2_grpc"),
    "engram.recall.v1.TraceService": ("recall", "engram.recall.v1.traces_service_pb2_grpc"),
    "engram.recall.v1.EpisodeService": ("recall", "engram.recall.v1.episodes_service_pb2_grpc"),
    "engram.archival.v1.ArchiveService": ("archival", "engram.archival.v1.archives_service_pb2_grpc"),
    "engram.archival.v1.PassageService": ("archival", "engram.archival.v1.passages_service_pb2_grpc"),
    "engram.tools.v1.ToolService": ("tools", "engram.tools.v1.tools_service_pb2_grpc"),
    "engram.tools.v1.ExecutionService": ("tools", "engram.tools.v1.execution_service_pb2_grpc"),
    "engram.tools.v1.McpServerService": ("tools", "engram.tools.v1.mcp_servers_service_pb2_grpc"),
}
"""Full name of a service → the room that answers it, and the module of its stub."""


class Stubs:
    """One stub per service; a stub is made when it is first asked for.

    `stubs.runs.GetRun(request)` raises typed errors, sends the current principal and has a deadline, as a room's own
    calls do.
    """

    def __init__(self, addresses: Mapping[str, str], channels: Channels) -> None:
        self._addresses = addresses
        self._channels = channels
        self._made: dict[str, Any] = {}

    def __getitem__(self, service: str) -> Any:
        """The stub of a service by its full name."""
        stub = self._made.get(service)
        if stub is None:
            room, module = SERVICES[service]
            kind = getattr(import_module(module), f"{service.rpartition('.')[2]}Stub")
            stub = self._made[service] = kind(self._channels.channel(self._addresses[room]))
        return stub

    @property
    def agents(self) -> Any:
        """engram.agents.v1.AgentService."""
        return self["engram.agents.v1.AgentService"]

    @property
    def runs(self) -> Any:
        """engram.agents.v1.RunService."""
        return self["engram.agents.v1.RunService"]

    @property
    def blocks(self) -> Any:
        """engram.blocks.v1.BlockService."""
        return self["engram.blocks.v1.BlockService"]

    @property
    def messages(self) -> Any:
        """engram.recall.v1.MessageService."""
        return self["engram.recall.v1.MessageService"]

    @property
    def archives(self) -> Any:
        """engram.archival.v1.ArchiveService."""
        return self["engram.archival.v1.ArchiveService"]

    @property
    def passages(self) -> Any:
        """engram.archival.v1.PassageService."""
        return self["engram.archival.v1.PassageService"]

    @property
    def tools(self) -> Any:
        """engram.tools.v1.ToolService."""
        return self["engram.tools.v1.ToolService"]

    @property
    def execution(self) -> Any:
        """engram.tools.v1.ExecutionService."""
        return self["engram.tools.v1.ExecutionService"]
