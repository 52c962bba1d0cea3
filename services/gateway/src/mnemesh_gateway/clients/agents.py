"""The agents of the orchestrator over gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import grpc
from mnemesh.agents.v1 import agents_pb2 as pb
from mnemesh.agents.v1 import agents_service_pb2 as rpc
from mnemesh.agents.v1.agents_service_pb2_grpc import AgentServiceStub
from mnemesh.types.v1 import paging_pb2
from mnemesh_kit.time import timestamp_from_proto

from mnemesh_gateway.clients import deadlines
from mnemesh_gateway.model.agents import AgentInfo

_PAGE: Final = 200
_PARTNERS: Final = (pb.AGENT_TYPE_SLEEPTIME, pb.AGENT_TYPE_VOICE_SLEEPTIME)


class AgentsClient:
    """AgentsPort over gRPC."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = AgentServiceStub(channel)

    async def get(self, agent_id: str) -> AgentInfo:
        """See AgentsPort."""
        response = await self._stub.GetAgent(rpc.GetAgentRequest(agent_id=agent_id), timeout=deadlines.READ)
        return agent_from_proto(response.agent)

    async def named(self, name: str) -> tuple[AgentInfo, ...]:
        """See AgentsPort."""
        request = rpc.ListAgentsRequest(page_size=2, filter=rpc.AgentFilter(name=name))
        response = await self._stub.ListAgents(request, timeout=deadlines.READ)
        return tuple(agent_from_proto(agent) for agent in response.agents)

    async def list(self) -> AsyncIterator[AgentInfo]:
        """See AgentsPort."""
        request = rpc.ListAgentsRequest(
            page_size=_PAGE, order=paging_pb2.SORT_ORDER_ASCENDING, filter=rpc.AgentFilter(hidden=False)
        )
        while True:
            page = await self._stub.ListAgents(request, timeout=deadlines.READ)
            for agent in page.agents:
                yield agent_from_proto(agent)
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token


def agent_from_proto(agent: pb.Agent) -> AgentInfo:
    """Returns the agent of a message."""
    return AgentInfo(
        id=agent.id,
        name=agent.name,
        model=agent.model,
        default_conversation_id=agent.default_conversation_id,
        created_at=timestamp_from_proto(agent.create_time, "create_time"),
        is_partner=agent.type in _PARTNERS,
        keeps_prompt=agent.prompt_policy == pb.PROMPT_POLICY_CACHE,
    )
