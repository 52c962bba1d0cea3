"""Agents: made, found, listed, deleted."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mnemesh.agents.v1 import agents_pb2, agents_service_pb2, agents_service_pb2_grpc
from mnemesh_kit.channels import Channel
from mnemesh_kit.errors import InvalidArgument, NotFound

from mnemesh_client.agent import Agent
from mnemesh_client.inputs import (
    AgentTypeName,
    Blocks,
    ToolSource,
    agent_type,
    block_messages,
    json_text,
    source_text,
)
from mnemesh_client.paging import Order, every, sort_order

if TYPE_CHECKING:
    from mnemesh_client.mnemesh import Mnemesh

_CREATION_SECONDS = 60.0


class AgentsClient:
    """`e.agents`."""

    def __init__(self, mnemesh: Mnemesh, channel: Channel) -> None:
        self._mnemesh = mnemesh
        self.stub = agents_service_pb2_grpc.AgentServiceStub(channel)

    async def create(
        self,
        name: str = "",
        *,
        model: str = "",
        type: AgentTypeName | str = "letta_v1",  # noqa: A002  (the field's own name)
        blocks: Blocks | None = None,
        block_ids: Sequence[str] = (),
        tools: Sequence[str] = (),
        tool_sources: Sequence[ToolSource] = (),
        archive_ids: Sequence[str] = (),
        system: str = "",
        system_prompt_key: str | None = None,
        description: str | None = None,
        embedder: str | None = None,
        tags: Sequence[str] = (),
        metadata: Mapping[str, Any] | str | None = None,
        settings: agents_pb2.ModelSettings | None = None,
        tool_rules: Sequence[agents_pb2.ToolRule] = (),
        time_zone: str = "",
        memory_variables: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
        include_base_tools: bool | None = None,
        continuation_message: str | None = None,
        request_id: str = "",
    ) -> Agent:
        """Makes an agent with its blocks, tools and default conversation.

        Args:
            name: not unique; empty lets the server make one up.
            model: "provider/model"; empty is the server's default.
            type: "letta_v1" speaks in plain text, "memgpt_v2" by send_message; and further ones.
            blocks: core memory as label → value, or Block messages.
            block_ids: existing blocks that it shares.
            tools: built-in tools by name, stored ones by name or "tool-…" id.
            tool_sources: Python functions, or their source texts, to make tools of.
            archive_ids: existing archives that it shares.
            system: the system prompt; empty is the type's own.
            system_prompt_key: takes the prompt under this key instead, see `e.prompts`.
            description: for people.
            embedder: of archives made for it.
            tags: to find it by.
            metadata: carried as JSON.
            settings: how the model is called.
            tool_rules: on the order and number of tool calls.
            time_zone: an IANA name, of the times that it sees.
            memory_variables: put into blocks and the system prompt where they say {{name}}.
            secrets: the environment of its tools.
            include_base_tools: None: what the type says.
            continuation_message: what it is told behind its tools; for types that speak in plain text.
            request_id: repeat it to get the same agent again.

        Raises:
            NotFound: a tool, block or system prompt does not exist, or no provider serves the model (MODEL_UNKNOWN).
            InvalidArgument: a field breaks its rule (`error.field`), or a source yields no schema.
            AlreadyExists: two blocks under one label.
        """
        proto = agents_pb2.Agent(
            name=name,
            description=description,
            type=agent_type(type),
            system=system,
            model=model,
            model_settings=settings,
            embedder=embedder,
            tool_rules=tool_rules,
            tags=tags,
            metadata=json_text(metadata),
            time_zone=time_zone,
            continuation_message=continuation_message,
        )
        request = agents_service_pb2.CreateAgentRequest(
            request_id=request_id,
            agent=proto,
            blocks=block_messages(blocks),
            block_ids=block_ids,
            tool_ids=[key for key in tools if key.startswith("tool-")],
            tool_names=[key for key in tools if not key.startswith("tool-")],
            tool_sources=[source_text(source) for source in tool_sources],
            archive_ids=archive_ids,
            system_prompt_key=system_prompt_key,
            memory_variables=memory_variables or {},
            secrets=secrets or {},
            include_base_tools=include_base_tools,
        )
        response = await self.stub.CreateAgent(request, timeout=_CREATION_SECONDS)
        return Agent(self._mnemesh, response.agent)

    async def get(self, agent_id: str) -> Agent:
        """The agent with that id; raises NotFound."""
        response = await self.stub.GetAgent(agents_service_pb2.GetAgentRequest(agent_id=agent_id))
        return Agent(self._mnemesh, response.agent)

    async def find(self, key: str) -> Agent:
        """The agent with that id or name.

        Raises:
            NotFound: there is none.
            InvalidArgument: several have that name.
        """
        if key.startswith("agent-"):
            return await self.get(key)
        named = [agent async for agent in self.list(name=key, limit=2)]
        if not named:
            raise NotFound(f"There is no agent named {key!r}.", resource_id=key)
        if len(named) > 1:
            raise InvalidArgument(f"Several agents are named {key!r}; name one by its id.", field="agent")
        return named[0]

    async def list(
        self,
        *,
        name: str | None = None,
        text_search: str | None = None,
        tags_any: Sequence[str] = (),
        tags_all: Sequence[str] = (),
        identity_id: str | None = None,
        identifier_key: str | None = None,
        order: Order | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[Agent]:
        """Agents for which all that is given holds, newest first unless `order` is "asc"."""
        criteria = agents_service_pb2.AgentFilter(
            name=name,
            text_search=text_search,
            tags_any=tags_any,
            tags_all=tags_all,
            identity_id=identity_id,
            identifier_key=identifier_key,
        )
        request = agents_service_pb2.ListAgentsRequest(order=sort_order(order), filter=criteria)
        async for proto in every(self.stub.ListAgents, request, "agents", limit):
            yield Agent(self._mnemesh, proto)

    async def delete(self, agent_id: str) -> None:
        """Deletes an agent, with everything that only it has in every tier."""
        request = agents_service_pb2.DeleteAgentRequest(agent_id=agent_id)
        await self.stub.DeleteAgent(request, timeout=_CREATION_SECONDS)
