"""Batches of messages: create, retrieve, list, cancel, and their messages."""

from __future__ import annotations

from typing import Any, Final

from mnemesh.agents.v1 import runs_service_pb2 as rpc
from mnemesh.recall.v1 import messages_service_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_kit.errors import NotFound

from mnemesh_gateway.letta.convert.batches import batch_id_of, batch_request_to_proto, job_of_batch
from mnemesh_gateway.letta.convert.messages import internal_from_proto
from mnemesh_gateway.letta.convert.values import set_present
from mnemesh_gateway.letta.mesh import Mesh
from mnemesh_gateway.letta.operations import Call, NoQuery, Operations
from mnemesh_gateway.letta.pages import READ_SECONDS, PageQuery, listed
from mnemesh_gateway.letta.schemas.batches import BatchMessages, CreateBatch, ListBatchMessages
from mnemesh_gateway.letta.schemas.folders import Job

operations = Operations()
_START_SECONDS: Final = 120.0
_IDS: Final = {"batch_id": "job"}
_EVERY: Final = 10_000


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
