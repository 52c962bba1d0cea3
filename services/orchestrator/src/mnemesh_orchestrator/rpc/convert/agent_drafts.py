"""Requests that create agents, and filters of agents."""

from typing import Final

from mnemesh.agents.v1 import agents_pb2 as pb
from mnemesh.agents.v1 import agents_service_pb2 as rpc
from mnemesh.blocks.v1 import blocks_pb2
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import require_id
from mnemesh_types.convert import provenance_from_proto

from mnemesh_orchestrator.model.agents import AgentFilter, AgentOrder, AgentType, LinkKind, PromptPolicy
from mnemesh_orchestrator.model.core_memory import NewBlock
from mnemesh_orchestrator.model.creation import AgentDraft
from mnemesh_orchestrator.model.rules import ToolRule
from mnemesh_orchestrator.rpc.convert.agents import PROMPT_POLICY_TO_PROTO, TYPE_TO_PROTO
from mnemesh_orchestrator.rpc.convert.compactions import agent_compaction_from_proto
from mnemesh_orchestrator.rpc.convert.fields import (
    conversation_id_from_proto,
    enum_from_proto,
    optional_field,
    present_fields,
    seconds_from_proto,
)
from mnemesh_orchestrator.rpc.convert.memory_extraction import agent_extraction_from_proto
from mnemesh_orchestrator.rpc.convert.model_settings import response_format_from_proto, settings_from_proto
from mnemesh_orchestrator.rpc.convert.rules import rule_from_proto
from mnemesh_orchestrator.rpc.convert.runs import STOP_REASON_FROM_PROTO, inputs_from_proto

_TYPE_FROM_PROTO: Final = {number: kind for kind, number in TYPE_TO_PROTO.items()} | {
    pb.AGENT_TYPE_UNSPECIFIED: AgentType.LETTA_V1
}
_PROMPT_POLICY_FROM_PROTO: Final = {number: policy for policy, number in PROMPT_POLICY_TO_PROTO.items()} | {
    pb.PROMPT_POLICY_UNSPECIFIED: PromptPolicy.REBUILD
}
_ORDER_FROM_PROTO: Final = {
    rpc.AGENT_ORDER_BY_UNSPECIFIED: AgentOrder.CREATED_AT,
    rpc.AGENT_ORDER_BY_CREATE_TIME: AgentOrder.CREATED_AT,
    rpc.AGENT_ORDER_BY_UPDATE_TIME: AgentOrder.UPDATED_AT,
    rpc.AGENT_ORDER_BY_LAST_RUN_COMPLETION: AgentOrder.LAST_RUN_COMPLETED_AT,
}
PROVENANCE_IDS: Final = ("project_id", "template_id", "base_template_id", "deployment_id", "entity_id")
"""The fields of the provenance that clients set."""


def draft_from_proto(request: rpc.CreateAgentRequest) -> AgentDraft:
    """Returns the draft of an agent.

    Raises:
        InvalidArgument: An enum, a rule or an id cannot be read. Metadata: field.
    """
    _refuse_fields_of_others(request)
    agent = request.agent
    initial = request.initial_messages.messages if request.HasField("initial_messages") else None
    return AgentDraft(
        type=enum_from_proto(_TYPE_FROM_PROTO, agent.type, "agent.type"),
        name=agent.name,
        model=agent.model,
        description=optional_field(agent, "description"),
        system=agent.system or None,
        system_prompt_key=optional_field(request, "system_prompt_key"),
        memory_variables=dict(request.memory_variables),
        model_settings=settings_from_proto(agent.model_settings),
        embedder=optional_field(agent, "embedder"),
        tool_rules=rules_from_proto(agent),
        tags=tuple(agent.tags),
        metadata=optional_field(agent, "metadata"),
        time_zone=agent.time_zone or "UTC",
        prompt_policy=prompt_policy_from_proto(agent),
        message_buffer_autoclear=agent.message_buffer_autoclear,
        continuation_message=optional_field(agent, "continuation_message"),
        compaction_settings=agent_compaction_from_proto(agent),
        memory_extraction=agent_extraction_from_proto(agent),
        response_format=response_format_from_proto(agent),
        enable_sleeptime=optional_field(agent, "enable_sleeptime"),
        sleeptime_turns_counter=request.sleeptime_turns_counter,
        max_files_open=optional_field(agent, "max_files_open"),
        per_file_view_window_char_limit=optional_field(agent, "per_file_view_window_char_limit"),
        hidden=agent.hidden,
        identity_ids=tuple(agent.identity_ids),
        approval_timeout_seconds=seconds_from_proto(agent, "approval_timeout"),
        provenance=provenance_from_proto(agent.provenance),
        include_base_tools=request.include_base_tools if request.HasField("include_base_tools") else True,
        include_base_tool_rules=optional_field(request, "include_base_tool_rules"),
        include_multi_agent_tools=request.include_multi_agent_tools,
        tool_names=tuple(dict.fromkeys(request.tool_names)),
        tool_ids=tuple(require_id(tool_id, "tool", "tool_ids") for tool_id in request.tool_ids),
        tool_sources=tuple(request.tool_sources),
        blocks=tuple(_block_from_proto(block) for block in request.blocks),
        block_ids=tuple(require_id(block_id, "block", "block_ids") for block_id in request.block_ids),
        archive_ids=tuple(require_id(archive_id, "archive", "archive_ids") for archive_id in request.archive_ids),
        folder_ids=tuple(
            dict.fromkeys(require_id(folder_id, "source", "folder_ids") for folder_id in request.folder_ids)
        ),
        include_default_folder=request.include_default_folder,
        opens_folder_files=request.open_folder_files,
        secrets=dict(sorted(request.secrets.items())),
        initial_messages=None if initial is None else inputs_from_proto(initial, "initial_messages.messages"),
    )


def _refuse_fields_of_others(request: rpc.CreateAgentRequest) -> None:
    if request.agent.secrets:
        raise InvalidArgument("agent.secrets must be empty. Use secrets.", field="agent.secrets")
    if request.agent.group_ids:
        raise InvalidArgument(
            "agent.group_ids must not be set. Use CreateGroup or UpdateGroup.", field="agent.group_ids"
        )


def _block_from_proto(block: blocks_pb2.Block) -> NewBlock:
    return NewBlock(
        label=block.label,
        value=block.value,
        description=optional_field(block, "description"),
        limit=block.limit,
        read_only=block.read_only,
        metadata=optional_field(block, "metadata"),
        tags=tuple(block.tags),
        identity_ids=tuple(block.identity_ids),
        name=optional_field(block, "name"),
        hidden=block.hidden,
        is_template=block.is_template,
        template_name=optional_field(block, "template_name"),
        preserve_on_migration=block.preserve_on_migration,
    )


def rules_from_proto(agent: pb.Agent) -> tuple[ToolRule, ...]:
    """Returns the tool rules of an agent. Raises InvalidArgument if one has no kind."""
    return tuple(rule_from_proto(rule, f"agent.tool_rules[{index}]") for index, rule in enumerate(agent.tool_rules))


def prompt_policy_from_proto(agent: pb.Agent) -> PromptPolicy:
    """Returns the prompt policy of an agent. Raises InvalidArgument if it is unknown."""
    return enum_from_proto(_PROMPT_POLICY_FROM_PROTO, agent.prompt_policy, "agent.prompt_policy")


def agent_filter_from_proto(message: rpc.AgentFilter) -> AgentFilter:
    """Returns the filter of a list or a count.

    Raises:
        InvalidArgument: An id is malformed, or an enum is unknown. Metadata: field.
    """
    links = [(LinkKind(kind), value) for kind, value in present_fields(message, *LinkKind.of_origin()).items()]
    for kind in (LinkKind.IDENTITY, LinkKind.TOOL):
        field = f"{kind}_id"
        links += [
            (kind, require_id(value, kind, f"filter.{field}")) for value in present_fields(message, field).values()
        ]
    reason = None
    if message.HasField("last_stop_reason"):
        reason = enum_from_proto(STOP_REASON_FROM_PROTO, message.last_stop_reason, "filter.last_stop_reason").value
    return AgentFilter(
        agent_ids=tuple(require_id(agent_id, "agent", "filter.agent_ids") for agent_id in message.agent_ids),
        **present_fields(message, "name", "text_search", "identifier_key"),
        tags_any=tuple(message.tags_any),
        tags_all=tuple(message.tags_all),
        types=tuple(enum_from_proto(_TYPE_FROM_PROTO, kind, "filter.types") for kind in message.types),
        hidden=optional_field(message, "hidden"),
        last_stop_reason=reason,
        links=tuple(links),
    )


def agent_order_from_proto(value: rpc.AgentOrderBy.ValueType) -> AgentOrder:
    """Returns the sort key of a list. Raises InvalidArgument if it is unknown."""
    return enum_from_proto(_ORDER_FROM_PROTO, value, "order_by")


def tool_from_proto(request: rpc.AttachToolRequest | rpc.DetachToolRequest) -> tuple[str | None, str | None]:
    """Returns the id or the name of a tool. Raises InvalidArgument if the request has neither."""
    match request.WhichOneof("tool"):
        case "tool_id":
            return require_id(request.tool_id, "tool", "tool_id"), None
        case "name" if request.name:
            return None, request.name
        case _:
            raise InvalidArgument("tool must be set to tool_id or name.", field="tool")


def agent_id_from_proto(value: str) -> str:
    """Returns the id of the agent of a request. Raises InvalidArgument."""
    return require_id(value, "agent", "agent_id")


def address_from_proto(
    request: rpc.GetContextWindowRequest
    | rpc.PreviewRequestRequest
    | rpc.RecompileAgentRequest
    | rpc.ResetMessagesRequest
    | rpc.CompactConversationRequest,
) -> tuple[str, str]:
    """Returns the ids of the agent and the conversation of a request. Raises InvalidArgument."""
    agent_id = agent_id_from_proto(request.agent_id)
    return agent_id, conversation_id_from_proto(agent_id, request.conversation_id)
