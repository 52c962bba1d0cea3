"""Agents, models' settings and windows between the domain and the contract."""

import json
from dataclasses import fields
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from engram.agents.v1 import agents_pb2 as pb
from engram.agents.v1 import agents_service_pb2 as rpc
from engram.blocks.v1 import blocks_pb2
from engram.types.v1 import audit_pb2
from engram_kit.errors import InvalidArgument, Unimplemented
from engram_kit.ids import require_id
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message as ProtoMessage

from engram_orchestrator.convert.messages import message_to_proto, timestamp
from engram_orchestrator.convert.rules import rule_from_proto, rule_to_proto
from engram_orchestrator.convert.runs import STOP_REASONS, inputs_from_proto
from engram_orchestrator.model.agents import (
    Agent,
    AgentState,
    AgentType,
    CompactionSettings,
    PromptPolicy,
    Provenance,
)
from engram_orchestrator.model.creation import AgentDraft, NewBlock
from engram_orchestrator.model.memory import CoreMemory
from engram_orchestrator.model.models import ModelSettings, ResponseFormat
from engram_orchestrator.model.rules import ToolRule, checked_rules
from engram_orchestrator.model.runs import StopReason
from engram_orchestrator.store.base import AgentFilter
from engram_orchestrator.usecases.agents import WindowReport

_TYPES: Final = {
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
_TYPES_BACK: Final = {number: kind for kind, number in _TYPES.items()} | {
    pb.AGENT_TYPE_UNSPECIFIED: AgentType.MEMGPT_V2
}
_ANSWERED_TYPES: Final = frozenset(
    {
        AgentType.MEMGPT_V2,
        AgentType.LETTA_V1,
        AgentType.MEMGPT,
        AgentType.REACT,
        AgentType.WORKFLOW,
        AgentType.SPLIT_THREAD,
        AgentType.SLEEPTIME,
    }
)
_STATES: Final = {
    AgentState.CREATING: pb.AGENT_STATE_CREATING,
    AgentState.ACTIVE: pb.AGENT_STATE_ACTIVE,
    AgentState.DELETING: pb.AGENT_STATE_DELETING,
}
_POLICIES: Final = {PromptPolicy.REBUILD: pb.PROMPT_POLICY_REBUILD, PromptPolicy.CACHE: pb.PROMPT_POLICY_CACHE}
_POLICIES_BACK: Final = {number: policy for policy, number in _POLICIES.items()} | {
    pb.PROMPT_POLICY_UNSPECIFIED: PromptPolicy.REBUILD
}
_MODES: Final = {
    "sliding_window": pb.COMPACTION_MODE_SLIDING_WINDOW,
    "all": pb.COMPACTION_MODE_ALL,
    "self_compact_sliding_window": pb.COMPACTION_MODE_SELF_COMPACT_SLIDING_WINDOW,
    "self_compact_all": pb.COMPACTION_MODE_SELF_COMPACT_ALL,
    "episodic": pb.COMPACTION_MODE_EPISODIC,
}
_MODES_BACK: Final = {number: mode for mode, number in _MODES.items()} | {
    pb.COMPACTION_MODE_UNSPECIFIED: "sliding_window"
}
_SECTIONS: Final = (
    pb.CONTEXT_SECTION_KIND_SYSTEM_PROMPT,
    pb.CONTEXT_SECTION_KIND_CORE_MEMORY,
    pb.CONTEXT_SECTION_KIND_TOOL_RULES,
    pb.CONTEXT_SECTION_KIND_MEMORY_METADATA,
)
_LONGEST_NAME: Final = 512
_LONGEST_SYSTEM: Final = 1_000_000


def agent_to_proto(agent: Agent, effective: ModelSettings, message_ids: tuple[str, ...] = ()) -> pb.Agent:
    """An agent; `effective` are the settings that hold."""
    return pb.Agent(
        id=agent.id,
        name=agent.name,
        description=agent.description,
        type=_TYPES[agent.type],
        state=_STATES[agent.state],
        system=agent.system,
        model=agent.model,
        model_settings=settings_to_proto(agent.model_settings),
        effective_model_settings=settings_to_proto(effective),
        embedder=agent.embedder,
        tool_rules=[rule_to_proto(rule) for rule in agent.tool_rules],
        tags=agent.tags,
        metadata=agent.metadata,
        time_zone=agent.time_zone,
        prompt_policy=_POLICIES[agent.prompt_policy],
        message_buffer_autoclear=agent.message_buffer_autoclear,
        compaction_settings=_compaction_to_proto(agent.compaction_settings),
        response_format=_format_to_proto(agent.response_format),
        enable_sleeptime=agent.enable_sleeptime,
        max_files_open=agent.max_files_open,
        per_file_view_window_char_limit=agent.per_file_view_window_char_limit,
        hidden=agent.hidden,
        identity_ids=agent.identity_ids,
        message_ids=message_ids,
        tools=[
            pb.AttachedTool(
                tool_id=tool.tool_id, name=tool.name, builtin=tool.builtin, requires_approval=tool.requires_approval
            )
            for tool in agent.tools
        ],
        default_conversation_id=agent.default_conversation_id,
        last_stop_reason=STOP_REASONS[StopReason(agent.last_stop_reason)] if agent.last_stop_reason else None,
        last_run_completion_time=timestamp(agent.last_run_completed_at) if agent.last_run_completed_at else None,
        last_run_duration=None if agent.last_run_ms is None else _milliseconds(agent.last_run_ms),
        create_time=timestamp(agent.created_at),
        update_time=timestamp(agent.updated_at),
        provenance=audit_pb2.Provenance(**_present(agent.provenance)),
    )


def settings_to_proto(settings: ModelSettings) -> pb.ModelSettings:
    """Settings; those that are None stay absent."""
    return pb.ModelSettings(**_present(settings))


def settings_from_proto(settings: pb.ModelSettings, field: str) -> ModelSettings:
    """Settings, checked one by one.

    Raises:
        InvalidArgument: naming the setting.
    """
    given = present(settings, *(f.name for f in fields(ModelSettings)))
    for name in ("context_window", "max_output_tokens"):
        if given.get(name, 1) < 1:
            raise InvalidArgument(f"{field}.{name} must be positive.", field=f"{field}.{name}")
    if not 0 <= given.get("temperature", 0) <= 2:
        raise InvalidArgument(f"{field}.temperature must be between 0 and 2.", field=f"{field}.temperature")
    if "provider_options" in given:
        require_json_object(given["provider_options"], f"{field}.provider_options")
    return ModelSettings(**given)


def draft_from_proto(request: rpc.CreateAgentRequest) -> AgentDraft:
    """What a CreateAgentRequest asks for.

    Raises:
        InvalidArgument: naming the field.
        Unimplemented: of what this server does not do yet.
    """
    _refuse_unanswered(request)
    agent = request.agent
    kind = _TYPES_BACK.get(agent.type)
    if kind is None:
        raise InvalidArgument("agent.type is not known.", field="agent.type")
    if kind not in _ANSWERED_TYPES:
        raise Unimplemented(f"This server does not make agents of type {kind} yet.", field="agent.type")
    return AgentDraft(
        type=kind,
        name=require_name(agent.name),
        model=agent.model,
        description=agent.description if agent.HasField("description") else None,
        system=_system(agent.system) if agent.system else None,
        model_settings=settings_from_proto(agent.model_settings, "agent.model_settings"),
        embedder=agent.embedder if agent.HasField("embedder") else None,
        tool_rules=rules_from_proto(agent),
        tags=tags_from_proto(agent),
        metadata=metadata_from_proto(agent),
        time_zone=require_time_zone(agent.time_zone or "UTC"),
        prompt_policy=policy_from_proto(agent),
        message_buffer_autoclear=agent.message_buffer_autoclear,
        compaction_settings=compaction_from_proto(agent),
        response_format=format_from_proto(agent),
        enable_sleeptime=None,
        max_files_open=agent.max_files_open if agent.HasField("max_files_open") else None,
        per_file_view_window_char_limit=(
            agent.per_file_view_window_char_limit if agent.HasField("per_file_view_window_char_limit") else None
        ),
        hidden=agent.hidden,
        identity_ids=tuple(agent.identity_ids),
        provenance=provenance_from_proto(agent),
        include_base_tools=request.include_base_tools if request.HasField("include_base_tools") else True,
        include_base_tool_rules=(
            request.include_base_tool_rules if request.HasField("include_base_tool_rules") else None
        ),
        tool_names=tuple(dict.fromkeys(request.tool_names)),
        tool_ids=tuple(require_id(tool_id, "tool", "tool_ids") for tool_id in request.tool_ids),
        tool_sources=tuple(request.tool_sources),
        blocks=tuple(_block_from_proto(block, place) for place, block in enumerate(request.blocks)),
        block_ids=tuple(require_id(block_id, "block", "block_ids") for block_id in request.block_ids),
        archive_ids=tuple(require_id(archive_id, "archive", "archive_ids") for archive_id in request.archive_ids),
        initial_messages=(
            inputs_from_proto(request.initial_messages.messages, "initial_messages.messages", any_number=True)
            if request.HasField("initial_messages")
            else None
        ),
    )


def _refuse_unanswered(request: rpc.CreateAgentRequest) -> None:
    asked = {
        "secrets": bool(request.secrets),
        "folder_ids": bool(request.folder_ids),
        "memory_variables": bool(request.memory_variables),
        "include_multi_agent_tools": request.include_multi_agent_tools,
        "include_default_folder": request.include_default_folder,
        "agent.enable_sleeptime": request.agent.enable_sleeptime,
    }
    for field, is_asked in asked.items():
        if is_asked:
            raise Unimplemented(f"This server does not answer {field} yet.", field=field)


def _block_from_proto(block: blocks_pb2.Block, place: int) -> NewBlock:
    if not block.label:
        raise InvalidArgument(f"blocks[{place}].label is required.", field=f"blocks[{place}].label")
    return NewBlock(
        label=block.label,
        value=block.value,
        description=block.description if block.HasField("description") else None,
        limit=block.limit,
        read_only=block.read_only,
        metadata=block.metadata if block.HasField("metadata") else None,
        tags=tuple(block.tags),
    )


def require_name(name: str) -> str:
    """An agent's name, or "" for a made-up one."""
    if len(name) > _LONGEST_NAME or any(ord(character) < ord(" ") for character in name):
        raise InvalidArgument(
            f"agent.name must be at most {_LONGEST_NAME} characters without control characters.", field="agent.name"
        )
    return name


def _system(text: str) -> str:
    if len(text) > _LONGEST_SYSTEM or "\0" in text:
        raise InvalidArgument(
            f"agent.system must be at most {_LONGEST_SYSTEM} characters, none NUL.", field="agent.system"
        )
    return text


def system_from_proto(agent: pb.Agent) -> str:
    """The system prompt's template."""
    return _system(agent.system)


def rules_from_proto(agent: pb.Agent) -> tuple[ToolRule, ...]:
    """The agent's rules, checked, equal ones once."""
    return checked_rules(
        (rule_from_proto(rule, f"agent.tool_rules[{place}]") for place, rule in enumerate(agent.tool_rules)),
        "agent.tool_rules",
    )


def tags_from_proto(agent: pb.Agent) -> tuple[str, ...]:
    """The agent's tags, equal ones once."""
    if any(not tag or len(tag) > _LONGEST_NAME or "\0" in tag for tag in agent.tags):
        raise InvalidArgument("agent.tags must be 1 to 512 characters each, none NUL.", field="agent.tags")
    return tuple(dict.fromkeys(agent.tags))


def metadata_from_proto(agent: pb.Agent) -> str | None:
    """The agent's metadata: the text of a JSON object."""
    if not agent.HasField("metadata"):
        return None
    return require_json_object(agent.metadata, "agent.metadata")


def require_json_object(text: str, field: str) -> str:
    """The text, if it is a JSON object.

    Raises:
        InvalidArgument: naming the field.
    """
    try:
        is_object = isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        is_object = False
    if not is_object or "\0" in text:
        raise InvalidArgument(f"{field} must be the text of a JSON object.", field=field)
    return text


def require_time_zone(name: str) -> str:
    """An IANA time zone's name."""
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise InvalidArgument(
            f"agent.time_zone {name[:64]!r} is no IANA time zone.", field="agent.time_zone"
        ) from error
    return name


def policy_from_proto(agent: pb.Agent) -> PromptPolicy:
    """When the stored system message follows memory."""
    policy = _POLICIES_BACK.get(agent.prompt_policy)
    if policy is None:
        raise InvalidArgument("agent.prompt_policy is not known.", field="agent.prompt_policy")
    return policy


def compaction_from_proto(agent: pb.Agent) -> CompactionSettings | None:
    """The agent's compaction settings, or None for the defaults."""
    if not agent.HasField("compaction_settings"):
        return None
    given = agent.compaction_settings
    if given.mode not in _MODES_BACK:
        raise InvalidArgument("agent.compaction_settings.mode is not known.", field="agent.compaction_settings.mode")
    share = given.sliding_window_percentage if given.HasField("sliding_window_percentage") else None
    if share is not None and not 0 < share <= 1:
        field = "agent.compaction_settings.sliding_window_percentage"
        raise InvalidArgument(f"{field} must be above 0 and at most 1.", field=field)
    settings = None
    if given.HasField("model_settings"):
        settings = settings_from_proto(given.model_settings, "agent.compaction_settings.model_settings")
    plain = ("model", "prompt", "prompt_acknowledgement", "clip_chars", "trigger_ratio")
    return CompactionSettings(
        mode=_MODES_BACK[given.mode],
        model_settings=settings,
        sliding_window_percentage=share,
        **present(given, *plain),
    )


def _compaction_to_proto(settings: CompactionSettings | None) -> pb.CompactionSettings | None:
    if settings is None:
        return None
    values = _present(settings)
    values["mode"] = _MODES[settings.mode]
    if settings.model_settings is not None:
        values["model_settings"] = settings_to_proto(settings.model_settings)
    return pb.CompactionSettings(**values)


def format_from_proto(agent: pb.Agent) -> ResponseFormat | None:
    """The agent's response format, or None."""
    match agent.response_format.WhichOneof("format") if agent.HasField("response_format") else None:
        case None:
            return None
        case "json_schema":
            given = agent.response_format.json_schema
            schema = require_json_object(given.schema, "agent.response_format.json_schema.schema")
            return ResponseFormat("json_schema", given.name, schema, given.strict if given.HasField("strict") else None)
        case kind:
            return ResponseFormat(str(kind))


def _format_to_proto(format_: ResponseFormat | None) -> pb.ResponseFormat | None:
    match format_:
        case None:
            return None
        case ResponseFormat(kind="json_schema"):
            schema = pb.JsonSchemaFormat(name=format_.name or "", schema=format_.schema or "", strict=format_.strict)
            return pb.ResponseFormat(json_schema=schema)
        case ResponseFormat(kind="json_object"):
            return pb.ResponseFormat(json_object=pb.JsonObjectFormat())
        case _:
            return pb.ResponseFormat(text=pb.TextFormat())


def provenance_from_proto(agent: pb.Agent) -> Provenance:
    """The ids that a client keeps with an agent; authorship is the server's."""
    carried = ("project_id", "template_id", "base_template_id", "deployment_id", "entity_id")
    given = agent.provenance
    return Provenance(**present(given, *carried))


def filter_from_proto(given: rpc.AgentFilter) -> AgentFilter:
    """Which agents a list or count looks at.

    Raises:
        Unimplemented: of a filter that this server does not know yet.
    """
    unanswered = ("identity_id", "identifier_key", "project_id", "template_id", "base_template_id", "created_by_id")
    for name in present(given, *unanswered, "tool_id"):
        raise Unimplemented(f"This server does not filter by {name} yet.", field=f"filter.{name}")
    reason = given.last_stop_reason if given.HasField("last_stop_reason") else None
    return AgentFilter(
        agent_ids=tuple(require_id(agent_id, "agent", "filter.agent_ids") for agent_id in given.agent_ids),
        name=given.name if given.HasField("name") else None,
        text_search=given.text_search if given.HasField("text_search") else None,
        tags_any=tuple(given.tags_any),
        tags_all=tuple(given.tags_all),
        types=tuple(_TYPES_BACK[kind] for kind in given.types if kind in _TYPES_BACK),
        hidden=given.hidden if given.HasField("hidden") else None,
        last_stop_reason=next((str(k) for k, number in STOP_REASONS.items() if number == reason), None),
    )


def core_memory_to_proto(core: CoreMemory) -> blocks_pb2.CoreMemory:
    """Core memory, for views of agents."""
    return blocks_pb2.CoreMemory(
        agent_id=core.agent_id,
        revision=core.revision,
        blocks=[
            blocks_pb2.Block(
                id=block.id,
                label=block.label,
                description=block.description,
                value=block.value,
                limit=block.limit,
                read_only=block.read_only,
                revision=block.revision,
            )
            for block in core.blocks
        ],
        update_time=timestamp(core.updated_at) if core.updated_at else None,
    )


def window_to_proto(report: WindowReport) -> pb.ContextWindow:
    """What the model sees."""
    texts = (report.system, report.core_memory, report.tool_rules, report.metadata)
    sections = [
        pb.ContextSection(kind=kind, tokens=tokens, text=text, count=1 if text else 0)
        for kind, tokens, text in zip(_SECTIONS, report.section_tokens, texts, strict=True)
    ]
    window = report.window
    count = len(window.messages) - 1
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
    )


def present(message: ProtoMessage, *names: str) -> dict[str, Any]:
    """The optional fields among `names` that a message carries."""
    given: Any = message
    return {name: getattr(given, name) for name in names if given.HasField(name)}


def _present(record: Any) -> dict[str, Any]:
    """The fields of a record that are plain and not None."""
    values = {f.name: getattr(record, f.name) for f in fields(record)}
    return {name: value for name, value in values.items() if isinstance(value, str | int | float | bool)}


def _milliseconds(count: int) -> Duration:
    result = Duration()
    result.FromMilliseconds(count)
    return result
