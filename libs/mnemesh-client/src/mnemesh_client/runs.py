"""Runs: send, start, stream, list, cancel and retry the turns of agents and the runs of groups."""

import math
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Sequence
from typing import Any, Final, Literal

import grpc
from mnemesh.agents.v1 import batches_pb2, runs_pb2, runs_service_pb2, runs_service_pb2_grpc
from mnemesh.types.v1 import message_pb2
from mnemesh_kit.errors import InvalidArgument, MnemeshError, Unavailable
from mnemesh_kit.outgoing import STREAM_DEADLINE_SECONDS
from mnemesh_kit.retries import Backoff

from mnemesh_client.inputs import Input, input_messages, new_request_id, present_fields
from mnemesh_client.paging import Order, paginate, sort_order
from mnemesh_client.transport import Channel, closing, sleep

_RETRYABLE: Final = {("UNAVAILABLE", grpc.StatusCode.UNAVAILABLE), ("INTERNAL", grpc.StatusCode.CANCELLED)}
_BACKOFF: Final = Backoff(first=0.1, maximum=2.0)

OpenStream = Callable[[], AsyncIterable[Any]]
RunStatusName = Literal["created", "running", "completed", "failed", "cancelled"]
RunOriginName = Literal["client", "group", "agent", "sleeptime", "schedule"]


def send(
    stub: "runs_service_pb2_grpc.RunServiceAsyncStub",
    request: runs_service_pb2.SendMessageRequest | runs_service_pb2.AnswerApprovalRequest,
    patience: float,
    acceptance: float = math.inf,
) -> AsyncGenerator[runs_pb2.RunEvent, None]:
    """Sends a message or answers an approval request; yields the events of the turn, up to its stop and usage.

    Each durable event is yielded exactly once. If the stream breaks, the run continues on the server. The client then
    re-attaches after the last event that it received. If it has not received the run's id yet, it sends the request
    again: the same request_id is the same run.

    Args:
        stub: the stub of the run service.
        request: the request, with its request_id.
        patience: the seconds for which the client retries without receiving an event.
        acceptance: the seconds after which a request that no server has accepted is not sent again.

    Raises:
        Unavailable: the server did not answer within `patience`, or did not accept the request within `acceptance`.
        MnemeshError: the request was refused.
    """
    progress = RunProgress()
    request.batch_events = True

    def send_request() -> AsyncIterable[Any]:
        if isinstance(request, runs_service_pb2.AnswerApprovalRequest):
            return stub.AnswerApproval(request)
        return stub.SendMessage(request)

    def reattach() -> AsyncIterable[Any]:
        return stub.StreamRun(progress.stream_request()) if progress.run_id else send_request()

    return _stream(stub, send_request, reattach, progress, patience, acceptance)


def send_and_wait(
    stub: "runs_service_pb2_grpc.RunServiceAsyncStub",
    request: runs_service_pb2.SendMessageRequest,
    patience: float,
    acceptance: float = math.inf,
) -> AsyncGenerator[runs_pb2.RunEvent, None]:
    """Sends a message, and yields the events of the turn after its end. They come in one response, not in a stream.

    Retries and errors are those of `send`.
    """
    progress = RunProgress()
    # The requests have the same fields.
    whole = runs_service_pb2.SendMessageAndWaitRequest.FromString(request.SerializeToString())

    async def wait() -> AsyncIterator[Any]:
        answer = await stub.SendMessageAndWait(whole, timeout=STREAM_DEADLINE_SECONDS)
        for event in answer.events:
            yield runs_service_pb2.SendMessageResponse(event=event)

    def reattach() -> AsyncIterable[Any]:
        return stub.StreamRun(progress.stream_request()) if progress.run_id else wait()

    return _stream(stub, wait, reattach, progress, patience, acceptance)


def attach(
    stub: "runs_service_pb2_grpc.RunServiceAsyncStub", run_id: str, starting_after: int, patience: float
) -> AsyncGenerator[runs_pb2.RunEvent, None]:
    """Yields the events of a run after a sequence number, and follows it to its end. Re-attaches as `send` does."""
    progress = RunProgress(run_id, starting_after)

    def reattach() -> AsyncIterable[Any]:
        return stub.StreamRun(progress.stream_request())

    return _stream(stub, reattach, reattach, progress, patience)


class RunProgress:
    """The position in the event stream of a run."""

    def __init__(self, run_id: str = "", sequence: int = 0) -> None:
        self.run_id = run_id
        self.sequence = sequence
        self.stopped = False
        self._accepted = False

    def stream_request(self) -> runs_service_pb2.StreamRunRequest:
        """Returns the request for the events after the current position."""
        return runs_service_pb2.StreamRunRequest(
            run_id=self.run_id, starting_after=self.sequence, include_deltas=True, batch_events=True
        )

    def advance(self, event: runs_pb2.RunEvent) -> bool:
        """Moves the position to an event. Returns False for a repeated event and for a keepalive."""
        self.run_id = event.run_id or self.run_id
        if event.HasField("sequence"):
            if event.sequence <= self.sequence:
                return False
            self.sequence = event.sequence
        self.stopped = self.stopped or event.HasField("stop")
        if event.HasField("accepted"):
            first, self._accepted = not self._accepted, True
            return first
        return not event.HasField("keepalive")


async def _stream(
    stub: "runs_service_pb2_grpc.RunServiceAsyncStub",
    open_stream: OpenStream,
    reopen: OpenStream,
    progress: RunProgress,
    patience: float,
    acceptance: float = math.inf,
) -> AsyncGenerator[runs_pb2.RunEvent, None]:
    source, failures, failed_at, started_at = open_stream(), 0, 0.0, time.monotonic()
    while True:
        try:
            async with closing(source) as responses:
                async for response in responses:
                    failures = 0
                    for event in (response.event, *response.further_events):
                        if progress.advance(event):
                            yield event
            if progress.stopped or await _has_all(stub, progress):
                return
            problem: MnemeshError = Unavailable("The stream ended before the run did.")
        except MnemeshError as error:
            if (error.reason, error.code) not in _RETRYABLE:
                raise
            problem = error
        now = time.monotonic()
        if not failures:
            failed_at = now
        if now - failed_at > patience or (not progress.run_id and now - started_at > acceptance):
            raise problem
        failures += 1
        await sleep(_BACKOFF.delay(failures))
        source = reopen()


async def _has_all(stub: "runs_service_pb2_grpc.RunServiceAsyncStub", progress: RunProgress) -> bool:
    """Returns whether a run has ended and the client has its last event: it attached after the run's stop."""
    if not progress.run_id:
        return False
    run = (await stub.GetRun(runs_service_pb2.GetRunRequest(run_id=progress.run_id))).run
    return run.HasField("completion_time") and run.last_sequence <= progress.sequence


class RunsClient:
    """Calls of RunService, as `client.runs`. Errors: NotFound; FailedPrecondition RUN_ENDED."""

    def __init__(self, channel: Channel, patience: float) -> None:
        self.stub = runs_service_pb2_grpc.RunServiceStub(channel)
        self._patience = patience

    def send(
        self,
        agent_id: str,
        content: Input,
        *,
        conversation_id: str | None = None,
        group_id: str | None = None,
        config: runs_pb2.RunConfig | None = None,
        request_id: str | None = None,
    ) -> AsyncIterator[runs_pb2.RunEvent]:
        """Sends input to an agent, or to a group if `agent_id` is empty, and yields the events of the run.

        See `Agent.send` and `Group.send`.
        """
        request = runs_service_pb2.SendMessageRequest(
            request_id=request_id or new_request_id(),
            agent_id=agent_id,
            conversation_id=conversation_id,
            messages=input_messages(content),
            config=config,
            group_id=group_id,
        )
        return send(self.stub, request, self._patience)

    def send_and_wait(
        self,
        agent_id: str,
        content: Input,
        *,
        conversation_id: str | None = None,
        config: runs_pb2.RunConfig | None = None,
        request_id: str | None = None,
    ) -> AsyncIterator[runs_pb2.RunEvent]:
        """Sends input to an agent, and yields the events of the run when it has ended: cheaper than `send`."""
        request = runs_service_pb2.SendMessageRequest(
            request_id=request_id or new_request_id(),
            agent_id=agent_id,
            conversation_id=conversation_id,
            messages=input_messages(content),
            config=config,
        )
        return send_and_wait(self.stub, request, self._patience)

    def answer(
        self,
        agent_id: str,
        decisions: Sequence[message_pb2.ApprovalDecision],
        *,
        content: Input = (),
        approval_request_id: str | None = None,
        conversation_id: str | None = None,
        config: runs_pb2.RunConfig | None = None,
        request_id: str | None = None,
    ) -> AsyncGenerator[runs_pb2.RunEvent, None]:
        """Answers the pending approval request of an agent, and yields the events of the turn. See `Agent.answer`."""
        request = runs_service_pb2.AnswerApprovalRequest(
            request_id=request_id or new_request_id(),
            agent_id=agent_id,
            conversation_id=conversation_id,
            approval_request_id=approval_request_id,
            decisions=decisions,
            messages=input_messages(content),
            config=config,
        )
        return send(self.stub, request, self._patience)

    async def start(
        self,
        agent_id: str,
        content: Input,
        *,
        conversation_id: str | None = None,
        group_id: str | None = None,
        config: runs_pb2.RunConfig | None = None,
        request_id: str | None = None,
    ) -> runs_pb2.Run:
        """Starts a run of an agent, or of a group if `agent_id` is empty, in the background, and returns it.

        Follow it with `stream` or `wait`.
        """
        request = runs_service_pb2.StartRunRequest(
            request_id=request_id or new_request_id(),
            agent_id=agent_id,
            conversation_id=conversation_id,
            messages=input_messages(content),
            config=config,
            group_id=group_id,
        )
        return (await self.stub.StartRun(request)).run

    def stream(self, run_id: str, *, starting_after: int = 0) -> AsyncIterator[runs_pb2.RunEvent]:
        """Yields the events of a run after a sequence number, and follows it to its end."""
        return attach(self.stub, run_id, starting_after, self._patience)

    async def get(self, run_id: str) -> runs_pb2.Run:
        """Returns a run."""
        return (await self.stub.GetRun(runs_service_pb2.GetRunRequest(run_id=run_id))).run

    async def wait(self, run_id: str) -> runs_pb2.Run:
        """Waits until a run has ended, and returns it."""
        run = await self.get(run_id)
        async with closing(attach(self.stub, run_id, run.last_sequence, self._patience)) as events:
            async for _ in events:
                pass
        return await self.get(run_id)

    def children(self, run_id: str, *, order: Order | None = "asc") -> AsyncIterator[runs_pb2.Run]:
        """Yields the runs that a run started: turns of a group, messages to other agents, runs of sleeptime agents."""
        return self.list(parent_run_id=run_id, order=order)

    def list(
        self,
        *,
        agent_id: str | None = None,
        group_id: str | None = None,
        parent_run_id: str | None = None,
        batch_id: str | None = None,
        origins: Sequence[RunOriginName] = (),
        statuses: Sequence[RunStatusName] = (),
        order: Order | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[runs_pb2.Run]:
        """Yields the runs that match all arguments, newest first unless `order` is "asc".

        Args:
            agent_id: only runs of this agent.
            group_id: only runs of this group, and the turns of its agents in them.
            parent_run_id: only runs that this run started.
            batch_id: only runs of this batch.
            origins: only runs with one of these causes.
            statuses: only runs with one of these statuses.
            order: "asc" or "desc", by the time at which they were sent.
            limit: the maximum number of runs; None yields all.
        """
        criteria = runs_service_pb2.RunFilter(
            agent_ids=[agent_id] if agent_id else (),
            group_id=group_id,
            parent_run_id=parent_run_id,
            batch_id=batch_id,
            origins=[runs_pb2.RunOrigin.Value(f"RUN_ORIGIN_{name.upper()}") for name in origins],
            statuses=[runs_pb2.RunStatus.Value(f"RUN_STATUS_{name.upper()}") for name in statuses],
        )
        request = runs_service_pb2.ListRunsRequest(order=sort_order(order), filter=criteria)
        return paginate(self.stub.ListRuns, request, "runs", limit)

    def steps(self, run_id: str) -> AsyncIterator[runs_pb2.Step]:
        """Yields the steps of a run, in order."""
        request = runs_service_pb2.ListStepsRequest(filter=runs_service_pb2.StepFilter(run_id=run_id))
        return paginate(self.stub.ListSteps, request, "steps")

    async def step(self, step_id: str) -> runs_pb2.Step:
        """Returns a step."""
        return (await self.stub.GetStep(runs_service_pb2.GetStepRequest(step_id=step_id))).step

    async def trace(self, step_id: str) -> runs_service_pb2.StepTrace:
        """Returns the model's request and response at a step, as JSON. Raises NotFound once they expired."""
        return (await self.stub.GetStepTrace(runs_service_pb2.GetStepTraceRequest(step_id=step_id))).trace

    async def judge(
        self, step_id: str, feedback: Literal["positive", "negative"] | None, tags: Sequence[str] = ()
    ) -> runs_pb2.Step:
        """Sets the feedback on a step and its tags. None clears the feedback."""
        request = runs_service_pb2.SetStepFeedbackRequest(step_id=step_id, feedback=feedback, tags=tags)
        return (await self.stub.SetStepFeedback(request)).step

    async def start_batch(
        self,
        requests: Sequence[runs_service_pb2.BatchRequest],
        *,
        callback_url: str | None = None,
        request_id: str | None = None,
    ) -> batches_pb2.Batch:
        """Starts background runs together, all or none, and returns the batch. `list` with its id yields the runs."""
        request = runs_service_pb2.StartBatchRequest(
            request_id=request_id or new_request_id(), requests=requests, callback_url=callback_url
        )
        return (await self.stub.StartBatch(request)).batch

    async def batch(self, batch_id: str) -> batches_pb2.Batch:
        """Returns a batch with the numbers of its runs by status."""
        return (await self.stub.GetBatch(runs_service_pb2.GetBatchRequest(batch_id=batch_id))).batch

    def batches(self, *, order: Order | None = None, limit: int | None = None) -> AsyncIterator[batches_pb2.Batch]:
        """Yields batches, newest first unless `order` is "asc"."""
        request = runs_service_pb2.ListBatchesRequest(order=sort_order(order))
        return paginate(self.stub.ListBatches, request, "batches", limit)

    async def cancel_batch(self, batch_id: str) -> batches_pb2.Batch:
        """Cancels the runs of a batch that have not ended, and returns the batch."""
        return (await self.stub.CancelBatch(runs_service_pb2.CancelBatchRequest(batch_id=batch_id))).batch

    async def cancel(
        self,
        *run_ids: str,
        agent_id: str | None = None,
        conversation_id: str | None = None,
        group_id: str | None = None,
    ) -> dict[str, runs_service_pb2.CancelOutcome.ValueType]:
        """Cancels runs by id, or all runs of an agent, a conversation or a group. Returns the outcome by run id."""
        if sum((bool(run_ids), agent_id is not None, conversation_id is not None, group_id is not None)) != 1:
            raise InvalidArgument("Set exactly one of run ids, agent_id, conversation_id and group_id.", field="target")
        request = runs_service_pb2.CancelRunsRequest(
            **present_fields(
                runs=runs_service_pb2.RunIds(run_ids=run_ids) if run_ids else None,
                agent_id=agent_id,
                conversation_id=conversation_id,
                group_id=group_id,
            )
        )
        return dict((await self.stub.CancelRuns(request)).outcomes)

    async def retry(self, run_id: str) -> runs_pb2.Run:
        """Starts a new run in the background with the input of a failed run."""
        return (await self.stub.RetryRun(runs_service_pb2.RetryRunRequest(run_id=run_id))).run

    async def delete(self, run_id: str) -> None:
        """Deletes the record of a run that has ended, with its steps and events. Its messages stay in recall."""
        await self.stub.DeleteRun(runs_service_pb2.DeleteRunRequest(run_id=run_id))
