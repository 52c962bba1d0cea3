"""Follows one turn to its end, across broken connections and restarts of the server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any, Final, cast

import grpc
from mnemesh.agents.v1 import runs_pb2, runs_service_pb2, runs_service_pb2_grpc
from mnemesh_kit.errors import MnemeshError, Unavailable, Unimplemented

_BROKEN: Final = {("UNAVAILABLE", grpc.StatusCode.UNAVAILABLE), ("INTERNAL", grpc.StatusCode.CANCELLED)}
_FIRST_WAIT: Final = 0.1
_LONGEST_WAIT: Final = 2.0

Opening = Callable[[], AsyncIterable[Any]]


async def send(
    stub: runs_service_pb2_grpc.RunServiceAsyncStub,
    request: runs_service_pb2.SendMessageRequest | runs_service_pb2.AnswerApprovalRequest,
    patience: float,
) -> AsyncIterator[runs_pb2.RunEvent]:
    """Sends a message, or answers an approval, and yields the events of its turn, to the stop and the usage.

    Each durable event comes exactly once.

    Where the stream breaks, the run goes on at the server; this re-attaches behind the last event seen, or, where
    the request was not answered yet or the server cannot re-attach, sends the same request_id again, which is the
    same run.

    Args:
        stub: of the run service.
        request: with its request_id.
        patience: seconds without any event after which a broken stream is given up.

    Raises:
        Unavailable: nobody answered for so long.
        MnemeshError: the request was refused.
    """
    progress = Progress()

    def sending() -> AsyncIterable[Any]:
        if isinstance(request, runs_service_pb2.AnswerApprovalRequest):
            return stub.AnswerApproval(request)
        return stub.SendMessage(request)

    def attaching() -> AsyncIterable[Any]:
        return stub.StreamRun(progress.attachment()) if progress.run_id else sending()

    async for event in _followed(sending, attaching, progress, patience):
        yield event


async def attach(
    stub: runs_service_pb2_grpc.RunServiceAsyncStub, run_id: str, starting_after: int, patience: float
) -> AsyncIterator[runs_pb2.RunEvent]:
    """Yields the events of a run behind a number, then follows it; re-attaches as `send` does."""
    progress = Progress(run_id, starting_after)

    def attaching() -> AsyncIterable[Any]:
        return stub.StreamRun(progress.attachment())

    async for event in _followed(attaching, attaching, progress, patience):
        yield event


class Progress:
    """How far a turn was seen."""

    def __init__(self, run_id: str = "", sequence: int = 0) -> None:
        self.run_id = run_id
        self.sequence = sequence
        self.stopped = False
        self._accepted = False

    def attachment(self) -> runs_service_pb2.StreamRunRequest:
        """The request that takes the run up behind what was seen."""
        return runs_service_pb2.StreamRunRequest(run_id=self.run_id, starting_after=self.sequence, include_deltas=True)

    def is_news(self, event: runs_pb2.RunEvent) -> bool:
        """Notes an event; False for what was seen before and for signs of life."""
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


async def _followed(
    opening: Opening, reopening: Opening, progress: Progress, patience: float
) -> AsyncIterator[runs_pb2.RunEvent]:
    source, wait, heard = opening(), _FIRST_WAIT, time.monotonic()
    fallback: Opening | None = None
    while True:
        try:
            async with aclosing(cast("AsyncGenerator[Any, None]", aiter(source))) as responses:
                async for response in responses:
                    wait, heard = _FIRST_WAIT, time.monotonic()
                    if progress.is_news(response.event):
                        yield response.event
            if progress.stopped:
                return
            problem: MnemeshError = Unavailable("The stream ended before the run did.")
        except Unimplemented as error:
            # the server cannot re-attach: the same request_id is the same run, and what was seen is passed over
            if fallback is None:
                raise
            problem, reopening, fallback = error, fallback, None
        except MnemeshError as error:
            if (error.reason, error.code) not in _BROKEN:
                raise
            problem = error
            fallback = opening if reopening is not opening else None
        if time.monotonic() - heard > patience:
            raise problem
        await asyncio.sleep(wait)
        wait = min(wait * 2, _LONGEST_WAIT)
        source = reopening()
