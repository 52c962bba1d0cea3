"""Events of runs."""

from mnemesh.agents.v1 import runs_pb2 as pb
from mnemesh_kit.time import timestamp_to_proto
from mnemesh_types.convert import decision_to_proto, part_to_proto, tool_call_to_proto, tool_return_to_proto
from mnemesh_types.messages import (
    ContentPart,
    OmittedReasoningPart,
    ReasoningPart,
    RedactedReasoningPart,
    SummarizedReasoningPart,
    TextPart,
)
from mnemesh_types.twin import number_of

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
