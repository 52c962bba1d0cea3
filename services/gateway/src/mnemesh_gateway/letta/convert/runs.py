"""Runs and steps of the contract and of Letta's API."""

from __future__ import annotations

from typing import Any

from mnemesh.agents.v1 import runs_pb2 as pb
from mnemesh.types.v1 import message_pb2

from mnemesh_gateway.letta.convert.names import MESSAGE_EVENT_NAMES, RUN_STATUS_NAMES, STOP_REASON_NAMES
from mnemesh_gateway.letta.convert.sending import SHOWN_EVENTS
from mnemesh_gateway.letta.convert.values import json_from_text, metadata, moment, present
from mnemesh_gateway.letta.schemas.runs import ProviderTrace, Run, RunMetrics, RunUsage, Step, StepMetrics

_STEP_STATUSES = {
    pb.STEP_STATUS_PENDING: "pending",
    pb.STEP_STATUS_SUCCESS: "success",
    pb.STEP_STATUS_FAILED: "failed",
    pb.STEP_STATUS_CANCELLED: "cancelled",
}


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
