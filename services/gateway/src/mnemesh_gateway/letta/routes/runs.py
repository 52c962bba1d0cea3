"""The operations of runs, steps, batches and jobs."""

from __future__ import annotations

from typing import Any, Final

from mnemesh.agents.v1 import runs_pb2
from mnemesh.agents.v1 import runs_service_pb2 as rpc
from mnemesh.files.v1 import files_service_pb2 as files_rpc
from mnemesh.recall.v1 import messages_service_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_kit.errors import NotFound
from starlette.responses import Response

from mnemesh_gateway.letta.callbacks import messages_of, shown_messages
from mnemesh_gateway.letta.convert.folders import RUNNING, file_id_of, job_from_proto
from mnemesh_gateway.letta.convert.messages import Shown, internal_from_proto, messages_from_proto
from mnemesh_gateway.letta.convert.runs import (
    batch_id_of,
    batch_request_to_proto,
    job_of_batch,
    metrics_of_run,
    metrics_of_step,
    run_from_proto,
    spans_of_run,
    step_from_proto,
    trace_from_proto,
    usage_of_run,
)
from mnemesh_gateway.letta.convert.values import RUN_STATUSES, STOP_REASONS, set_present, set_time
from mnemesh_gateway.letta.errors import invalid_field
from mnemesh_gateway.letta.mesh import Mesh
from mnemesh_gateway.letta.operations import Call, NoQuery, Operations
from mnemesh_gateway.letta.pages import READ_SECONDS, PageQuery, listed
from mnemesh_gateway.letta.schemas.folders import Job, ListJobs
from mnemesh_gateway.letta.schemas.runs import (
    ActiveRuns,
    BatchMessages,
    CreateBatch,
    Feedback,
    ListBatchMessages,
    ListRuns,
    ListSteps,
    ProviderTrace,
    Run,
    RunMetrics,
    RunUsage,
    Step,
    StepMetrics,
    StreamRun,
    TraceQuery,
)
from mnemesh_gateway.letta.turns import attached, read_run

operations = Operations()
MAX_SPANS: Final = 5000

_START_SECONDS: Final = 120.0
_IDS: Final = {"batch_id": "job"}
_EVERY: Final = 10_000


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


@operations.get("/steps/", query=ListSteps, result=list[Step])
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
    set_time(filters, "start_time", query.start_date)
    set_time(filters, "end_time", query.end_date)
    page = PageQuery(before=query.before, after=query.after, limit=query.limit, order=query.order)
    request = rpc.ListStepsRequest(filter=filters)
    rows = await listed(call.mesh.runs.ListSteps, request, "steps", page, default="desc")
    return [step_from_proto(step) for step in rows]


@operations.get("/steps/{step_id}", result=Step)
async def retrieve_step(call: Call[NoQuery, None]) -> Step:
    """Returns a step."""
    return step_from_proto(await _read(call.mesh, call.path["step_id"]))


@operations.get("/steps/{step_id}/metrics", result=StepMetrics)
async def retrieve_metrics_for_step(call: Call[NoQuery, None]) -> StepMetrics:
    """Returns the durations of a step."""
    return metrics_of_step(await _read(call.mesh, call.path["step_id"]))


@operations.get("/steps/{step_id}/trace", result=ProviderTrace)
@operations.get("/telemetry/{step_id}", result=ProviderTrace)
async def retrieve_trace_for_step(call: Call[NoQuery, None]) -> ProviderTrace:
    """Returns the request of a step to its provider, and the answer."""
    step = await _read(call.mesh, call.path["step_id"])
    response = await call.mesh.runs.GetStepTrace(rpc.GetStepTraceRequest(step_id=step.id), timeout=READ_SECONDS)
    return trace_from_proto(response.trace, step)


@operations.get("/steps/{step_id}/messages", query=PageQuery, result=list[dict[str, Any]])
async def list_messages_for_step(call: Call[PageQuery, None]) -> list[dict[str, Any]]:
    """Lists the messages of a step, oldest first."""
    step = await _read(call.mesh, call.path["step_id"])
    request = messages_service_pb2.ListMessagesRequest(step_id=step.id)
    rows = await listed(call.mesh.messages.ListMessages, request, "messages", call.query, default="asc", limit=100)
    return messages_from_proto(rows, Shown())


@operations.patch("/steps/{step_id}/feedback", body=Feedback, result=Step)
async def modify_feedback_for_step(call: Call[NoQuery, Feedback]) -> Step:
    """Stores what a user thinks of a step."""
    request = rpc.SetStepFeedbackRequest(
        request_id=call.request_id, step_id=call.path["step_id"], tags=call.body.tags or ()
    )
    set_present(request, feedback=call.body.feedback)
    return step_from_proto((await call.mesh.runs.SetStepFeedback(request, timeout=READ_SECONDS)).step)


async def _read(mesh: Mesh, step_id: str) -> runs_pb2.Step:
    return (await mesh.runs.GetStep(rpc.GetStepRequest(step_id=step_id), timeout=READ_SECONDS)).step


@operations.post("/messages/batches", body=CreateBatch, result=Job)
async def create_batch(call: Call[NoQuery, CreateBatch]) -> Job:
    """Starts a run in the background for each request, all or none."""
    requests = [batch_request_to_proto(request, index) for index, request in enumerate(call.body.requests)]
    request = rpc.StartBatchRequest(request_id=call.request_id, requests=requests)
    set_present(request, callback_url=call.body.callback_url)
    return job_of_batch((await call.mesh.runs.StartBatch(request, timeout=_START_SECONDS)).batch)


@operations.get("/messages/batches", query=PageQuery, result=list[Job])
async def list_batches(call: Call[PageQuery, None]) -> list[Job]:
    """Lists batches, newest first."""
    query = call.query
    page = PageQuery(
        before=batch_id_of(query.before) if query.before else None,
        after=batch_id_of(query.after) if query.after else None,
        limit=query.limit,
        order=query.order,
    )
    rows = await listed(
        call.mesh.runs.ListBatches, rpc.ListBatchesRequest(), "batches", page, default="desc", limit=100
    )
    return [job_of_batch(row) for row in rows]


@operations.get("/messages/batches/{batch_id}", result=Job, ids=_IDS)
async def retrieve_batch(call: Call[NoQuery, None]) -> Job:
    """Returns a batch."""
    return await read_batch(call.mesh, call.path["batch_id"])


@operations.patch("/messages/batches/{batch_id}/cancel", ids=_IDS)
async def cancel_batch(call: Call[NoQuery, None]) -> None:
    """Cancels the runs of a batch that have not ended."""
    request = rpc.CancelBatchRequest(request_id=call.request_id, batch_id=batch_id_of(call.path["batch_id"]))
    await call.mesh.runs.CancelBatch(request, timeout=_START_SECONDS)


@operations.get("/messages/batches/{batch_id}/messages", query=ListBatchMessages, result=BatchMessages, ids=_IDS)
async def list_messages_for_batch(call: Call[ListBatchMessages, None]) -> BatchMessages:
    """Lists the messages of the runs of a batch, run by run, newest first."""
    query, job_id = call.query, call.path["batch_id"]
    await read_batch(call.mesh, job_id)
    filters = rpc.RunFilter(batch_id=batch_id_of(job_id), agent_ids=[query.agent_id] if query.agent_id else ())
    order = query.order or "desc"
    runs = await listed(
        call.mesh.runs.ListRuns,
        rpc.ListRunsRequest(filter=filters),
        "runs",
        PageQuery(limit=_EVERY, order=order),
        default="desc",
    )
    rows = await _rows(call.mesh, [run.id for run in runs], query, order)
    return BatchMessages(messages=[internal_from_proto(row) for row in rows])


async def read_batch(mesh: Mesh, job_id: str) -> Job:
    """Returns a batch. Raises NotFound."""
    request = rpc.GetBatchRequest(batch_id=batch_id_of(job_id))
    return job_of_batch((await mesh.runs.GetBatch(request, timeout=READ_SECONDS)).batch)


async def _rows(mesh: Mesh, run_ids: list[str], query: PageQuery, order: Any) -> list[message_pb2.Message]:
    """Returns the page of the messages of runs, in the order of the runs."""
    limit = 100 if query.limit is None else query.limit
    first = await _run_of(mesh, query.after, run_ids) if query.after else None
    last = await _run_of(mesh, query.before, run_ids) if query.before else None
    found: list[message_pb2.Message] = []
    for run_id in run_ids[run_ids.index(first) if first else 0 :]:
        page = PageQuery(
            after=query.after if run_id == first else None,
            before=query.before if run_id == last else None,
            limit=limit - len(found),
            order=order,
        )
        request = messages_service_pb2.ListMessagesRequest(run_id=run_id)
        found += await listed(mesh.messages.ListMessages, request, "messages", page, default="desc")
        if len(found) >= limit or run_id == last:
            break
    return found


async def _run_of(mesh: Mesh, message_id: str, run_ids: list[str]) -> str:
    request = messages_service_pb2.GetMessagesRequest(message_ids=[message_id])
    messages = (await mesh.messages.GetMessages(request, timeout=READ_SECONDS)).messages
    if not messages or messages[0].run_id not in run_ids:
        raise NotFound(f"The batch has no message {message_id[:200]}.")
    return str(messages[0].run_id)


operations.refuse("PATCH", "/jobs/{job_id}/cancel", "The processing of a file cannot be cancelled; delete the file.")
operations.refuse("DELETE", "/jobs/{job_id}", "A job is the state of its file; delete the file.")


@operations.get("/jobs/", query=ListJobs, result=list[Job])
async def list_jobs(call: Call[ListJobs, None]) -> list[Job]:
    """Lists jobs, newest first."""
    query = call.query
    ascending = query.order == "asc" if query.ascending else False
    return await _jobs(call.mesh, query, active=query.active, ascending=ascending)


@operations.get("/jobs/active", query=ListJobs, result=list[Job])
async def list_active_jobs(call: Call[ListJobs, None]) -> list[Job]:
    """Lists the jobs that have not ended, oldest first."""
    return await _jobs(call.mesh, call.query, active=True, ascending=call.query.ascending)


@operations.get("/jobs/{job_id}", result=Job)
async def retrieve_job(call: Call[NoQuery, None]) -> Job:
    """Returns a job, or a batch of messages, which is a job too."""
    job_id = call.path["job_id"]
    request = files_rpc.GetFileRequest(file_id=file_id_of(job_id))
    try:
        return job_from_proto((await call.mesh.files.GetFile(request, timeout=READ_SECONDS)).file)
    except NotFound as missing:
        try:
            return await read_batch(call.mesh, job_id)
        except NotFound:
            raise missing from None


async def _jobs(mesh: Mesh, query: ListJobs, *, active: bool, ascending: bool) -> list[Job]:
    request = files_rpc.ListFilesRequest(filter=files_rpc.FileFilter(statuses=RUNNING if active else ()))
    set_present(request.filter, folder_id=query.source_id)
    page = PageQuery(
        before=file_id_of(query.before) if query.before else None,
        after=file_id_of(query.after) if query.after else None,
        limit=query.limit,
        order="asc" if ascending else "desc",
    )
    rows = await listed(mesh.files.ListFiles, request, "files", page, default="desc", limit=100)
    return [job_from_proto(row) for row in rows]
