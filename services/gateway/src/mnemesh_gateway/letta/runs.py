"""Runs and their steps."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, Literal

import msgspec
from mnemesh.agents.v1 import runs_pb2 as pb
from mnemesh.agents.v1 import runs_service_pb2 as rpc
from mnemesh.recall.v1 import messages_service_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_kit.time import timestamp_from_proto
from mnemesh_letta.convert.values import (
    RUN_STATUSES,
    STOP_REASON_NAMES,
    STOP_REASONS,
    duration_of,
    fill,
    json_value,
    present,
    set_present,
    shown,
)
from starlette.responses import Response

from mnemesh_gateway.http.errors import invalid_field
from mnemesh_gateway.letta.mesh import READ_SECONDS, Mesh, PageQuery, list_page
from mnemesh_gateway.letta.messages import Shown, messages_from_proto
from mnemesh_gateway.letta.operations import Call, NoQuery, Operations, read
from mnemesh_gateway.letta.sending import MESSAGE_EVENT_NAMES, SHOWN_EVENTS
from mnemesh_gateway.letta.turns import StreamRun, attach_to_run, read_run


class Run(msgspec.Struct, kw_only=True):
    """A run."""

    id: str
    agent_id: str
    status: str
    background: bool | None = None
    conversation_id: str | None = None
    created_at: datetime | None = None
    completed_at: datetime | None = None
    updated_at: datetime | None = None
    metadata: dict[str, Any] | None = None
    request_config: dict[str, Any] | None = None
    stop_reason: str | None = None
    callback_url: str | None = None
    callback_sent_at: datetime | None = None
    callback_status_code: int | None = None
    callback_error: str | None = None
    ttft_ns: int | None = None
    total_duration_ns: int | None = None
    base_template_id: str | None = None


class RunUsage(msgspec.Struct, kw_only=True):
    """The tokens of a run."""

    completion_tokens: int = 0
    prompt_tokens: int = 0
    total_tokens: int = 0
    prompt_tokens_details: dict[str, int | None] | None = None
    completion_tokens_details: dict[str, int | None] | None = None


class RunMetrics(msgspec.Struct, kw_only=True):
    """The durations of a run in nanoseconds, and what it did."""

    id: str
    agent_id: str | None = None
    project_id: str | None = None
    template_id: str | None = None
    base_template_id: str | None = None
    run_start_ns: int | None = None
    run_ns: int | None = None
    num_steps: int | None = None
    tools_used: list[str] | None = None


class Step(msgspec.Struct, kw_only=True):
    """A step."""

    id: str
    origin: str | None = None
    provider_id: str | None = None
    provider_name: str | None = None
    provider_category: str | None = None
    run_id: str | None = None
    agent_id: str | None = None
    model: str | None = None
    model_handle: str | None = None
    model_endpoint: str | None = None
    context_window_limit: int | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    cached_input_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None
    prompt_tokens_details: dict[str, int | None] | None = None
    completion_tokens_details: dict[str, int | None] | None = None
    stop_reason: str | None = None
    status: str | None = None
    error_type: str | None = None
    error_data: dict[str, Any] | None = None
    tags: list[str] = []
    feedback: str | None = None
    tid: str | None = None
    trace_id: str | None = None
    request_id: str | None = None
    messages: list[dict[str, Any]] = []
    project_id: str | None = None


class StepMetrics(msgspec.Struct, kw_only=True):
    """The durations of a step in nanoseconds."""

    id: str
    organization_id: str | None = None
    provider_id: str | None = None
    run_id: str | None = None
    agent_id: str | None = None
    step_start_ns: int | None = None
    llm_request_start_ns: int | None = None
    llm_request_ns: int | None = None
    tool_execution_ns: int | None = None
    step_ns: int | None = None
    base_template_id: str | None = None
    template_id: str | None = None
    project_id: str | None = None


class ProviderTrace(msgspec.Struct, kw_only=True):
    """The request of a step to its provider, and the answer."""

    id: str
    request_json: dict[str, Any]
    response_json: dict[str, Any]
    step_id: str | None = None
    run_id: str | None = None
    agent_id: str | None = None
    latency_ms: int | None = None


class ListRuns(PageQuery, kw_only=True):
    """The query of a list of runs."""

    agent_id: str | None = None
    agent_ids: list[str] | None = None
    statuses: list[str] | None = None
    background: bool | None = None
    stop_reason: str | None = None
    conversation_id: str | None = None
    active: bool = False
    ascending: bool = False


class ActiveRuns(msgspec.Struct, kw_only=True):
    """The query of a list of the runs that have not ended."""

    agent_id: str | None = None
    agent_ids: list[str] | None = None
    background: bool | None = None


class TraceQuery(msgspec.Struct, kw_only=True):
    """How many spans a trace has at most."""

    limit: int = 1000


class ListSteps(PageQuery, kw_only=True):
    """The query of a list of steps."""

    agent_id: str | None = None
    model: str | None = None
    feedback: Literal["positive", "negative"] | None = None
    tags: list[str] | None = None
    trace_ids: list[str] | None = None
    start_date: datetime | None = None
    end_date: datetime | None = None
    has_feedback: bool | None = None


class Feedback(msgspec.Struct, kw_only=True):
    """What a user thinks of a step; null withdraws it."""

    feedback: Literal["positive", "negative"] | None = None
    tags: list[str] | None = None


_SERVICE: Final = "mnemesh"
_TOKENS: Final = (
    *("prompt_tokens", "completion_tokens", "total_tokens"),
    *("cached_input_tokens", "cache_write_tokens", "reasoning_tokens"),
)


def run_from_proto(run: pb.Run) -> Run:
    more = json_value(run.config.metadata) or {}
    if run.HasField("error"):
        more = more | {"error": {"type": run.error.reason, "message": run.error.message}}
    config, url = _request_config(run.config), present(run.config, "callback_url")
    return shown(Run, run, metadata=more or None, request_config=config, callback_url=url)


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


def usage_of_run(usage: message_pb2.Usage) -> RunUsage:
    """Returns the tokens of a run."""
    total = usage.total_tokens or usage.completion_tokens + usage.prompt_tokens
    return RunUsage(
        completion_tokens=usage.completion_tokens,
        prompt_tokens=usage.prompt_tokens,
        total_tokens=total,
        **_details(usage),
    )


def _details(usage: message_pb2.Usage) -> dict[str, Any]:
    cached, written = present(usage, "cached_input_tokens"), present(usage, "cache_write_tokens")
    prompt = {"cached_tokens": cached, "cache_read_tokens": cached, "cache_creation_tokens": written}
    reasoning = present(usage, "reasoning_tokens")
    return {
        "prompt_tokens_details": None if cached is None and written is None else prompt,
        "completion_tokens_details": None if reasoning is None else {"reasoning_tokens": reasoning},
    }


def metrics_of_run(run: pb.Run, tools_used: list[str]) -> RunMetrics:
    return RunMetrics(
        id=run.id,
        agent_id=run.agent_id,
        run_start_ns=run.create_time.ToNanoseconds(),
        run_ns=duration_of(run, "total_duration", nanoseconds=True),
        num_steps=run.step_count,
        tools_used=tools_used or None,
    )


def step_from_proto(step: pb.Step) -> Step:
    """Returns a step without its messages."""
    has_error = step.HasField("error")
    return shown(
        Step,
        step,
        model=step.model.partition("/")[2] or step.model or None,
        context_window_limit=step.context_window_limit or None,
        error_type=step.error.reason if has_error else None,
        error_data={"message": step.error.message, **dict(step.error.metadata)} if has_error else None,
        **{name: present(step.usage, name) for name in _TOKENS},
        **_details(step.usage),
    )


def metrics_of_step(step: pb.Step) -> StepMetrics:
    model, total = (duration_of(step, name, nanoseconds=True) for name in ("model_duration", "total_duration"))
    return shown(
        StepMetrics,
        step,
        step_start_ns=step.create_time.ToNanoseconds(),
        llm_request_ns=model,
        step_ns=total,
        tool_execution_ns=total - model if total is not None and model is not None else None,
    )


def trace_from_proto(trace: Any, step: pb.Step) -> ProviderTrace:
    """Returns the request of a step and its answer."""
    response = json_value(trace.response)
    return shown(
        ProviderTrace,
        step,
        id="provider_trace-" + step.id.partition("-")[2],
        request_json=json_value(trace.request) or {},
        response_json=response if isinstance(response, dict) else {},
        step_id=step.id,
        latency_ms=duration_of(trace, "duration", nanoseconds=False),
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


async def messages_of(mesh: Mesh, run_id: str, query: PageQuery) -> list[Any]:
    """Returns a page of the stored messages of a run, oldest first."""
    request = messages_service_pb2.ListMessagesRequest(run_id=run_id)
    return await list_page(mesh.messages.ListMessages, request, "messages", query, default="asc", limit=100)


async def show_messages(mesh: Mesh, run: pb.Run, query: PageQuery) -> list[dict[str, Any]]:
    """Returns a page of the messages of a run as clients see them, of the types that the run returns."""
    types = returned_types(run.config)
    rows = await messages_of(mesh, run.id, query)
    return messages_from_proto(rows, Shown(types=frozenset(types) if types else None))


operations = Operations()
MAX_SPANS: Final = 5000


@operations.get("/runs/")
async def list_runs(call: Call[ListRuns, None]) -> list[Run]:
    """Lists runs, newest first."""
    query = call.query
    agent_ids = query.agent_ids or ([query.agent_id] if query.agent_id else [])
    filters = rpc.RunFilter(agent_ids=agent_ids, statuses=[_status(name) for name in query.statuses or ()])
    if query.stop_reason is not None and query.stop_reason not in STOP_REASONS:
        raise invalid_field(f"Input should be one of {', '.join(STOP_REASONS)}", "query", "stop_reason")
    set_present(
        filters,
        background=query.background,
        conversation_id=query.conversation_id,
        active=True if query.active else None,
        stop_reason=STOP_REASONS[query.stop_reason] if query.stop_reason else None,
    )
    order = query.order or ("asc" if query.ascending else "desc")
    page = PageQuery(before=query.before, after=query.after, limit=query.limit, order=order)
    request = rpc.ListRunsRequest(filter=filters)
    rows = await list_page(call.mesh.runs.ListRuns, request, "runs", page, default="desc", limit=100)
    return [run_from_proto(run) for run in rows]


@operations.get("/runs/active")
async def list_active_runs(call: Call[ActiveRuns, None]) -> list[Run]:
    """Lists the runs that have not ended, newest first."""
    query = call.query
    agent_ids = [query.agent_id] if query.agent_id else query.agent_ids or ()
    filters = rpc.RunFilter(agent_ids=agent_ids, active=True)
    set_present(filters, background=query.background)
    request = rpc.ListRunsRequest(filter=filters)
    rows = await list_page(call.mesh.runs.ListRuns, request, "runs", PageQuery(), default="desc", limit=100)
    return [run_from_proto(run) for run in rows]


@operations.get("/runs/{run_id}")
async def retrieve_run(call: Call[NoQuery, None]) -> Run:
    """Returns a run."""
    return run_from_proto(await read_run(call.mesh, call.path["run_id"]))


@operations.delete("/runs/{run_id}")
async def delete_run(call: Call[NoQuery, None]) -> None:
    """Deletes the record of a run that has ended. Its messages stay."""
    await read(call.mesh.runs.DeleteRun, rpc.DeleteRunRequest(request_id=call.request_id, run_id=call.path["run_id"]))


@operations.post("/runs/{run_id}/cancel")
async def cancel_run(call: Call[NoQuery, None]) -> Run:
    """Cancels a run."""
    run_id = call.path["run_id"]
    request = rpc.CancelRunsRequest(request_id=call.request_id, runs=rpc.RunIds(run_ids=[run_id]))
    await read(call.mesh.runs.CancelRuns, request)
    return run_from_proto(await read_run(call.mesh, run_id))


@operations.get("/runs/{run_id}/messages")
async def list_messages_for_run(call: Call[PageQuery, None]) -> list[dict[str, Any]]:
    """Lists the messages of a run, oldest first."""
    return await show_messages(call.mesh, await read_run(call.mesh, call.path["run_id"]), call.query)


@operations.get("/runs/{run_id}/steps")
async def list_steps_for_run(call: Call[PageQuery, None]) -> list[Step]:
    """Lists the steps of a run, newest first."""
    run = await read_run(call.mesh, call.path["run_id"])
    request = rpc.ListStepsRequest(filter=rpc.StepFilter(run_id=run.id))
    rows = await list_page(call.mesh.runs.ListSteps, request, "steps", call.query, default="desc", limit=100)
    return [step_from_proto(step) for step in rows]


@operations.get("/runs/{run_id}/usage")
async def retrieve_usage_for_run(call: Call[NoQuery, None]) -> RunUsage:
    """Returns the tokens of a run."""
    return usage_of_run((await read_run(call.mesh, call.path["run_id"])).usage)


@operations.get("/runs/{run_id}/metrics")
async def retrieve_metrics_for_run(call: Call[NoQuery, None]) -> RunMetrics:
    """Returns the durations of a run."""
    run = await read_run(call.mesh, call.path["run_id"])
    rows = await messages_of(call.mesh, run.id, PageQuery(limit=1000))
    return metrics_of_run(run, sorted({item.name for message in rows for item in message.tool_returns if item.name}))


@operations.get("/runs/{run_id}/trace")
async def retrieve_trace_for_run(call: Call[TraceQuery, None]) -> list[dict[str, Any]]:
    """Returns the run, its steps and their calls of tools as spans, as far as they are stored."""
    limit = call.query.limit
    if not 1 <= limit <= MAX_SPANS:
        raise invalid_field(f"Input should be between 1 and {MAX_SPANS}", "query", "limit")
    run = await read_run(call.mesh, call.path["run_id"])
    request = rpc.ListStepsRequest(filter=rpc.StepFilter(run_id=run.id))
    every = PageQuery(limit=limit)
    steps = await list_page(call.mesh.runs.ListSteps, request, "steps", every, default="asc")
    return spans_of_run(run, steps, await messages_of(call.mesh, run.id, every))[:limit]


@operations.post("/runs/{run_id}/stream", optional_body=True)
async def retrieve_stream_for_run(call: Call[NoQuery, StreamRun]) -> Response:
    """Replays the events of a run after a number, and follows it to its end."""
    return await attach_to_run(call, call.path["run_id"])


def _status(name: str) -> pb.RunStatus.ValueType:
    if name not in RUN_STATUSES:
        raise invalid_field(f"Input should be one of {', '.join(RUN_STATUSES)}", "query", "statuses")
    status: pb.RunStatus.ValueType = RUN_STATUSES[name]
    return status


@operations.get("/steps/")
async def list_steps(call: Call[ListSteps, None]) -> list[Step]:
    """Lists steps, newest first."""
    query = call.query
    if len(query.trace_ids or ()) > 1:
        raise invalid_field("Only one trace id can be given.", "query", "trace_ids")
    filters = rpc.StepFilter(tags_any=query.tags or ())
    set_present(
        filters,
        agent_id=query.agent_id,
        model=query.model,
        feedback=query.feedback,
        trace_id=query.trace_ids[0] if query.trace_ids else None,
        has_feedback=query.has_feedback,
    )
    fill(filters, {"start_time": query.start_date, "end_time": query.end_date})
    request = rpc.ListStepsRequest(filter=filters)
    rows = await list_page(call.mesh.runs.ListSteps, request, "steps", query, default="desc")
    return [step_from_proto(step) for step in rows]


@operations.get("/steps/{step_id}")
async def retrieve_step(call: Call[NoQuery, None]) -> Step:
    """Returns a step."""
    return step_from_proto(await _read(call.mesh, call.path["step_id"]))


@operations.get("/steps/{step_id}/metrics")
async def retrieve_metrics_for_step(call: Call[NoQuery, None]) -> StepMetrics:
    """Returns the durations of a step."""
    return metrics_of_step(await _read(call.mesh, call.path["step_id"]))


@operations.get("/steps/{step_id}/trace")
@operations.get("/telemetry/{step_id}")
async def retrieve_trace_for_step(call: Call[NoQuery, None]) -> ProviderTrace:
    """Returns the request of a step to its provider, and the answer."""
    step = await _read(call.mesh, call.path["step_id"])
    response = await call.mesh.runs.GetStepTrace(rpc.GetStepTraceRequest(step_id=step.id), timeout=READ_SECONDS)
    return trace_from_proto(response.trace, step)


@operations.get("/steps/{step_id}/messages")
async def list_messages_for_step(call: Call[PageQuery, None]) -> list[dict[str, Any]]:
    """Lists the messages of a step, oldest first."""
    step = await _read(call.mesh, call.path["step_id"])
    request = messages_service_pb2.ListMessagesRequest(step_id=step.id)
    rows = await list_page(call.mesh.messages.ListMessages, request, "messages", call.query, default="asc", limit=100)
    return messages_from_proto(rows, Shown())


@operations.patch("/steps/{step_id}/feedback")
async def modify_feedback_for_step(call: Call[NoQuery, Feedback]) -> Step:
    """Stores what a user thinks of a step."""
    request = rpc.SetStepFeedbackRequest(
        request_id=call.request_id, step_id=call.path["step_id"], tags=call.body.tags or ()
    )
    set_present(request, feedback=call.body.feedback)
    return step_from_proto((await read(call.mesh.runs.SetStepFeedback, request)).step)


async def _read(mesh: Mesh, step_id: str) -> pb.Step:
    return (await mesh.runs.GetStep(rpc.GetStepRequest(step_id=step_id), timeout=READ_SECONDS)).step
