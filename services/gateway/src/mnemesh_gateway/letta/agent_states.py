"""Reads what belongs to agents from the services that own it, and returns their states."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

from mnemesh.agents.v1 import agents_pb2 as pb
from mnemesh.agents.v1 import agents_service_pb2 as rpc
from mnemesh.agents.v1 import groups_service_pb2, identities_service_pb2
from mnemesh.blocks.v1 import blocks_pb2
from mnemesh.files.v1 import agent_files_service_pb2
from mnemesh.recall.v1 import messages_service_pb2
from mnemesh.tools.v1 import tools_service_pb2
from mnemesh_kit.errors import NotFound
from mnemesh_kit.whole_answers import whole_answer

from mnemesh_gateway.letta.convert.agents import file_block_from_proto, folder_from_proto, state_from_proto
from mnemesh_gateway.letta.convert.groups import group_from_proto, identity_from_proto
from mnemesh_gateway.letta.convert.messages import Shown, messages_from_proto
from mnemesh_gateway.letta.convert.models import find_embedder, find_model
from mnemesh_gateway.letta.convert.tools import tool_from_proto
from mnemesh_gateway.letta.mesh import Mesh
from mnemesh_gateway.letta.pages import READ_SECONDS, PageQuery, cut, listed, order_to_proto, responses
from mnemesh_gateway.letta.schemas.agents import AgentState, FileBlock, Source, parts_of
from mnemesh_gateway.letta.schemas.groups import Group, Identity
from mnemesh_gateway.letta.schemas.tools import Tool

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
        page = await mesh.agents.ListAgents(request, timeout=READ_SECONDS)
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
    page = cut(await listed(method, request, "agent_ids", every, default="asc"), query, str)
    if not page:
        return []
    found = rpc.ListAgentsRequest(filter=rpc.AgentFilter(agent_ids=page), view=VIEW)
    states: dict[str, AgentState] = {}
    async for response in responses(mesh.agents.ListAgents, found):
        states |= {state.id: state for state in await states_of(mesh, response.agents, response.core_memories, parts)}
    return [states[agent_id] for agent_id in page if agent_id in states]


async def _tools(mesh: Mesh, agents: Sequence[pb.Agent]) -> dict[str, Tool]:
    """Returns the tools of agents: custom ones by id, built-in ones by name."""
    ids = {tool.tool_id for agent in agents for tool in agent.tools if tool.tool_id}
    names = {tool.name for agent in agents for tool in agent.tools if not tool.tool_id}
    if not ids and not names:
        return {}
    key = ",".join(sorted(names))

    async def builtin() -> dict[str, Tool]:
        request = tools_service_pb2.BatchGetToolsRequest(names=sorted(names))
        response = await _definitions(mesh, request)
        return {tool.name: tool_from_proto(tool) for tool in response.tools}

    found = dict(await mesh.cached(f"builtin:{key}", builtin)) if names else {}
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
    pages = responses(mesh.agent_files.ListAgentFiles, request)
    return [file_block_from_proto(file) async for response in pages for file in response.files]


async def folders_of(mesh: Mesh, agent_id: str) -> list[Source]:
    """Returns the folders that are attached to an agent, in the order of their attachment."""
    request = agent_files_service_pb2.ListAgentFoldersRequest(agent_id=agent_id, order=order_to_proto("asc"))
    pages = responses(mesh.agent_files.ListAgentFolders, request)
    folders = [folder async for response in pages for folder in response.folders]
    return [folder_from_proto(folder, await find_embedder(mesh, folder.embedder)) for folder in folders]


async def _include(mesh: Mesh, state: AgentState, agent: pb.Agent, parts: frozenset[str]) -> None:
    if "identities" in parts:
        state.identities = await _identities(mesh, agent)
    if "pending_approval" in parts and agent.HasField("pending_approval_request_id"):
        request = messages_service_pb2.GetMessagesRequest(message_ids=[agent.pending_approval_request_id])
        found = (await mesh.messages.GetMessages(request, timeout=READ_SECONDS)).messages
        state.pending_approval = next(iter(messages_from_proto(found, Shown())), None)
    if parts & {"managed_group", "multi_agent_group"}:
        state.managed_group = state.multi_agent_group = await _managed_group(mesh, agent)


async def _identities(mesh: Mesh, agent: pb.Agent) -> list[Identity]:
    found = []
    for identity_id in agent.identity_ids:
        request = identities_service_pb2.GetIdentityRequest(identity_id=identity_id)
        try:
            response = await mesh.identities.GetIdentity(request, timeout=READ_SECONDS)
        except NotFound:
            continue
        found.append(identity_from_proto(response.identity))
    return found


async def _managed_group(mesh: Mesh, agent: pb.Agent) -> Group | None:
    for group_id in agent.group_ids:
        request = groups_service_pb2.GetGroupRequest(group_id=group_id)
        group = group_from_proto((await mesh.groups.GetGroup(request, timeout=READ_SECONDS)).group)
        if group.manager_agent_id == agent.id:
            return group
    return None
