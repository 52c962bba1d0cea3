"""Steps and their traces."""

from typing import Final

from mnemesh.agents.v1 import runs_pb2 as pb
from mnemesh.agents.v1 import runs_service_pb2 as rpc
from mnemesh_kit.ids import require_id
from mnemesh_kit.time import optional_timestamp_from_proto, optional_timestamp_to_proto, timestamp_to_proto
from mnemesh_types.convert import usage_to_proto

from mnemesh_orchestrator.model.steps import Step, StepFilter, StepStatus, StepTrace
from mnemesh_orchestrator.rpc.convert.fields import duration_to_proto, optional_field
from mnemesh_orchestrator.rpc.convert.runs import STOP_REASON_TO_PROTO, run_error_to_proto

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
        usage=usage_to_proto(step.usage),
        error=run_error_to_proto(step.error) if step.error else None,
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
