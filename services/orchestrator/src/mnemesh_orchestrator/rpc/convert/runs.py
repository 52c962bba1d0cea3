"""Runs, their messages and configuration, and requests that cancel them."""

from collections.abc import Mapping, Sequence
from typing import Final

from mnemesh.agents.v1 import agents_pb2
from mnemesh.agents.v1 import agents_service_pb2 as agents_rpc
from mnemesh.agents.v1 import conversations_service_pb2 as conversations_rpc
from mnemesh.agents.v1 import runs_pb2 as pb
from mnemesh.agents.v1 import runs_service_pb2 as rpc
from mnemesh.types.v1 import message_pb2
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import require_id
from mnemesh_kit.time import optional_timestamp_to_proto, timestamp_to_proto
from mnemesh_types.convert import part_to_proto, parts_from_proto, usage_to_proto
from mnemesh_types.messages import Role

from mnemesh_orchestrator.model.inputs import InputMessage
from mnemesh_orchestrator.model.lineage import RunOrigin
from mnemesh_orchestrator.model.run_config import ClientSkill, OnBusy, RunConfig
from mnemesh_orchestrator.model.runs import CancelOutcome, Run, RunError, RunFilter, RunStatus, StopReason
from mnemesh_orchestrator.rpc.convert.approvals import client_tool_to_proto, client_tools_from_proto
from mnemesh_orchestrator.rpc.convert.fields import (
    any_conversation_id_from_proto,
    conversation_id_from_proto,
    duration_to_proto,
    enum_from_proto,
    optional_field,
    present_fields,
)
from mnemesh_orchestrator.rpc.convert.model_settings import (
    response_format_from_proto,
    response_format_to_proto,
    settings_from_proto,
    settings_to_proto,
)

_ROLE_TO_PROTO: Final = {
    Role.USER: message_pb2.ROLE_USER,
    Role.SYSTEM: message_pb2.ROLE_SYSTEM,
    Role.ASSISTANT: message_pb2.ROLE_ASSISTANT,
}
_ROLE_FROM_PROTO: Final = {number: role for role, number in _ROLE_TO_PROTO.items()} | {
    message_pb2.ROLE_UNSPECIFIED: Role.USER
}
STOP_REASON_TO_PROTO: Final = {
    reason: agents_pb2.StopReason.Value(f"STOP_REASON_{reason.name}") for reason in StopReason
}
STOP_REASON_FROM_PROTO: Final = {number: reason for reason, number in STOP_REASON_TO_PROTO.items()}
RUN_STATUS_TO_PROTO: Final = {status: pb.RunStatus.Value(f"RUN_STATUS_{status.name}") for status in RunStatus}
RUN_STATUS_FROM_PROTO: Final = {number: status for status, number in RUN_STATUS_TO_PROTO.items()}
_ON_BUSY_TO_PROTO: Final = {OnBusy.WAIT: pb.ON_BUSY_WAIT, OnBusy.REJECT: pb.ON_BUSY_REJECT}
_ON_BUSY_FROM_PROTO: Final = {number: on_busy for on_busy, number in _ON_BUSY_TO_PROTO.items()} | {
    pb.ON_BUSY_UNSPECIFIED: OnBusy.WAIT
}
_OUTCOME_TO_PROTO: Final = {
    outcome: rpc.CancelOutcome.Value(f"CANCEL_OUTCOME_{outcome.name}") for outcome in CancelOutcome
}
_ORIGIN_TO_PROTO: Final = {origin: pb.RunOrigin.Value(f"RUN_ORIGIN_{origin.name}") for origin in RunOrigin}
_ORIGIN_FROM_PROTO: Final = {number: origin for origin, number in _ORIGIN_TO_PROTO.items()}
_EVENT_KIND_FROM_PROTO: Final = {
    number: name.removeprefix("EVENT_KIND_").removesuffix("_MESSAGE").lower() for name, number in pb.EventKind.items()
}
_EVENT_KIND_TO_PROTO: Final = {name: number for number, name in _EVENT_KIND_FROM_PROTO.items()}
_OPTIONAL_CONFIG: Final = (
    "parameters",
    "forced_tool",
    *("max_steps", "keepalive_seconds", "override_model", "override_system", "metadata", "callback_url"),
    *("assistant_messages", "assistant_tool_name", "assistant_tool_argument"),
)


def inputs_from_proto(messages: Sequence[pb.InputMessage], field: str = "messages") -> tuple[InputMessage, ...]:
    """Returns the messages that a client sends, without parts of an unknown kind.

    Raises:
        InvalidArgument: The role of one cannot be sent. Metadata: field.
    """
    return tuple(_input_from_proto(message, f"{field}[{index}]") for index, message in enumerate(messages))


def _input_from_proto(message: pb.InputMessage, field: str) -> InputMessage:
    if message.role not in _ROLE_FROM_PROTO:
        raise InvalidArgument(f"{field}.role must be USER, SYSTEM or ASSISTANT.", field=f"{field}.role")
    return InputMessage(
        content=tuple(parts_from_proto(message.content)),
        role=_ROLE_FROM_PROTO[message.role],
        **present_fields(message, "name", "otid", "sender_id", "group_id"),
    )


def input_to_proto(message: InputMessage) -> pb.InputMessage:
    """Returns the message of an input."""
    return pb.InputMessage(
        role=_ROLE_TO_PROTO[message.role],
        content=[part_to_proto(part) for part in message.content],
        name=message.name,
        otid=message.otid,
        sender_id=message.sender_id,
        group_id=message.group_id,
    )


def address_from_proto(
    request: rpc.SendMessageRequest | rpc.SendMessageAndWaitRequest | rpc.StartRunRequest,
) -> tuple[str, str, str | None]:
    """Returns the ids of the agent and the conversation that a message goes to, or those of no agent and a group.

    Raises:
        InvalidArgument: An id is malformed, or the request names a group and an agent or a conversation.
    """
    if request.HasField("group_id"):
        for field in ("agent_id", "conversation_id"):
            if getattr(request, field):
                raise InvalidArgument(f"{field} must be empty if group_id is set.", field=field)
        return "", "", require_id(request.group_id, "group", "group_id")
    agent_id = require_id(request.agent_id, "agent", "agent_id")
    return agent_id, conversation_id_from_proto(agent_id, optional_field(request, "conversation_id")), None


def on_busy_from_proto(
    request: agents_rpc.ResetMessagesRequest
    | agents_rpc.RecompileAgentRequest
    | agents_rpc.CompactConversationRequest
    | conversations_rpc.ForkConversationRequest,
) -> OnBusy:
    """Returns the reaction to runs that hold the conversation. Raises InvalidArgument if it is unknown."""
    return enum_from_proto(_ON_BUSY_FROM_PROTO, request.on_busy, "on_busy")


def config_from_proto(message: pb.RunConfig) -> RunConfig:
    """Returns the configuration of a run.

    Raises:
        InvalidArgument: An enum is unknown. Metadata: field.
    """
    events = [enum_from_proto(_EVENT_KIND_FROM_PROTO, kind, "config.include_events") for kind in message.include_events]
    return RunConfig(
        **present_fields(message, *_OPTIONAL_CONFIG),
        stream_tokens=message.stream_tokens,
        include_events=tuple(events),
        include_compaction_events=message.include_compaction_events,
        otids_repeat=message.otids_repeat,
        requires_tool=message.requires_tool,
        on_busy=enum_from_proto(_ON_BUSY_FROM_PROTO, message.on_busy, "config.on_busy"),
        client_tools=client_tools_from_proto(message.client_tools),
        client_skills=tuple(ClientSkill(each.name, each.description, each.location) for each in message.client_skills),
        response_format=response_format_from_proto(message),
        model_settings=settings_from_proto(message.model_settings) if message.HasField("model_settings") else None,
    )


def config_to_proto(config: RunConfig) -> pb.RunConfig:
    """Returns the message of the configuration of a run."""
    return pb.RunConfig(
        max_steps=config.max_steps,
        stream_tokens=config.stream_tokens,
        include_events=[_EVENT_KIND_TO_PROTO[name] for name in config.include_events],
        override_model=config.override_model,
        override_system=config.override_system,
        include_compaction_events=config.include_compaction_events,
        otids_repeat=config.otids_repeat,
        parameters=config.parameters,
        forced_tool=config.forced_tool,
        requires_tool=config.requires_tool,
        assistant_messages=config.assistant_messages,
        assistant_tool_name=config.assistant_tool_name,
        assistant_tool_argument=config.assistant_tool_argument,
        on_busy=_ON_BUSY_TO_PROTO[config.on_busy],
        metadata=config.metadata,
        callback_url=config.callback_url,
        keepalive_seconds=config.keepalive_seconds,
        client_tools=[client_tool_to_proto(tool) for tool in config.client_tools],
        client_skills=[
            pb.ClientSkill(name=skill.name, description=skill.description, location=skill.location)
            for skill in config.client_skills
        ],
        response_format=response_format_to_proto(config.response_format),
        model_settings=None if config.model_settings is None else settings_to_proto(config.model_settings),
    )


def run_to_proto(run: Run) -> pb.Run:
    """Returns the message of a run."""
    return pb.Run(
        id=run.id,
        agent_id=run.agent_id,
        conversation_id=run.conversation_id,
        status=RUN_STATUS_TO_PROTO[run.status],
        stop_reason=STOP_REASON_TO_PROTO[run.stop_reason] if run.stop_reason else None,
        background=run.background,
        config=config_to_proto(run.config),
        usage=usage_to_proto(run.usage),
        step_count=run.step_count,
        error=run_error_to_proto(run.error) if run.error else None,
        last_sequence=run.last_sequence,
        group_id=run.group_id,
        parent_run_id=run.lineage.parent_run_id,
        origin=_ORIGIN_TO_PROTO[run.lineage.origin],
        child_run_ids=run.child_run_ids,
        waiting_for=[
            pb.MemberApproval(agent_id=item.agent_id, run_id=item.run_id, approval_request_id=item.approval_id)
            for item in run.waiting_for
        ],
        batch_id=run.batch_id,
        callback_sent_time=optional_timestamp_to_proto(run.callback.sent_at if run.callback else None),
        callback_status=run.callback.status if run.callback else None,
        callback_error=run.callback.error if run.callback else None,
        retry_of_run_id=run.retried_run_ids[0] if run.retried_run_ids else None,
        input=[input_to_proto(message) for message in run.input],
        time_to_first_token=duration_to_proto(run.first_token_ms),
        total_duration=duration_to_proto(run.total_ms),
        create_time=timestamp_to_proto(run.created_at),
        update_time=timestamp_to_proto(run.updated_at),
        completion_time=optional_timestamp_to_proto(run.completed_at),
    )


def run_error_to_proto(error: RunError) -> pb.RunError:
    """Returns the message of the error of a run."""
    return pb.RunError(reason=error.reason, message=error.message, metadata=error.metadata)


def run_filter_from_proto(message: rpc.RunFilter) -> RunFilter:
    """Returns the filter of a list of runs.

    Raises:
        InvalidArgument: An id is malformed, or an enum is unknown. Metadata: field.
    """
    reason = None
    if message.HasField("stop_reason"):
        reason = enum_from_proto(STOP_REASON_FROM_PROTO, message.stop_reason, "filter.stop_reason").value
    conversation_id = optional_field(message, "conversation_id")
    if conversation_id is not None:
        conversation_id = any_conversation_id_from_proto(conversation_id, "filter.conversation_id")
    group_id, parent_run_id = optional_field(message, "group_id"), optional_field(message, "parent_run_id")
    batch_id = optional_field(message, "batch_id")
    statuses = [enum_from_proto(RUN_STATUS_FROM_PROTO, number, "filter.statuses") for number in message.statuses]
    return RunFilter(
        agent_ids=tuple(require_id(agent_id, "agent", "filter.agent_ids") for agent_id in message.agent_ids),
        statuses=tuple(statuses),
        background=optional_field(message, "background"),
        stop_reason=reason,
        conversation_id=conversation_id,
        active=optional_field(message, "active"),
        group_id=group_id and require_id(group_id, "group", "filter.group_id"),
        origins=tuple(enum_from_proto(_ORIGIN_FROM_PROTO, number, "filter.origins") for number in message.origins),
        parent_run_id=parent_run_id and require_id(parent_run_id, "run", "filter.parent_run_id"),
        batch_id=batch_id and require_id(batch_id, "batch", "filter.batch_id"),
    )


def cancel_target_from_proto(request: rpc.CancelRunsRequest) -> tuple[RunFilter, tuple[str, ...]]:
    """Returns the filter of the runs to cancel, and their ids if the request names runs.

    Raises:
        InvalidArgument: The request has no target, or an id is malformed. Metadata: field.
    """
    match request.WhichOneof("target"):
        case "runs":
            if not request.runs.run_ids:
                raise InvalidArgument("runs.run_ids must have at least one id.", field="runs.run_ids")
            return RunFilter(), tuple(require_id(run_id, "run", "runs.run_ids") for run_id in request.runs.run_ids)
        case "conversation_id":
            return RunFilter(conversation_id=any_conversation_id_from_proto(request.conversation_id)), ()
        case "agent_id":
            return RunFilter(agent_ids=(require_id(request.agent_id, "agent", "agent_id"),)), ()
        case "group_id":
            return RunFilter(group_id=require_id(request.group_id, "group", "group_id")), ()
        case _:
            raise InvalidArgument("target must be set to runs, conversation_id, agent_id or group_id.", field="target")


def outcomes_to_proto(outcomes: Mapping[str, CancelOutcome]) -> dict[str, rpc.CancelOutcome.ValueType]:
    """Returns the outcomes of cancellations by run."""
    return {run_id: _OUTCOME_TO_PROTO[outcome] for run_id, outcome in outcomes.items()}
