"""Agents: create, get, find, list and delete."""

import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, Final

from mnemesh.agents.v1 import agent_records_pb2, agents_pb2, agents_service_pb2
from mnemesh_kit.errors import InvalidArgument, NotFound

from mnemesh_client.agent import DELETION_SECONDS, Agent, AgentCalls
from mnemesh_client.inputs import (
    AgentTypeName,
    Blocks,
    ToolSource,
    agent_type,
    block_messages,
    is_id,
    json_text,
    new_request_id,
    source_text,
)
from mnemesh_client.paging import Order, paginate, sort_order

_CREATION_SECONDS = 60.0
_TRANSFER_SECONDS = 3600.0
_NAMED = 5
"""The number of agents of one name that an error lists."""
_TOO_SHORT: Final = re.compile(r"agent-[0-9a-f]{0,3}")


class AgentsClient:
    """Calls of AgentService, as `client.agents`."""

    def __init__(self, calls: AgentCalls) -> None:
        self._calls = calls
        self.stub = calls.agents

    def handle(self, proto: agents_pb2.Agent) -> Agent:
        """Returns the handle of an agent that a call returned."""
        return Agent(self._calls, proto)

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
        enable_sleeptime: bool = False,
        memory_extraction: agents_pb2.MemoryExtractionSettings | None = None,
        continuation_message: str | None = None,
        request_id: str = "",
    ) -> Agent:
        """Creates an agent with its blocks, tools and default conversation.

        Args:
            name: the name, which is not unique; the server chooses one if it is empty.
            model: the model as "provider/model"; empty is the server's default.
            type: the agent type. "letta_v1" replies in plain text, "memgpt_v2" with the tool send_message.
            blocks: core memory as a mapping of labels to values, or as Block messages.
            block_ids: existing blocks to share.
            tools: built-in tools by name, stored tools by name or "tool-…" id.
            tool_sources: python functions, or their source code, to create tools from.
            archive_ids: existing archives to share.
            system: the system prompt; empty is the prompt of the type.
            system_prompt_key: the key of a stored system prompt to use instead of `system`; see `client.prompts`.
            description: a description for people.
            embedder: the embedder of archives that are created for it.
            tags: tags to find it by.
            metadata: any JSON object; it is stored unchanged.
            settings: the settings of model calls.
            tool_rules: rules on the order and number of tool calls.
            time_zone: the IANA name of the time zone in which it sees times.
            memory_variables: values that replace {{name}} in blocks and in the system prompt.
            secrets: environment variables of its tools, which are stored encrypted and never returned.
            include_base_tools: whether to attach the base tools; None is the default of the type.
            enable_sleeptime: whether to create a partner with it that maintains its memory in the background.
            memory_extraction: when and where facts are extracted from its messages; None extracts none by itself.
            continuation_message: the message to the model after tool calls, for types that reply in plain text.
            request_id: the idempotency key, to get the same agent again; empty creates a new one.

        Raises:
            NotFound: a tool, block or system prompt does not exist, or no provider serves the model (MODEL_UNKNOWN).
            InvalidArgument: a field is invalid (`error.field`), or no schema can be derived from a source.
            AlreadyExists: two blocks have the same label.
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
            enable_sleeptime=enable_sleeptime or None,
            memory_extraction=memory_extraction,
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
        return self.handle(response.agent)

    async def get(self, agent_id: str) -> Agent:
        """Returns the agent with an id. Raises NotFound."""
        response = await self.stub.GetAgent(agents_service_pb2.GetAgentRequest(agent_id=agent_id))
        return self.handle(response.agent)

    async def find(self, key: str) -> Agent:
        """Returns the agent with an id or name.

        Raises:
            NotFound: there is no such agent.
            InvalidArgument: several agents have that name. The message lists their ids.
        """
        if is_id(key, "agent"):
            return await self.get(key)
        named = [agent async for agent in self.list(name=key, order="asc", limit=_NAMED + 1)]
        if not named:
            hint = " An id needs at least 4 characters after agent-." if _TOO_SHORT.fullmatch(key) else ""
            raise NotFound(f"There is no agent named {key!r}.{hint}", resource_id=key)
        if len(named) > 1:
            ids = [agent.id for agent in named[:_NAMED]] + ["…"] * (len(named) > _NAMED)
            raise InvalidArgument(
                f"Several agents are named {key!r}: {', '.join(ids)}. Use the id of one.", field="agent"
            )
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
        """Yields the agents that match all arguments, newest first unless `order` is "asc"."""
        criteria = agents_service_pb2.AgentFilter(
            name=name,
            text_search=text_search,
            tags_any=tags_any,
            tags_all=tags_all,
            identity_id=identity_id,
            identifier_key=identifier_key,
        )
        request = agents_service_pb2.ListAgentsRequest(order=sort_order(order), filter=criteria)
        async for proto in paginate(self.stub.ListAgents, request, "agents", limit):
            yield self.handle(proto)

    async def count(
        self,
        *,
        name: str | None = None,
        text_search: str | None = None,
        tags_any: Sequence[str] = (),
        tags_all: Sequence[str] = (),
    ) -> int:
        """Returns the number of agents that match all arguments."""
        criteria = agents_service_pb2.AgentFilter(
            name=name, text_search=text_search, tags_any=tags_any, tags_all=tags_all
        )
        return (await self.stub.CountAgents(agents_service_pb2.CountAgentsRequest(filter=criteria))).count

    def tags(self, *, text_search: str | None = None, limit: int | None = None) -> AsyncIterator[str]:
        """Yields the tags of agents, of those that contain `text_search` if it is set."""
        return paginate(self.stub.ListTags, agents_service_pb2.ListTagsRequest(text_search=text_search), "tags", limit)

    async def export(
        self, agent_id: str, *, types: Sequence[agent_records_pb2.RecordType.ValueType] = (), vectors: bool = False
    ) -> AsyncIterator[agent_records_pb2.AgentRecord]:
        """Yields everything of an agent as records. An agent that changes meanwhile is exported partly before it.

        Args:
            agent_id: the agent.
            types: the types of records; empty is all.
            vectors: include the vectors of passages. An import into a mesh with the same embedder keeps them.

        Raises:
            NotFound: there is no such agent.
        """
        request = agents_service_pb2.ExportAgentRequest(agent_id=agent_id, types=types, include_vectors=vectors)
        async for response in self.stub.ExportAgent(request, timeout=_TRANSFER_SECONDS):
            for record in response.records:
                yield record

    async def import_(
        self,
        records: Sequence[agent_records_pb2.AgentRecord],
        options: agents_service_pb2.ImportOptions | None = None,
    ) -> agents_service_pb2.ImportAgentResponse:
        """Creates an agent from the records of `export`. It is visible once all of them are stored.

        Args:
            records: the records, in the order of `export`.
            options: how to import them. A call that failed is repeated with the `request_id` of the first one.

        Raises:
            InvalidArgument: a record is invalid (metadata: record, its position; field).
            AlreadyExists: an id of a record is in use.
        """
        chosen = agents_service_pb2.ImportOptions()
        if options is not None:
            chosen.CopyFrom(options)
        chosen.request_id = chosen.request_id or new_request_id()

        def requests() -> Iterator[agents_service_pb2.ImportAgentRequest]:
            yield agents_service_pb2.ImportAgentRequest(options=chosen)
            for record in records:
                yield agents_service_pb2.ImportAgentRequest(records=[record])

        return await self.stub.ImportAgent(requests(), timeout=_TRANSFER_SECONDS)

    async def delete(self, agent_id: str) -> None:
        """Deletes an agent, with all data that belongs only to it in every service."""
        request = agents_service_pb2.DeleteAgentRequest(agent_id=agent_id)
        await self.stub.DeleteAgent(request, timeout=DELETION_SECONDS)
