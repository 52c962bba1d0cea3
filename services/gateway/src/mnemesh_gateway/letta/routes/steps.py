"""Steps: list, retrieve, messages, metrics, trace, feedback."""

from __future__ import annotations

from typing import Any

from mnemesh.agents.v1 import runs_pb2
from mnemesh.agents.v1 import runs_service_pb2 as rpc
from mnemesh.recall.v1 import messages_service_pb2

from mnemesh_gateway.letta.convert.messages import Shown, messages_from_proto
from mnemesh_gateway.letta.convert.runs import metrics_of_step, step_from_proto, trace_from_proto
from mnemesh_gateway.letta.convert.values import set_present, set_time
from mnemesh_gateway.letta.errors import invalid_field
from mnemesh_gateway.letta.mesh import Mesh
from mnemesh_gateway.letta.operations import Call, NoQuery, Operations
from mnemesh_gateway.letta.pages import READ_SECONDS, PageQuery, listed
from mnemesh_gateway.letta.schemas.runs import Feedback, ListSteps, ProviderTrace, Step, StepMetrics

operations = Operations()


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
