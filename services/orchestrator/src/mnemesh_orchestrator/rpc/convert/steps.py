"""Steps between the domain and the contract."""

from collections.abc import Sequence
from typing import Final

from mnemesh.agents.v1 import runs_pb2 as pb
from mnemesh.agents.v1 import runs_service_pb2 as rpc
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import require_id
from mnemesh_kit.time import timestamp_to_proto
from mnemesh_types.convert import usage_to_proto

from mnemesh_orchestrator.model.steps import Step, StepFilter, StepStatus, StepTrace
from mnemesh_orchestrator.rpc.convert.runs import STOP_REASONS, error_to_proto, milliseconds
from mnemesh_orchestrator.rpc.convert.settings import require_plain

_STATUSES: Final = {status: pb.StepStatus.Value(f"STEP_STATUS_{status.name}") for status in StepStatus}
_VERDICTS: Final = frozenset({"positive", "negative"})
_MOST_TAGS: Final = 50
_LONGEST_TAG: Final = 200


def step_to_proto(step: Step) -> pb.Step:
    """A step."""
    return pb.Step(
        id=step.id,
        run_id=step.run_id,
        agent_id=step.agent_id,
        conversation_id=step.conversation_id,
        number=step.number,
        status=_STATUSES[step.status],
        stop_reason=STOP_REASONS[step.stop_reason] if step.stop_reason else None,
        provider=step.provider,
        model=step.model,
        endpoint=step.endpoint,
        context_window_limit=step.context_window,
        usage=usage_to_proto(step.usage),
        error=error_to_proto(step.error) if step.error else None,
        model_duration=milliseconds(step.model_ms),
        total_duration=milliseconds(step.total_ms),
        tags=step.tags,
        feedback=step.feedback,
        trace_id=step.trace_id,
        attempts=step.attempts,
        create_time=timestamp_to_proto(step.created_at),
        completion_time=timestamp_to_proto(step.completed_at) if step.completed_at else None,
    )


def trace_to_proto(trace: StepTrace) -> rpc.StepTrace:
    """What went to the model and came back."""
    return rpc.StepTrace(
        step_id=trace.step_id,
        request=trace.request,
        response=trace.response,
        duration=milliseconds(trace.model_ms),
    )


def step_filter_from_proto(given: rpc.StepFilter) -> StepFilter:
    """Which steps a list looks at.

    Raises:
        InvalidArgument: naming the field.
    """
    return StepFilter(
        run_id=require_id(given.run_id, "run", "filter.run_id") if given.HasField("run_id") else None,
        agent_id=require_id(given.agent_id, "agent", "filter.agent_id") if given.HasField("agent_id") else None,
        model=require_plain(given.model, "filter.model") if given.HasField("model") else None,
        feedback=require_feedback(given.feedback, "filter.feedback") if given.HasField("feedback") else None,
        tags_any=step_tags(given.tags_any, "filter.tags_any"),
        trace_id=require_plain(given.trace_id, "filter.trace_id") if given.HasField("trace_id") else None,
    )


def require_feedback(given: str, field: str) -> str:
    """A verdict. Raises InvalidArgument, naming the field, where it is none."""
    if given not in _VERDICTS:
        raise InvalidArgument(f'{field} must be "positive" or "negative".', field=field)
    return given


def step_tags(given: Sequence[str], field: str) -> tuple[str, ...]:
    """Tags in the order given, each once.

    Raises:
        InvalidArgument: naming the field.
    """
    if len(given) > _MOST_TAGS:
        raise InvalidArgument(f"{field} may hold {_MOST_TAGS} tags at most.", field=field)
    for tag in given:
        if not 0 < len(require_plain(tag, field)) <= _LONGEST_TAG:
            raise InvalidArgument(f"Each of {field} must have 1 to {_LONGEST_TAG} characters.", field=field)
    return tuple(dict.fromkeys(given))
