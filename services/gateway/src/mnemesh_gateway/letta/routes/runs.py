"""Runs: list, retrieve, messages, steps, usage, metrics, trace, stream, cancel, delete."""

from __future__ import annotations

from typing import Any, Final

from mnemesh.agents.v1 import runs_pb2
from mnemesh.agents.v1 import runs_service_pb2 as rpc
from starlette.responses import Response

from mnemesh_gateway.letta.convert.names import RUN_STATUSES, STOP_REASONS
from mnemesh_gateway.letta.convert.runs import (
    metrics_of_run,
    run_from_proto,
    step_from_proto,
    usage_of_run,
)
from mnemesh_gateway.letta.convert.spans import spans_of_run
from mnemesh_gateway.letta.convert.values import set_present
from mnemesh_gateway.letta.errors import invalid_field
from mnemesh_gateway.letta.operations import Call, NoQuery, Operations
from mnemesh_gateway.letta.pages import READ_SECONDS, PageQuery, listed
from mnemesh_gateway.letta.run_results import messages_of, shown_messages
from mnemesh_gateway.letta.schemas.runs import (
    ActiveRuns,
    ListRuns,
    Run,
    RunMetrics,
    RunUsage,
    Step,
    StreamRun,
    TraceQuery,
)
from mnemesh_gateway.letta.turns import attached, read_run

operations = Operations()
MAX_SPANS: Final = 5000


@operations.get("/runs/", query=ListRuns, result=list[Run])
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
    rows = await listed(call.mesh.runs.ListRuns, request, "runs", page, default="desc", limit=100)
    return [run_from_proto(run) for run in rows]


@operations.get("/runs/active", query=ActiveRuns, result=list[Run])
async def list_active_runs(call: Call[ActiveRuns, None]) -> list[Run]:
    """Lists the runs that have not ended, newest first."""
    query = call.query
    agent_ids = [query.agent_id] if query.agent_id else query.agent_ids or ()
    filters = rpc.RunFilter(agent_ids=agent_ids, active=True)
    set_present(filters, background=query.background)
    request = rpc.ListRunsRequest(filter=filters)
    rows = await listed(call.mesh.runs.ListRuns, request, "runs", PageQuery(), default="desc", limit=100)
    return [run_from_proto(run) for run in rows]


@operations.get("/runs/{run_id}", result=Run)
async def retrieve_run(call: Call[NoQuery, None]) -> Run:
    """Returns a run."""
    return run_from_proto(await read_run(call.mesh, call.path["run_id"]))


@operations.delete("/runs/{run_id}")
async def delete_run(call: Call[NoQuery, None]) -> None:
    """Deletes the record of a run that has ended. Its messages stay."""
    request = rpc.DeleteRunRequest(request_id=call.request_id, run_id=call.path["run_id"])
    await call.mesh.runs.DeleteRun(request, timeout=READ_SECONDS)


@operations.post("/runs/{run_id}/cancel", result=Run)
async def cancel_run(call: Call[NoQuery, None]) -> Run:
    """Cancels a run."""
    run_id = call.path["run_id"]
    request = rpc.CancelRunsRequest(request_id=call.request_id, runs=rpc.RunIds(run_ids=[run_id]))
    await call.mesh.runs.CancelRuns(request, timeout=READ_SECONDS)
    return run_from_proto(await read_run(call.mesh, run_id))


@operations.get("/runs/{run_id}/messages", query=PageQuery, result=list[dict[str, Any]])
async def list_messages_for_run(call: Call[PageQuery, None]) -> list[dict[str, Any]]:
    """Lists the messages of a run, oldest first."""
    return await shown_messages(call.mesh, await read_run(call.mesh, call.path["run_id"]), call.query)


@operations.get("/runs/{run_id}/steps", query=PageQuery, result=list[Step])
async def list_steps_for_run(call: Call[PageQuery, None]) -> list[Step]:
    """Lists the steps of a run, newest first."""
    run = await read_run(call.mesh, call.path["run_id"])
    request = rpc.ListStepsRequest(filter=rpc.StepFilter(run_id=run.id))
    rows = await listed(call.mesh.runs.ListSteps, request, "steps", call.query, default="desc", limit=100)
    return [step_from_proto(step) for step in rows]


@operations.get("/runs/{run_id}/usage", result=RunUsage)
async def retrieve_usage_for_run(call: Call[NoQuery, None]) -> RunUsage:
    """Returns the tokens of a run."""
    return usage_of_run((await read_run(call.mesh, call.path["run_id"])).usage)


@operations.get("/runs/{run_id}/metrics", result=RunMetrics)
async def retrieve_metrics_for_run(call: Call[NoQuery, None]) -> RunMetrics:
    """Returns the durations of a run."""
    run = await read_run(call.mesh, call.path["run_id"])
    rows = await messages_of(call.mesh, run.id, PageQuery(limit=1000))
    return metrics_of_run(run, sorted({item.name for message in rows for item in message.tool_returns if item.name}))


@operations.get("/runs/{run_id}/trace", query=TraceQuery, result=list[dict[str, Any]])
async def retrieve_trace_for_run(call: Call[TraceQuery, None]) -> list[dict[str, Any]]:
    """Returns the run, its steps and their calls of tools as spans, as far as they are stored."""
    limit = call.query.limit
    if not 1 <= limit <= MAX_SPANS:
        raise invalid_field(f"Input should be between 1 and {MAX_SPANS}", "query", "limit")
    run = await read_run(call.mesh, call.path["run_id"])
    request = rpc.ListStepsRequest(filter=rpc.StepFilter(run_id=run.id))
    every = PageQuery(limit=limit)
    steps = await listed(call.mesh.runs.ListSteps, request, "steps", every, default="asc")
    return spans_of_run(run, steps, await messages_of(call.mesh, run.id, every))[:limit]


@operations.post("/runs/{run_id}/stream", body=StreamRun, optional_body=True)
async def retrieve_stream_for_run(call: Call[NoQuery, StreamRun]) -> Response:
    """Replays the events of a run after a number, and follows it to its end."""
    return await attached(call, call.path["run_id"])


def _status(name: str) -> runs_pb2.RunStatus.ValueType:
    if name not in RUN_STATUSES:
        raise invalid_field(f"Input should be one of {', '.join(RUN_STATUSES)}", "query", "statuses")
    return RUN_STATUSES[name]
