"""The live deltas of an answer: several tokens share an event, and the text so far is stored at intervals."""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from io import StringIO
from typing import Any, Final

import jiter
import structlog
from mnemesh_kit.errors import MnemeshError
from mnemesh_kit.unicode import MAX_TEXT_BYTES
from msgspec import structs

from mnemesh_orchestrator.builtin.schemas import THINKING
from mnemesh_orchestrator.llm.port import LlmEvent, ReasoningDelta, TextDelta, ToolCallDelta
from mnemesh_orchestrator.loop.step_messages import otid
from mnemesh_orchestrator.model.events import Delta, RunEvent
from mnemesh_orchestrator.model.journal import Lease
from mnemesh_orchestrator.store.deltas import DeltaStore

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
        """Returns the index of the message part in a slot."""
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
    """Returns the arguments as far as they are complete; an empty object if the text is no JSON object yet."""
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
            event: the event.
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
        """Stores the waiting events of a run. Durable events that follow them are stored afterwards.

        Raises:
            LeaseLost: another process holds the run now.
        """
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
