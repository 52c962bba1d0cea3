"""Agents: create, retrieve, list, count, update and delete."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

from mnemesh.agents.v1 import agents_pb2 as pb
from mnemesh.agents.v1 import agents_service_pb2 as rpc
from mnemesh.blocks.v1 import blocks_service_pb2
from mnemesh.files.v1 import agent_files_service_pb2
from mnemesh_kit.errors import NotFound
from mnemesh_kit.ids import new_id

from mnemesh_gateway.letta.agent_states import VIEW, agents_of, folders_of, read_state
from mnemesh_gateway.letta.convert.agents import options_to_proto
from mnemesh_gateway.letta.convert.groups import BEFORE_FIRST_TURN
from mnemesh_gateway.letta.convert.memory import block_to_proto
from mnemesh_gateway.letta.convert.models import UNSET_MODELS, change_reasoning, find_model, set_reasoning
from mnemesh_gateway.letta.convert.sending import input_to_proto
from mnemesh_gateway.letta.convert.values import AGENT_TYPES, STOP_REASONS, set_present
from mnemesh_gateway.letta.errors import invalid_field
from mnemesh_gateway.letta.mesh import Mesh
from mnemesh_gateway.letta.operations import Call, NoQuery, Operations
from mnemesh_gateway.letta.pages import READ_SECONDS, order_to_proto
from mnemesh_gateway.letta.schemas.agents import (
    AgentFilters,
    AgentState,
    CreateAgent,
    Included,
    ListAgents,
    UpdateAgent,
    parts_of,
)

operations = Operations()
WRITE_SECONDS: Final = 60.0
_CREATED_PARTS: Final = frozenset({"identities", "multi_agent_group"})
"""The parts of an agent that the answer to a creation includes."""
_WITHOUT_PARTNER: Final = frozenset({pb.AGENT_TYPE_SLEEPTIME, pb.AGENT_TYPE_VOICE_SLEEPTIME})
"""The types whose agents maintain the memory of others. `enable_sleeptime` has no effect on them."""
_CURSORS: Final[tuple[Literal["after_id", "before_id"], ...]] = ("after_id", "before_id")
_ORDERS: Final = {
    "created_at": rpc.AGENT_ORDER_BY_CREATE_TIME,
    "updated_at": rpc.AGENT_ORDER_BY_UPDATE_TIME,
    "last_run_completion": rpc.AGENT_ORDER_BY_LAST_RUN_COMPLETION,
}


@operations.get("/agents/", query=ListAgents, result=list[AgentState])
async def list_agents(call: Call[ListAgents, None]) -> list[AgentState]:
    """Lists agents, newest first."""
    query = call.query
    limit = 50 if query.limit is None else query.limit
    request = rpc.ListAgentsRequest(
        filter=_filter(query),
        order=order_to_proto(query.order or ("asc" if query.ascending else "desc")),
        order_by=_ORDERS.get(query.order_by or query.sort_by or "created_at", rpc.AGENT_ORDER_BY_CREATE_TIME),
    )
    set_present(request, after_id=query.after, before_id=query.before)
    parts = parts_of(query.include, query.include_relationships)
    try:
        return await agents_of(call.mesh, request, limit, parts)
    except NotFound as error:
        if error.field not in _CURSORS:
            raise
        # A client that deletes the agents that it lists goes on with those that are left.
        request.ClearField(error.field)
        return await agents_of(call.mesh, request, limit, parts)


@operations.get("/agents/count", query=AgentFilters, result=int)
async def count_agents(call: Call[AgentFilters, None]) -> int:
    """Counts agents."""
    request = rpc.CountAgentsRequest(filter=_filter(call.query))
    return (await call.mesh.agents.CountAgents(request, timeout=READ_SECONDS)).count


@operations.post("/agents/", body=CreateAgent, result=AgentState)
async def create_agent(call: Call[NoQuery, CreateAgent]) -> AgentState:
    """Creates an agent."""
    body = call.body
    agent = pb.Agent(type=AGENT_TYPES[body.agent_type or call.profile.agent_type])
    options_to_proto(body, agent)
    if agent.type in _WITHOUT_PARTNER:
        agent.ClearField("enable_sleeptime")
    _drop_unset(agent)
    set_reasoning(body, await find_model(call.mesh, agent.model), agent.model_settings, agent.type)
    set_present(agent, name=body.name)
    request = rpc.CreateAgentRequest(
        request_id=call.request_id,
        agent=agent,
        blocks=[block_to_proto(block, call.profile.block_limit) for block in body.memory_blocks or ()],
        block_ids=body.block_ids or (),
        tool_ids=body.tool_ids or (),
        tool_names=body.tools or (),
        folder_ids=_folder_ids(body.folder_ids, body.source_ids) or (),
        memory_variables=body.memory_variables or {},
        secrets={**(body.tool_exec_environment_variables or {}), **(body.secrets or {})},
        include_multi_agent_tools=body.include_multi_agent_tools,
        include_default_folder=body.include_default_source,
        open_folder_files=True,
        sleeptime_turns_counter=BEFORE_FIRST_TURN,
    )
    set_present(
        request, include_base_tools=body.include_base_tools, include_base_tool_rules=body.include_base_tool_rules
    )
    if body.initial_message_sequence is not None:
        messages = [
            input_to_proto(message, "body", "initial_message_sequence", index)
            for index, message in enumerate(body.initial_message_sequence)
        ]
        request.initial_messages.CopyFrom(rpc.InitialMessages(messages=messages))
    created = await call.mesh.agents.CreateAgent(request, timeout=WRITE_SECONDS)
    return await read_state(call.mesh, created.agent.id, _CREATED_PARTS)


@operations.get("/agents/{agent_id}", query=Included, result=AgentState)
async def retrieve_agent(call: Call[Included, None]) -> AgentState:
    """Returns an agent."""
    return await read_state(call.mesh, call.path["agent_id"], call.query.parts())


@operations.patch("/agents/{agent_id}", body=UpdateAgent, result=AgentState)
async def modify_agent(call: Call[NoQuery, UpdateAgent]) -> AgentState:
    """Updates an agent. Lists of ids replace the attached ones."""
    mesh, body, agent_id = call.mesh, call.body, call.path["agent_id"]
    current = (
        await mesh.agents.GetAgent(rpc.GetAgentRequest(agent_id=agent_id, view=VIEW), timeout=READ_SECONDS)
    ).agent
    agent = pb.Agent(id=agent_id)
    changes_settings = _changes_settings(body)
    if (body.model is None and body.llm_config is None) or not changes_settings:
        # The settings of a model are one field: what the body leaves out stays.
        agent.model_settings.CopyFrom(current.model_settings)
    paths = options_to_proto(body, agent)
    model = await find_model(mesh, agent.model or current.model)
    if change_reasoning(body, model, agent.model_settings, current.type) or changes_settings:
        paths.add("model_settings")
    else:
        paths.discard("model_settings")
    set_present(agent, name=body.name)
    if body.name is not None:
        paths.add("name")
    secrets = body.secrets if body.secrets is not None else body.tool_exec_environment_variables
    if secrets is not None:
        agent.secrets.extend(pb.Secret(key=key, value=value) for key, value in secrets.items())
        paths.add("secrets")
    if paths:
        request = rpc.UpdateAgentRequest(
            request_id=call.request_id, agent=agent, sleeptime_turns_counter=BEFORE_FIRST_TURN
        )
        request.update_mask.paths.extend(sorted(paths))
        await mesh.agents.UpdateAgent(request, timeout=WRITE_SECONDS)
    await _replace_relations(mesh, current, body)
    if body.message_ids is not None:
        window = rpc.UpdateAgentRequest(
            request_id=new_id("letta"), agent=pb.Agent(id=agent_id, message_ids=body.message_ids)
        )
        window.update_mask.paths.append("message_ids")
        await mesh.agents.UpdateAgent(window, timeout=WRITE_SECONDS)
    return await read_state(mesh, agent_id)


@operations.delete("/agents/{agent_id}")
async def delete_agent(call: Call[NoQuery, None]) -> None:
    """Deletes an agent. Its blocks, tools and folders stay."""
    agent_id = call.path["agent_id"]
    await call.mesh.agents.GetAgent(rpc.GetAgentRequest(agent_id=agent_id), timeout=READ_SECONDS)
    request = rpc.DeleteAgentRequest(request_id=call.request_id, agent_id=agent_id)
    await call.mesh.agents.DeleteAgent(request, timeout=WRITE_SECONDS)


def _filter(query: AgentFilters) -> rpc.AgentFilter:
    found = rpc.AgentFilter()
    if not query.show_hidden_agents:
        found.hidden = False
    (found.tags_all if query.match_all_tags else found.tags_any).extend(query.tags or ())
    if query.last_stop_reason is not None:
        if query.last_stop_reason not in STOP_REASONS:
            raise invalid_field(f"Input should be one of {', '.join(STOP_REASONS)}", "query", "last_stop_reason")
        found.last_stop_reason = STOP_REASONS[query.last_stop_reason]
    keys = query.identifier_keys or []
    if len(keys) > 1:
        raise invalid_field("Only one identifier key can be given.", "query", "identifier_keys")
    set_present(
        found,
        name=query.name,
        text_search=query.query_text,
        project_id=query.project_id,
        template_id=query.template_id,
        base_template_id=query.base_template_id,
        identity_id=query.identity_id,
        identifier_key=keys[0] if keys else None,
        created_by_id=query.created_by_id,
    )
    return found


def _drop_unset(agent: pb.Agent) -> None:
    if agent.model in UNSET_MODELS:
        agent.ClearField("model")
    if agent.embedder in UNSET_MODELS:
        agent.ClearField("embedder")


def _changes_settings(body: UpdateAgent) -> bool:
    given = (body.model_settings, body.llm_config, body.context_window_limit, body.max_tokens)
    return any(value is not None for value in (*given, body.parallel_tool_calls, body.enable_reasoner))


def _folder_ids(folder_ids: list[str] | None, source_ids: list[str] | None) -> list[str] | None:
    return folder_ids if folder_ids is not None else source_ids


async def _replace_relations(mesh: Mesh, agent: pb.Agent, body: UpdateAgent) -> None:
    if body.tool_ids is not None:
        await _replace_tools(mesh, agent, body.tool_ids)
    if body.block_ids is not None:
        await _replace_blocks(mesh, agent.id, body.block_ids)
    folder_ids = _folder_ids(body.folder_ids, body.source_ids)
    if folder_ids is not None:
        await _replace_folders(mesh, agent.id, folder_ids)


async def _replace_tools(mesh: Mesh, agent: pb.Agent, wanted: Iterable[str]) -> None:
    state = await read_state(mesh, agent.id)
    held = {tool.id: tool.name for tool in state.tools}
    for tool_id in dict.fromkeys(wanted):
        if tool_id not in held:
            attach = rpc.AttachToolRequest(request_id=new_id("letta"), agent_id=agent.id, tool_id=tool_id)
            await mesh.agents.AttachTool(attach, timeout=WRITE_SECONDS)
    for tool_id in held.keys() - set(wanted):
        detach = rpc.DetachToolRequest(request_id=new_id("letta"), agent_id=agent.id, name=held[tool_id] or "")
        await mesh.agents.DetachTool(detach, timeout=WRITE_SECONDS)


async def _replace_blocks(mesh: Mesh, agent_id: str, wanted: Iterable[str]) -> None:
    request = blocks_service_pb2.GetCoreMemoryRequest(agent_id=agent_id)
    core_memory = (await mesh.blocks.GetCoreMemory(request, timeout=READ_SECONDS)).core_memory
    held = {block.id for block in core_memory.blocks}
    # A new block may have the label of one that goes.
    for block_id in held - set(wanted):
        detach = blocks_service_pb2.DetachBlockRequest(request_id=new_id("letta"), agent_id=agent_id, block_id=block_id)
        await mesh.blocks.DetachBlock(detach, timeout=WRITE_SECONDS)
    for block_id in dict.fromkeys(wanted):
        if block_id not in held:
            attach = blocks_service_pb2.AttachBlockRequest(
                request_id=new_id("letta"), agent_id=agent_id, block_id=block_id
            )
            await mesh.blocks.AttachBlock(attach, timeout=WRITE_SECONDS)


async def _replace_folders(mesh: Mesh, agent_id: str, wanted: Iterable[str]) -> None:
    held = {folder.id for folder in await folders_of(mesh, agent_id)}
    for folder_id in dict.fromkeys(wanted):
        if folder_id not in held:
            attach = agent_files_service_pb2.AttachFolderRequest(
                request_id=new_id("letta"), agent_id=agent_id, folder_id=folder_id, open_files=True
            )
            await mesh.agent_files.AttachFolder(attach, timeout=WRITE_SECONDS)
    for folder_id in held - set(wanted):
        detach = agent_files_service_pb2.DetachFolderRequest(
            request_id=new_id("letta"), agent_id=agent_id, folder_id=folder_id
        )
        await mesh.agent_files.DetachFolder(detach, timeout=WRITE_SECONDS)
