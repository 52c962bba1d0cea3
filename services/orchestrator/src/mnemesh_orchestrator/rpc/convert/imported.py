"""Resources of the orchestrator that were exported, with their ids, times and figures."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from google.protobuf.message import Message
from mnemesh.agents.v1 import agents_pb2, conversations_pb2, groups_pb2, identities_pb2
from mnemesh.agents.v1 import agents_service_pb2 as rpc
from mnemesh.agents.v1 import runs_pb2 as pb
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.secret_variables import SecretVariable
from mnemesh_kit.time import optional_timestamp_from_proto, timestamp_from_proto
from mnemesh_types.convert import usage_from_proto
from mnemesh_types.provenance import Provenance

from mnemesh_orchestrator.model.agents import Agent, AttachedTool
from mnemesh_orchestrator.model.conversations import Conversation, default_conversation_id
from mnemesh_orchestrator.model.group_rules import require_valid_count
from mnemesh_orchestrator.model.groups import Group
from mnemesh_orchestrator.model.identities import Identity
from mnemesh_orchestrator.model.lineage import Lineage, RunOrigin
from mnemesh_orchestrator.model.runs import Run, RunError
from mnemesh_orchestrator.model.steps import Step, StepStatus
from mnemesh_orchestrator.model.transfers import Window
from mnemesh_orchestrator.rpc.convert.agent_drafts import draft_from_proto
from mnemesh_orchestrator.rpc.convert.fields import enum_from_proto, optional_field, present_fields
from mnemesh_orchestrator.rpc.convert.groups import group_draft_from_proto
from mnemesh_orchestrator.rpc.convert.identities import identity_draft_from_proto
from mnemesh_orchestrator.rpc.convert.model_settings import settings_from_proto
from mnemesh_orchestrator.rpc.convert.runs import (
    RUN_STATUS_FROM_PROTO,
    STOP_REASON_FROM_PROTO,
    config_from_proto,
    inputs_from_proto,
)

_PROVENANCE: Final = ("project_id", "template_id", "base_template_id", "deployment_id", "entity_id")
_OF_DRAFT: Final = (
    "type", "name", "model", "description", "model_settings", "embedder", "tool_rules", "tags", "metadata", "time_zone",
    "prompt_policy", "message_buffer_autoclear", "continuation_message", "compaction_settings", "memory_extraction",
    "response_format", "enable_sleeptime", "max_files_open", "per_file_view_window_char_limit", "hidden",
    "approval_timeout_seconds",
)  # fmt: skip
_ORIGINS: Final = {pb.RunOrigin.Value(f"RUN_ORIGIN_{origin.name}"): origin for origin in RunOrigin} | {
    pb.RUN_ORIGIN_UNSPECIFIED: RunOrigin.CLIENT
}
_STEP_STATUSES: Final = {pb.StepStatus.Value(f"STEP_STATUS_{status.name}"): status for status in StepStatus} | {
    pb.STEP_STATUS_UNSPECIFIED: StepStatus.SUCCESS
}


def agent_from_proto(message: agents_pb2.Agent) -> Agent:
    """Returns an exported agent. Raises InvalidArgument if a field cannot be read."""
    settings = agents_pb2.Agent()
    settings.CopyFrom(message)
    for name in ("secrets", "group_ids", "identity_ids"):
        settings.ClearField(name)
    draft = draft_from_proto(rpc.CreateAgentRequest(agent=settings))
    created_at, updated_at = _times(message, "agent")
    reason = optional_field(message, "last_stop_reason")
    stop = None if reason is None else enum_from_proto(STOP_REASON_FROM_PROTO, reason, "agent.last_stop_reason").value
    duration = _milliseconds(message, "last_run_duration")
    return Agent(
        id=message.id,
        organization_id="",
        system=message.system,
        created_at=created_at,
        updated_at=updated_at,
        default_conversation_id=default_conversation_id(message.id),
        tools=tuple(
            AttachedTool(
                tool.name,
                None if tool.builtin else tool.tool_id or "",
                tool.requires_approval if tool.HasField("requires_approval") else None,
            )
            for tool in message.tools
        ),
        identity_ids=tuple(message.identity_ids),
        last_stop_reason=stop,
        last_run_completed_at=optional_timestamp_from_proto(message, "last_run_completion_time"),
        last_run_ms=duration,
        provenance=provenance_from_proto(message),
        secrets=tuple(SecretVariable(secret.key, None, updated_at) for secret in message.secrets),
        **{name: getattr(draft, name) for name in _OF_DRAFT},
    )


def identity_from_proto(message: identities_pb2.Identity) -> Identity:
    """Returns an exported identity. Raises InvalidArgument if a field cannot be read."""
    created_at, updated_at = _times(message, "identity")
    return replace(
        identity_draft_from_proto(message),
        id=message.id,
        created_at=created_at,
        updated_at=updated_at,
        provenance=provenance_from_proto(message),
    )


def group_from_proto(message: groups_pb2.Group) -> Group:
    """Returns an exported group. Raises InvalidArgument if a field cannot be read."""
    require_valid_count(message.turns_counter, "group.turns_counter")
    return replace(group_draft_from_proto(message), id=message.id, provenance=provenance_from_proto(message))


def conversation_from_proto(message: conversations_pb2.Conversation) -> Window:
    """Returns an exported conversation with its window. Raises InvalidArgument if a field cannot be read."""
    created_at, updated_at = _times(message, "conversation")
    has_settings = message.HasField("model_settings")
    conversation = Conversation(
        id=message.id,
        organization_id="",
        agent_id=message.agent_id,
        is_default=message.is_default,
        created_at=created_at,
        updated_at=updated_at,
        archived=message.archived,
        model_settings=settings_from_proto(message.model_settings) if has_settings else None,
        last_message_at=optional_timestamp_from_proto(message, "last_message_time"),
        isolated_block_labels=tuple(message.isolated_block_labels),
        isolated_block_ids=tuple(message.isolated_block_ids),
        **present_fields(message, "summary", "description", "model", "forked_from_id", "key"),
    )
    return Window(conversation, tuple(message.message_ids))


def run_from_proto(message: pb.Run) -> Run:
    """Returns an exported run. Raises InvalidArgument if a field cannot be read."""
    created_at, updated_at = _times(message, "run")
    config = pb.RunConfig()
    config.CopyFrom(message.config)
    config.ClearField("callback_url")
    reason = optional_field(message, "stop_reason")
    retried = optional_field(message, "retry_of_run_id")
    return Run(
        id=message.id,
        organization_id="",
        subject_id="",
        agent_id=message.agent_id,
        conversation_id=message.conversation_id,
        created_at=created_at,
        updated_at=updated_at,
        input=inputs_from_proto(message.input, "run.input"),
        config=config_from_proto(config),
        status=enum_from_proto(RUN_STATUS_FROM_PROTO, message.status, "run.status"),
        stop_reason=None if reason is None else enum_from_proto(STOP_REASON_FROM_PROTO, reason, "run.stop_reason"),
        background=message.background,
        usage=usage_from_proto(message.usage),
        step_count=message.step_count,
        error=_error(message),
        completed_at=optional_timestamp_from_proto(message, "completion_time"),
        first_token_ms=_milliseconds(message, "time_to_first_token"),
        total_ms=_milliseconds(message, "total_duration"),
        retried_run_ids=() if retried is None else (retried,),
        group_id=optional_field(message, "group_id"),
        lineage=Lineage(
            optional_field(message, "parent_run_id"), enum_from_proto(_ORIGINS, message.origin, "run.origin")
        ),
        child_run_ids=tuple(message.child_run_ids),
    )


def step_from_proto(message: pb.Step) -> Step:
    """Returns an exported step. Raises InvalidArgument if a field cannot be read."""
    reason = optional_field(message, "stop_reason")
    return Step(
        id=message.id,
        run_id=message.run_id,
        agent_id=message.agent_id,
        conversation_id=message.conversation_id,
        number=message.number,
        model=message.model,
        provider=message.provider,
        context_window=message.context_window_limit,
        created_at=_required_time(message, "create_time", "step"),
        status=enum_from_proto(_STEP_STATUSES, message.status, "step.status"),
        stop_reason=None if reason is None else enum_from_proto(STOP_REASON_FROM_PROTO, reason, "step.stop_reason"),
        usage=usage_from_proto(message.usage),
        error=_error(message),
        attempts=message.attempts,
        model_ms=_milliseconds(message, "model_duration"),
        total_ms=_milliseconds(message, "total_duration"),
        completed_at=optional_timestamp_from_proto(message, "completion_time"),
        tags=tuple(message.tags),
        **present_fields(message, "endpoint", "feedback", "trace_id", "origin"),
    )


def provenance_from_proto(message: Any) -> Provenance:
    """Returns the provenance of an exported resource, with its authors."""
    origin = message.provenance
    return Provenance(
        created_by_id=origin.created_by_id,
        last_updated_by_id=origin.last_updated_by_id,
        **present_fields(origin, *_PROVENANCE),
    )


def _times(message: Any, field: str) -> tuple[datetime, datetime]:
    """Returns the creation and the last change. A resource that was never changed needs no time of a change."""
    created_at = _required_time(message, "create_time", field)
    return created_at, optional_timestamp_from_proto(message, "update_time", f"{field}.update_time") or created_at


def _required_time(message: Message, name: str, field: str) -> datetime:
    if not message.HasField(name):
        raise InvalidArgument(f"{field}.{name} is required.", field=f"{field}.{name}")
    return timestamp_from_proto(getattr(message, name), f"{field}.{name}").astimezone(UTC)


def _milliseconds(message: Message, name: str) -> int | None:
    duration = optional_field(message, name)
    return None if duration is None else int(duration.ToMilliseconds())


def _error(message: Any) -> RunError | None:
    if not message.HasField("error"):
        return None
    return RunError(message.error.reason, message.error.message, dict(message.error.metadata))
