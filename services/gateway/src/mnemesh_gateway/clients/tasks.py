"""Agents that exist for one task, over gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Final

import grpc
from mnemesh.agents.v1 import agents_pb2, runs_pb2
from mnemesh.agents.v1 import agents_service_pb2 as rpc
from mnemesh.agents.v1 import runs_service_pb2 as runs_rpc
from mnemesh.agents.v1.agents_service_pb2_grpc import AgentServiceStub
from mnemesh.agents.v1.runs_service_pb2_grpc import RunServiceStub
from mnemesh.types.v1 import message_pb2, paging_pb2
from mnemesh_client import run_stream
from mnemesh_kit.clock import Clock
from mnemesh_kit.errors import Aborted, NotFound
from mnemesh_kit.ids import new_id

from mnemesh_gateway.clients import deadlines
from mnemesh_gateway.clients.agents import agent_from_proto
from mnemesh_gateway.clients.convert import config_to_proto, part_to_proto
from mnemesh_gateway.clients.runs import converted
from mnemesh_gateway.model.agents import AgentInfo
from mnemesh_gateway.model.runs import RunEvent
from mnemesh_gateway.model.sending import RunOptions
from mnemesh_gateway.model.tasks import Task, TaskMessage

_TAG: Final = "gateway-task"
_PROMPT: Final = "Carry out the task. Answer with its result only."
_ABANDONED: Final = timedelta(minutes=30)
_MAX_MESSAGES: Final = 100


class TaskAgentsClient:
    """TaskAgentsPort over gRPC."""

    def __init__(self, channel: grpc.aio.Channel, clock: Clock) -> None:
        self._agents = AgentServiceStub(channel)
        self._runs = RunServiceStub(channel)
        self._clock = clock

    async def create(self, model: str, instructions: str | None) -> AgentInfo:
        """See TaskAgentsPort."""
        agent = agents_pb2.Agent(
            name=_TAG,
            type=agents_pb2.AGENT_TYPE_LETTA_V1,
            system=instructions or _PROMPT,
            model=model,
            tags=[_TAG],
            hidden=True,
        )
        request = rpc.CreateAgentRequest(agent=agent, include_base_tools=False)
        response = await self._agents.CreateAgent(request, timeout=deadlines.WRITE)
        return agent_from_proto(response.agent)

    async def run(self, agent: AgentInfo, task: Task) -> AsyncIterator[RunEvent]:
        """See TaskAgentsPort."""
        options = RunOptions(settings=task.settings, format=task.format, stream_tokens=task.stream)
        request = runs_rpc.SendMessageRequest(
            request_id=new_id("gateway"),
            agent_id=agent.id,
            messages=[_message_to_proto(message) for message in task.messages[-_MAX_MESSAGES:]],
            config=config_to_proto(options),
        )
        async for event in converted(run_stream.send(self._runs, request, deadlines.PATIENCE, deadlines.ACCEPTANCE)):
            yield event

    async def delete(self, agent_id: str) -> None:
        """See TaskAgentsPort."""
        try:
            await self._agents.DeleteAgent(rpc.DeleteAgentRequest(agent_id=agent_id), timeout=deadlines.WRITE)
        except NotFound:
            return
        except Aborted:
            # Its client disconnected while the run was in progress: it is deleted as an abandoned one.
            return

    async def abandoned(self) -> tuple[str, ...]:
        """See TaskAgentsPort."""
        request = rpc.ListAgentsRequest(
            page_size=100,
            order=paging_pb2.SORT_ORDER_ASCENDING,
            filter=rpc.AgentFilter(tags_all=[_TAG], hidden=True),
        )
        response = await self._agents.ListAgents(request, timeout=deadlines.READ)
        limit = self._clock.now() - _ABANDONED
        agents = (agent_from_proto(agent) for agent in response.agents)
        return tuple(agent.id for agent in agents if agent.created_at < limit)


def _message_to_proto(message: TaskMessage) -> runs_pb2.InputMessage:
    role = message_pb2.ROLE_ASSISTANT if message.role == "assistant" else message_pb2.ROLE_USER
    return runs_pb2.InputMessage(role=role, content=[part_to_proto(part) for part in message.content])
