"""Turns of agents over HTTP, answered at once or as a stream."""

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from mnemesh.agents.v1 import agents_service_pb2, runs_pb2, runs_service_pb2
from mnemesh.recall.v1 import messages_service_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_client import runs
from mnemesh_kit.errors import NotFound
from mnemesh_letta.convert.values import STOP_REASON_NAMES, moment_of, present
from starlette.responses import Response

from mnemesh_gateway.errors import RunFailed
from mnemesh_gateway.http.errors import invalid_field
from mnemesh_gateway.http.streams import DONE, EventStream, Idle, sse
from mnemesh_gateway.letta.mesh import Mesh
from mnemesh_gateway.letta.messages import (
    Shown,
    calls_from_proto,
    content_from_proto,
    returns_from_proto,
    with_whole_requests,
)
from mnemesh_gateway.letta.operations import Call, read
from mnemesh_gateway.letta.sending import (
    SendMessages,
    Sent,
    blanket_decisions,
    config_to_proto,
    content_to_proto,
    sent_of,
    shown_of,
)


class StopReason(msgspec.Struct, kw_only=True):
    """Why a turn ended."""

    message_type: str = "stop_reason"
    stop_reason: str


class Usage(msgspec.Struct, kw_only=True):
    """The tokens of a turn. Null was not reported by the provider; zero was."""

    message_type: str = "usage_statistics"
    completion_tokens: int = 0
    prompt_tokens: int = 0
    total_tokens: int = 0
    step_count: int = 0
    run_ids: list[str] | None = None
    cached_input_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None
    context_tokens: int | None = None


class LettaResponse(msgspec.Struct, kw_only=True):
    """A turn: its messages, why it ended, and its tokens."""

    messages: list[dict[str, Any]]
    stop_reason: StopReason
    usage: Usage
    logprobs: dict[str, Any] | None = None
    turns: list[dict[str, Any]] | None = None


class StreamRun(msgspec.Struct, kw_only=True):
    """Where to attach to a run."""

    starting_after: int = 0
    include_pings: bool | None = True
    poll_interval: float | None = None
    batch_size: int | None = None


_INPUT: Final = frozenset({"system", "user", "approval_response"})
"""The kinds of messages that show the run's input. Letta's streams begin with the answer."""


class Conversion:
    """Converts the events of one run in order. Deltas take the place of the message that they complete to."""

    def __init__(self, *, tokens: bool) -> None:
        self._tokens = tokens
        self._streamed: set[str] = set()

    def message(self, event: runs_pb2.RunEvent) -> dict[str, Any] | None:
        """Returns the message of an event; None for one that clients do not see."""
        match event.WhichOneof("event"):
            case "message":
                return self._whole(event)
            case "delta" if self._tokens:
                self._streamed.add(event.delta.otid)
                return _delta(event)
            case "compaction":
                return _compaction(event)
        return None

    def _whole(self, event: runs_pb2.RunEvent) -> dict[str, Any] | None:
        message = event.message
        kind = message.WhichOneof("message")
        if kind is None or kind in _INPUT or message.otid in self._streamed:
            return None
        base = _base(event, message.message_id, message.otid, message)
        if kind == "approval_request" and event.agent_id:
            base |= {"sender_id": event.agent_id, "run_id": event.child_run_id}  # of the agent that is to be answered
        return base | _fields(kind, getattr(message, kind))


def _base(
    event: runs_pb2.RunEvent, message_id: str, otid: str, message: runs_pb2.MessageEvent | None
) -> dict[str, Any]:
    return {
        "id": message_id,
        "date": moment_of(message, "message_time") if message is not None else moment_of(event, "create_time"),
        "name": present(message, "name") if message is not None else None,
        "otid": otid,
        "sender_id": present(message, "sender_id") if message is not None else None,
        "step_id": present(event, "step_id"),
        "is_err": present(message, "is_err") if message is not None else None,
        "seq_id": None,
        "run_id": event.run_id,
    }


def _fields(kind: str, given: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {"message_type": f"{kind}_message"}
    match kind:
        case "assistant":
            return fields | {"content": content_from_proto(given.content)}
        case "reasoning":
            source = "reasoner_model" if given.is_native else "non_reasoner_model"
            return fields | {"reasoning": given.text, "source": source, "signature": present(given, "signature")}
        case "hidden_reasoning":
            state = "redacted" if given.redacted else "omitted"
            return fields | {"state": state, "hidden_reasoning": present(given, "data")}
        case "tool_call" | "approval_request":
            return fields | calls_from_proto(given.tool_calls)
        case "tool_return":
            return fields | returns_from_proto(given.tool_returns)
    return fields | {"summary": given.text}


def _delta(event: runs_pb2.RunEvent) -> dict[str, Any]:
    delta = event.delta
    base = _base(event, delta.message_id, delta.otid, None)
    match delta.WhichOneof("delta"):
        case "assistant_text":
            return base | {"message_type": "assistant_message", "content": delta.assistant_text}
        case "reasoning_text":
            fields = {"reasoning": delta.reasoning_text, "source": "reasoner_model", "signature": None}
            return base | {"message_type": "reasoning_message"} | fields
    call = {
        "name": delta.tool_call.name or None,
        "arguments": delta.tool_call.arguments or None,
        "tool_call_id": delta.tool_call.tool_call_id or None,
    }
    return base | {"message_type": "tool_call_message", "tool_call": call, "tool_calls": call}


def _compaction(event: runs_pb2.RunEvent) -> dict[str, Any]:
    result = event.compaction.result
    message_id = result.summary_message_id or f"message-{event.run_id.partition('-')[2]}"
    base = _base(event, message_id, "", None) | {"otid": None}
    return base | {"message_type": "summary_message", "summary": result.summary}


def with_whole_returns(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the messages of a turn with one message for the returns of each step, as the history has it.

    Each return is an event of its own, as soon as its tool has ended. A message has them in the order of the calls.
    """
    returns: dict[str, list[dict[str, Any]]] = {}
    whole: list[dict[str, Any]] = []
    for message in messages:
        if message["message_type"] != "tool_return_message":
            whole.append(message)
            continue
        parts = returns.setdefault(message["id"], [])
        parts.append(message)
        if len(parts) == 1:
            whole.append(message)
    for index, message in enumerate(whole):
        if message["message_type"] == "tool_return_message":
            parts = sorted(returns[message["id"]], key=lambda part: str(part["otid"]))
            whole[index] = parts[0] | {"tool_returns": [one for part in parts for one in part["tool_returns"]]}
    return whole


def run_failed(error: runs_pb2.RunError) -> RunFailed:
    return RunFailed(error.reason, error.message, dict(error.metadata))


def stop_reason(event: runs_pb2.RunEvent) -> str:
    return STOP_REASON_NAMES.get(event.stop.reason, "error")


def usage_of(event: runs_pb2.RunEvent) -> Usage:
    """Returns the tokens of a turn, those of its conversation in the context window, and the runs that it started."""
    usage = usage_from_proto(event.usage.usage, event.usage.step_count)
    usage.run_ids = list(event.usage.child_run_ids) or None
    usage.context_tokens = present(event.usage, "context_tokens")
    return usage


def usage_from_proto(usage: Any, step_count: int) -> Usage:
    """Returns tokens."""
    return Usage(
        completion_tokens=usage.completion_tokens,
        prompt_tokens=usage.prompt_tokens,
        total_tokens=usage.total_tokens or usage.completion_tokens + usage.prompt_tokens,
        step_count=step_count,
        cached_input_tokens=present(usage, "cached_input_tokens"),
        cache_write_tokens=present(usage, "cache_write_tokens"),
        reasoning_tokens=present(usage, "reasoning_tokens"),
    )


PATIENCE: Final = 60.0
ACCEPTANCE: Final = 5.0
_CUT_OFF: Final = frozenset({runs_pb2.RUN_STATUS_CANCELLED, runs_pb2.RUN_STATUS_FAILED})
_CONTINUE: Final = (
    "<system-alert>Automatic keep-alive message without content. Continue where you stopped.</system-alert>"
)
Events = AsyncGenerator[runs_pb2.RunEvent, None]


@dataclass(frozen=True, slots=True)
class Recipient:
    """The recipient of messages: an agent, optionally with a conversation; a conversation alone; or a group."""

    agent_id: str = ""
    conversation_id: str | None = None
    group_id: str | None = None


async def answer_approval(mesh: Mesh, recipient: Recipient, sent: Sent, config: runs_pb2.RunConfig, key: str) -> Events:
    """Answers a request for approval and returns the events of the run.

    An answer that is sent again has the run of the first one. If that was cancelled or failed, a client that sends its
    answer again wants the turn to go on: a new run does that, with the messages of the answer.
    """
    answer = await _answer(mesh, recipient, sent, config, key)
    events = runs.send(mesh.runs, answer, PATIENCE, ACCEPTANCE)
    try:
        first = await anext(events)
        if not (first.accepted.replayed and await _was_cut_off(mesh, first.run_id)):
            return _from(first, events)
    except BaseException:
        await events.aclose()
        raise
    await events.aclose()
    request = runs_service_pb2.SendMessageRequest(
        request_id=f"{key}-continuation",
        agent_id=recipient.agent_id,
        conversation_id=recipient.conversation_id,
        messages=sent.messages or [_keep_alive()],
        config=config,
    )
    return runs.send(mesh.runs, request, PATIENCE, ACCEPTANCE)


async def _from(first: runs_pb2.RunEvent, events: Events) -> Events:
    try:
        yield first
        async for event in events:
            yield event
    finally:
        await events.aclose()


async def _was_cut_off(mesh: Mesh, run_id: str) -> bool:
    return (await read(mesh.runs.GetRun, runs_service_pb2.GetRunRequest(run_id=run_id))).run.status in _CUT_OFF


def _keep_alive() -> runs_pb2.InputMessage:
    content = content_to_proto(_CONTINUE, "body", "messages")
    return runs_pb2.InputMessage(role=message_pb2.ROLE_USER, content=content)


async def _answer(
    mesh: Mesh, recipient: Recipient, sent: Sent, config: runs_pb2.RunConfig, key: str
) -> runs_service_pb2.AnswerApprovalRequest:
    if recipient.group_id is not None:
        raise invalid_field("An approval is answered to the agent that asked, not to its group.", "body", "messages")
    decisions = list(sent.decisions)
    if sent.blanket is not None:
        request_id = sent.approval_request_id or await _find_pending(mesh, recipient.agent_id)
        found = messages_service_pb2.GetMessagesRequest(message_ids=[request_id])
        messages = (await read(mesh.messages.GetMessages, found)).messages
        decisions += blanket_decisions(sent, [call for message in messages for call in message.tool_calls])
    return runs_service_pb2.AnswerApprovalRequest(
        request_id=key,
        agent_id=recipient.agent_id,
        conversation_id=recipient.conversation_id,
        approval_request_id=sent.approval_request_id,
        decisions=decisions,
        messages=sent.messages,
        config=config,
    )


async def _find_pending(mesh: Mesh, agent_id: str) -> str:
    agent = (await read(mesh.agents.GetAgent, agents_service_pb2.GetAgentRequest(agent_id=agent_id))).agent
    if not agent.HasField("pending_approval_request_id"):
        raise NotFound(f"{agent_id} waits for no approval.")
    return agent.pending_approval_request_id


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


async def stream_turn(events: Events, shown: Shown, options: StreamOptions, *, starting_after: int = 0) -> Response:
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
        self._frames = self._convert()
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

    async def _convert(self) -> AsyncGenerator[_Frame, None]:
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
                value, is_shown = self._ping(moment_of(event, "create_time")), self._options.pings
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
        return await answer_approval(mesh, recipient, sent, config, key)
    if body.background:
        run = await start_run(mesh, recipient, body, key)
        return runs.attach(mesh.runs, run.id, 0, PATIENCE)
    request = runs_service_pb2.SendMessageRequest(
        request_id=key, messages=sent.messages, config=config, **dataclasses.asdict(recipient)
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
        async with aclosing(await answer_approval(mesh, recipient, sent, config, key)) as events:
            run_id = (await anext(events)).run_id
        return await read_run(mesh, run_id)
    start = runs_service_pb2.StartRunRequest(
        request_id=key, messages=sent.messages, config=config, **dataclasses.asdict(recipient)
    )
    return (await read(mesh.runs.StartRun, start)).run


async def collect_turn(events: Events, shown: Shown) -> LettaResponse:
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


async def reply_to(call: Call[Any, SendMessages], recipient: Recipient, *, stream: bool) -> LettaResponse | Response:
    """Returns the answer to what a request sends, whole or as a stream."""
    body = call.body
    shown = shown_of(body)
    events = await events_of(call.mesh, recipient, body, call.request_id, stream=stream)
    if not stream:
        return await collect_turn(events, shown)
    options = StreamOptions(
        tokens=body.stream_tokens,
        pings=body.include_pings,
        announces=call.profile.announces_runs,
        numbered=body.background,
    )
    return await stream_turn(events, shown, options)


async def read_run(mesh: Mesh, run_id: str) -> runs_pb2.Run:
    """Returns a run. Raises NotFound."""
    return (await read(mesh.runs.GetRun, runs_service_pb2.GetRunRequest(run_id=run_id))).run


async def attach_to_run(call: Call[Any, AttachingT], run_id: str) -> Response:
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
    return await stream_turn(events, Shown(), options, starting_after=body.starting_after)
