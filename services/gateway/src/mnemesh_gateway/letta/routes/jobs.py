"""Jobs: the processing of uploaded files."""

from __future__ import annotations

from mnemesh.files.v1 import files_service_pb2 as rpc
from mnemesh_kit.errors import NotFound

from mnemesh_gateway.letta.convert.folders import RUNNING, file_id_of, job_from_proto
from mnemesh_gateway.letta.convert.values import set_present
from mnemesh_gateway.letta.mesh import Mesh
from mnemesh_gateway.letta.operations import Call, NoQuery, Operations
from mnemesh_gateway.letta.pages import READ_SECONDS, PageQuery, listed
from mnemesh_gateway.letta.routes.batches import read_batch
from mnemesh_gateway.letta.schemas.folders import Job, ListJobs

operations = Operations()
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
    request = rpc.GetFileRequest(file_id=file_id_of(job_id))
    try:
        return job_from_proto((await call.mesh.files.GetFile(request, timeout=READ_SECONDS)).file)
    except NotFound as missing:
        try:
            return await read_batch(call.mesh, job_id)
        except NotFound:
            raise missing from None


async def _jobs(mesh: Mesh, query: ListJobs, *, active: bool, ascending: bool) -> list[Job]:
    request = rpc.ListFilesRequest(filter=rpc.FileFilter(statuses=RUNNING if active else ()))
    set_present(request.filter, folder_id=query.source_id)
    page = PageQuery(
        before=file_id_of(query.before) if query.before else None,
        after=file_id_of(query.after) if query.after else None,
        limit=query.limit,
        order="asc" if ascending else "desc",
    )
    rows = await listed(mesh.files.ListFiles, request, "files", page, default="desc", limit=100)
    return [job_from_proto(row) for row in rows]
