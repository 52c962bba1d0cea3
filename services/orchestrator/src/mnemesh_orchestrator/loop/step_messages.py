"""The messages of a step, and the live deltas of the answer that become them."""

import asyncio
import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from io import StringIO
from typing import Any, Final
from uuid import UUID

import jiter
import structlog
from mnemesh_kit.errors import MnemeshError
from mnemesh_kit.ids import derive_id
from mnemesh_kit.unicode import MAX_TEXT_BYTES
from mnemesh_types.messages import (
    ContentPart,
    Message,
    OmittedReasoningPart,
    ReasoningPart,
    RedactedReasoningPart,
    Role,
    SummarizedReasoningPart,
    TextPart,
    ToolCall,
    ToolReturn,
)
from msgspec import structs

from mnemesh_orchestrator.builtin.arguments import storable_arguments
from mnemesh_orchestrator.builtin.schemas import THINKING
from mnemesh_orchestrator.llm.port import LlmAnswer, LlmEvent, ReasoningDelta, TextDelta, ToolCallDelta
from mnemesh_orchestrator.model.conversations import ContextWindow, PlannedCall
from mnemesh_orchestrator.model.events import Delta, Lease, MessageEvent, RunEvent
from mnemesh_orchestrator.model.inputs import SHOWN_ROLES, RunConfig
from mnemesh_orchestrator.model.runs import Run
from mnemesh_orchestrator.prompt.assembly import heartbeat
from mnemesh_orchestrator.store.deltas import DeltaStore

_PARTS: Final = 127
_SPEECH_INDEX: Final = 64
"""The part index of the first words that are spoken after their call was approved."""


def step_id(run_id: str, number: int) -> str:
    """Returns the id of a run's step. It is the same after a restart."""
    return derive_id("step", run_id, str(number))


def call_id(step: str, ordinal: int) -> str:
    """Returns mnemesh's id of a call. Its 29 characters fit every provider; the providers' own ids can repeat."""
    return "call_" + derive_id("call", step, str(ordinal)).removeprefix("call-").replace("-", "")[:24]


def answer_id(step: str) -> str:
    """Returns the id of a step's assistant message, which is known before the first token."""
    return derive_id("message", step, "answer")


def returns_id(step: str) -> str:
    """Returns the id of a step's tool message."""
    return derive_id("message", step, "returns")


def approval_request_id(step: str) -> str:
    """Returns the id of the message that requests approval for calls of a step."""
    return derive_id("message", step, "approval")


def input_id(run_id: str, ordinal: int) -> str:
    """Returns the id of a message of a run's input."""
    return derive_id("message", run_id, "input", str(ordinal))


def input_messages(run: Run, window: ContextWindow) -> tuple[Message, ...]:
    """Returns the part of a run's input that is to enter the window: all of it, or nothing if the window holds it.

    The window holds it if the run was resumed after a crash, or if it retries a run that committed it.
    """
    messages = recorded_input(run)
    held = {message.id for message in messages}
    return () if any(message.id in held for message in window.messages) else messages


def recorded_input(run: Run) -> tuple[Message, ...]:
    """Returns a run's input as messages, dated when it was sent.

    Every attempt at an input returns the same messages: their ids, run and step are those of the first attempt, so that
    recall stores each of them once.
    """
    return tuple(
        Message(
            id=input_id(run.first_run_id, ordinal),
            role=message.role,
            created_at=run.created_at,
            content=message.content,
            name=message.name,
            otid=message.otid,
            sender_id=message.sender_id,
            group_id=message.group_id or run.group_id,
            step_id=step_id(run.first_run_id, 1),
            run_id=run.first_run_id,
            conversation_id=run.conversation_id,
        )
        for ordinal, message in enumerate(run.input)
    )


def answer_message(
    run: Run, step: str, model: str, answer: LlmAnswer, now: datetime, *, text_is_reasoning: bool
) -> Message:
    """Returns the assistant message of an answer, with mnemesh's ids of its calls.

    Args:
        run: the run that received the answer.
        step: the step's id.
        model: the handle of the model that answered.
        now: the time of the message.
        text_is_reasoning: text next to a call is reasoning, because the agent speaks by a tool.
    """
    calls = tuple(
        ToolCall(call_id(step, ordinal), call.name, call.arguments, call.provider_id)
        for ordinal, call in enumerate(answer.tool_calls)
    )
    content: Sequence[ContentPart] = answer.content
    if calls and text_is_reasoning:
        content = [ReasoningPart(part.text) if isinstance(part, TextPart) else part for part in content]
    return Message(
        id=answer_id(step),
        role=Role.ASSISTANT,
        created_at=now,
        content=tuple(part for part in content if not (isinstance(part, TextPart) and not part.text)),
        tool_calls=calls,
        carried=answer.carried,
        model=model,
        step_id=step,
        run_id=run.id,
        conversation_id=run.conversation_id,
        group_id=run.group_id,
    )


def stored_answer(
    message: Message, planned: Sequence[PlannedCall], takes_heartbeat: Callable[[str], bool], *, heartbeat: bool
) -> Message:
    """Returns the answer as it is stored: without the arguments that the loop added to the tools' schemas.

    The "thinking" argument becomes reasoning, and request_heartbeat says what the loop decided. Arguments that are no
    JSON object are stored in a form that a message can hold.

    Args:
        message: the assistant message.
        takes_heartbeat: returns whether a tool has the request_heartbeat argument.
        heartbeat: whether the turn continues after the step.
    """
    thoughts = tuple(ReasoningPart(item.thinking) for item in planned if item.thinking)
    calls = []
    for item in planned:
        if item.problem is not None:
            calls.append(structs.replace(item.call, arguments=storable_arguments(item.call.arguments)))
            continue
        decided = {"request_heartbeat": heartbeat} if takes_heartbeat(item.call.name) else {}
        calls.append(
            structs.replace(item.call, arguments=json.dumps({**item.arguments, **decided}, ensure_ascii=False))
        )
    return replace(message, content=(*thoughts, *message.content), tool_calls=tuple(calls))


def returns_message(run: Run, step: str, returns: Sequence[ToolReturn], at: datetime) -> Message:
    """Returns the one tool message of a step, with all returns in the order of their calls."""
    return Message(
        id=returns_id(step),
        role=Role.TOOL,
        created_at=at,
        tool_returns=tuple(returns),
        step_id=step,
        run_id=run.id,
        conversation_id=run.conversation_id,
        group_id=run.group_id,
    )


def heartbeat_message(run: Run, step: str, reason: str, at: datetime, time_zone: str) -> Message:
    """Returns the event that returns control to the model."""
    return Message(
        id=derive_id("message", step, "heartbeat"),
        role=Role.USER,
        created_at=at,
        content=(TextPart(heartbeat(reason, at, time_zone)),),
        is_event=True,
        step_id=step,
        run_id=run.id,
        conversation_id=run.conversation_id,
        group_id=run.group_id,
    )


def gated_calls(planned: Sequence[PlannedCall]) -> tuple[ToolCall, ...]:
    """Returns the calls that wait for a decision, with the arguments that they will run with."""
    return tuple(
        structs.replace(item.call, arguments=json.dumps(dict(item.arguments), ensure_ascii=False))
        for item in planned
        if item.gated
    )


def otid(message_id: str, index: int) -> str:
    """Returns the client's id of a part: the message's UUID with its low 7 bits replaced by the part's index."""
    value = UUID(message_id.partition("-")[2]).int
    return str(UUID(int=(value & ~_PARTS) | min(index, _PARTS)))


def reasoning_and_words(message: Message) -> list[tuple[str, tuple[ContentPart, ...]]]:
    """Returns the content in order as (kind, parts). Adjacent words are one item, each reasoning part is its own."""
    items: list[tuple[str, tuple[ContentPart, ...]]] = []
    for part in message.content:
        match part:
            case SummarizedReasoningPart(summaries=()):
                items.append(("hidden_reasoning", (part,)))
            case ReasoningPart() | SummarizedReasoningPart():
                items.append(("reasoning", (part,)))
            case RedactedReasoningPart() | OmittedReasoningPart():
                items.append(("hidden_reasoning", (part,)))
            case _ if items and items[-1][0] == "assistant":
                items[-1] = ("assistant", (*items[-1][1], part))
            case _:
                items.append(("assistant", (part,)))
    return items


def input_events(run: Run) -> list[RunEvent]:
    """Returns the first events of a run, which show its input. They are not stored, because the run has the input."""
    shown = [message for message in recorded_input(run) if message.role in SHOWN_ROLES]
    return [
        RunEvent(run.id, run.created_at, recorded_input_event(message), number)
        for number, message in enumerate(shown[: run.shown_inputs], 1)
    ]


def recorded_input_event(message: Message) -> MessageEvent:
    """Returns the event that shows a message of a run's input."""
    return MessageEvent(
        kind=message.role.value,
        message_id=message.id,
        otid=message.otid or otid(message.id, 0),
        message_time=message.created_at,
        content=message.content,
        name=message.name,
        sender_id=message.sender_id,
    )


def summary_event(message: Message) -> MessageEvent:
    """Returns the event of a summary, in the words that the model reads."""
    return MessageEvent("summary", message.id, otid(message.id, 0), message.created_at, message.content)


def message_events(message: Message, speech: dict[str, tuple[ContentPart, ...]]) -> list[MessageEvent]:
    """Returns the events of an assistant message.

    Args:
        speech: by call id, the words of calls that are shown as the assistant's words instead of as calls.
    """
    events: list[MessageEvent] = []

    def add(kind: str, content: tuple[ContentPart, ...] = (), calls: tuple[ToolCall, ...] = ()) -> None:
        events.append(
            MessageEvent(
                kind=kind,
                message_id=message.id,
                otid=otid(message.id, len(events)),
                message_time=message.created_at,
                content=content,
                tool_calls=calls,
                name=message.name,
            )
        )

    for kind, parts in reasoning_and_words(message):
        add(kind, parts)
    calls: list[ToolCall] = []
    for call in message.tool_calls:
        if call.id in speech:
            if calls:
                add("tool_call", calls=tuple(calls))
                calls = []
            add("assistant", speech[call.id])
        else:
            calls.append(call)
    if calls:
        add("tool_call", calls=tuple(calls))
    return events


def answer_events(message: Message, planned: Sequence[PlannedCall], config: RunConfig) -> list[MessageEvent]:
    """Returns the events of an answer.

    The words of the speaking tool are shown as the assistant's words if the call can run. If any call waits for a
    decision, the events show no words of the speaking tool, and a request for approval follows.
    """
    if not planned:
        return message_events(message, {})
    gated = {item.call.id for item in planned if item.gated}
    stored = stored_answer(message, planned, lambda _: False, heartbeat=False)
    if gated:
        free = tuple(call for call in stored.tool_calls if call.id not in gated)
        events = message_events(replace(stored, tool_calls=free), {})
        return [*events, approval_request_event(message, planned)]
    speech: dict[str, tuple[ContentPart, ...]] = {}
    for item in planned:
        if config.assistant_messages and item.call.name == config.assistant_tool_name and item.problem is None:
            text = item.arguments.get(config.assistant_tool_argument)
            if isinstance(text, str):
                speech[item.call.id] = (TextPart(text),)
    return message_events(stored, speech)


def return_event(step_id: str, ordinal: int, returned: ToolReturn, at: datetime) -> MessageEvent:
    """Returns the event of a tool return. It is a part of the step's one tool message."""
    message_id = returns_id(step_id)
    return MessageEvent(
        kind="tool_return",
        message_id=message_id,
        otid=otid(message_id, ordinal),
        message_time=at,
        tool_returns=(returned,),
    )


def approval_request_event(message: Message, planned: Sequence[PlannedCall]) -> MessageEvent:
    """Returns the event that asks for approval of the gated calls of an answer."""
    id_ = approval_request_id(message.step_id or "")
    return MessageEvent("approval_request", id_, otid(id_, 0), message.created_at, tool_calls=gated_calls(planned))


def approval_response_event(message: Message) -> MessageEvent:
    """Returns the event of a message that answers a request for approval."""
    return MessageEvent(
        "approval_response",
        message.id,
        otid(message.id, 0),
        message.created_at,
        approval_request_id=message.approval_request_id,
        decisions=message.approval_decisions,
    )


def approved_speech_event(message_id: str, item: PlannedCall, text: str, at: datetime) -> MessageEvent:
    """Returns the event of words whose speaking call had waited for approval."""
    part = otid(message_id, _SPEECH_INDEX + item.ordinal)
    return MessageEvent("assistant", message_id, part, at, content=(TextPart(text),))


BATCH_SECONDS = 0.025
"""The time for which deltas are batched after one was sent."""
_SHORT: Final = 4096
_READS_PER_DOUBLING: Final = 64

_log = structlog.get_logger("mnemesh.loop")

INTERVAL_SECONDS: Final = 0.25
"""The longest time until a live event is stored."""


@dataclass(slots=True)
class _Call:
    """A call so far. `unsent` are the pieces that no delta has sent; `read_at` is the length at the next reading."""

    name: str = ""
    text: StringIO = field(default_factory=lambda: StringIO(newline=""))
    length: int = 0
    unsent: list[str] = field(default_factory=list)
    read_at: int = 0

    def add(self, name: str, piece: str) -> None:
        self.name = self.name or name
        self.text.write(piece)
        self.length += len(piece)
        self.unsent.append(piece)

    def read(self, *, is_whole: bool = False) -> dict[str, Any] | None:
        """Returns the arguments as far as they are complete; None if it is not worth to read them again yet.

        A reading takes as long as the arguments are. Long ones are read again once they have grown by a part of their
        length, so that all readings together take a multiple of the time of one.
        """
        if not is_whole and self.length < self.read_at:
            return None
        if self.length > MAX_TEXT_BYTES:  # The call is refused.
            return None
        self.read_at = self.length + (self.length // _READS_PER_DOUBLING if self.length > _SHORT else 1)
        return _partial(self.text.getvalue())


class DeltaStream:
    """Converts the model's events to deltas of the future message. The first is sent at once, later ones in batches.

    The argument of the speaking tool is sent as the assistant's words while its JSON is incomplete, and the "thinking"
    argument as reasoning. Parts get their otids in the order of the complete message. A call that waits for a decision
    holds back the words of the same answer, so an answer with several calls sends no words until all are known.

    Args:
        message_id: the id of the future message.
        call_id: returns the id of the call with an ordinal.
        publish: sends a delta.
        speaking_tool: the name of the tool by which the agent speaks, and of its argument; None if it has none.
        text_is_reasoning: text is reasoning, because the agent speaks by a tool.
        thinks_in_arguments: the loop adds a "thinking" argument to every tool.
        gated: the tools whose calls wait for a decision.
        several: an answer may have several calls.
    """

    def __init__(
        self,
        message_id: str,
        call_id: Callable[[int], str],
        publish: Callable[[Delta], None],
        speaking_tool: tuple[str, str] | None,
        *,
        text_is_reasoning: bool = False,
        thinks_in_arguments: bool = False,
        gated: Collection[str] = (),
        several: bool = True,
    ) -> None:
        self._message_id = message_id
        self._call_id = call_id
        self._publish = publish
        self._speaking = speaking_tool
        self._text_kind = "reasoning" if text_is_reasoning else "assistant"
        self._thinks = thinks_in_arguments
        self._gated = gated
        self._several = several
        self._indexes: dict[str, int] = {}
        self._pending: dict[str, tuple[Delta, list[str]]] = {}
        self._offsets: dict[str, int] = {}
        self._calls: dict[int, _Call] = {}
        self._lengths: dict[tuple[int, str], int] = {}
        self._timer: asyncio.TimerHandle | None = None

    def take(self, event: LlmEvent) -> None:
        """Takes an event of the model."""
        match event:
            case TextDelta(text):
                self._add(self._text_kind, self._text_kind, text)
            case ReasoningDelta(text):
                self._add("reasoning", "reasoning", text)
            case ToolCallDelta(index, name, arguments):
                self._take_call(index, name, arguments)
            case _:
                self._take_rest()
                self.flush()

    def _take_call(self, index: int, name: str, arguments: str) -> None:
        call = self._calls.setdefault(index, _Call())
        call.add(name, arguments)
        if not (self._thinks or self._speaks(call.name)):
            self._add_call(index, call)
        elif (partial := call.read()) is not None:
            self._take_arguments(index, call, partial)
        if self._speaks(call.name):
            call.unsent.clear()

    def _take_arguments(self, index: int, call: _Call, partial: dict[str, Any]) -> None:
        if self._thinks:
            self._grow(index, "reasoning", "reasoning", partial.get(THINKING))
        if self._speaking is not None and self._speaks(call.name):
            if not self._may_hold_words():
                self._grow(index, f"speech/{index}", "assistant", partial.get(self._speaking[1]))
            elif self._speaking[1] in partial:
                self._part_index(f"speech/{index}")
        elif not self._thinks or (partial and partial.get(THINKING) != ""):
            self._add_call(index, call)
        # Otherwise the call may begin with a thought, whose part comes first.

    def _take_rest(self) -> None:
        """Takes what the last readings of the calls did not see, and the words that waited for all calls."""
        for index, call in self._calls.items():
            is_read = self._thinks or self._speaks(call.name)
            if is_read and (partial := call.read(is_whole=True)) is not None:
                self._take_arguments(index, call, partial)
            self._add_call(index, call)
        if self._has_gated_call() or self._speaking is None:
            return
        for index, call in self._calls.items():
            if self._speaks(call.name) and (partial := call.read(is_whole=True)) is not None:
                self._grow(index, f"speech/{index}", "assistant", partial.get(self._speaking[1]))

    def _may_hold_words(self) -> bool:
        return bool(self._gated) and (self._several or self._has_gated_call())

    def _has_gated_call(self) -> bool:
        return any(call.name in self._gated for call in self._calls.values())

    def _speaks(self, name: str) -> bool:
        return self._speaking is not None and name == self._speaking[0]

    def _add_call(self, index: int, call: _Call) -> None:
        """Adds the text by which a call has grown since the last delta."""
        slot = f"call/{index}"
        if not self._speaks(call.name):
            text, call.unsent = "".join(call.unsent), []
            if text or slot not in self._offsets:
                self._add(slot, "tool_call", text, self._call_id(index), call.name)

    def _grow(self, index: int, slot: str, kind: str, text: object) -> None:
        """Adds the text by which an argument has grown since the last delta."""
        if not isinstance(text, str):
            return
        seen = self._lengths.get((index, slot), 0)
        if len(text) > seen:
            self._lengths[index, slot] = len(text)
            self._add(slot, kind, text[seen:])

    def _add(self, slot: str, kind: str, text: str, call_id: str = "", name: str = "") -> None:
        if not text and not name:
            return
        if slot not in self._pending:
            part = otid(self._message_id, self._part_index(slot))
            offset = self._offsets.get(slot, 0)
            self._pending[slot] = Delta(self._message_id, part, offset, kind, "", call_id, name), []
        self._pending[slot][1].append(text)
        self._offsets[slot] = self._offsets.get(slot, 0) + len(text)
        if self._timer is None:
            self._send()
            self._timer = asyncio.get_running_loop().call_later(BATCH_SECONDS, self._batch_over)

    def _part_index(self, slot: str) -> int:
        return self._indexes.setdefault(slot, len(self._indexes))

    def _batch_over(self) -> None:
        self._timer = None
        if self._pending:
            self._send()
            self._timer = asyncio.get_running_loop().call_later(BATCH_SECONDS, self._batch_over)

    def _send(self) -> None:
        pending, self._pending = self._pending, {}
        for delta, texts in pending.values():
            self._publish(structs.replace(delta, text="".join(texts)))

    def flush(self) -> None:
        """Sends the waiting deltas, and stops the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._send()


def _partial(text: str) -> dict[str, Any]:
    """Returns the arguments as far as they are complete; an empty object if the text is not a JSON object yet."""
    try:
        value = jiter.from_json(text.encode(), partial_mode="trailing-strings")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


@dataclass(slots=True)
class _Open:
    lease: Lease
    number: int = 0
    waiting: list[tuple[int, RunEvent]] = field(default_factory=list)
    timer: asyncio.TimerHandle | None = None
    storing: asyncio.Lock = field(default_factory=asyncio.Lock)


class DeltaLog:
    """The live events of the background runs that this process executes."""

    def __init__(self, store: DeltaStore) -> None:
        self._store = store
        self._open: dict[str, _Open] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, lease: Lease, after: int, event: RunEvent) -> RunEvent:
        """Returns the event with its position, and stores it before long.

        Args:
            lease: the lease of the run.
            after: the sequence number of the last durable event before it.
        """
        log = self._open.get(lease.run_id)
        if log is None or log.lease != lease:
            log = self._open[lease.run_id] = _Open(lease)
        log.number += 1
        numbered = replace(event, position=(lease.epoch, log.number))
        log.waiting.append((after, numbered))
        if log.timer is None:
            log.timer = asyncio.get_running_loop().call_later(INTERVAL_SECONDS, self._due, log)
        return numbered

    async def flush(self, run_id: str) -> None:
        """Stores the waiting events of a run. Durable events that follow them are stored afterwards."""
        log = self._open.get(run_id)
        if log is not None:
            await self._store_waiting(log)

    def drop(self, run_id: str) -> None:
        """Forgets a run that this process does not execute any more."""
        log = self._open.pop(run_id, None)
        if log is not None and log.timer is not None:
            log.timer.cancel()

    def _due(self, log: _Open) -> None:
        task = asyncio.ensure_future(self._try_to_store(log))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _try_to_store(self, log: _Open) -> None:
        try:
            await self._store_waiting(log)
        except MnemeshError as error:
            _log.warning("live_events_not_stored", run_id=log.lease.run_id, error=error.message)

    async def _store_waiting(self, log: _Open) -> None:
        async with log.storing:
            if log.timer is not None:
                log.timer.cancel()
                log.timer = None
            taken = tuple(log.waiting)
            if taken:
                try:
                    await self._store.append(log.lease, taken)
                except MnemeshError:
                    raise
                except Exception:
                    # Live events are a convenience of followers: the durable ones have everything.
                    _log.exception("live_events_dropped", run_id=log.lease.run_id, count=len(taken))
                del log.waiting[: len(taken)]
