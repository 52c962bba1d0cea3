"""The trace of a run as spans: rows of a table of OpenTelemetry traces, made of what is stored about the run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from mnemesh.agents.v1 import runs_pb2 as pb
from mnemesh.types.v1 import message_pb2
from mnemesh_kit.time import timestamp_from_proto

from mnemesh_gateway.letta.convert.names import STOP_REASON_NAMES

_SERVICE: Final = "mnemesh"


def spans_of_run(
    run: pb.Run, steps: Sequence[pb.Step], messages: Iterable[message_pb2.Message]
) -> list[dict[str, Any]]:
    """Returns the spans of a run in the order of their beginnings, the run itself first.

    A step is a span `agent_step`. Each tool that it called is a span `agent._execute_tool`, which lasts as long as all
    tools of the step together. `time_to_first_token` lasts from the start of the run to the first words of a model.

    Args:
        run: the run.
        steps: its steps, oldest first.
        messages: its messages.
    """
    trace = next((step.trace_id for step in steps if step.trace_id), _hex(run.id))
    returns: dict[str, list[message_pb2.ToolReturn]] = {}
    for message in messages:
        if message.tool_returns:
            returns.setdefault(message.step_id, []).extend(message.tool_returns)
    start = timestamp_from_proto(run.create_time, "create_time")
    root = _hex(run.id)[:16]
    attributes = {"run.id": run.id, "agent.id": run.agent_id}
    reason = {"stop_reason": STOP_REASON_NAMES[run.stop_reason]} if run.HasField("stop_reason") else {}
    error = run.error if run.HasField("error") else None
    spans = [_span(trace, root, "", "agent_run", start, run.total_duration.ToNanoseconds(), attributes | reason, error)]
    if run.HasField("time_to_first_token"):
        taken = run.time_to_first_token.ToNanoseconds()
        spans.append(_span(trace, _derived(root, 0), root, "time_to_first_token", start, taken, attributes))
    for step in steps:
        spans += _step_spans(trace, root, step, returns.get(step.id, []))
    return sorted(spans, key=lambda span: span["Timestamp"])


def _step_spans(
    trace: str, root: str, step: pb.Step, returns: Iterable[message_pb2.ToolReturn]
) -> list[dict[str, Any]]:
    start = timestamp_from_proto(step.create_time, "create_time")
    total, model = step.total_duration.ToNanoseconds(), step.model_duration.ToNanoseconds()
    called = start + timedelta(microseconds=model // 1000)
    own = _hex(step.id)[:16]
    attributes = {
        "step.id": step.id,
        "step.number": str(step.number),
        "llm.model": step.model,
        "llm.duration_ns": str(model),
        "llm.prompt_tokens": str(step.usage.prompt_tokens),
        "llm.completion_tokens": str(step.usage.completion_tokens),
    }
    error = step.error if step.HasField("error") else None
    spans = [_span(trace, own, root, "agent_step", start, total, attributes, error)]
    for number, item in enumerate(returns):
        failed = item.status == message_pb2.TOOL_RETURN_STATUS_ERROR
        tool = {"step.id": step.id, "tool.name": item.name, "tool.call_id": item.tool_call_id}
        span = _span(trace, _derived(own, number), own, "agent._execute_tool", called, max(0, total - model), tool)
        spans.append(span | ({"StatusCode": "Error"} if failed else {}))
    return spans


def _span(
    trace: str,
    span_id: str,
    parent: str,
    name: str,
    start: datetime,
    nanoseconds: int,
    attributes: dict[str, str],
    error: pb.RunError | None = None,
) -> dict[str, Any]:
    return {
        "Timestamp": start,
        "TraceId": trace,
        "SpanId": span_id,
        "ParentSpanId": parent,
        "SpanName": name,
        "SpanKind": "Internal",
        "ServiceName": _SERVICE,
        "SpanAttributes": attributes,
        "Duration": nanoseconds,
        "StatusCode": "Error" if error is not None else "Ok",
        "StatusMessage": error.message if error is not None else "",
    }


def _hex(id_: str) -> str:
    """Returns the 32 hexadecimal digits of an id."""
    return id_.partition("-")[2].replace("-", "")


def _derived(span_id: str, number: int) -> str:
    """Returns the id of a further span, which differs from that of its parent."""
    return f"{(int(span_id, 16) + number + 1) % (1 << 64):016x}"
