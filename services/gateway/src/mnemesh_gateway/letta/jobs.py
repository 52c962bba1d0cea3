"""Batches and jobs, and the callbacks at the end of runs."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import structlog
from mnemesh.agents.v1 import batches_pb2, runs_pb2, runs_service_pb2_grpc
from mnemesh.agents.v1 import batches_pb2 as batches_pb
from mnemesh.agents.v1 import runs_service_pb2 as rpc
from mnemesh.files.v1 import files_pb2 as pb
from mnemesh.files.v1 import files_service_pb2 as files_rpc
from mnemesh.recall.v1 import messages_service_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_kit.call_context import Principal, as_principal
from mnemesh_kit.errors import DeadlineExceeded, MnemeshError, NotFound, Unavailable
from mnemesh_kit.network import failure_of_connection, host_problem
from mnemesh_letta.convert.values import RUN_STATUS_NAMES, moment_of, present, set_present

from mnemesh_gateway.http.errors import invalid_field
from mnemesh_gateway.letta.mesh import READ_SECONDS, Mesh, PageQuery, Stamped, list_page
from mnemesh_gateway.letta.messages import internal_from_proto
from mnemesh_gateway.letta.operations import Call, NoQuery, Operations, read
from mnemesh_gateway.letta.runs import run_from_proto, show_messages
from mnemesh_gateway.letta.sending import SendMessages, config_to_proto, sent_of
from mnemesh_gateway.letta.turns import LettaResponse, StopReason, usage_from_proto

if TYPE_CHECKING:
    import aiohttp


class BatchRequest(SendMessages, kw_only=True):
    """The messages for one agent."""

    agent_id: str


class CreateBatch(msgspec.Struct, kw_only=True):
    """The requests of a batch, and the URL that is called when all have ended."""

    requests: list[BatchRequest]
    callback_url: str | None = None


class ListBatchMessages(PageQuery, kw_only=True):
    """The query of the messages of a batch."""

    agent_id: str | None = None


class BatchMessages(msgspec.Struct, kw_only=True):
    """Messages as they are stored."""

    messages: list[dict[str, Any]]


class Job(Stamped, kw_only=True):
    """The processing of an uploaded file."""

    id: str
    status: str
    completed_at: datetime | None = None
    job_type: str = "job"
    background: bool = True
    agent_id: str | None = None
    stop_reason: str | None = None
    callback_url: str | None = None
    callback_sent_at: datetime | None = None
    callback_status_code: int | None = None
    callback_error: str | None = None
    ttft_ns: int | None = None
    total_duration_ns: int | None = None
    user_id: str | None = None
    metadata: dict[str, Any]


class ListJobs(PageQuery, kw_only=True):
    """The query of a list of jobs."""

    source_id: str | None = None
    active: bool = False
    ascending: bool = True


def job_of_batch(batch: batches_pb.Batch) -> Job:
    """Returns the job of a batch. Its metadata has the numbers of its runs by status."""
    counts = {
        "unfinished": batch.unfinished_count,
        "completed": batch.completed_count,
        "failed": batch.failed_count,
        "cancelled": batch.cancelled_count,
    }
    ended = moment_of(batch, "completion_time")
    return Job(
        id="job-" + batch.id.partition("-")[2],
        status=RUN_STATUS_NAMES.get(batch.status, "running"),
        created_at=moment_of(batch, "create_time"),
        updated_at=ended or moment_of(batch, "create_time"),
        completed_at=ended,
        job_type="batch",
        callback_url=batch.callback.url or None,
        callback_sent_at=moment_of(batch.callback, "sent_time"),
        callback_status_code=present(batch.callback, "status"),
        callback_error=present(batch.callback, "error"),
        metadata={"job_type": "batch_messages", "runs": counts},
    )


def batch_id_of(job_id: str) -> str:
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


_JOB_STATUSES: Final = {
    pb.FILE_STATUS_FETCHING: "running",
    pb.FILE_STATUS_PARSING: "running",
    pb.FILE_STATUS_EMBEDDING: "running",
    pb.FILE_STATUS_COMPLETED: "completed",
    pb.FILE_STATUS_ERROR: "failed",
}
RUNNING: Final = (
    pb.FILE_STATUS_PENDING,
    pb.FILE_STATUS_FETCHING,
    pb.FILE_STATUS_PARSING,
    pb.FILE_STATUS_EMBEDDING,
)
"""The states of files whose jobs have not ended."""


def job_from_proto(file: pb.File) -> Job:
    """Returns the processing of a file as a job."""
    status = _JOB_STATUSES.get(file.status, "created")
    more = {"type": "embedding", "source_id": file.folder_id, "file_id": file.id, "filename": file.name}
    if file.HasField("error_message"):
        more["error"] = file.error_message
    return Job(
        id=job_id_of(file.id),
        status=status,
        created_at=moment_of(file, "create_time"),
        updated_at=moment_of(file, "update_time"),
        completed_at=moment_of(file, "update_time") if status in {"completed", "failed"} else None,
        metadata=more,
    )


def job_id_of(file_id: str) -> str:
    """Returns the id of a file's job."""
    return "job-" + file_id.partition("-")[2]


def file_id_of(job_id: str) -> str:
    """Returns the id of a job's file."""
    return "file-" + job_id.partition("-")[2]


operations = Operations()
_START_SECONDS: Final = 120.0
_IDS: Final = {"batch_id": "job"}
_EVERY: Final = 10_000


@operations.post("/messages/batches")
async def create_batch(call: Call[NoQuery, CreateBatch]) -> Job:
    """Starts a run in the background for each request, all or none."""
    requests = [batch_request_to_proto(request, index) for index, request in enumerate(call.body.requests)]
    request = rpc.StartBatchRequest(requests=requests)
    set_present(request, callback_url=call.body.callback_url)
    return job_of_batch((await call.write(call.mesh.runs.StartBatch, request, seconds=_START_SECONDS)).batch)


@operations.get("/messages/batches")
async def list_batches(call: Call[PageQuery, None]) -> list[Job]:
    """Lists batches, newest first."""
    query = call.query
    page = PageQuery(
        before=batch_id_of(query.before) if query.before else None,
        after=batch_id_of(query.after) if query.after else None,
        limit=query.limit,
        order=query.order,
    )
    rows = await list_page(
        call.mesh.runs.ListBatches, rpc.ListBatchesRequest(), "batches", page, default="desc", limit=100
    )
    return [job_of_batch(row) for row in rows]


@operations.get("/messages/batches/{batch_id}", ids=_IDS)
async def retrieve_batch(call: Call[NoQuery, None]) -> Job:
    """Returns a batch."""
    return await read_batch(call.mesh, call.path["batch_id"])


@operations.patch("/messages/batches/{batch_id}/cancel", ids=_IDS)
async def cancel_batch(call: Call[NoQuery, None]) -> None:
    """Cancels the runs of a batch that have not ended."""
    request = rpc.CancelBatchRequest(batch_id=batch_id_of(call.path["batch_id"]))
    await call.write(call.mesh.runs.CancelBatch, request, seconds=_START_SECONDS)


@operations.get("/messages/batches/{batch_id}/messages", ids=_IDS)
async def list_messages_for_batch(call: Call[ListBatchMessages, None]) -> BatchMessages:
    """Lists the messages of the runs of a batch, run by run, newest first."""
    query, job_id = call.query, call.path["batch_id"]
    await read_batch(call.mesh, job_id)
    filters = rpc.RunFilter(batch_id=batch_id_of(job_id), agent_ids=[query.agent_id] if query.agent_id else ())
    order = query.order or "desc"
    runs = await list_page(
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
    return job_of_batch((await read(mesh.runs.GetBatch, rpc.GetBatchRequest(batch_id=batch_id_of(job_id)))).batch)


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
        found += await list_page(mesh.messages.ListMessages, request, "messages", page, default="desc")
        if len(found) >= limit or run_id == last:
            break
    return found


async def _run_of(mesh: Mesh, message_id: str, run_ids: list[str]) -> str:
    request = messages_service_pb2.GetMessagesRequest(message_ids=[message_id])
    messages = (await read(mesh.messages.GetMessages, request)).messages
    if not messages or messages[0].run_id not in run_ids:
        raise NotFound(f"The batch has no message {message_id[:200]}.")
    return str(messages[0].run_id)


operations.refuse("PATCH", "/jobs/{job_id}/cancel", "The processing of a file cannot be cancelled; delete the file.")


operations.refuse("DELETE", "/jobs/{job_id}", "A job is the state of its file; delete the file.")


@operations.get("/jobs/")
async def list_jobs(call: Call[ListJobs, None]) -> list[Job]:
    """Lists jobs, newest first."""
    query = call.query
    ascending = query.order == "asc" if query.ascending else False
    return await _jobs(call.mesh, query, active=query.active, ascending=ascending)


@operations.get("/jobs/active")
async def list_active_jobs(call: Call[ListJobs, None]) -> list[Job]:
    """Lists the jobs that have not ended, oldest first."""
    return await _jobs(call.mesh, call.query, active=True, ascending=call.query.ascending)


@operations.get("/jobs/{job_id}")
async def retrieve_job(call: Call[NoQuery, None]) -> Job:
    """Returns a job, or a batch of messages, which is a job too."""
    job_id = call.path["job_id"]
    request = files_rpc.GetFileRequest(file_id=file_id_of(job_id))
    try:
        return job_from_proto((await read(call.mesh.files.GetFile, request)).file)
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
    rows = await list_page(mesh.files.ListFiles, request, "files", page, default="desc", limit=100)
    return [job_from_proto(row) for row in rows]


POLL_SECONDS: Final = 1.0
_CALL_SECONDS: Final = 10.0
_SETTING: Final = "MNEMESH_CALLBACK_HOSTS"
_AT_ONCE: Final = 50
"""The most calls that begin in a second. So at most ten times as many are open, also if no receiver answers."""
_MOST_MESSAGES: Final = 1_000


_log = structlog.get_logger("mnemesh.callbacks")


class CallResult(NamedTuple):
    """The status of an answer, or the cause of the failure without one."""

    status: int | None
    error: str | None


class CallbackClient:
    """Calls URLs without following redirects. What an answer contains is not read.

    Args:
        hosts: the hosts that URLs can have; empty allows all.
        public_only: whether hosts must have public addresses.
    """

    def __init__(self, hosts: Sequence[str], *, public_only: bool) -> None:
        self._hosts = frozenset(host.lower() for host in hosts)
        self._public_only = public_only
        self._session: aiohttp.ClientSession | None = None

    async def post(self, url: str, body: bytes, headers: Mapping[str, str] | None = None) -> CallResult:
        """Sends JSON to a URL. Never raises."""
        if problem := host_problem(url, self._hosts, _SETTING, public_only=self._public_only):
            return CallResult(None, f"{problem}.")
        import aiohttp  # noqa: PLC0415

        try:
            async with self._opened().post(url, data=body, headers=headers, allow_redirects=False) as answer:
                return CallResult(answer.status, None)
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            return CallResult(None, f"The call failed: {failure_of_connection(url, error)}."[:500])

    def _opened(self) -> "aiohttp.ClientSession":
        import aiohttp  # noqa: PLC0415
        from mnemesh_kit.public_resolver import PublicResolver  # noqa: PLC0415

        if self._session is None:
            resolver = PublicResolver(_SETTING) if self._public_only else None
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(resolver=resolver, limit=0),
                cookie_jar=aiohttp.DummyCookieJar(),  # a host may have receivers of several organizations
                timeout=aiohttp.ClientTimeout(total=_CALL_SECONDS),
                headers={"Content-Type": "application/json", "User-Agent": "mnemesh"},
                auto_decompress=False,
            )
        return self._session

    async def close(self) -> None:
        """Ends the connections."""
        if self._session is not None:
            await self._session.close()


class CallbackSender:
    """Sends what is due. The orchestrator hands each callback to one gateway, and again if that does not answer.

    No call waits for another one, so that a receiver that hangs delays its own calls only.

    Args:
        mesh: what the clients of callbacks read.
        runs: RunService for the role of a service.
        caller: calls the URLs.
    """

    def __init__(self, mesh: Mesh, runs: "runs_service_pb2_grpc.RunServiceAsyncStub", caller: CallbackClient) -> None:
        self._mesh = mesh
        self._runs = runs
        self._caller = caller
        self._calls: set[asyncio.Task[None]] = set()

    async def send_due(self) -> None:
        """Begins to call the callbacks that are due now."""
        request = rpc.ClaimCallbacksRequest(max_callbacks=_AT_ONCE)
        try:
            due = (await self._runs.ClaimCallbacks(request, timeout=READ_SECONDS)).callbacks
        except (Unavailable, DeadlineExceeded):
            return  # the orchestrator is starting or restarting
        for callback in due:
            call = asyncio.create_task(self._send(callback))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)

    async def close(self) -> None:
        """Ends the calls that are open. They are due again."""
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)
        await self._caller.close()

    async def _send(self, callback: batches_pb2.DueCallback) -> None:
        with as_principal(Principal(callback.organization_id, callback.subject_id)):
            try:
                if callback.HasField("webhook"):
                    event = callback.webhook
                    result = await self._caller.post(callback.url, event.body, event.headers)
                else:
                    body = msgspec.json.encode(await self._body(callback))
                    result = await self._caller.post(callback.url, body)
            except MnemeshError as error:
                result = CallResult(None, error.message)
        target_id = callback.run.id or callback.batch.id or callback.webhook.delivery_id
        _log.info("callback", target_id=target_id, attempt=callback.attempt, status=result.status, error=result.error)
        request = rpc.RecordCallbackRequest(
            organization_id=callback.organization_id,
            target_id=target_id,
            attempt=callback.attempt,
            status=result.status,
            error=result.error,
        )
        try:
            await self._runs.RecordCallback(request, timeout=READ_SECONDS)
        except MnemeshError as error:
            _log.warning("callback_not_recorded", target_id=target_id, error=error.message)

    async def _body(self, callback: batches_pb2.DueCallback) -> dict[str, Any]:
        if callback.HasField("batch"):
            job = job_of_batch(callback.batch)
            body = {"job_id": job.id, "status": job.status, "completed_at": job.completed_at}
            return body | {"metadata": job.metadata}
        run = run_from_proto(callback.run)
        more = dict(run.metadata or {})
        if callback.run.status == runs_pb2.RUN_STATUS_COMPLETED:
            messages = await show_messages(self._mesh, callback.run, PageQuery(limit=_MOST_MESSAGES))
            usage = usage_from_proto(callback.run.usage, callback.run.step_count)
            reason = StopReason(stop_reason=run.stop_reason or "end_turn")
            more["result"] = LettaResponse(messages=messages, stop_reason=reason, usage=usage)
        return {"run_id": run.id, "status": run.status, "completed_at": run.completed_at, "metadata": more}
