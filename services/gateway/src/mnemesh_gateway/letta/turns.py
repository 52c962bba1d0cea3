"""Turns: starts a run, follows its events, and returns them as an answer or as a stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from mnemesh.agents.v1 import runs_pb2, runs_service_pb2
from mnemesh_client import run_stream
from starlette.responses import Response

from mnemesh_gateway.errors import RunFailed
from mnemesh_gateway.http.streams import DONE, EventStream, sse
from mnemesh_gateway.letta.approvals import PATIENCE, Events, Recipient, answering
from mnemesh_gateway.letta.convert.events import Conversion, stop_reason, usage_of, with_whole_returns
from mnemesh_gateway.letta.convert.messages import Shown, with_whole_requests
from mnemesh_gateway.letta.convert.sending import config_to_proto, sent_of, shown_of
from mnemesh_gateway.letta.errors import invalid_field
from mnemesh_gateway.letta.mesh import Mesh
from mnemesh_gateway.letta.pages import READ_SECONDS
from mnemesh_gateway.letta.schemas.messages import LettaResponse, SendMessages, StopReason, Usage
from mnemesh_gateway.letta.schemas.runs import StreamRun

PING_SECONDS: Final = 30.0


async def events_of(mesh: Mesh, recipient: Recipient, body: SendMessages, key: str) -> Events:
    """Sends what a body has and returns the events of its run. A background run outlives its stream by contract."""
    sent = sent_of(body)
    config = _config(recipient, body)
    if sent.is_answer:
        return await answering(mesh, recipient, sent, config, key)
    if body.background:
        run = await start_run(mesh, recipient, body, key)
        return run_stream.attach(mesh.runs, run.id, 0, PATIENCE)
    request = runs_service_pb2.SendMessageRequest(
        request_id=key,
        agent_id=recipient.agent_id,
        conversation_id=recipient.conversation_id,
        group_id=recipient.group_id,
        messages=sent.messages,
        config=config,
    )
    return run_stream.send(mesh.runs, request, PATIENCE)


def _config(recipient: Recipient, body: SendMessages) -> runs_pb2.RunConfig:
    """Returns the configuration of a run. Only a background stream of a conversation is recovered by its otids."""
    config = config_to_proto(body)
    config.otids_repeat = not (body.background and recipient.conversation_id)
    return config


async def start_run(mesh: Mesh, recipient: Recipient, body: SendMessages, key: str) -> runs_pb2.Run:
    """Starts what a body has as a run in the background, and returns the run."""
    sent = sent_of(body)
    config = _config(recipient, body)
    if sent.is_answer:
        async with aclosing(await answering(mesh, recipient, sent, config, key)) as events:
            run_id = (await anext(events)).run_id
        return await read_run(mesh, run_id)
    start = runs_service_pb2.StartRunRequest(
        request_id=key,
        agent_id=recipient.agent_id,
        conversation_id=recipient.conversation_id,
        group_id=recipient.group_id,
        messages=sent.messages,
        config=config,
    )
    return (await mesh.runs.StartRun(start, timeout=READ_SECONDS)).run


async def answered(events: Events, shown: Shown) -> LettaResponse:
    """Returns a whole turn. Raises the error of a run that failed."""
    conversion = Conversion(tokens=False)
    messages: list[dict[str, Any]] = []
    reason, usage = "end_turn", Usage()
    async with aclosing(events):
        async for event in events:
            match event.WhichOneof("event"):
                case "error":
                    raise run_failed(event.error.error)
                case "stop":
                    reason = stop_reason(event)
                case "usage":
                    usage = usage_of(event)
                case _:
                    message = conversion.message(event)
                    if message is not None:
                        messages.append(message)
    whole = with_whole_requests(with_whole_returns(messages))
    return LettaResponse(
        messages=[message for message in whole if shown.has(message["message_type"])],
        stop_reason=StopReason(stop_reason=reason),
        usage=usage,
    )


def run_failed(error: runs_pb2.RunError) -> RunFailed:
    """Returns the error of a run."""
    return RunFailed(error.reason, error.message, dict(error.metadata))


async def streamed(
    events: Events, shown: Shown, *, tokens: bool, pings: bool, starting_after: int = 0, numbered: bool = False
) -> Response:
    """Returns the stream of a turn. A run that fails before its first event raises its error instead.

    Args:
        events: of the run, from its first.
        shown: which messages the stream has.
        tokens: whether it has parts of messages as they arrive.
        pings: whether it has a ping after each 30 s without an event.
        starting_after: the number of the last event that the client has.
        numbered: whether events have numbers, as those of background runs.
    """
    frames = _frames(events, shown, tokens=tokens, numbered=numbered)
    waiting = asyncio.ensure_future(_next(frames))
    try:
        # A ping may come before the first message. Then the status is sent, and a failure is an event.
        await asyncio.wait((waiting,), timeout=PING_SECONDS if pings else None)
        first = waiting.result() if waiting.done() else None
        if first is not None and isinstance(first.content, RunFailed):
            raise first.content
    except BaseException:
        await _close(frames, waiting)
        raise
    return EventStream(_bytes(frames, waiting, pings=pings, skip=starting_after))


class _Frame(NamedTuple):
    """One event of a stream, or the failure of a run without one. The end of a stream has no number."""

    number: int | None
    content: bytes | RunFailed


async def _frames(events: Events, shown: Shown, *, tokens: bool, numbered: bool) -> AsyncGenerator[_Frame, None]:
    """Yields the events of a stream in their order; first the error alone if nothing else came before it.

    Events that are not shown have numbers as well, so that a number is the same event in every stream of the run.
    """
    conversion = Conversion(tokens=tokens)
    failure: RunFailed | None = None
    number = 0

    def frame(value: dict[str, Any], event: str | None = None) -> _Frame:
        nonlocal number
        number += 1
        return _Frame(number, sse(value | {"seq_id": number} if numbered else value, event))

    async with aclosing(events):
        async for event in events:
            match event.WhichOneof("event"):
                case "error":
                    failure = run_failed(event.error.error)
                    if number == 0:
                        yield _Frame(None, failure)
                case "stop":
                    yield frame({"message_type": "stop_reason", "stop_reason": stop_reason(event)})
                    if failure is not None:
                        yield frame(_error(failure, event.run_id), "error")
                        return
                case "usage":
                    usage = usage_of(event)
                    yield frame({name: getattr(usage, name) for name in usage.__struct_fields__})
                case _:
                    message = conversion.message(event)
                    if message is None:
                        continue
                    if shown.has(message["message_type"]):
                        yield frame(message)
                    else:
                        number += 1
    yield _Frame(None, DONE)


def _error(failure: RunFailed, run_id: str) -> dict[str, Any]:
    return {
        "message_type": "error_message",
        "run_id": run_id,
        "error_type": "internal_error",
        "message": failure.message,
        "detail": f"{failure.reason}: {failure.message}",
    }


async def _bytes(
    frames: AsyncGenerator[_Frame, None], waiting: asyncio.Future[_Frame | None], *, pings: bool, skip: int
) -> AsyncGenerator[bytes, None]:
    """Yields the frames after the number `skip`, and pings while none arrives. `waiting` is the first frame."""
    number = 0
    timeout = 0.0  # the caller has waited for the first
    try:
        while True:
            while not (waiting.done() or (await asyncio.wait((waiting,), timeout=timeout))[0]):
                if pings:
                    yield sse({"message_type": "ping", "date": datetime.now(UTC), "id": f"ping-{number}"})
                timeout = PING_SECONDS
            frame = waiting.result()
            if frame is None:
                return
            number = frame.number or number
            if isinstance(frame.content, bytes) and (frame.number is None or frame.number > skip):
                yield frame.content
            waiting, timeout = asyncio.ensure_future(_next(frames)), PING_SECONDS
    finally:
        await _close(frames, waiting)


async def _close(frames: AsyncGenerator[_Frame, None], waiting: asyncio.Future[_Frame | None]) -> None:
    waiting.cancel()
    await asyncio.wait((waiting,))
    if not waiting.cancelled():
        waiting.exception()  # an error was raised where its result was read
    await frames.aclose()


async def _next(frames: AsyncGenerator[_Frame, None]) -> _Frame | None:
    return await anext(frames, None)


async def replied(
    mesh: Mesh, recipient: Recipient, body: SendMessages, key: str, *, stream: bool
) -> LettaResponse | Response:
    """Returns the answer to what a body sends, whole or as a stream."""
    shown = shown_of(body)
    events = await events_of(mesh, recipient, body, key)
    if not stream:
        return await answered(events, shown)
    return await streamed(events, shown, tokens=body.stream_tokens, pings=body.include_pings, numbered=body.background)


async def read_run(mesh: Mesh, run_id: str) -> runs_pb2.Run:
    """Returns a run. Raises NotFound."""
    request = runs_service_pb2.GetRunRequest(run_id=run_id)
    return (await mesh.runs.GetRun(request, timeout=READ_SECONDS)).run


async def attached(mesh: Mesh, run_id: str, body: StreamRun) -> Response:
    """Returns the stream of a run after the events that the client has."""
    if body.starting_after < 0:
        raise invalid_field("Input should be greater than or equal to 0", "body", "starting_after")
    run = await read_run(mesh, run_id)
    return await streamed(
        run_stream.attach(mesh.runs, run.id, 0, PATIENCE),
        Shown(),
        tokens=run.config.stream_tokens,
        pings=body.include_pings is not False,
        starting_after=body.starting_after,
        numbered=True,
    )
