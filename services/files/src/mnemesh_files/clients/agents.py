"""The orchestrator over gRPC."""

from __future__ import annotations

from typing import Final

import grpc
from mnemesh.agents.v1 import agents_service_pb2 as rpc
from mnemesh.agents.v1.agents_service_pb2_grpc import AgentServiceStub

RECORD_SECONDS: Final = 5.0


class AgentsClient:
    """AgentsPort over gRPC."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._agents = AgentServiceStub(channel)

    async def record_folders(self, agent_id: str, revision: int, *, holds_folders: bool) -> None:
        """See AgentsPort."""
        request = rpc.RecordFoldersRequest(
            agent_id=agent_id, holds_folders=holds_folders, directories_revision=revision
        )
        await self._agents.RecordFolders(request, timeout=RECORD_SECONDS)
