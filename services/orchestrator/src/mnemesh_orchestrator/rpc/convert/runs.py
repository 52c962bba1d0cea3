"""Runs and their events, the inputs of requests, and the enumerations and ids of several services."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from mnemesh.agents.v1 import agents_pb2, batches_pb2, runs_pb2
from mnemesh.agents.v1 import runs_pb2 as pb
from mnemesh.agents.v1 import runs_service_pb2 as rpc
from mnemesh.types.v1 import message_pb2
from mnemesh_kit.call_context import Role as CallerRole
from mnemesh_kit.call_context import current_principal
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import is_id, require_id, require_ids
from mnemesh_kit.time import optional_timestamp_to_proto, timestamp_to_proto
from mnemesh_types.convert import (
    decision_to_proto,
    part_to_proto,
    parts_from_proto,
    tool_call_to_proto,
    tool_return_from_proto,
    tool_return_to_proto,
)
from mnemesh_types.messages import (
    ApprovalDecision,
    Approve,
    ClientReturn,
    ContentPart,
    Deny,
    OmittedReasoningPart,
    ReasoningPart,
    RedactedReasoningPart,
    Role,
    SummarizedReasoningPart,
    TextPart,
)
from mnemesh_types.twin import Conversion, enum_of, number_of, optional_field, register
from msgspec import structs

from mnemesh_orchestrator.model.conversations import ApprovalAnswer, default_conversation_id
from mnemesh_orchestrator.model.events import (
    CompactionEvent,
    Delta,
    ErrorEvent,
    EventBody,
    Keepalive,
    MemberEvent,
    MemberTurnEnded,
    MemberTurnStarted,
    MessageEvent,
    RunAccepted,
    RunEvent,
    StepStarted,
    StopEvent,
    ToolProgress,
    UsageEvent,
)
from mnemesh_orchestrator.model.inputs import (
    CallbackResult,
    ClientSkill,
    ClientTool,
    InputMessage,
    OnBusy,
    RunConfig,
)
from mnemesh_orchestrator.model.runs import (
    Batch,
    CancelOutcome,
    MemberApproval,
    Run,
    RunFilter,
    RunOrigin,
    RunRequest,
    RunStatus,
    Step,
    StepFilter,
    StepStatus,
    StepTrace,
    StopReason,
)
from mnemesh_orchestrator.model.webhooks import ClaimedCallback, WebhookCall

enum_of(agents_pb2.StopReason, StopReason)
enum_of(runs_pb2.RunStatus, RunStatus)
enum_of(runs_pb2.RunOrigin, RunOrigin)
enum_of(runs_pb2.StepStatus, StepStatus, "SUCCESS")
enum_of(runs_pb2.OnBusy, OnBusy, "WAIT")

PROVENANCE_IDS = tuple(
    f"provenance.{name}" for name in ("project_id", "template_id", "base_template_id", "deployment_id", "entity_id")
)
"""The fields of the provenance that clients write."""


def conversation_id_from_proto(agent_id: str, value: str | None) -> str:
    """Returns the id of a conversation of an agent. Nothing, "default" and the agent's id mean the default one."""
    if value in (None, "", "default", agent_id):
        return default_conversation_id(agent_id)
    return require_id(str(value), "conv", "conversation_id")


def any_conversation_id_from_proto(value: str, field: str = "conversation_id") -> str:
    """Returns the id of a conversation of any agent. The id of an agent means its default conversation."""
    return default_conversation_id(value) if is_id(value, "agent") else require_id(value, "conv", field)


_ROLE_TO_PROTO: Final = {
    Role.USER: message_pb2.ROLE_USER,
    Role.SYSTEM: message_pb2.ROLE_SYSTEM,
    Role.ASSISTANT: message_pb2.ROLE_ASSISTANT,
}
_ROLE_FROM_PROTO: Final = {number: role for role, number in _ROLE_TO_PROTO.items()} | {
    message_pb2.ROLE_UNSPECIFIED: Role.USER
}
_EVENT_KINDS: Final[dict[int, str]] = {
    number: name.removeprefix("EVENT_KIND_").removesuffix("_MESSAGE").lower() for name, number in pb.EventKind.items()
}
_EVENT_NUMBERS: Final[dict[str, Any]] = {name: number for number, name in _EVENT_KINDS.items()}
enum_of(rpc.CancelOutcome, CancelOutcome)
Conversion(pb.ClientTool, ClientTool)
Conversion(pb.ClientSkill, ClientSkill)
Conversion(pb.MemberApproval, MemberApproval, approval_request_id="approval_id")
Conversion(batches_pb2.Callback, CallbackResult)
_INPUT: Final = Conversion(pb.InputMessage, InputMessage, role=None, content=None)
_CONFIG: Final = Conversion(pb.RunConfig, RunConfig, include_events=None)
RUN: Final = Conversion(pb.Run, Run, time_to_first_token="first_token_ms", total_duration="total_ms")  # noqa: S106
STEP: Final = Conversion(
    pb.Step, Step, context_window_limit="context_window", model_duration="model_ms", total_duration="total_ms"
)
TRACE: Final = Conversion(rpc.StepTrace, StepTrace, duration="model_ms")
_BATCH: Final = Conversion(batches_pb2.Batch, Batch, unfinished_count="unfinished")
_DUE: Final = Conversion(batches_pb2.DueCallback, ClaimedCallback, target=None, webhook=None)
_RUN_FILTER: Final = Conversion(rpc.RunFilter, RunFilter)
_STEP_FILTER: Final = Conversion(rpc.StepFilter, StepFilter, start_time="start", end_time="end")


def answer_from_proto(request: rpc.AnswerApprovalRequest, config: RunConfig | None) -> ApprovalAnswer:
    """Returns the answer to an approval."""
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


def inputs_from_proto(messages: Sequence[pb.InputMessage], field: str = "messages") -> tuple[InputMessage, ...]:
    """Returns the messages that a client sends, without parts of an unknown kind."""
    return tuple(_input_from_proto(message, f"{field}[{index}]") for index, message in enumerate(messages))


def _input_from_proto(message: pb.InputMessage, field: str) -> InputMessage:
    if message.role not in _ROLE_FROM_PROTO:
        raise InvalidArgument(f"{field}.role must be USER, SYSTEM or ASSISTANT.", field=f"{field}.role")
    return _INPUT.from_proto(
        message, field, content=parts_from_proto(message.content), role=_ROLE_FROM_PROTO[message.role]
    )


def input_to_proto(message: InputMessage) -> pb.InputMessage:
    content = [part_to_proto(part) for part in message.content]
    return _INPUT.to_proto(message, role=_ROLE_TO_PROTO[message.role], content=content)


register(pb.InputMessage, _input_from_proto, input_to_proto)


def run_request_from_proto(
    request: rpc.SendMessageRequest | rpc.SendMessageAndWaitRequest | rpc.StartRunRequest,
) -> RunRequest:
    """Returns the run that a request starts."""
    config, messages = config_from_proto(request.config), inputs_from_proto(request.messages)
    if request.HasField("group_id"):
        for field in ("agent_id", "conversation_id"):
            if getattr(request, field):
                raise InvalidArgument(f"{field} must be empty if group_id is set.", field=field)
        return RunRequest("", "", messages, config, require_id(request.group_id, "group", "group_id"))
    agent_id = require_id(request.agent_id, "agent", "agent_id")
    conversation_id = conversation_id_from_proto(agent_id, optional_field(request, "conversation_id"))
    return RunRequest(agent_id, conversation_id, messages, config)


def config_from_proto(message: pb.RunConfig) -> RunConfig:
    """Returns the configuration of a run."""
    events = tuple(_event_kind(number) for number in message.include_events)
    return _CONFIG.from_proto(message, "config", include_events=events)


def _event_kind(number: int) -> str:
    if number not in _EVENT_KINDS:
        field = "config.include_events"
        raise InvalidArgument(f"{field} has the unknown value {number}.", field=field)
    return _EVENT_KINDS[number]


def config_to_proto(config: RunConfig) -> pb.RunConfig:
    """Returns the message of the configuration of a run, for the current caller."""
    message = _CONFIG.to_proto(config, include_events=[_EVENT_NUMBERS[name] for name in config.include_events])
    if current_principal().role is CallerRole.READER:
        message.ClearField("callback_url")
    return message


register(pb.RunConfig, lambda message, _field: config_from_proto(message), config_to_proto)


def run_to_proto(run: Run) -> pb.Run:
    """Returns the message of a run."""
    callback = run.callback
    return RUN.to_proto(
        run,
        parent_run_id=run.lineage.parent_run_id,
        origin=number_of(run.lineage.origin),
        callback_sent_time=optional_timestamp_to_proto(callback.sent_at if callback else None),
        callback_status=callback.status if callback else None,
        callback_error=callback.error if callback else None,
        retry_of_run_id=run.retried_run_ids[0] if run.retried_run_ids else None,
    )


def run_filter_from_proto(message: rpc.RunFilter) -> RunFilter:
    """Returns the filter of a list of runs."""
    require_ids(message, "filter", agent_ids="agent", group_id="group", parent_run_id="run", batch_id="batch")
    found = _RUN_FILTER.from_proto(message, "filter")
    if found.conversation_id is None:
        return found
    return replace(
        found, conversation_id=any_conversation_id_from_proto(found.conversation_id, "filter.conversation_id")
    )


def cancel_target_from_proto(request: rpc.CancelRunsRequest) -> tuple[RunFilter, tuple[str, ...]]:
    """Returns the filter of the runs to cancel, and their ids if the request names runs."""
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
    return {run_id: number_of(outcome) for run_id, outcome in outcomes.items()}


def step_filter_from_proto(message: rpc.StepFilter) -> StepFilter:
    """Returns the filter of a list of steps. Raises InvalidArgument if an id is malformed."""
    require_ids(message, "filter", run_id="run", agent_id="agent")
    return _STEP_FILTER.from_proto(message, "filter")


def batch_requests_from_proto(request: rpc.StartBatchRequest) -> tuple[RunRequest, ...]:
    """Returns the requests of a batch."""
    return tuple(_request(item, f"requests[{index}]") for index, item in enumerate(request.requests))


def _request(item: rpc.BatchRequest, field: str) -> RunRequest:
    agent_id = require_id(item.agent_id, "agent", f"{field}.agent_id")
    return RunRequest(
        agent_id,
        conversation_id_from_proto(agent_id, optional_field(item, "conversation_id")),
        inputs_from_proto(item.messages, f"{field}.messages"),
        config_from_proto(item.config),
    )


def batch_to_proto(batch: Batch) -> batches_pb2.Batch:
    """Returns the message of a batch."""
    return _BATCH.to_proto(
        batch,
        completed_count=batch.runs.get(RunStatus.COMPLETED, 0),
        failed_count=batch.runs.get(RunStatus.FAILED, 0),
        cancelled_count=batch.runs.get(RunStatus.CANCELLED, 0),
    )


def due_callback_to_proto(callback: ClaimedCallback, target: Run | Batch | WebhookCall) -> batches_pb2.DueCallback:
    """Returns the message of a callback that is due, with what has ended or the signed request."""
    if isinstance(target, WebhookCall):
        request = batches_pb2.WebhookRequest(delivery_id=callback.target_id, body=target.body, headers=target.headers)
        return _DUE.to_proto(callback, webhook=request)
    if isinstance(target, Run):
        return _DUE.to_proto(callback, run=run_to_proto(target))
    return _DUE.to_proto(callback, batch=batch_to_proto(target))


def event_to_proto(event: RunEvent) -> pb.RunEvent:
    """Returns the message of an event."""
    result = pb.RunEvent(
        run_id=event.run_id,
        sequence=event.sequence,
        step_id=event.step_id,
        create_time=timestamp_to_proto(event.created_at),
    )
    body: EventBody | MemberTurnStarted | MemberTurnEnded = event.body
    if isinstance(body, MemberEvent):
        result.agent_id, result.child_run_id, body = body.agent_id, body.run_id, body.body
    _set_body(result, body)
    return result


def _set_body(result: pb.RunEvent, event_body: EventBody | MemberTurnStarted | MemberTurnEnded) -> None:
    match event_body:
        case RunAccepted() as body:
            result.accepted.CopyFrom(
                pb.RunAccepted(
                    agent_id=body.agent_id,
                    conversation_id=body.conversation_id,
                    replayed=body.replayed,
                    last_sequence=body.last_sequence,
                )
            )
        case StepStarted(number, attempt):
            result.step_started.CopyFrom(pb.StepStarted(number=number, attempt=attempt))
        case Delta() as body:
            result.delta.CopyFrom(_delta(body))
        case ToolProgress(call_id, name, progress, total, message):
            result.tool_progress.CopyFrom(
                pb.ToolProgress(tool_call_id=call_id, name=name, progress=progress, total=total, message=message)
            )
        case Keepalive():
            result.keepalive.SetInParent()
        case MessageEvent() as body:
            result.message.CopyFrom(_message(body))
        case CompactionEvent(figures):
            result.compaction.CopyFrom(pb.CompactionEvent(result=figures.to_proto()))
        case ErrorEvent(error):
            result.error.CopyFrom(pb.ErrorEvent(error=error.to_proto()))
        case StopEvent(reason, status):
            result.stop.CopyFrom(pb.StopEvent(reason=number_of(reason), status=number_of(status)))
        case UsageEvent(usage, step_count, child_run_ids, context_tokens):
            result.usage.CopyFrom(
                pb.UsageEvent(
                    usage=usage.to_proto(),
                    step_count=step_count,
                    child_run_ids=child_run_ids,
                    context_tokens=context_tokens,
                )
            )
        case MemberTurnStarted(number, agent_name, is_selection):
            started = pb.MemberTurnStarted(number=number, agent_name=agent_name, is_selection=is_selection)
            result.member_turn_started.CopyFrom(started)
        case MemberTurnEnded(number, stop_reason, usage, error):
            ended = pb.MemberTurnEnded(
                number=number,
                stop_reason=number_of(stop_reason),
                error=error.to_proto() if error else None,
                usage=usage.to_proto(),
            )
            result.member_turn_ended.CopyFrom(ended)


def _delta(delta: Delta) -> pb.Delta:
    result = pb.Delta(message_id=delta.message_id, otid=delta.otid, offset=delta.offset)
    if delta.kind == "tool_call":
        call = pb.ToolCallDelta(tool_call_id=delta.tool_call_id, name=delta.tool_name, arguments=delta.text)
        result.tool_call.CopyFrom(call)
    elif delta.kind == "reasoning":
        result.reasoning_text = delta.text
    else:
        result.assistant_text = delta.text
    return result


def _message(event: MessageEvent) -> pb.MessageEvent:
    result = pb.MessageEvent(
        message_id=event.message_id,
        otid=event.otid,
        name=event.name,
        sender_id=event.sender_id,
        message_time=timestamp_to_proto(event.message_time),
    )
    content = [part_to_proto(part) for part in event.content]
    match event.kind:
        case "assistant":
            result.assistant.CopyFrom(pb.AssistantMessage(content=content))
        case "user":
            result.user.CopyFrom(pb.UserMessage(content=content))
        case "reasoning":
            result.reasoning.CopyFrom(_reasoning(event.content[0]))
        case "hidden_reasoning":
            result.hidden_reasoning.CopyFrom(_hidden(event.content[0]))
        case "tool_call":
            calls = [tool_call_to_proto(call) for call in event.tool_calls]
            result.tool_call.CopyFrom(pb.ToolCallMessage(tool_calls=calls))
        case "tool_return":
            returns = [tool_return_to_proto(item) for item in event.tool_returns]
            result.tool_return.CopyFrom(pb.ToolReturnMessage(tool_returns=returns))
        case "approval_request":
            calls = [tool_call_to_proto(call) for call in event.tool_calls]
            result.approval_request.CopyFrom(pb.ApprovalRequestMessage(tool_calls=calls))
        case "approval_response":
            decisions = [decision_to_proto(item) for item in event.decisions]
            answer = pb.ApprovalResponseMessage(
                approval_request_id=event.approval_request_id or "", decisions=decisions
            )
            result.approval_response.CopyFrom(answer)
        case "summary":
            result.summary.CopyFrom(pb.SummaryMessage(text=_text(event)))
        case _:
            result.system.CopyFrom(pb.SystemMessage(text=_text(event)))
    return result


def _reasoning(part: ContentPart) -> pb.ReasoningMessage:
    match part:
        case ReasoningPart(text, is_native, signature):
            return pb.ReasoningMessage(text=text, is_native=is_native, signature=signature)
        case SummarizedReasoningPart(_, summaries, _):
            return pb.ReasoningMessage(text="\n".join(summaries), is_native=True)
        case _:
            return pb.ReasoningMessage()


def _hidden(part: ContentPart) -> pb.HiddenReasoningMessage:
    match part:
        case RedactedReasoningPart(data):
            return pb.HiddenReasoningMessage(redacted=True, data=data)
        case OmittedReasoningPart() | SummarizedReasoningPart():
            return pb.HiddenReasoningMessage(redacted=False)
        case _:
            return pb.HiddenReasoningMessage()


def _text(event: MessageEvent) -> str:
    return "\n".join(part.text for part in event.content if isinstance(part, TextPart))
