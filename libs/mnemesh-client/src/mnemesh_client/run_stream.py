"""The event stream of one run, kept alive across broken connections and restarts of the server."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Final

import grpc
from mnemesh.agents.v1 import runs_pb2, runs_service_pb2, runs_service_pb2_grpc
from mnemesh_kit.errors import MnemeshError, Unavailable, Unimplemented
from mnemesh_kit.outgoing import STREAM_DEADLINE_SECONDS
from mnemesh_kit.retries import Backoff

from mnemesh_client.transport import closing, sleep

_RETRYABLE: Final = {("UNAVAILABLE", grpc.StatusCode.UNAVAILABLE), ("INTERNAL", grpc.StatusCode.CANCELLED)}
_BACKOFF: Final = Backoff(first=0.1, maximum=2.0)

OpenStream = Callable[[], AsyncIterable[Any]]


def send(
    stub: runs_service_pb2_grpc.RunServiceAsyncStub,
    request: runs_service_pb2.SendMessageRequest | runs_service_pb2.AnswerApprovalRequest,
    patience: float,
    acceptance: float = math.inf,
) -> AsyncGenerator[runs_pb2.RunEvent, None]:
    """Sends a message or answers an approval request; yields the events of the turn, up to its stop and usage.

    Each durable event is yielded exactly once. If the stream breaks, the run continues on the server. The client then
    re-attaches after the last event that it received. If it has not received the run's id yet, or the server cannot
    re-attach, it sends the request again: the same request_id is the same run.

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

    def send_request() -> AsyncIterable[Any]:
        if isinstance(request, runs_service_pb2.AnswerApprovalRequest):
            return stub.AnswerApproval(request)
        return stub.SendMessage(request)

    def reattach() -> AsyncIterable[Any]:
        return stub.StreamRun(progress.stream_request()) if progress.run_id else send_request()

    return _stream(stub, send_request, reattach, progress, patience, acceptance)


def send_and_wait(
    stub: runs_service_pb2_grpc.RunServiceAsyncStub,
    request: runs_service_pb2.SendMessageRequest,
    patience: float,
    acceptance: float = math.inf,
) -> AsyncGenerator[runs_pb2.RunEvent, None]:
    """Sends a message, and yields the events of the turn after its end. They come in one response, not in a stream.

    Retries and errors are those of `send`. An earlier server, which has no such call, streams the events.
    """
    progress = RunProgress()
    # The requests have the same fields.
    whole = runs_service_pb2.SendMessageAndWaitRequest.FromString(request.SerializeToString())

    async def wait() -> AsyncIterator[Any]:
        answer = await stub.SendMessageAndWait(whole, timeout=STREAM_DEADLINE_SECONDS)
        for event in answer.events:
            yield _Response(event)

    def reattach() -> AsyncIterable[Any]:
        return stub.StreamRun(progress.stream_request()) if progress.run_id else wait()

    def send_request() -> AsyncIterable[Any]:
        return stub.SendMessage(request)

    return _stream(stub, wait, reattach, progress, patience, acceptance, send_request)


def attach(
    stub: runs_service_pb2_grpc.RunServiceAsyncStub, run_id: str, starting_after: int, patience: float
) -> AsyncGenerator[runs_pb2.RunEvent, None]:
    """Yields the events of a run after a sequence number, and follows it to its end. Re-attaches as `send` does."""
    progress = RunProgress(run_id, starting_after)

    def reattach() -> AsyncIterable[Any]:
        return stub.StreamRun(progress.stream_request())

    return _stream(stub, reattach, reattach, progress, patience)


@dataclass(frozen=True, slots=True)
class _Response:
    """An event of a whole response, as a stream has it."""

    event: runs_pb2.RunEvent


class RunProgress:
    """The position in the event stream of a run."""

    def __init__(self, run_id: str = "", sequence: int = 0) -> None:
        self.run_id = run_id
        self.sequence = sequence
        self.stopped = False
        self._accepted = False

    def stream_request(self) -> runs_service_pb2.StreamRunRequest:
        """Returns the request for the events after the current position."""
        return runs_service_pb2.StreamRunRequest(run_id=self.run_id, starting_after=self.sequence, include_deltas=True)

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
    stub: runs_service_pb2_grpc.RunServiceAsyncStub,
    open_stream: OpenStream,
    reopen: OpenStream,
    progress: RunProgress,
    patience: float,
    acceptance: float = math.inf,
    fallback: OpenStream | None = None,
) -> AsyncGenerator[runs_pb2.RunEvent, None]:
    source, failures, failed_at, started_at = open_stream(), 0, 0.0, time.monotonic()
    while True:
        try:
            async with closing(source) as responses:
                async for response in responses:
                    failures = 0
                    if progress.advance(response.event):
                        yield response.event
            if progress.stopped or await _has_all(stub, progress):
                return
            problem: MnemeshError = Unavailable("The stream ended before the run did.")
        except Unimplemented as error:
            # The server lacks the call. The same request again is the same run; `progress` drops repeated events.
            if fallback is None:
                raise
            problem, reopen, fallback = error, fallback, None
        except MnemeshError as error:
            if (error.reason, error.code) not in _RETRYABLE:
                raise
            problem = error
            fallback = open_stream if reopen is not open_stream else None
        now = time.monotonic()
        if not failures:
            failed_at = now
        if now - failed_at > patience or (not progress.run_id and now - started_at > acceptance):
            raise problem
        failures += 1
        await sleep(_BACKOFF.delay(failures))
        source = reopen()


async def _has_all(stub: runs_service_pb2_grpc.RunServiceAsyncStub, progress: RunProgress) -> bool:
    """Returns whether a run has ended and the client has its last event: it attached after the run's stop."""
    if not progress.run_id:
        return False
    run = (await stub.GetRun(runs_service_pb2.GetRunRequest(run_id=progress.run_id))).run
    return run.HasField("completion_time") and run.last_sequence <= progress.sequence
