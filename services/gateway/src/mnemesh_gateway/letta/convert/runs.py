"""Conversions of runs, their steps and spans, and batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from mnemesh.agents.v1 import batches_pb2 as batches_pb
from mnemesh.agents.v1 import runs_pb2 as pb
from mnemesh.agents.v1 import runs_service_pb2 as rpc
from mnemesh.types.v1 import message_pb2
from mnemesh_kit.time import timestamp_from_proto

from mnemesh_gateway.letta.convert.sending import SHOWN_EVENTS, config_to_proto, sent_of
from mnemesh_gateway.letta.convert.values import (
    MESSAGE_EVENT_NAMES,
    RUN_STATUS_NAMES,
    STOP_REASON_NAMES,
    json_from_text,
    metadata,
    moment,
    present,
)
from mnemesh_gateway.letta.errors import invalid_field
from mnemesh_gateway.letta.schemas.folders import Job
from mnemesh_gateway.letta.schemas.runs import BatchRequest, ProviderTrace, Run, RunMetrics, RunUsage, Step, StepMetrics

_STEP_STATUSES = {
    pb.STEP_STATUS_PENDING: "pending",
    pb.STEP_STATUS_SUCCESS: "success",
    pb.STEP_STATUS_FAILED: "failed",
    pb.STEP_STATUS_CANCELLED: "cancelled",
}

_SERVICE: Final = "mnemesh"


def run_from_proto(run: pb.Run) -> Run:
    """Returns a run."""
    more = metadata(run.config) or {}
    if run.HasField("error"):
        more = more | {"error": {"type": run.error.reason, "message": run.error.message}}
    return Run(
        id=run.id,
        agent_id=run.agent_id,
        status=RUN_STATUS_NAMES.get(run.status, "created"),
        background=run.background,
        conversation_id=run.conversation_id or None,
        created_at=moment(run, "create_time"),
        updated_at=moment(run, "update_time"),
        completed_at=moment(run, "completion_time"),
        metadata=more or None,
        request_config=_request_config(run.config),
        stop_reason=STOP_REASON_NAMES.get(run.stop_reason) if run.HasField("stop_reason") else None,
        callback_url=present(run.config, "callback_url"),
        callback_sent_at=moment(run, "callback_sent_time"),
        callback_status_code=present(run, "callback_status"),
        callback_error=present(run, "callback_error"),
        ttft_ns=_nanoseconds(run, "time_to_first_token"),
        total_duration_ns=_nanoseconds(run, "total_duration"),
    )


def _request_config(config: pb.RunConfig) -> dict[str, Any]:
    return {
        "use_assistant_message": config.assistant_messages if config.HasField("assistant_messages") else True,
        "assistant_message_tool_name": present(config, "assistant_tool_name") or "send_message",
        "assistant_message_tool_kwarg": present(config, "assistant_tool_argument") or "message",
        "include_return_message_types": returned_types(config),
    }


def returned_types(config: pb.RunConfig) -> list[str] | None:
    """Returns the types of messages that a run returns; None if its request selected none."""
    if tuple(config.include_events) in ((), SHOWN_EVENTS):
        return None
    return [MESSAGE_EVENT_NAMES[kind] for kind in config.include_events if kind in MESSAGE_EVENT_NAMES]


def _nanoseconds(message: Any, name: str) -> int | None:
    return getattr(message, name).ToNanoseconds() if message.HasField(name) else None


def usage_of_run(usage: message_pb2.Usage) -> RunUsage:
    """Returns the tokens of a run."""
    return RunUsage(
        completion_tokens=usage.completion_tokens,
        prompt_tokens=usage.prompt_tokens,
        total_tokens=usage.total_tokens or usage.completion_tokens + usage.prompt_tokens,
        prompt_tokens_details=_prompt_details(usage),
        completion_tokens_details=_completion_details(usage),
    )


def _prompt_details(usage: message_pb2.Usage) -> dict[str, int | None] | None:
    cached, written = present(usage, "cached_input_tokens"), present(usage, "cache_write_tokens")
    if cached is None and written is None:
        return None
    return {"cached_tokens": cached, "cache_read_tokens": cached, "cache_creation_tokens": written}


def _completion_details(usage: message_pb2.Usage) -> dict[str, int | None] | None:
    reasoning = present(usage, "reasoning_tokens")
    return None if reasoning is None else {"reasoning_tokens": reasoning}


def metrics_of_run(run: pb.Run, tools_used: list[str]) -> RunMetrics:
    """Returns the metrics of a run."""
    return RunMetrics(
        id=run.id,
        agent_id=run.agent_id,
        run_start_ns=run.create_time.ToNanoseconds(),
        run_ns=_nanoseconds(run, "total_duration"),
        num_steps=run.step_count,
        tools_used=tools_used or None,
    )


def step_from_proto(step: pb.Step) -> Step:
    """Returns a step without its messages."""
    usage = step.usage
    error = {"message": step.error.message, **dict(step.error.metadata)} if step.HasField("error") else None
    return Step(
        id=step.id,
        origin=present(step, "origin"),
        provider_name=step.provider or None,
        run_id=step.run_id or None,
        agent_id=step.agent_id or None,
        model=step.model.partition("/")[2] or step.model or None,
        model_handle=step.model or None,
        model_endpoint=present(step, "endpoint"),
        context_window_limit=step.context_window_limit or None,
        prompt_tokens=present(usage, "prompt_tokens"),
        completion_tokens=present(usage, "completion_tokens"),
        total_tokens=present(usage, "total_tokens"),
        cached_input_tokens=present(usage, "cached_input_tokens"),
        cache_write_tokens=present(usage, "cache_write_tokens"),
        reasoning_tokens=present(usage, "reasoning_tokens"),
        prompt_tokens_details=_prompt_details(usage),
        completion_tokens_details=_completion_details(usage),
        stop_reason=STOP_REASON_NAMES.get(step.stop_reason) if step.HasField("stop_reason") else None,
        status=_STEP_STATUSES.get(step.status, "pending"),
        error_type=step.error.reason if step.HasField("error") else None,
        error_data=error,
        tags=list(step.tags),
        feedback=present(step, "feedback"),
        trace_id=present(step, "trace_id"),
    )


def metrics_of_step(step: pb.Step) -> StepMetrics:
    """Returns the metrics of a step."""
    model, total = _nanoseconds(step, "model_duration"), _nanoseconds(step, "total_duration")
    return StepMetrics(
        id=step.id,
        run_id=step.run_id or None,
        agent_id=step.agent_id or None,
        step_start_ns=step.create_time.ToNanoseconds(),
        llm_request_ns=model,
        step_ns=total,
        tool_execution_ns=total - model if total is not None and model is not None else None,
    )


def trace_from_proto(trace: Any, step: pb.Step) -> ProviderTrace:
    """Returns the request of a step and its answer."""
    response = json_from_text(trace.response)
    return ProviderTrace(
        id="provider_trace-" + step.id.partition("-")[2],
        request_json=json_from_text(trace.request) or {},
        response_json=response if isinstance(response, dict) else {},
        step_id=step.id,
        run_id=step.run_id or None,
        agent_id=step.agent_id or None,
        latency_ms=trace.duration.ToMilliseconds() if trace.HasField("duration") else None,
    )


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


def job_of_batch(batch: batches_pb.Batch) -> Job:
    """Returns the job of a batch. Its metadata has the numbers of its runs by status."""
    counts = {
        "unfinished": batch.unfinished_count,
        "completed": batch.completed_count,
        "failed": batch.failed_count,
        "cancelled": batch.cancelled_count,
    }
    ended = moment(batch, "completion_time")
    return Job(
        id="job-" + batch.id.partition("-")[2],
        status=RUN_STATUS_NAMES.get(batch.status, "running"),
        created_at=moment(batch, "create_time"),
        updated_at=ended or moment(batch, "create_time"),
        completed_at=ended,
        job_type="batch",
        callback_url=batch.callback.url or None,
        callback_sent_at=moment(batch.callback, "sent_time"),
        callback_status_code=present(batch.callback, "status"),
        callback_error=present(batch.callback, "error"),
        metadata={"job_type": "batch_messages", "runs": counts},
    )


def batch_id_of(job_id: str) -> str:
    """Returns the id of the batch of a job."""
    return "batch-" + job_id.partition("-")[2]


def batch_request_to_proto(body: BatchRequest, index: int) -> rpc.BatchRequest:
    """Returns a run to start.

    Raises:
        ValidationFailed: the messages are malformed, or answer a request for approval.
    """
    sent = sent_of(body)
    if sent.is_answer:
        raise invalid_field("An approval is answered outside of a batch.", "body", "requests", index, "messages")
    config = config_to_proto(body)
    config.ClearField("callback_url")  # the batch has one
    return rpc.BatchRequest(agent_id=body.agent_id, messages=sent.messages, config=config)
