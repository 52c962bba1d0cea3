"""The memory of agents as a server of the Model Context Protocol: its tools, and their results.

Needs the extra `mcp`.
"""

# pydantic reads the annotations of the tools at run time, so they are not deferred.

import functools
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Annotated, Any, Final, Literal, ParamSpec, TypeVar

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from mnemesh.archival.v1 import passages_service_pb2
from mnemesh.blocks.v1 import blocks_pb2
from mnemesh.recall.v1 import messages_service_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_kit.errors import MnemeshError
from pydantic import Field
from typing_extensions import TypedDict

from mnemesh_client.agent import Agent
from mnemesh_client.errors import RunFailed
from mnemesh_client.inputs import text_of
from mnemesh_client.mnemesh import Mnemesh
from mnemesh_client.results import said, said_by

P = ParamSpec("P")
T = TypeVar("T")

ClientSource = Callable[[Context[Any, Any]], Mnemesh]
"""Returns the client with which the tools of a request call the mesh."""

_READ: Final = ToolAnnotations(read_only_hint=True)
_ADD: Final = ToolAnnotations(read_only_hint=False, destructive_hint=False)
_CHANGE: Final = ToolAnnotations(read_only_hint=False, destructive_hint=True)
_MAX_AGENTS: Final = 100

AgentKey = Annotated[str | None, Field(description="Name or id of the agent. Omit it for the default agent.")]
Limit = Annotated[int, Field(ge=1, le=50, description="Maximum number of results.")]
Date = Annotated[str | None, Field(description="YYYY-MM-DD or ISO 8601, in the agent's time zone.")]

_INSTRUCTIONS: Final = (
    "The long-term memory of agents. Search it before you ask the user for something that they may have said earlier. "
    "Use remember for facts that are worth keeping, and edit_core_memory for the few facts that an agent must always "
    "see."
)


def memory_server(
    client: ClientSource, agent: str | None = None, *, bound: Callable[[], str | None] = lambda: None
) -> MCPServer[Any]:
    """Returns an MCP server over a mesh, for any transport of the SDK.

    Args:
        client: returns the client of a request.
        agent: the name or id of the agent that the tools use if the caller names none.
        bound: returns the id of the only agent that the tools of a request may use; None is any.
    """
    server: MCPServer[Any] = MCPServer(
        "mnemesh", title="mnemesh", instructions=_INSTRUCTIONS, version=version("mnemesh-client"), log_level="WARNING"
    )
    tools = _MemoryTools(client, agent, bound)
    for function, annotations in (
        (tools.list_agents, _READ),
        (tools.search_memory, _READ),
        (tools.remember, _ADD),
        (tools.read_core_memory, _READ),
        (tools.edit_core_memory, _CHANGE),
        (tools.rewrite_core_memory, _CHANGE),
        (tools.ask_agent, _ADD),
    ):
        server.add_tool(_with_tool_errors(function), annotations=annotations)
    return server


def _with_tool_errors(function: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    """Returns the tool with refusals of the mesh as errors that the model can read."""

    @functools.wraps(function)
    async def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await function(*args, **kwargs)
        except MnemeshError as error:
            raise ToolError(f"{error.reason}: {error.message}") from error

    return call


class AgentEntry(TypedDict):
    """An agent."""

    id: str
    name: str
    description: str


class SurroundingText(TypedDict):
    """A message or a passage around a hit. `speaker` is a name, or else a role; null for a passage."""

    speaker: str | None
    text: str


class MemoryHit(TypedDict):
    """A message or a passage that a search found. `time` is ISO 8601 in UTC.

    `question` is what was asked just before, if the hit may answer it.
    """

    kind: str
    text: str
    time: str
    role: str | None
    speaker: str | None
    conversation_id: str | None
    question: str | None
    before: list[SurroundingText]
    after: list[SurroundingText]
    tags: list[str]


class StoredPassage(TypedDict):
    """A passage that was stored."""

    passage_id: str


class BlockEntry(TypedDict):
    """A block of core memory. `limit` counts characters."""

    label: str
    description: str
    value: str
    limit: int
    read_only: bool
    revision: int


class AgentReply(TypedDict):
    """The reply of an agent, and its run."""

    reply: str
    run_id: str


class _MemoryTools:
    """The tools. The docstrings and the annotations are what MCP clients show to their model."""

    def __init__(self, client: ClientSource, agent: str | None, bound: Callable[[], str | None]) -> None:
        self._client = client
        self._default = agent
        self._bound = bound

    async def _agent(self, context: Context[Any, Any], key: str | None) -> Agent:
        """Returns the agent that a call names, the default agent, or the only one."""
        client, bound = self._client(context), self._bound()
        if bound is not None:
            only = await client.agents.find(bound)
            if key not in (None, "", only.id, only.name):
                raise ToolError(f"These tools use the agent {only.name} only. Leave the argument agent out.")
            return only
        key = key or self._default
        if key is not None:
            return await client.agents.find(key)
        agents = [agent async for agent in client.agents.list(limit=2)]
        if len(agents) != 1:
            problem = "There are several agents." if agents else "There are no agents."
            raise ToolError(f"{problem} Set the argument agent; list_agents has the names.")
        return agents[0]

    async def list_agents(self, context: Context[Any, Any]) -> list[AgentEntry]:
        """List the agents whose memory can be used, the newest 100."""
        if self._bound() is not None:
            return [agent_entry(await self._agent(context, None))]
        return [agent_entry(agent) async for agent in self._client(context).agents.list(limit=_MAX_AGENTS)]

    async def search_memory(
        self,
        context: Context[Any, Any],
        query: Annotated[str, Field(min_length=1, description="Words or a question to search for.")],
        memory: Annotated[
            Literal["all", "messages", "passages"],
            Field(description="messages: what was said. passages: what was stored to be remembered."),
        ] = "all",
        further_queries: Annotated[
            list[str], Field(max_length=9, description="Other wordings, or parts of the question.")
        ] = [],  # noqa: B006
        speakers: Annotated[
            list[str], Field(max_length=20, description="Only messages that these people said, by name.")
        ] = [],  # noqa: B006
        start_date: Date = None,
        end_date: Date = None,
        surrounding: Annotated[
            int, Field(ge=0, le=10, description="Messages or passages to return before and after each result.")
        ] = 0,
        limit: Limit = 5,
        agent: AgentKey = None,
    ) -> list[MemoryHit]:
        """Search an agent's past conversations and its archival memory by words and meaning, best results first.

        A time in a query, such as last week, prefers memories of that time.
        """
        found = await self._agent(context, agent)
        if speakers and memory == "passages":
            raise ToolError("speakers: passages have no speakers. Set memory to messages, or omit speakers.")
        hits: list[MemoryHit] = []
        options: dict[str, Any] = {
            "further_queries": further_queries,
            "start_date": start_date,
            "end_date": end_date,
            "reference_time": datetime.now(UTC),
            "time_zone": found.proto.time_zone or None,
            "before": surrounding,
            "after": surrounding,
            "limit": limit,
        }
        if memory != "passages":
            hits += [message_hit(hit) for hit in await found.search(query, speakers=speakers, **options)]
        if memory != "messages" and not speakers:
            hits += [passage_hit(hit) for hit in await found.search_passages(query, **options)]
        return hits

    async def remember(
        self,
        context: Context[Any, Any],
        text: Annotated[str, Field(min_length=1, description="One complete statement that makes sense on its own.")],
        tags: Annotated[list[str], Field(description="Tags that later searches can filter by.")] = [],  # noqa: B006
        agent: AgentKey = None,
    ) -> StoredPassage:
        """Store a fact in an agent's archival memory. It is searchable from now on."""
        passage = await (await self._agent(context, agent)).remember(text, tags=tags)
        return StoredPassage(passage_id=passage.id)

    async def read_core_memory(self, context: Context[Any, Any], agent: AgentKey = None) -> list[BlockEntry]:
        """Read the blocks of core memory: the facts that the agent always sees."""
        memory = await (await self._agent(context, agent)).memory()
        return [block_entry(block) for block in memory.blocks]

    async def edit_core_memory(
        self,
        context: Context[Any, Any],
        label: Annotated[str, Field(description="Label of the block.")],
        new_text: Annotated[str, Field(description="Text to add, or the replacement of old_text. Empty deletes it.")],
        old_text: Annotated[
            str | None, Field(description="Text to replace; it must occur exactly once. Omit it to append new_text.")
        ] = None,
        agent: AgentKey = None,
    ) -> BlockEntry:
        """Append a line to a block of core memory, or replace a part of it."""
        found = await self._agent(context, agent)
        if old_text is None:
            return block_entry(await found.append(label, new_text))
        return block_entry(await found.replace(label, old_text, new_text))

    async def rewrite_core_memory(
        self,
        context: Context[Any, Any],
        label: Annotated[str, Field(description="Label of the block.")],
        value: Annotated[str, Field(description="The whole new value.")],
        revision: Annotated[int, Field(ge=1, description="The revision that read_core_memory returned.")],
        agent: AgentKey = None,
    ) -> BlockEntry:
        """Replace the whole value of a block. Fails if the block was changed since it was read."""
        found = await self._agent(context, agent)
        blocks = self._client(context).blocks
        return block_entry(await blocks.rethink(found.id, label, value, base_revision=revision))

    async def ask_agent(
        self,
        context: Context[Any, Any],
        message: Annotated[str, Field(min_length=1, description="The message, as the user would write it.")],
        agent: AgentKey = None,
    ) -> AgentReply:
        """Send a message to an agent and wait for its reply. The agent remembers the conversation."""
        found, run_id = await self._agent(context, agent), ""
        replies: list[str] = []
        async for event in found.send(message):
            run_id = event.run_id
            if event.HasField("error"):
                raise RunFailed(event.run_id, event.error.error)
            if event.HasField("message") and event.message.HasField("approval_request"):
                names = ", ".join(call.name for call in event.message.approval_request.tool_calls)
                asking = event.agent_id or found.name
                raise ToolError(f"{asking} waits for an approval of {names} (run {run_id}). A person must answer it.")
            if event.HasField("message") and event.message.HasField("assistant"):
                replies.append(text_of(event.message.assistant.content))
        return AgentReply(reply="\n".join(replies), run_id=run_id)


def agent_entry(agent: Agent) -> AgentEntry:
    """Returns the entry of an agent."""
    return AgentEntry(id=agent.id, name=agent.name, description=agent.proto.description)


def message_hit(hit: messages_service_pb2.MessageHit) -> MemoryHit:
    """Returns the entry of a message."""
    message = hit.message
    return MemoryHit(
        kind="message",
        text=hit.text,
        time=message.create_time.ToJsonString(),
        role=message_pb2.Role.Name(message.role).removeprefix("ROLE_").lower(),
        speaker=message.name or None,
        conversation_id=message.conversation_id or None,
        question=said(hit.question) if hit.HasField("question") else None,
        before=[SurroundingText(speaker=said_by(each), text=said(each)) for each in hit.before],
        after=[SurroundingText(speaker=said_by(each), text=said(each)) for each in hit.after],
        tags=[],
    )


def passage_hit(hit: passages_service_pb2.PassageHit) -> MemoryHit:
    """Returns the entry of a passage."""
    passage = hit.passage
    return MemoryHit(
        kind="passage",
        text=passage.text,
        time=passage.create_time.ToJsonString(),
        role=None,
        speaker=None,
        conversation_id=None,
        question=None,
        before=[SurroundingText(speaker=None, text=each.text) for each in hit.before],
        after=[SurroundingText(speaker=None, text=each.text) for each in hit.after],
        tags=list(passage.tags),
    )


def block_entry(block: blocks_pb2.Block) -> BlockEntry:
    """Returns the entry of a block."""
    return BlockEntry(
        label=block.label,
        description=block.description,
        value=block.value,
        limit=block.limit,
        read_only=block.read_only,
        revision=block.revision,
    )
