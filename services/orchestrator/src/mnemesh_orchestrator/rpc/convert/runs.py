"""Runs, their messages and configuration, approvals, steps and batches, and requests that cancel runs."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from mnemesh.agents.v1 import agents_pb2, batches_pb2
from mnemesh.agents.v1 import agents_service_pb2 as agents_rpc
from mnemesh.agents.v1 import conversations_service_pb2 as conversations_rpc
from mnemesh.agents.v1 import runs_pb2 as pb
from mnemesh.agents.v1 import runs_service_pb2 as rpc
from mnemesh.types.v1 import message_pb2
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import require_id
from mnemesh_kit.time import optional_timestamp_from_proto, optional_timestamp_to_proto, timestamp_to_proto
from mnemesh_types.agents import ModelSettings
from mnemesh_types.convert import part_to_proto, parts_from_proto, tool_return_from_proto
from mnemesh_types.messages import ApprovalDecision, Approve, ClientReturn, Deny, Role
from mnemesh_types.twin import optional_to_proto
from msgspec import structs

from mnemesh_orchestrator.model.approvals import ApprovalAnswer
from mnemesh_orchestrator.model.inputs import (
    CallbackResult,
    ClaimedCallback,
    ClientSkill,
    ClientTool,
    InputMessage,
    OnBusy,
    RunConfig,
)
from mnemesh_orchestrator.model.runs import (
    Batch,
    BatchRequest,
    CancelOutcome,
    Run,
    RunFilter,
    RunOrigin,
    RunStatus,
    Step,
    StepFilter,
    StepStatus,
    StepTrace,
    StopReason,
)
from mnemesh_orchestrator.rpc.convert.agent_settings import (
    response_format_from_proto,
    response_format_to_proto,
)
from mnemesh_orchestrator.rpc.convert.fields import (
    any_conversation_id_from_proto,
    conversation_id_from_proto,
    duration_to_proto,
    enum_from_proto,
    optional_field,
    present_fields,
)

_ROLE_TO_PROTO: Final = {
    Role.USER: message_pb2.ROLE_USER,
    Role.SYSTEM: message_pb2.ROLE_SYSTEM,
    Role.ASSISTANT: message_pb2.ROLE_ASSISTANT,
}
_ON_BUSY_TO_PROTO: Final = {OnBusy.WAIT: pb.ON_BUSY_WAIT, OnBusy.REJECT: pb.ON_BUSY_REJECT}
_OPTIONAL_CONFIG: Final = (
    "parameters",
    "forced_tool",
    *("max_steps", "keepalive_seconds", "override_model", "override_system", "metadata", "callback_url"),
    *("assistant_messages", "assistant_tool_name", "assistant_tool_argument"),
)


def answer_from_proto(request: rpc.AnswerApprovalRequest, config: RunConfig | None) -> ApprovalAnswer:
    """Returns the answer to an approval.

    Raises:
        InvalidArgument: A decision has no kind, or its return is about another call. Metadata: field.
    """
    decisions = tuple(_decision(item, f"decisions[{index}]") for index, item in enumerate(request.decisions))
    approval_id = optional_field(request, "approval_request_id")
    if approval_id is not None:
        require_id(approval_id, "message", "approval_request_id")
    return ApprovalAnswer(decisions, approval_id, config)


def _decision(item: message_pb2.ApprovalDecision, field: str) -> ApprovalDecision:
    match item.WhichOneof("decision"):
        case "approve":
            return Approve(item.tool_call_id)
        case "deny":
            return Deny(item.tool_call_id, optional_field(item.deny, "reason"))
        case "client_return":
            return _client_return(item, f"{field}.client_return")
        case _:
            raise InvalidArgument(f"{field} must be approve, deny or client_return.", field=field)


def _client_return(item: message_pb2.ApprovalDecision, field: str) -> ClientReturn:
    if item.client_return.tool_call_id not in ("", item.tool_call_id):
        path = f"{field}.tool_call_id"
        raise InvalidArgument(f"{path} must be the id of the decision's call.", field=path)
    returned = tool_return_from_proto(item.client_return, field)
    return ClientReturn(item.tool_call_id, structs.replace(returned, tool_call_id=item.tool_call_id))


def client_tools_from_proto(tools: Sequence[pb.ClientTool]) -> tuple[ClientTool, ...]:
    """Returns the tools that a client runs."""
    return tuple(ClientTool(tool.name, tool.parameters, tool.description) for tool in tools)


def client_tool_to_proto(tool: ClientTool) -> pb.ClientTool:
    """Returns the message of a tool that the client runs."""
    return pb.ClientTool(name=tool.name, description=tool.description or None, parameters=tool.parameters)


_ROLE_FROM_PROTO: Final = {number: role for role, number in _ROLE_TO_PROTO.items()} | {
    message_pb2.ROLE_UNSPECIFIED: Role.USER
}
STOP_REASON_TO_PROTO: Final = {
    reason: agents_pb2.StopReason.Value(f"STOP_REASON_{reason.name}") for reason in StopReason
}
STOP_REASON_FROM_PROTO: Final = {number: reason for reason, number in STOP_REASON_TO_PROTO.items()}
RUN_STATUS_TO_PROTO: Final = {status: pb.RunStatus.Value(f"RUN_STATUS_{status.name}") for status in RunStatus}
RUN_STATUS_FROM_PROTO: Final = {number: status for status, number in RUN_STATUS_TO_PROTO.items()}
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
        model_settings=ModelSettings.from_proto(message.model_settings) if message.HasField("model_settings") else None,
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
        model_settings=optional_to_proto(config.model_settings),
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
        usage=run.usage.to_proto(),
        step_count=run.step_count,
        error=run.error.to_proto() if run.error else None,
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


_STATUS_TO_PROTO: Final = {status: pb.StepStatus.Value(f"STEP_STATUS_{status.name}") for status in StepStatus}


def step_to_proto(step: Step) -> pb.Step:
    """Returns the message of a step."""
    return pb.Step(
        id=step.id,
        run_id=step.run_id,
        agent_id=step.agent_id,
        conversation_id=step.conversation_id,
        number=step.number,
        status=_STATUS_TO_PROTO[step.status],
        stop_reason=STOP_REASON_TO_PROTO[step.stop_reason] if step.stop_reason else None,
        provider=step.provider,
        model=step.model,
        endpoint=step.endpoint,
        context_window_limit=step.context_window,
        usage=step.usage.to_proto(),
        error=step.error.to_proto() if step.error else None,
        model_duration=duration_to_proto(step.model_ms),
        total_duration=duration_to_proto(step.total_ms),
        tags=step.tags,
        feedback=step.feedback,
        trace_id=step.trace_id,
        attempts=step.attempts,
        origin=step.origin,
        create_time=timestamp_to_proto(step.created_at),
        completion_time=optional_timestamp_to_proto(step.completed_at),
    )


def trace_to_proto(trace: StepTrace) -> rpc.StepTrace:
    """Returns the message of the trace of a step."""
    return rpc.StepTrace(
        step_id=trace.step_id,
        request=trace.request,
        response=trace.response,
        duration=duration_to_proto(trace.model_ms),
    )


def step_filter_from_proto(message: rpc.StepFilter) -> StepFilter:
    """Returns the filter of a list of steps. Raises InvalidArgument if an id is malformed."""
    return StepFilter(
        run_id=require_id(message.run_id, "run", "filter.run_id") if message.HasField("run_id") else None,
        agent_id=require_id(message.agent_id, "agent", "filter.agent_id") if message.HasField("agent_id") else None,
        model=optional_field(message, "model"),
        feedback=optional_field(message, "feedback"),
        tags_any=tuple(message.tags_any),
        trace_id=optional_field(message, "trace_id"),
        start=optional_timestamp_from_proto(message, "start_time"),
        end=optional_timestamp_from_proto(message, "end_time"),
        has_feedback=optional_field(message, "has_feedback"),
    )


def batch_requests_from_proto(request: rpc.StartBatchRequest) -> tuple[BatchRequest, ...]:
    """Returns the requests of a batch. Raises InvalidArgument if one is malformed. Metadata: field."""
    return tuple(_request(item, f"requests[{index}]") for index, item in enumerate(request.requests))


def _request(item: rpc.BatchRequest, field: str) -> BatchRequest:
    agent_id = require_id(item.agent_id, "agent", f"{field}.agent_id")
    return BatchRequest(
        agent_id,
        conversation_id_from_proto(agent_id, optional_field(item, "conversation_id")),
        inputs_from_proto(item.messages, f"{field}.messages"),
        config_from_proto(item.config),
    )


def batch_to_proto(batch: Batch) -> batches_pb2.Batch:
    """Returns the message of a batch."""
    return batches_pb2.Batch(
        id=batch.id,
        status=RUN_STATUS_TO_PROTO[batch.status],
        unfinished_count=batch.unfinished,
        completed_count=batch.runs.get(RunStatus.COMPLETED, 0),
        failed_count=batch.runs.get(RunStatus.FAILED, 0),
        cancelled_count=batch.runs.get(RunStatus.CANCELLED, 0),
        callback=None if batch.callback is None else _callback_to_proto(batch.callback),
        create_time=timestamp_to_proto(batch.created_at),
        completion_time=optional_timestamp_to_proto(batch.completed_at),
    )


def _callback_to_proto(callback: CallbackResult) -> batches_pb2.Callback:
    return batches_pb2.Callback(
        url=callback.url,
        sent_time=optional_timestamp_to_proto(callback.sent_at),
        status=callback.status,
        error=callback.error,
    )


def due_callback_to_proto(callback: ClaimedCallback, target: Run | Batch) -> batches_pb2.DueCallback:
    """Returns the message of a callback that is due, with what has ended."""
    ended: Mapping[str, Any] = (
        {"run": run_to_proto(target)} if isinstance(target, Run) else {"batch": batch_to_proto(target)}
    )
    return batches_pb2.DueCallback(
        organization_id=callback.organization_id,
        subject_id=callback.subject_id,
        url=callback.url,
        attempt=callback.attempt,
        **ended,
    )
