"""Agents: drafts, updates and secrets in requests, their context windows, and reports of erasures."""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from mnemesh.agents.v1 import agents_pb2 as pb
from mnemesh.agents.v1 import agents_service_pb2 as rpc
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import derive_id, require_id
from mnemesh_kit.time import optional_timestamp_to_proto, timestamp_to_proto
from mnemesh_types.agents import ModelSettings
from mnemesh_types.blocks import Block
from mnemesh_types.convert import message_to_proto, provenance_from_proto
from mnemesh_types.twin import optional_to_proto

from mnemesh_orchestrator.model.agents import (
    Agent,
    AgentFilter,
    AgentOrder,
    AgentState,
    AgentType,
    LinkKind,
    PromptPolicy,
)
from mnemesh_orchestrator.model.conversations import ContextWindowReport
from mnemesh_orchestrator.model.creation import AgentDraft
from mnemesh_orchestrator.model.files import limits_in_effect
from mnemesh_orchestrator.model.rules import ToolRule
from mnemesh_orchestrator.model.runs import StopReason
from mnemesh_orchestrator.rpc.convert.agent_settings import (
    agent_compaction_from_proto,
    agent_extraction_from_proto,
    response_format_from_proto,
    response_format_to_proto,
    rule_from_proto,
    rule_to_proto,
)
from mnemesh_orchestrator.rpc.convert.fields import (
    conversation_id_from_proto,
    duration_to_proto,
    enum_from_proto,
    optional_field,
    present_fields,
    seconds_from_proto,
)
from mnemesh_orchestrator.rpc.convert.runs import STOP_REASON_FROM_PROTO, STOP_REASON_TO_PROTO, inputs_from_proto

R = TypeVar("R", rpc.CreateAgentRequest, rpc.UpdateAgentRequest)

TYPE_TO_PROTO: Final = {
    AgentType.MEMGPT: pb.AGENT_TYPE_MEMGPT,
    AgentType.MEMGPT_V2: pb.AGENT_TYPE_MEMGPT_V2,
    AgentType.LETTA_V1: pb.AGENT_TYPE_LETTA_V1,
    AgentType.REACT: pb.AGENT_TYPE_REACT,
    AgentType.WORKFLOW: pb.AGENT_TYPE_WORKFLOW,
    AgentType.SPLIT_THREAD: pb.AGENT_TYPE_SPLIT_THREAD,
    AgentType.SLEEPTIME: pb.AGENT_TYPE_SLEEPTIME,
    AgentType.VOICE_CONVO: pb.AGENT_TYPE_VOICE_CONVO,
    AgentType.VOICE_SLEEPTIME: pb.AGENT_TYPE_VOICE_SLEEPTIME,
}
_STATE_TO_PROTO: Final = {
    AgentState.CREATING: pb.AGENT_STATE_CREATING,
    AgentState.IMPORTING: pb.AGENT_STATE_CREATING,
    AgentState.ACTIVE: pb.AGENT_STATE_ACTIVE,
    AgentState.DELETING: pb.AGENT_STATE_DELETING,
}
PROMPT_POLICY_TO_PROTO: Final = {
    PromptPolicy.REBUILD: pb.PROMPT_POLICY_REBUILD,
    PromptPolicy.CACHE: pb.PROMPT_POLICY_CACHE,
}
_SECTIONS: Final = (
    pb.CONTEXT_SECTION_KIND_SYSTEM_PROMPT,
    pb.CONTEXT_SECTION_KIND_CORE_MEMORY,
    pb.CONTEXT_SECTION_KIND_TOOL_RULES,
    pb.CONTEXT_SECTION_KIND_DIRECTORIES,
    pb.CONTEXT_SECTION_KIND_MEMORY_METADATA,
)

_ORDER_FROM_PROTO: Final = {
    rpc.AGENT_ORDER_BY_UNSPECIFIED: AgentOrder.CREATED_AT,
    rpc.AGENT_ORDER_BY_CREATE_TIME: AgentOrder.CREATED_AT,
    rpc.AGENT_ORDER_BY_UPDATE_TIME: AgentOrder.UPDATED_AT,
    rpc.AGENT_ORDER_BY_LAST_RUN_COMPLETION: AgentOrder.LAST_RUN_COMPLETED_AT,
}
PROVENANCE_IDS: Final = ("project_id", "template_id", "base_template_id", "deployment_id", "entity_id")
"""The fields of the provenance that clients set."""


def secrets_from_proto(agent: pb.Agent) -> dict[str, str | None]:
    """Returns the values by name; None for one that the request does not contain.

    Raises:
        InvalidArgument: A name occurs twice.
    """
    values = {secret.key: optional_field(secret, "value") for secret in agent.secrets}
    if len(values) < len(agent.secrets):
        raise InvalidArgument("agent.secrets must not have the same key twice.", field="agent.secrets")
    return values


def secrets_to_proto(agent: Agent) -> list[pb.Secret]:
    """Returns the messages of the variables of an agent, without values."""
    return [
        pb.Secret(
            id=derive_id("secret", agent.id, secret.name),
            key=secret.name,
            update_time=timestamp_to_proto(secret.updated_at),
        )
        for secret in agent.secrets
    ]


def request_without_secrets(request: R, fingerprint: Callable[[str], str]) -> R:
    """Returns a copy of a request with a fingerprint in place of each value, to compare repeated requests by."""
    created: Mapping[str, str] = request.secrets if isinstance(request, rpc.CreateAgentRequest) else {}
    if not created and not request.agent.secrets:
        return request
    copy = type(request)()
    copy.CopyFrom(request)
    if isinstance(copy, rpc.CreateAgentRequest):
        for name, value in created.items():
            copy.secrets[name] = fingerprint(value)
    for secret in copy.agent.secrets:
        if secret.HasField("value"):
            secret.value = fingerprint(secret.value)
    return copy


def agent_to_proto(
    agent: Agent,
    effective: ModelSettings,
    message_ids: tuple[str, ...] = (),
    pending_approval: str | None = None,
    group_ids: tuple[str, ...] = (),
) -> pb.Agent:
    """Returns the message of an agent.

    Args:
        agent: The agent.
        effective: The settings of its model calls, with the defaults of the model.
        message_ids: The ids of the messages in the window of its default conversation, if the view has them.
        pending_approval: The id of the approval that it waits for.
        group_ids: The ids of its groups, if the view has them.
    """
    limits = limits_in_effect(
        effective.context_window or 0, agent.max_files_open, agent.per_file_view_window_char_limit
    )
    return pb.Agent(
        id=agent.id,
        name=agent.name,
        description=agent.description,
        type=TYPE_TO_PROTO[agent.type],
        state=_STATE_TO_PROTO[agent.state],
        system=agent.system,
        model=agent.model,
        model_settings=agent.model_settings.to_proto(),
        effective_model_settings=effective.to_proto(),
        embedder=agent.embedder,
        tool_rules=[rule_to_proto(rule) for rule in agent.tool_rules],
        tags=agent.tags,
        metadata=agent.metadata,
        time_zone=agent.time_zone,
        prompt_policy=PROMPT_POLICY_TO_PROTO[agent.prompt_policy],
        message_buffer_autoclear=agent.message_buffer_autoclear,
        continuation_message=agent.continuation_message,
        compaction_settings=optional_to_proto(agent.compaction_settings),
        memory_extraction=optional_to_proto(agent.memory_extraction),
        response_format=response_format_to_proto(agent.response_format),
        enable_sleeptime=agent.enable_sleeptime,
        created_for_agent_id=agent.created_for_agent_id,
        max_files_open=agent.max_files_open,
        per_file_view_window_char_limit=agent.per_file_view_window_char_limit,
        effective_max_files_open=limits.max_files_open,
        effective_per_file_view_window_char_limit=limits.per_file_characters,
        hidden=agent.hidden,
        identity_ids=agent.identity_ids,
        secrets=secrets_to_proto(agent),
        group_ids=group_ids,
        approval_timeout=duration_to_proto(_milliseconds(agent.approval_timeout_seconds)),
        revision=agent.revision,
        message_ids=message_ids,
        tools=[
            pb.AttachedTool(
                tool_id=tool.tool_id, name=tool.name, builtin=tool.builtin, requires_approval=tool.requires_approval
            )
            for tool in agent.tools
        ],
        default_conversation_id=agent.default_conversation_id,
        last_stop_reason=STOP_REASON_TO_PROTO[StopReason(agent.last_stop_reason)] if agent.last_stop_reason else None,
        last_run_completion_time=optional_timestamp_to_proto(agent.last_run_completed_at),
        last_run_duration=duration_to_proto(agent.last_run_ms),
        pending_approval_request_id=pending_approval,
        create_time=timestamp_to_proto(agent.created_at),
        update_time=timestamp_to_proto(agent.updated_at),
        provenance=agent.provenance.to_proto(),
    )


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1e3)


def context_window_to_proto(report: ContextWindowReport) -> pb.ContextWindow:
    """Returns the message of the report of a context window."""
    texts = (report.system, report.core_memory, report.tool_rules, report.directories, report.metadata)
    sections = [
        pb.ContextSection(kind=kind, tokens=tokens, text=text, count=1 if text else 0)
        for kind, tokens, text in zip(_SECTIONS, report.section_tokens, texts, strict=True)
    ]
    window = report.window
    if report.summary is not None:
        kind = pb.CONTEXT_SECTION_KIND_SUMMARY
        sections.append(pb.ContextSection(kind=kind, tokens=report.summary_tokens, text=report.summary, count=1))
    count = len(window.messages) - (1 if report.summary is None else 2)
    messages, schemas = pb.CONTEXT_SECTION_KIND_MESSAGES, pb.CONTEXT_SECTION_KIND_TOOL_SCHEMAS
    sections.append(pb.ContextSection(kind=messages, tokens=report.message_tokens, count=count))
    sections.append(pb.ContextSection(kind=schemas, tokens=report.schema_tokens, count=len(report.schemas)))
    return pb.ContextWindow(
        context_window_size=report.size,
        total_tokens=report.total_tokens,
        sections=sections,
        messages=[message_to_proto(message, window.agent_id) for message in window.messages],
        tool_schemas=[
            json.dumps(
                {"name": schema.name, "description": schema.description, "parameters": schema.parameters},
                ensure_ascii=False,
            )
            for schema in report.schemas
        ],
        recall_message_count=window.agent_message_count,
        archival_passage_count=report.passage_count,
        estimate=pb.TokenEstimate(
            factor=report.correction.factor, error=report.correction.error, answer_count=report.correction.answers
        ),
    )


_TYPE_FROM_PROTO: Final = {number: kind for kind, number in TYPE_TO_PROTO.items()} | {
    pb.AGENT_TYPE_UNSPECIFIED: AgentType.LETTA_V1
}
_PROMPT_POLICY_FROM_PROTO: Final = {number: policy for policy, number in PROMPT_POLICY_TO_PROTO.items()} | {
    pb.PROMPT_POLICY_UNSPECIFIED: PromptPolicy.REBUILD
}


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
        model_settings=ModelSettings.from_proto(agent.model_settings, "agent.model_settings"),
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
        blocks=tuple(Block.from_proto(block, f"blocks[{at}]") for at, block in enumerate(request.blocks)),
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


def _optional(name: str) -> Callable[[pb.Agent], Any]:
    return lambda agent: optional_field(agent, name)


_READERS: Final[Mapping[str, Callable[[pb.Agent], Any]]] = {
    "name": lambda agent: agent.name,
    "description": _optional("description"),
    "system": lambda agent: agent.system,
    "model": lambda agent: agent.model,
    "model_settings": lambda agent: ModelSettings.from_proto(agent.model_settings, "agent.model_settings"),
    "embedder": _optional("embedder"),
    "tool_rules": rules_from_proto,
    "tags": lambda agent: tuple(agent.tags),
    "metadata": _optional("metadata"),
    "time_zone": lambda agent: agent.time_zone or "UTC",
    "prompt_policy": prompt_policy_from_proto,
    "message_buffer_autoclear": lambda agent: agent.message_buffer_autoclear,
    "continuation_message": _optional("continuation_message"),
    "compaction_settings": agent_compaction_from_proto,
    "memory_extraction": agent_extraction_from_proto,
    "response_format": response_format_from_proto,
    "enable_sleeptime": _optional("enable_sleeptime"),
    "max_files_open": _optional("max_files_open"),
    "per_file_view_window_char_limit": _optional("per_file_view_window_char_limit"),
    "hidden": lambda agent: agent.hidden,
    "identity_ids": lambda agent: tuple(agent.identity_ids),
    "secrets": secrets_from_proto,
    "approval_timeout": lambda agent: seconds_from_proto(agent, "approval_timeout"),
}
_NAMES: Final = {"approval_timeout": "approval_timeout_seconds"}
"""The field names of `Agent` that differ from their paths."""
_PROVENANCE_PATHS: Final = {f"provenance.{name}": name for name in PROVENANCE_IDS}
_WINDOW_PATH: Final = "message_ids"
"""The path of the context window, which is not part of the record."""


def agent_update_from_proto(request: rpc.UpdateAgentRequest) -> tuple[str, dict[str, Any]]:
    """Returns the id of the agent, and the new values by the field names of `Agent`.

    The value of `provenance` is a dictionary of those of its fields that change.

    Raises:
        InvalidArgument: The mask is empty, names a field that cannot be updated, or names `system` while the request
            has a system_prompt_key.
    """
    agent_id = require_id(request.agent.id, "agent", "agent.id")
    paths = request.update_mask.paths
    if request.HasField("system_prompt_key"):
        if "system" in paths:
            raise InvalidArgument("system_prompt_key and agent.system exclude each other.", field="system_prompt_key")
    elif not paths:
        raise InvalidArgument("update_mask must name at least one field.", field="update_mask")
    for path in paths:
        if path not in _READERS and path not in _PROVENANCE_PATHS:
            raise InvalidArgument(f"update_mask must not name {path}.", field="update_mask")
    changes = {_NAMES.get(path, path): _READERS[path](request.agent) for path in paths if path in _READERS}
    names = [_PROVENANCE_PATHS[path] for path in paths if path in _PROVENANCE_PATHS]
    if names:
        provenance = provenance_from_proto(request.agent.provenance)
        changes["provenance"] = {name: getattr(provenance, name) for name in names}
    return agent_id, changes


def window_update_from_proto(request: rpc.UpdateAgentRequest) -> tuple[str, ...] | None:
    """Returns the ids of the messages of the new window, or None if the request updates the record.

    Raises:
        InvalidArgument: The mask names `message_ids` and another field, or an id is malformed.
    """
    if _WINDOW_PATH not in request.update_mask.paths:
        return None
    if request.HasField("if_revision"):
        raise InvalidArgument("if_revision must not be set with message_ids.", field="if_revision")
    if len(request.update_mask.paths) > 1 or request.HasField("system_prompt_key"):
        raise InvalidArgument("update_mask must not name message_ids with other fields.", field="update_mask")
    return tuple(require_id(message_id, "message", "agent.message_ids") for message_id in request.agent.message_ids)
