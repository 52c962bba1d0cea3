"""The services of the mesh, called through the orchestrator's address, and the figures that rarely change."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import cached_property
from typing import Final, TypeVar

import grpc
from mnemesh.agents.v1 import (
    agents_service_pb2_grpc,
    conversations_service_pb2_grpc,
    groups_service_pb2_grpc,
    identities_service_pb2_grpc,
    models_service_pb2_grpc,
    runs_service_pb2_grpc,
)
from mnemesh.archival.v1 import archives_service_pb2_grpc, passages_service_pb2_grpc
from mnemesh.blocks.v1 import blocks_service_pb2_grpc
from mnemesh.files.v1 import agent_files_service_pb2_grpc, files_service_pb2_grpc, folders_service_pb2_grpc
from mnemesh.recall.v1 import messages_service_pb2_grpc
from mnemesh.server.v1 import server_service_pb2_grpc
from mnemesh.tools.v1 import execution_service_pb2_grpc, mcp_servers_service_pb2_grpc, tools_service_pb2_grpc
from mnemesh_client import Mnemesh
from mnemesh_kit.call_context import current_principal

T = TypeVar("T")
_SECONDS: Final = 10.0
_MAX_ENTRIES: Final = 1000


class Mesh:
    """One stub per service. A call carries the principal of the HTTP request that it belongs to.

    Args:
        channel: to the orchestrator.
        client: for what takes several calls, such as agent files.
        stopping: is set when this gateway stops, so that what waits long ends.
    """

    def __init__(self, channel: grpc.aio.Channel, client: Mnemesh, stopping: asyncio.Event) -> None:
        self._channel = channel
        self.client = client
        self.stopping = stopping
        self._cache: dict[tuple[str, str], tuple[float, object]] = {}

    async def cached(self, key: str, read: Callable[[], Awaitable[T]]) -> T:
        """Returns the value of a key as read for this caller's organization in the last ten seconds, or reads it."""
        full = (current_principal().organization_id, key)
        known = self._cache.get(full)
        now = time.monotonic()
        if known is not None and known[0] > now:
            return known[1]  # type: ignore[return-value]
        value = await read()
        if len(self._cache) >= _MAX_ENTRIES:
            self._cache.clear()
        self._cache[full] = (now + _SECONDS, value)
        return value

    @cached_property
    def server(self) -> server_service_pb2_grpc.ServerServiceAsyncStub:
        """ServerService, of the orchestrator."""
        return server_service_pb2_grpc.ServerServiceStub(self._channel)

    @cached_property
    def agents(self) -> agents_service_pb2_grpc.AgentServiceAsyncStub:
        """AgentService."""
        return agents_service_pb2_grpc.AgentServiceStub(self._channel)

    @cached_property
    def runs(self) -> runs_service_pb2_grpc.RunServiceAsyncStub:
        """RunService."""
        return runs_service_pb2_grpc.RunServiceStub(self._channel)

    @cached_property
    def conversations(self) -> conversations_service_pb2_grpc.ConversationServiceAsyncStub:
        """ConversationService."""
        return conversations_service_pb2_grpc.ConversationServiceStub(self._channel)

    @cached_property
    def groups(self) -> groups_service_pb2_grpc.GroupServiceAsyncStub:
        """GroupService."""
        return groups_service_pb2_grpc.GroupServiceStub(self._channel)

    @cached_property
    def identities(self) -> identities_service_pb2_grpc.IdentityServiceAsyncStub:
        """IdentityService."""
        return identities_service_pb2_grpc.IdentityServiceStub(self._channel)

    @cached_property
    def models(self) -> models_service_pb2_grpc.ModelServiceAsyncStub:
        """ModelService."""
        return models_service_pb2_grpc.ModelServiceStub(self._channel)

    @cached_property
    def blocks(self) -> blocks_service_pb2_grpc.BlockServiceAsyncStub:
        """BlockService."""
        return blocks_service_pb2_grpc.BlockServiceStub(self._channel)

    @cached_property
    def messages(self) -> messages_service_pb2_grpc.MessageServiceAsyncStub:
        """MessageService."""
        return messages_service_pb2_grpc.MessageServiceStub(self._channel)

    @cached_property
    def archives(self) -> archives_service_pb2_grpc.ArchiveServiceAsyncStub:
        """ArchiveService."""
        return archives_service_pb2_grpc.ArchiveServiceStub(self._channel)

    @cached_property
    def passages(self) -> passages_service_pb2_grpc.PassageServiceAsyncStub:
        """PassageService."""
        return passages_service_pb2_grpc.PassageServiceStub(self._channel)

    @cached_property
    def folders(self) -> folders_service_pb2_grpc.FolderServiceAsyncStub:
        """FolderService."""
        return folders_service_pb2_grpc.FolderServiceStub(self._channel)

    @cached_property
    def files(self) -> files_service_pb2_grpc.FileServiceAsyncStub:
        """FileService."""
        return files_service_pb2_grpc.FileServiceStub(self._channel)

    @cached_property
    def agent_files(self) -> agent_files_service_pb2_grpc.AgentFileServiceAsyncStub:
        """AgentFileService."""
        return agent_files_service_pb2_grpc.AgentFileServiceStub(self._channel)

    @cached_property
    def tools(self) -> tools_service_pb2_grpc.ToolServiceAsyncStub:
        """ToolService."""
        return tools_service_pb2_grpc.ToolServiceStub(self._channel)

    @cached_property
    def execution(self) -> execution_service_pb2_grpc.ExecutionServiceAsyncStub:
        """ExecutionService."""
        return execution_service_pb2_grpc.ExecutionServiceStub(self._channel)

    @cached_property
    def mcp_servers(self) -> mcp_servers_service_pb2_grpc.McpServerServiceAsyncStub:
        """McpServerService."""
        return mcp_servers_service_pb2_grpc.McpServerServiceStub(self._channel)
