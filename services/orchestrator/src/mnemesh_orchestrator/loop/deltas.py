"""The live deltas of an answer, batched for a moment so that several tokens share an event."""

import asyncio
from collections.abc import Callable, Collection
from typing import Any

import jiter

from mnemesh_orchestrator.builtin.schemas import THINKING
from mnemesh_orchestrator.llm.port import LlmEvent, ReasoningDelta, TextDelta, ToolCallDelta
from mnemesh_orchestrator.loop.message_events import otid
from mnemesh_orchestrator.model.events import Delta

BATCH_SECONDS = 0.025
"""The time for which deltas are batched after one was sent."""


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
        self._pending: dict[str, Delta] = {}
        self._offsets: dict[str, int] = {}
        self._calls: dict[int, tuple[str, str]] = {}
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
                for index in self._calls:
                    self._add_call(index)
                self._add_held_words()
                self.flush()

    def _take_call(self, index: int, name: str, arguments: str) -> None:
        known_name, known = self._calls.get(index, ("", ""))
        name, text = known_name or name, known + arguments
        self._calls[index] = (name, text)
        partial = _partial(text) if self._thinks or self._speaks(name) else {}
        if self._thinks:
            self._grow(index, "reasoning", "reasoning", partial.get(THINKING))
        if self._speaking is not None and self._speaks(name):
            if not self._may_hold_words():
                self._grow(index, f"speech/{index}", "assistant", partial.get(self._speaking[1]))
            elif self._speaking[1] in partial:
                self._part_index(f"speech/{index}")
        elif not self._thinks or (partial and partial.get(THINKING) != ""):
            self._add_call(index)
        # Otherwise the call may begin with a thought, whose part comes first.

    def _add_held_words(self) -> None:
        if self._has_gated_call():
            return
        for index, (name, text) in self._calls.items():
            if self._speaking is not None and self._speaks(name):
                self._grow(index, f"speech/{index}", "assistant", _partial(text).get(self._speaking[1]))

    def _may_hold_words(self) -> bool:
        return bool(self._gated) and (self._several or self._has_gated_call())

    def _has_gated_call(self) -> bool:
        return any(name in self._gated for name, _ in self._calls.values())

    def _speaks(self, name: str) -> bool:
        return self._speaking is not None and name == self._speaking[0]

    def _add_call(self, index: int) -> None:
        """Adds the text by which a call has grown since the last delta."""
        name, text = self._calls[index]
        slot = f"call/{index}"
        if not self._speaks(name) and (len(text) > self._offsets.get(slot, 0) or slot not in self._offsets):
            self._add(slot, "tool_call", text[self._offsets.get(slot, 0) :], self._call_id(index), name)

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
        waiting = self._pending.get(slot)
        if waiting is None:
            part = otid(self._message_id, self._part_index(slot))
            offset = self._offsets.get(slot, 0)
            self._pending[slot] = Delta(self._message_id, part, offset, kind, text, call_id, name)
        else:
            self._pending[slot] = Delta(
                waiting.message_id, waiting.otid, waiting.offset, kind, waiting.text + text, call_id, name
            )
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
        for delta in pending.values():
            self._publish(delta)

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
