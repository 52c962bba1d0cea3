"""Agents: drafts, updates, settings and secrets in requests, their context windows, and reports."""

import json
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any, Final, TypeVar

from mnemesh.agents.v1 import agents_pb2 as pb
from mnemesh.agents.v1 import agents_service_pb2 as rpc
from mnemesh_kit.access import admin_only, refuse_limited
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import derive_id, require_id, require_ids
from mnemesh_kit.time import timestamp_to_proto
from mnemesh_types.agents import CompactionMode, CompactionSettings, ModelSettings
from mnemesh_types.convert import message_to_proto
from mnemesh_types.twin import Conversion, OneOf, enum_of, optional_field, register, written

from mnemesh_orchestrator.model.agents import (
    Agent,
    AgentFilter,
    AgentOrder,
    AgentState,
    AgentType,
    AttachedTool,
    LinkKind,
    PromptPolicy,
)
from mnemesh_orchestrator.model.conversations import ContextWindowReport
from mnemesh_orchestrator.model.creation import AgentDraft
from mnemesh_orchestrator.model.episodes import Change, ExtractionReport, MemoryExtractionSettings
from mnemesh_orchestrator.model.files import limits_in_effect
from mnemesh_orchestrator.model.models import ResponseFormat
from mnemesh_orchestrator.model.rules import (
    ChildArguments,
    Conditional,
    ConditionalOutcome,
    ConstrainChildTools,
    ContinueLoop,
    ExitLoop,
    MaxCountPerStep,
    ParentLastTool,
    RequiredBeforeExit,
    RequiresApproval,
    RunFirst,
    ToolRule,
)
from mnemesh_orchestrator.rpc.convert.runs import PROVENANCE_IDS, conversation_id_from_proto, inputs_from_proto

Conversion(pb.MemoryExtractionSettings, MemoryExtractionSettings)
Conversion(pb.ChildArguments, ChildArguments)
Conversion(pb.RunFirstRule, RunFirst)
Conversion(pb.ExitLoopRule, ExitLoop)
Conversion(pb.ContinueLoopRule, ContinueLoop)
Conversion(pb.ConditionalRule, Conditional)
Conversion(pb.ConstrainChildToolsRule, ConstrainChildTools)
Conversion(pb.MaxCountPerStepRule, MaxCountPerStep)
Conversion(pb.ParentLastToolRule, ParentLastTool)
Conversion(pb.RequiredBeforeExitRule, RequiredBeforeExit)
Conversion(pb.RequiresApprovalRule, RequiresApproval)
OneOf[pb.ToolRule, ToolRule](pb.ToolRule, "must have a kind of rule", __package__.partition(".")[0])


def _read_outcome(outcome: pb.ConditionalOutcome, field: str) -> ConditionalOutcome:
    kind = outcome.WhichOneof("output")
    if kind is None:
        rule = field.partition(".conditional.")[0]
        raise InvalidArgument(f"{rule} must have an output for each outcome.", field=rule)
    return ConditionalOutcome(getattr(outcome, kind), outcome.child)


def _write_outcome(outcome: ConditionalOutcome) -> pb.ConditionalOutcome:
    kinds = {bool: "boolean", int: "integer", float: "number", str: "text"}
    return pb.ConditionalOutcome(child=outcome.child, **{kinds[type(outcome.output)]: outcome.output})  # type: ignore[arg-type]


register(pb.ConditionalOutcome, _read_outcome, _write_outcome)


def _write_response_format(format_: ResponseFormat) -> pb.ResponseFormat:
    match format_:
        case ResponseFormat(kind="json_schema"):
            schema = pb.JsonSchemaFormat(name=format_.name or "", schema=format_.schema or "", strict=format_.strict)
            return pb.ResponseFormat(json_schema=schema)
        case ResponseFormat(kind="json_object"):
            return pb.ResponseFormat(json_object=pb.JsonObjectFormat())
        case _:
            return pb.ResponseFormat(text=pb.TextFormat())


def read_response_format(message: pb.ResponseFormat, _field: str = "") -> ResponseFormat | None:
    """Returns the format of answers, or None if the message has none."""
    kind = message.WhichOneof("format")
    if kind != "json_schema":
        return None if kind is None else ResponseFormat(kind)
    schema = message.json_schema
    return ResponseFormat(kind, schema.name, schema.schema, optional_field(schema, "strict"))


register(pb.ResponseFormat, read_response_format, _write_response_format)


def with_mode(settings: CompactionSettings | None) -> CompactionSettings | None:
    """Returns the settings of an agent, with the default mode if they have none."""
    return settings and replace(settings, mode=settings.mode or CompactionMode.SLIDING_WINDOW)


def extraction_report_to_proto(report: ExtractionReport) -> rpc.ExtractMemoriesResponse:
    """Returns the message of what an extraction has done."""
    return rpc.ExtractMemoriesResponse(
        message_count=report.messages,
        added_count=report.count(Change.ADD),
        superseded_count=report.count(Change.SUPERSEDE),
        confirmed_count=report.count(Change.CONFIRM),
        retracted_count=report.count(Change.RETRACT),
        call_count=report.calls,
        usage=report.usage.to_proto(),
        has_more=report.has_more,
        budget_exhausted=report.budget_exhausted,
    )


R = TypeVar("R", rpc.CreateAgentRequest, rpc.UpdateAgentRequest)

enum_of(pb.AgentType, AgentType, "LETTA_V1")
enum_of(pb.AgentState, AgentState, "CREATING", IMPORTING="CREATING")
enum_of(pb.PromptPolicy, PromptPolicy, "REBUILD")
enum_of(rpc.AgentOrderBy, AgentOrder, "CREATED_AT", LAST_RUN_COMPLETED_AT="LAST_RUN_COMPLETION")
AGENT: Final = Conversion(
    pb.Agent, Agent, approval_timeout="approval_timeout_seconds", last_run_duration="last_run_ms", secrets=None
)
_CREATION: Final = Conversion(
    rpc.CreateAgentRequest,
    AgentDraft,
    secrets="secret_values",
    initial_messages=None,
    open_folder_files="opens_folder_files",
)
_FILTER: Final = Conversion(rpc.AgentFilter, AgentFilter)
_WRITABLE: Final = (
    *("name", "description", "system", "model", "model_settings", "embedder", "tool_rules", "tags", "metadata"),
    *("time_zone", "prompt_policy", "message_buffer_autoclear", "continuation_message", "compaction_settings"),
    *("memory_extraction", "response_format", "enable_sleeptime", "max_files_open"),
    *("per_file_view_window_char_limit", "hidden", "identity_ids", "approval_timeout"),
    *PROVENANCE_IDS,
)
_SECTIONS: Final = (
    pb.CONTEXT_SECTION_KIND_SYSTEM_PROMPT,
    pb.CONTEXT_SECTION_KIND_CORE_MEMORY,
    pb.CONTEXT_SECTION_KIND_TOOL_RULES,
    pb.CONTEXT_SECTION_KIND_DIRECTORIES,
    pb.CONTEXT_SECTION_KIND_MEMORY_METADATA,
)


def _read_tool(tool: pb.AttachedTool, _field: str = "") -> AttachedTool:
    return AttachedTool(
        tool.name, None if tool.builtin else tool.tool_id or "", optional_field(tool, "requires_approval")
    )


def _write_tool(tool: AttachedTool) -> pb.AttachedTool:
    return pb.AttachedTool(
        tool_id=tool.tool_id, name=tool.name, builtin=tool.builtin, requires_approval=tool.requires_approval
    )


register(pb.AttachedTool, _read_tool, _write_tool)


def secrets_from_proto(agent: pb.Agent) -> dict[str, str | None]:
    """Returns the values by name; None for one that the request does not contain.

    Raises:
        InvalidArgument: A name occurs twice.
    """
    values = {secret.key: optional_field(secret, "value") for secret in agent.secrets}
    if len(values) < len(agent.secrets):
        raise InvalidArgument("agent.secrets must not have the same key twice.", field="agent.secrets")
    return values


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
        effective: The settings of its model calls, with the defaults of the model.
        message_ids: The ids of the messages in the window of its default conversation, if the view has them.
        pending_approval: The id of the approval that it waits for.
        group_ids: The ids of its groups, if the view has them.
    """
    limits = limits_in_effect(
        effective.context_window or 0, agent.max_files_open, agent.per_file_view_window_char_limit
    )
    return AGENT.to_proto(
        agent,
        effective_model_settings=effective.to_proto(),
        effective_max_files_open=limits.max_files_open,
        effective_per_file_view_window_char_limit=limits.per_file_characters,
        secrets=[
            pb.Secret(
                id=derive_id("secret", agent.id, secret.name),
                key=secret.name,
                update_time=timestamp_to_proto(secret.updated_at),
            )
            for secret in agent.secrets
        ],
        group_ids=group_ids,
        message_ids=message_ids,
        pending_approval_request_id=pending_approval,
    )


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


def draft_from_proto(request: rpc.CreateAgentRequest) -> AgentDraft:
    """Returns the draft of an agent."""
    _refuse_fields_of_others(request)
    require_ids(request, "", tool_ids="tool", block_ids="block", archive_ids="archive", folder_ids="source")
    agent = agent_from_proto(written(request.agent, ("type", *_WRITABLE)))
    initial = request.initial_messages.messages if request.HasField("initial_messages") else None
    draft = _CREATION.from_proto(
        request,
        **{item.name: getattr(agent, item.name) for item in fields(Agent)},
        initial_messages=None if initial is None else inputs_from_proto(initial, "initial_messages.messages"),
    )
    return replace(
        draft,
        secret_values=dict(sorted(draft.secret_values.items())),
        tool_names=tuple(dict.fromkeys(draft.tool_names)),
        folder_ids=tuple(dict.fromkeys(draft.folder_ids)),
    )


def agent_from_proto(message: pb.Agent) -> Agent:
    """Returns the agent of a message, without secrets; times that are not set are those of 1970."""
    agent = AGENT.from_proto(message, "agent", organization_id="")
    return replace(agent, compaction_settings=with_mode(agent.compaction_settings))


def _refuse_fields_of_others(request: rpc.CreateAgentRequest) -> None:
    admin_only(request.tool_sources, "tool_sources")
    if request.agent.secrets:
        raise InvalidArgument("agent.secrets must be empty. Use secrets.", field="agent.secrets")
    if request.agent.group_ids:
        raise InvalidArgument(
            "agent.group_ids must not be set. Use CreateGroup or UpdateGroup.", field="agent.group_ids"
        )


def agent_filter_from_proto(message: rpc.AgentFilter) -> AgentFilter:
    """Returns the filter of a list or a count."""
    require_ids(message, "filter", agent_ids="agent", identity_id="identity", tool_id="tool")
    names = {LinkKind.IDENTITY: "identity_id", LinkKind.TOOL: "tool_id"}
    names |= {kind: kind.value for kind in LinkKind.of_origin()}
    found = {kind: optional_field(message, name) for kind, name in names.items()}
    links = tuple((kind, value) for kind, value in found.items() if value is not None)
    return _FILTER.from_proto(message, "filter", links=links)


def tool_from_proto(request: rpc.AttachToolRequest | rpc.DetachToolRequest) -> tuple[str | None, str | None]:
    """Returns the id or the name of a tool. Raises InvalidArgument if the request has neither."""
    match request.WhichOneof("tool"):
        case "tool_id":
            return require_id(request.tool_id, "tool", "tool_id"), None
        case "name" if request.name:
            return None, request.name
        case _:
            raise InvalidArgument("tool must be set to tool_id or name.", field="tool")


def address_from_proto(
    request: rpc.GetContextWindowRequest
    | rpc.PreviewRequestRequest
    | rpc.RecompileAgentRequest
    | rpc.ResetMessagesRequest
    | rpc.CompactConversationRequest,
) -> tuple[str, str]:
    """Returns the ids of the agent and the conversation of a request. Raises InvalidArgument."""
    agent_id = require_id(request.agent_id, "agent", "agent_id")
    return agent_id, conversation_id_from_proto(agent_id, request.conversation_id)


_WINDOW_PATH: Final = "message_ids"
"""The path of the context window, which is not part of the record."""


def agent_update_from_proto(request: rpc.UpdateAgentRequest) -> tuple[str, dict[str, Any]]:
    """Returns the id of the agent, and the new values by the field names of `Agent`.

    The value of `provenance` is a dictionary of those of its fields that change.
    """
    agent_id = require_id(request.agent.id, "agent", "agent.id")
    paths = request.update_mask.paths
    has_key = request.HasField("system_prompt_key")
    if has_key and "system" in paths:
        raise InvalidArgument("system_prompt_key and agent.system exclude each other.", field="system_prompt_key")
    mask = request.update_mask
    changes = AGENT.changes(request.agent, mask, (*_WRITABLE, "secrets"), "agent") if paths or not has_key else {}
    if "compaction_settings" in changes:
        changes["compaction_settings"] = settings = with_mode(changes["compaction_settings"])
        refuse_limited(settings and settings.memory_scope, "agent.compaction_settings.memory_scope")
    refuse_limited(changes.get("identity_ids"), "agent.identity_ids")
    if "secrets" in paths:
        changes["secrets"] = secrets_from_proto(request.agent)
    return agent_id, changes


def window_update_from_proto(request: rpc.UpdateAgentRequest) -> tuple[str, ...] | None:
    """Returns the ids of the messages of the new window, or None if the request updates the record."""
    if _WINDOW_PATH not in request.update_mask.paths:
        return None
    if request.HasField("if_revision"):
        raise InvalidArgument("if_revision must not be set with message_ids.", field="if_revision")
    if len(request.update_mask.paths) > 1 or request.HasField("system_prompt_key"):
        raise InvalidArgument("update_mask must not name message_ids with other fields.", field="update_mask")
    return tuple(require_id(message_id, "message", "agent.message_ids") for message_id in request.agent.message_ids)
