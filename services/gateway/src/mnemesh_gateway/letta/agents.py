"""Agents: create, retrieve, list, count, update, delete, and those that hold a block, an archive or an identity."""

from collections.abc import Awaitable, Callable, Container, Iterable, Sequence
from typing import Any, Final, Literal

import msgspec
from mnemesh.agents.v1 import agents_pb2 as pb
from mnemesh.agents.v1 import agents_service_pb2 as rpc
from mnemesh.agents.v1 import models_pb2
from mnemesh.archival.v1 import archives_service_pb2
from mnemesh.blocks.v1 import blocks_service_pb2
from mnemesh.files.v1 import agent_files_service_pb2
from mnemesh_kit.errors import NotFound
from mnemesh_kit.ids import new_id
from mnemesh_letta.convert.values import AGENT_TYPES, STOP_REASONS, fill, present, set_present

from mnemesh_gateway.http.errors import invalid_field
from mnemesh_gateway.letta.agent_states import (
    VIEW,
    AgentState,
    HoldersQuery,
    agents_of,
    folders_of,
    page_of_holders,
    parts_of,
    read_state,
    states_of,
)
from mnemesh_gateway.letta.archives import read_archive as _archive
from mnemesh_gateway.letta.blocks import CreateBlock, block_to_proto
from mnemesh_gateway.letta.groups import BEFORE_FIRST_TURN
from mnemesh_gateway.letta.identities import read_identity as _read
from mnemesh_gateway.letta.mesh import READ_SECONDS, Mesh, order_to_proto
from mnemesh_gateway.letta.model_settings import (
    UNSET_MODELS,
    ModelChoice,
    choice_to_proto,
    compaction_to_proto,
    find_model,
    format_to_proto,
    rule_to_proto,
)
from mnemesh_gateway.letta.operations import Call, NoQuery, Operations, read
from mnemesh_gateway.letta.sending import input_to_proto

AgentType = Literal[
    "memgpt_agent",
    "memgpt_v2_agent",
    "letta_v1_agent",
    "react_agent",
    "workflow_agent",
    "split_thread_agent",
    "sleeptime_agent",
    "voice_convo_agent",
    "voice_sleeptime_agent",
]


class AgentOptions(ModelChoice, kw_only=True):
    """The fields that creating and updating an agent share."""

    description: str | None = None
    system: str | None = None
    reasoning: bool | None = None
    metadata: dict[str, Any] | None = None
    tags: list[str] | None = None
    tool_rules: list[dict[str, Any]] | None = None
    tool_ids: list[str] | None = None
    block_ids: list[str] | None = None
    source_ids: list[str] | None = None
    folder_ids: list[str] | None = None
    identity_ids: list[str] | None = None
    secrets: dict[str, str] | None = None
    tool_exec_environment_variables: dict[str, str] | None = None
    message_buffer_autoclear: bool | None = None
    enable_sleeptime: bool | None = None
    timezone: str | None = None
    max_files_open: int | None = None
    per_file_view_window_char_limit: int | None = None
    hidden: bool | None = None
    project_id: str | None = None
    template_id: str | None = None
    base_template_id: str | None = None


class CreateAgent(AgentOptions, kw_only=True):
    """An agent to create."""

    name: str | None = None
    agent_type: AgentType | None = None
    memory_blocks: list[CreateBlock] | None = None
    tools: list[str] | None = None
    initial_message_sequence: list[dict[str, Any]] | None = None
    include_base_tools: bool | None = None
    include_multi_agent_tools: bool = False
    include_base_tool_rules: bool | None = None
    include_default_source: bool = False
    memory_variables: dict[str, str] | None = None
    from_template: str | None = None
    template: bool = False


class UpdateAgent(AgentOptions, kw_only=True):
    """Changes of an agent. A field that is null or absent stays as it is."""

    name: str | None = None
    message_ids: list[str] | None = None


class Included(msgspec.Struct, kw_only=True):
    """What an answer has beyond what it always has."""

    include: list[str] = []
    include_relationships: list[str] | None = None

    def parts(self) -> frozenset[str]:
        """Returns the names of the parts that were asked for."""
        return parts_of(self.include, self.include_relationships)


class AgentFilters(msgspec.Struct, kw_only=True):
    """The filters of lists and counts."""

    name: str | None = None
    tags: list[str] | None = None
    match_all_tags: bool = False
    query_text: str | None = None
    project_id: str | None = None
    template_id: str | None = None
    base_template_id: str | None = None
    identity_id: str | None = None
    identifier_keys: list[str] | None = None
    last_stop_reason: str | None = None
    created_by_id: str | None = None
    show_hidden_agents: bool = False


class ListAgents(AgentFilters, kw_only=True):
    """The query of a list of agents."""

    before: str | None = None
    after: str | None = None
    limit: int | None = None
    order: Literal["asc", "desc"] | None = None
    include: list[str] = []
    include_relationships: list[str] | None = None
    order_by: Literal["created_at", "updated_at", "last_run_completion"] | None = None
    sort_by: str | None = None
    ascending: bool = False


def options_to_proto(body: AgentOptions, message: pb.Agent) -> set[str]:
    """Sets the settings that a body has; returns their paths. Relations and secrets are left to the caller."""
    paths = choice_to_proto(body, message)
    names = ("project_id", "template_id", "base_template_id", *_PLAIN)
    plain: dict[str, Any] = {name: getattr(body, name) for name in names}
    for name in ("tags", "identity_ids"):
        values: list[str] | None = getattr(body, name)
        plain[name] = None if values is None else list(dict.fromkeys(values))
    paths |= set(fill(message, plain))
    if body.tool_rules is not None:
        message.tool_rules.extend(rule_to_proto(rule, index) for index, rule in enumerate(body.tool_rules))
        paths.add("tool_rules")
    of_model = (body.model_settings or {}).get("response_format")
    if body.response_format is not None:
        message.response_format.CopyFrom(format_to_proto(body.response_format, "body", "response_format"))
        paths.add("response_format")
    elif of_model is not None:
        message.response_format.CopyFrom(format_to_proto(of_model, "body", "model_settings", "response_format"))
        paths.add("response_format")
    if body.compaction_settings is not None:
        settings = compaction_to_proto(body.compaction_settings, "body", "compaction_settings")
        message.compaction_settings.CopyFrom(settings)
        paths.add("compaction_settings")
    return paths


_PLAIN: Final = (
    *("description", "system", "metadata", "timezone", "message_buffer_autoclear", "enable_sleeptime"),
    *("max_files_open", "per_file_view_window_char_limit", "hidden"),
)
"""The settings of agents that are plain values."""
_BUDGET: Final = 1024
"""The tokens for thoughts of models that have a budget for them."""


def set_reasoning(
    body: AgentOptions, model: models_pb2.Model, settings: pb.ModelSettings, kind: pb.AgentType.ValueType
) -> None:
    """Sets how a new agent thinks. It thinks unless the body says otherwise.

    Args:
        body: what the client sends.
        model: the model of the agent.
        settings: the settings of the body, which are completed.
        kind: the type of the agent.
    """
    thinks = _wanted(body, settings)
    if model.capabilities.reasoning:
        _by_itself(model, settings, thinks)
    elif not thinks and kind != pb.AGENT_TYPE_LETTA_V1:
        settings.inner_thoughts_in_kwargs = False


def change_reasoning(
    body: AgentOptions, model: models_pb2.Model, settings: pb.ModelSettings, kind: pb.AgentType.ValueType
) -> bool:
    """Changes how an agent thinks; returns whether that has changed.

    With another model, thoughts are those of the model: an agent of an older type writes none into the arguments of
    tools any more, unless the body asks for them.
    """
    if body.reasoning is None and body.model is None:
        return False
    before = settings.SerializeToString(deterministic=True)
    if model.capabilities.reasoning:
        _by_itself(model, settings, _wanted(body, settings))
    elif kind != pb.AGENT_TYPE_LETTA_V1:
        settings.inner_thoughts_in_kwargs = body.reasoning is True
    return settings.SerializeToString(deterministic=True) != before


def _wanted(body: AgentOptions, settings: pb.ModelSettings) -> bool:
    if body.reasoning is not None:
        return body.reasoning
    return present(settings, "enable_reasoner") is not False


def _by_itself(model: models_pb2.Model, settings: pb.ModelSettings, thinks: bool) -> None:
    """The model has a channel for its thoughts. OpenAI's models cannot be told not to think."""
    settings.inner_thoughts_in_kwargs = False
    if model.api != models_pb2.MODEL_API_ANTHROPIC_MESSAGES:
        return
    settings.enable_reasoner = thinks
    if thinks and not settings.HasField("max_reasoning_tokens"):
        settings.max_reasoning_tokens = _BUDGET


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


@operations.get("/agents/")
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


@operations.get("/agents/count")
async def count_agents(call: Call[AgentFilters, None]) -> int:
    """Counts agents."""
    return (await read(call.mesh.agents.CountAgents, rpc.CountAgentsRequest(filter=_filter(call.query)))).count


@operations.post("/agents/")
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
        view=VIEW,
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
    created = await call.write(call.mesh.agents.CreateAgent, request)
    return (await states_of(call.mesh, [created.agent], [created.core_memory], _CREATED_PARTS))[0]


@operations.get("/agents/{agent_id}")
async def retrieve_agent(call: Call[Included, None]) -> AgentState:
    """Returns an agent."""
    return await read_state(call.mesh, call.path["agent_id"], call.query.parts())


@operations.patch("/agents/{agent_id}")
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
        request = rpc.UpdateAgentRequest(agent=agent, sleeptime_turns_counter=BEFORE_FIRST_TURN)
        request.update_mask.paths.extend(sorted(paths))
        await call.write(mesh.agents.UpdateAgent, request)
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
    await call.write(call.mesh.agents.DeleteAgent, rpc.DeleteAgentRequest(agent_id=agent_id))


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


async def _replace_tools(mesh: Mesh, agent: pb.Agent, wanted: Sequence[str]) -> None:
    held = {tool.id: tool.name or "" for tool in (await read_state(mesh, agent.id)).tools}
    for tool_id in _missing(wanted, held):
        await _change(mesh.agents.AttachTool, rpc.AttachToolRequest(agent_id=agent.id, tool_id=tool_id))
    for tool_id in held.keys() - set(wanted):
        await _change(mesh.agents.DetachTool, rpc.DetachToolRequest(agent_id=agent.id, name=held[tool_id]))


async def _replace_blocks(mesh: Mesh, agent_id: str, wanted: Sequence[str]) -> None:
    request = blocks_service_pb2.GetCoreMemoryRequest(agent_id=agent_id)
    held = {block.id for block in (await read(mesh.blocks.GetCoreMemory, request)).core_memory.blocks}
    # A new block may have the label of one that goes.
    for block_id in held - set(wanted):
        detach = blocks_service_pb2.DetachBlockRequest(agent_id=agent_id, block_id=block_id)
        await _change(mesh.blocks.DetachBlock, detach)
    for block_id in _missing(wanted, held):
        attach = blocks_service_pb2.AttachBlockRequest(agent_id=agent_id, block_id=block_id)
        await _change(mesh.blocks.AttachBlock, attach)


async def _replace_folders(mesh: Mesh, agent_id: str, wanted: Sequence[str]) -> None:
    held = {folder.id for folder in await folders_of(mesh, agent_id)}
    files = agent_files_service_pb2
    for folder_id in _missing(wanted, held):
        attach = files.AttachFolderRequest(agent_id=agent_id, folder_id=folder_id, open_files=True)
        await _change(mesh.agent_files.AttachFolder, attach)
    for folder_id in held - set(wanted):
        await _change(mesh.agent_files.DetachFolder, files.DetachFolderRequest(agent_id=agent_id, folder_id=folder_id))


def _missing(wanted: Iterable[str], held: Container[str]) -> list[str]:
    return [id_ for id_ in dict.fromkeys(wanted) if id_ not in held]


async def _change(method: Callable[..., Awaitable[Any]], request: Any) -> None:
    request.request_id = new_id("letta")
    await method(request, timeout=WRITE_SECONDS)


@operations.get("/blocks/{block_id}/agents")
async def list_agents_for_block(call: Call[HoldersQuery, None]) -> list[AgentState]:
    """Lists the agents that hold a block."""
    await read(call.mesh.blocks.GetBlock, blocks_service_pb2.GetBlockRequest(block_id=call.path["block_id"]))
    request = blocks_service_pb2.ListBlockAgentsRequest(block_id=call.path["block_id"])
    return await page_of_holders(call.mesh, call.mesh.blocks.ListBlockAgents, request, call.query)


@operations.get("/archives/{archive_id}/agents")
async def list_agents_for_archive(call: Call[HoldersQuery, None]) -> list[AgentState]:
    """Lists the agents that hold an archive."""
    await _archive(call)
    request = archives_service_pb2.ListArchiveAgentsRequest(archive_id=call.path["archive_id"])
    return await page_of_holders(call.mesh, call.mesh.archives.ListArchiveAgents, request, call.query)


@operations.get("/identities/{identity_id}/agents")
async def list_agents_for_identity(call: Call[HoldersQuery, None]) -> list[AgentState]:
    """Lists the agents of an identity, newest first."""
    identity_id, query = call.path["identity_id"], call.query
    await _read(call.mesh, identity_id)
    limit = 50 if query.limit is None else query.limit
    request = rpc.ListAgentsRequest(
        filter=rpc.AgentFilter(identity_id=identity_id),
        order=order_to_proto(query.order or "desc"),
    )
    set_present(request, after_id=query.after, before_id=query.before)
    return await agents_of(call.mesh, request, limit, query.parts)
