"""Turns of agents over HTTP, answered at once or as a stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, TypeVar

from mnemesh.agents.v1 import runs_pb2, runs_service_pb2
from mnemesh_client import runs
from starlette.responses import Response

from mnemesh_gateway.errors import RunFailed
from mnemesh_gateway.http.streams import DONE, EventStream, Idle, sse
from mnemesh_gateway.letta.approvals import ACCEPTANCE, PATIENCE, Events, Recipient, answering
from mnemesh_gateway.letta.convert.events import Conversion, run_failed, stop_reason, usage_of, with_whole_returns
from mnemesh_gateway.letta.convert.messages import Shown, with_whole_requests
from mnemesh_gateway.letta.convert.sending import config_to_proto, sent_of, shown_of
from mnemesh_gateway.letta.convert.values import moment
from mnemesh_gateway.letta.errors import invalid_field
from mnemesh_gateway.letta.mesh import Mesh
from mnemesh_gateway.letta.operations import Call
from mnemesh_gateway.letta.pages import READ_SECONDS
from mnemesh_gateway.letta.schemas.messages import LettaResponse, SendMessages, StopReason, Usage
from mnemesh_gateway.letta.schemas.runs import StreamRun

PING_SECONDS: Final = 20.0
"""The time without an event after which a stream has a ping."""

AttachingT = TypeVar("AttachingT", bound=StreamRun)


class StreamOptions(NamedTuple):
    """The form of a stream."""

    tokens: bool
    """It has parts of messages as they arrive."""
    pings: bool
    """It has a ping after each `PING_SECONDS` without an event."""
    announces: bool
    """The first event of a run is its announcement: a ping with its id, sent when the run is stored, before the model
    answers. It has a number even if `pings` is off, so that a number is the same event in every stream of the run."""
    numbered: bool = False
    """Its events have numbers, as those of background runs."""


async def streamed(events: Events, shown: Shown, options: StreamOptions, *, starting_after: int = 0) -> Response:
    """Returns the stream of a turn. A run that fails before the first event of the stream raises its error instead.

    Args:
        events: of the run, from its first.
        shown: which messages the stream has.
        options: the form of the stream.
        starting_after: the number of the last event that the client has.
    """
    stream = TurnStream(events, shown, options)
    try:
        # A ping may come before the first message. Then the status is sent, and a failure is an event.
        await stream.begin()
    except BaseException:
        await stream.close()
        raise
    return EventStream(stream.chunks(starting_after), idle=Idle(PING_SECONDS, stream.ping) if options.pings else None)


class _Frame(NamedTuple):
    """One event of a stream, or the failure of a run without one. The end of a stream has no number."""

    number: int | None
    content: bytes | RunFailed


class TurnStream:
    """The stream of one turn. `begin`, then `chunks`, or `close` instead."""

    def __init__(self, events: Events, shown: Shown, options: StreamOptions) -> None:
        self._events = events
        self._shown = shown
        self._options = options
        self._conversion = Conversion(tokens=options.tokens)
        self._run_id: str | None = None
        self._number = 0
        """The number of the last event. A ping between events has it too."""
        self._has_begun = False
        self._frames = self._converted()
        self._first: asyncio.Future[_Frame | None] = asyncio.ensure_future(anext(self._frames, None))

    async def begin(self) -> None:
        """Waits for the first event, or for the time of the first ping. Raises the failure of a run without events."""
        await asyncio.wait((self._first,), timeout=PING_SECONDS if self._options.pings else None)
        first = self._first.result() if self._first.done() else None
        if first is not None and isinstance(first.content, RunFailed):
            raise first.content

    async def chunks(self, skip: int) -> AsyncGenerator[bytes, None]:
        """Yields the events after the number `skip`; first a ping if `begin` has waited for the first one in vain."""
        try:
            if not self._first.done():
                yield self.ping()
            frame = await self._first
            while frame is not None:
                if isinstance(frame.content, bytes) and (frame.number is None or frame.number > skip):
                    yield frame.content
                frame = await anext(self._frames, None)
        finally:
            await self.close()

    def ping(self) -> bytes:
        """Returns a ping between events."""
        return sse(self._numbered(self._ping(datetime.now(UTC))))

    async def close(self) -> None:
        """Ends the stream."""
        self._first.cancel()
        await asyncio.wait((self._first,))
        if not self._first.cancelled():
            self._first.exception()  # an error was raised where its result was read
        await self._frames.aclose()

    async def _converted(self) -> AsyncGenerator[_Frame, None]:
        """Yields the events of the stream in their order; first the error alone if nothing else came before it."""
        failure: RunFailed | None = None
        async with aclosing(self._events):
            async for event in self._events:
                self._run_id = event.run_id
                match event.WhichOneof("event"):
                    case "error":
                        failure = run_failed(event.error.error)
                        if not self._has_begun:
                            yield _Frame(None, failure)
                    case "stop":
                        yield self._frame({"message_type": "stop_reason", "stop_reason": stop_reason(event)})
                        if failure is not None:
                            yield self._frame(_error(failure, event.run_id), "error")
                            return
                    case _:
                        frame = self._content(event)
                        if frame is not None:
                            yield frame
        yield _Frame(None, DONE)

    def _content(self, event: runs_pb2.RunEvent) -> _Frame | None:
        """Returns the announcement, a message or the usage of the run; None if the stream does not show it.

        Events that are not shown have numbers as well, so that a number is the same event in every stream of the run.
        """
        is_shown = True
        match event.WhichOneof("event"):
            case "accepted" if not self._options.announces:
                return None
            case "accepted":
                value, is_shown = self._ping(moment(event, "create_time")), self._options.pings
            case "usage":
                usage = usage_of(event)
                value = {name: getattr(usage, name) for name in usage.__struct_fields__}
            case _:
                message = self._conversion.message(event)
                if message is None:
                    return None
                value, is_shown = message, self._shown.has(message["message_type"])
                self._has_begun = True
        frame = self._frame(value)
        self._has_begun |= is_shown
        return frame if is_shown else None

    def _frame(self, value: dict[str, Any], event: str | None = None) -> _Frame:
        self._number += 1
        return _Frame(self._number, sse(self._numbered(value), event))

    def _numbered(self, value: dict[str, Any]) -> dict[str, Any]:
        return value | {"seq_id": self._number} if self._options.numbered else value

    def _ping(self, date: object) -> dict[str, Any]:
        return {"message_type": "ping", "id": f"ping-{self._number}", "date": date, "run_id": self._run_id}


def _error(failure: RunFailed, run_id: str) -> dict[str, Any]:
    return {
        "message_type": "error_message",
        "run_id": run_id,
        "error_type": "internal_error",
        "message": failure.message,
        "detail": f"{failure.reason}: {failure.message}",
    }


async def events_of(mesh: Mesh, recipient: Recipient, body: SendMessages, key: str, *, stream: bool) -> Events:
    """Sends what a body has and returns the events of its run. A background run outlives its stream by contract.

    Args:
        mesh: the services.
        recipient: who receives it.
        body: of the client.
        key: the request id.
        stream: whether the events are needed while the run is executed. At its end, they cost less.
    """
    sent = sent_of(body)
    config = _config(recipient, body)
    if sent.is_answer:
        return await answering(mesh, recipient, sent, config, key)
    if body.background:
        run = await start_run(mesh, recipient, body, key)
        return runs.attach(mesh.runs, run.id, 0, PATIENCE)
    request = runs_service_pb2.SendMessageRequest(
        request_id=key,
        agent_id=recipient.agent_id,
        conversation_id=recipient.conversation_id,
        group_id=recipient.group_id,
        messages=sent.messages,
        config=config,
    )
    send = runs.send if stream else runs.send_and_wait
    return send(mesh.runs, request, PATIENCE, ACCEPTANCE)


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


async def replied(call: Call[Any, SendMessages], recipient: Recipient, *, stream: bool) -> LettaResponse | Response:
    """Returns the answer to what a request sends, whole or as a stream."""
    body = call.body
    shown = shown_of(body)
    events = await events_of(call.mesh, recipient, body, call.request_id, stream=stream)
    if not stream:
        return await answered(events, shown)
    options = StreamOptions(
        tokens=body.stream_tokens,
        pings=body.include_pings,
        announces=call.profile.announces_runs,
        numbered=body.background,
    )
    return await streamed(events, shown, options)


async def read_run(mesh: Mesh, run_id: str) -> runs_pb2.Run:
    """Returns a run. Raises NotFound."""
    request = runs_service_pb2.GetRunRequest(run_id=run_id)
    return (await mesh.runs.GetRun(request, timeout=READ_SECONDS)).run


async def attached(call: Call[Any, AttachingT], run_id: str) -> Response:
    """Returns the stream of a run after the events that the client has."""
    body = call.body
    if body.starting_after < 0:
        raise invalid_field("Input should be greater than or equal to 0", "body", "starting_after")
    run = await read_run(call.mesh, run_id)
    options = StreamOptions(
        tokens=run.config.stream_tokens,
        pings=body.include_pings is not False,
        announces=call.profile.announces_runs,
        numbered=True,
    )
    events = runs.attach(call.mesh.runs, run.id, 0, PATIENCE)
    return await streamed(events, Shown(), options, starting_after=body.starting_after)
