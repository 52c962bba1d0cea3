"""The states of agents: reads what belongs to them from the services that own it."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any, Final, TypeVar

import msgspec
from mnemesh.agents.v1 import agents_pb2 as pb
from mnemesh.agents.v1 import agents_service_pb2 as rpc
from mnemesh.agents.v1 import groups_service_pb2, identities_service_pb2, models_pb2
from mnemesh.blocks.v1 import blocks_pb2
from mnemesh.files.v1 import agent_files_service_pb2, files_pb2
from mnemesh.recall.v1 import messages_service_pb2
from mnemesh.tools.v1 import tools_pb2, tools_service_pb2
from mnemesh_kit.call_context import current_principal
from mnemesh_kit.errors import NotFound
from mnemesh_kit.paging import whole_answer
from mnemesh_letta.convert.settings import letta_response_format, letta_rule
from mnemesh_letta.convert.values import AGENT_TYPE_NAMES, present, shown

from mnemesh_gateway.letta.blocks import Block, block_from_proto
from mnemesh_gateway.letta.folders import Source, folder_from_proto
from mnemesh_gateway.letta.groups import Group, group_from_proto
from mnemesh_gateway.letta.identities import Identity, identity_from_proto
from mnemesh_gateway.letta.mesh import READ_SECONDS, Mesh, Origin, PageQuery, cut, list_page, list_pages, order_to_proto
from mnemesh_gateway.letta.messages import Shown, messages_from_proto
from mnemesh_gateway.letta.model_settings import (
    CompactionSettings,
    EmbeddingConfig,
    LLMConfig,
    compaction_from_proto,
    embedding_config,
    find_embedder,
    find_model,
    llm_config,
    settings_to_json,
)
from mnemesh_gateway.letta.operations import read
from mnemesh_gateway.letta.tools import Tool, tool_from_proto


class FileBlock(msgspec.Struct, kw_only=True):
    """A file of an agent, as a block that only the agent's tools for files change."""

    id: str
    label: str
    value: str
    file_id: str
    source_id: str
    is_open: bool
    last_accessed_at: datetime | None = None
    read_only: bool = True


class Memory(msgspec.Struct, kw_only=True):
    """The blocks of an agent."""

    agent_type: str | None = None
    git_enabled: bool = False
    blocks: list[Block]
    file_blocks: list[FileBlock] = []
    prompt_template: str = ""


class Variable(msgspec.Struct, kw_only=True):
    """An environment variable of an agent's tools. Its value is never shown."""

    id: str | None = None
    agent_id: str
    key: str
    value: str = ""
    description: str | None = None
    value_enc: str | None = None
    updated_at: datetime | None = None


class AgentState(Origin, kw_only=True):
    """An agent with all that belongs to it."""

    id: str
    name: str
    agent_type: str
    system: str
    model: str | None
    model_settings: dict[str, Any] | None
    embedding: str | None
    llm_config: LLMConfig
    embedding_config: EmbeddingConfig | None
    compaction_settings: CompactionSettings | None
    response_format: dict[str, Any] | None
    description: str | None
    metadata: dict[str, Any] | None
    memory: Memory
    blocks: list[Block]
    tools: list[Tool]
    sources: list[Source]
    tags: list[str]
    tool_rules: list[dict[str, Any]] | None
    message_ids: list[str] | None
    tool_exec_environment_variables: list[Variable]
    secrets: list[Variable]
    identity_ids: list[str]
    identities: list[Identity]
    pending_approval: dict[str, Any] | None
    message_buffer_autoclear: bool
    enable_sleeptime: bool | None
    multi_agent_group: Group | None
    managed_group: Group | None
    last_run_completion: datetime | None
    last_run_duration_ms: int | None
    last_stop_reason: str | None
    timezone: str | None
    max_files_open: int | None
    per_file_view_window_char_limit: int | None
    hidden: bool | None


def parts_of(include: list[str], relationships: list[str] | None) -> frozenset[str]:
    """Returns the names of the parts of agents that a query asks for."""
    return frozenset(name.removeprefix("agent.") for name in include) | frozenset(relationships or ())


_OPENAI_OUTPUT_TOKENS: Final = 16384


def state_from_proto(
    agent: pb.Agent,
    core_memory: blocks_pb2.CoreMemory,
    model: models_pb2.Model,
    embedder: models_pb2.EmbeddingModel | None,
    tools: list[Tool],
    sources: list[Source],
    file_blocks: list[FileBlock],
) -> AgentState:
    """Returns the state of an agent. What only some answers have is empty: identities, groups, pending approval."""
    blocks = [block_from_proto(block) for block in core_memory.blocks]
    kind = AGENT_TYPE_NAMES.get(agent.type, "letta_v1_agent")
    variables = [Variable(id=item.id, agent_id=agent.id, key=item.key) for item in agent.secrets]
    return shown(
        AgentState,
        agent,
        agent_type=kind,
        model_settings=_settings_in_effect(model, agent),
        embedding=present(agent, "embedder"),
        llm_config=llm_config(model, agent.effective_model_settings),
        embedding_config=embedding_config(embedder, agent.embedder) if embedder or agent.HasField("embedder") else None,
        compaction_settings=compaction_from_proto(agent),
        response_format=letta_response_format(agent),
        memory=Memory(agent_type=kind, blocks=blocks, file_blocks=file_blocks),
        blocks=blocks,
        tools=tools,
        sources=sources,
        tool_rules=[letta_rule(rule) for rule in agent.tool_rules],
        tool_exec_environment_variables=variables,
        secrets=variables,
        identities=[],
        pending_approval=None,
        multi_agent_group=None,
        managed_group=None,
        max_files_open=agent.effective_max_files_open,
        per_file_view_window_char_limit=agent.effective_per_file_view_window_char_limit,
    )


def _settings_in_effect(model: models_pb2.Model, agent: pb.Agent) -> dict[str, Any]:
    """Returns the settings of an agent's model, with Letta's defaults for what neither of them sets."""
    found = settings_to_json(model.provider_type, agent.effective_model_settings)
    defaults: dict[str, Any] = {"temperature": 1.0, "parallel_tool_calls": True, "strict": False}
    if found["provider_type"] == "openai":
        reasons = model.HasField("capabilities") and not model.capabilities.temperature
        defaults["reasoning"] = {"reasoning_effort": "medium" if reasons else "minimal"}
        window = agent.effective_model_settings.context_window or model.context_window
        defaults["max_output_tokens"] = min(_OPENAI_OUTPUT_TOKENS, window - 1) if window else _OPENAI_OUTPUT_TOKENS
        defaults["response_format"] = letta_response_format(agent)
    if model.max_output_tokens:
        defaults["max_output_tokens"] = model.max_output_tokens
    return defaults | found


def file_block_from_proto(file: files_pb2.AgentFile) -> FileBlock:
    """Returns a file of an agent as a block. The value of a closed file is empty."""
    return shown(
        FileBlock,
        file,
        id="block-" + file.file_id.partition("-")[2],
        label=file.name,
        value=file.visible_content if file.is_open else "",
    )


VIEW: Final = rpc.AgentView(message_ids=True, blocks=True, secrets=True, identities=True, groups=True)
_FILE_TOOL: Final = "open_files"
"""The tool that an agent has while it holds folders."""
_Part = TypeVar("_Part")


class HoldersQuery(PageQuery, kw_only=True):
    """The query of a list of the agents that hold a resource, and which parts of them it has."""

    include: list[str] | None = None
    include_relationships: list[str] | None = None

    @property
    def parts(self) -> frozenset[str]:
        """The names of the parts."""
        return parts_of(self.include or [], self.include_relationships)


async def read_state(mesh: Mesh, agent_id: str, parts: frozenset[str] = frozenset()) -> AgentState:
    """Returns the state of an agent. Raises NotFound."""
    response = await mesh.agents.GetAgent(rpc.GetAgentRequest(agent_id=agent_id, view=VIEW), timeout=READ_SECONDS)
    return (await states_of(mesh, [response.agent], [response.core_memory], parts))[0]


async def states_of(
    mesh: Mesh,
    agents: Sequence[pb.Agent],
    core_memories: Sequence[blocks_pb2.CoreMemory],
    parts: frozenset[str] = frozenset(),
) -> list[AgentState]:
    """Returns the states of agents that were read with `VIEW`, in their order."""
    tools, sources, files = await asyncio.gather(
        _tools(mesh, agents), _of_holders(mesh, agents, folders_of), _of_holders(mesh, agents, file_blocks_of)
    )
    states = []
    for agent, core_memory in zip(agents, core_memories, strict=True):
        model = await find_model(mesh, agent.model)
        embedder = await find_embedder(mesh, agent.embedder if agent.HasField("embedder") else None)
        own = [tools[name] for tool in agent.tools if (name := tool.tool_id or tool.name) in tools]
        folders, blocks = sources.get(agent.id, []), files.get(agent.id, [])
        state = state_from_proto(agent, core_memory, model, embedder, own, folders, blocks)
        await _include(mesh, state, agent, parts)
        states.append(state)
    return states


async def agents_of(
    mesh: Mesh, request: rpc.ListAgentsRequest, limit: int, parts: frozenset[str] = frozenset()
) -> list[AgentState]:
    """Returns the first agents of a list, at most `limit`."""
    request.view.CopyFrom(VIEW)
    found: list[AgentState] = []
    while len(found) < limit:
        request.page_size = min(limit - len(found), 200)
        page = await read(mesh.agents.ListAgents, request)
        found += await states_of(mesh, page.agents, page.core_memories, parts)
        if not page.next_page_token:
            break
        request.page_token = page.next_page_token
    return found


async def page_of_holders(
    mesh: Mesh,
    method: Callable[..., Awaitable[Any]],
    request: Any,
    query: HoldersQuery,
) -> list[AgentState]:
    """Returns a page of the agents that hold a resource; `method` lists their ids."""
    parts = query.parts
    every = PageQuery(limit=10_000)
    page = cut(await list_page(method, request, "agent_ids", every, default="asc"), query, str)
    if not page:
        return []
    found = rpc.ListAgentsRequest(filter=rpc.AgentFilter(agent_ids=page), view=VIEW)
    states: dict[str, AgentState] = {}
    async for response in list_pages(mesh.agents.ListAgents, found):
        states |= {state.id: state for state in await states_of(mesh, response.agents, response.core_memories, parts)}
    return [states[agent_id] for agent_id in page if agent_id in states]


async def _tools(mesh: Mesh, agents: Sequence[pb.Agent]) -> dict[str, Tool]:
    """Returns the tools of agents: custom ones by id, built-in ones by name; for limited callers, their names alone."""
    if current_principal().agents is not None:
        shown = [tools_pb2.Tool(id=tool.tool_id, name=tool.name) for agent in agents for tool in agent.tools]
        return {tool.id or tool.name: tool_from_proto(tool) for tool in shown}
    ids = {tool.tool_id for agent in agents for tool in agent.tools if tool.tool_id}
    names = {tool.name for agent in agents for tool in agent.tools if not tool.tool_id}
    if not ids and not names:
        return {}
    key = ",".join(sorted(names))

    async def builtin() -> dict[str, Tool]:
        request = tools_service_pb2.BatchGetToolsRequest(names=sorted(names))
        response = await _definitions(mesh, request)
        return {tool.name: tool_from_proto(tool) for tool in response.tools}

    found = dict(await mesh.read_cached(f"builtin:{key}", builtin)) if names else {}
    if ids:
        request = tools_service_pb2.BatchGetToolsRequest(tool_ids=sorted(ids))
        response = await _definitions(mesh, request)
        found |= {tool.id: tool_from_proto(tool) for tool in response.tools}
    return found


async def _definitions(
    mesh: Mesh, request: tools_service_pb2.BatchGetToolsRequest
) -> tools_service_pb2.BatchGetToolsResponse:
    return await whole_answer(mesh.tools.BatchGetTools, request, seconds=READ_SECONDS, field="tools")


async def _of_holders(
    mesh: Mesh, agents: Sequence[pb.Agent], read: Callable[[Mesh, str], Awaitable[list[_Part]]]
) -> dict[str, list[_Part]]:
    """Returns what `read` finds for the agents that hold folders, by the agents' ids."""
    holders = [agent.id for agent in agents if any(tool.name == _FILE_TOOL for tool in agent.tools)]
    return dict(zip(holders, await asyncio.gather(*(read(mesh, each) for each in holders)), strict=True))


async def file_blocks_of(mesh: Mesh, agent_id: str) -> list[FileBlock]:
    """Returns the files of an agent, with what it sees of the open ones."""
    request = agent_files_service_pb2.ListAgentFilesRequest(
        agent_id=agent_id, include_content=True, order=order_to_proto("asc")
    )
    pages = list_pages(mesh.agent_files.ListAgentFiles, request)
    return [file_block_from_proto(file) async for response in pages for file in response.files]


async def folders_of(mesh: Mesh, agent_id: str) -> list[Source]:
    """Returns the folders that are attached to an agent, in the order of their attachment."""
    request = agent_files_service_pb2.ListAgentFoldersRequest(agent_id=agent_id, order=order_to_proto("asc"))
    pages = list_pages(mesh.agent_files.ListAgentFolders, request)
    folders = [folder async for response in pages for folder in response.folders]
    return [folder_from_proto(folder, await find_embedder(mesh, folder.embedder)) for folder in folders]


async def _include(mesh: Mesh, state: AgentState, agent: pb.Agent, parts: frozenset[str]) -> None:
    if "identities" in parts:
        state.identities = await _identities(mesh, agent)
    if "pending_approval" in parts and agent.HasField("pending_approval_request_id"):
        request = messages_service_pb2.GetMessagesRequest(message_ids=[agent.pending_approval_request_id])
        found = (await read(mesh.messages.GetMessages, request)).messages
        state.pending_approval = next(iter(messages_from_proto(found, Shown())), None)
    if parts & {"managed_group", "multi_agent_group"}:
        state.managed_group = state.multi_agent_group = await _find_managed_group(mesh, agent)


async def _identities(mesh: Mesh, agent: pb.Agent) -> list[Identity]:
    found = []
    for identity_id in agent.identity_ids:
        request = identities_service_pb2.GetIdentityRequest(identity_id=identity_id)
        try:
            response = await read(mesh.identities.GetIdentity, request)
        except NotFound:
            continue
        found.append(identity_from_proto(response.identity))
    return found


async def _find_managed_group(mesh: Mesh, agent: pb.Agent) -> Group | None:
    for group_id in agent.group_ids:
        request = groups_service_pb2.GetGroupRequest(group_id=group_id)
        group = group_from_proto((await read(mesh.groups.GetGroup, request)).group)
        if group.manager_agent_id == agent.id:
            return group
    return None
