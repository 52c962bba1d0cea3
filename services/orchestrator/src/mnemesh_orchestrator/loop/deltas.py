"""Live pieces of an answer: gathered for a moment, so that a token costs no event of its own."""

import asyncio
from collections.abc import Callable, Collection
from typing import Any

import jiter

from mnemesh_orchestrator.builtin.schemas import THINKING
from mnemesh_orchestrator.llm.port import LlmEvent, ReasoningDelta, TextDelta, ToolCallDelta
from mnemesh_orchestrator.loop.message_events import otid
from mnemesh_orchestrator.model.events import Delta

PAUSE_SECONDS = 0.025
"""After a piece went out, the next ones are gathered for so long."""


class DeltaStream:
    """Turns what the model is saying into deltas of the message-to-be, the first at once, then gathered.

    Where a tool speaks for the agent (`speaking_tool`), its argument is shown
    as the assistant's words while its JSON is still incomplete; so is the
    "thinking" argument of any tool as reasoning, where the loop adds one
    (`thinks_in_arguments`). Parts get their otids in the order in which the
    whole message will have them. A call that waits for a decision (one of the
    tools `gated`) holds back what is said beside it. So where an answer may
    have several calls (`several`), nothing is said before all of them are
    known; where it has one, words come as they are written.
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
        self._shown: dict[tuple[int, str], int] = {}
        self._timer: asyncio.TimerHandle | None = None

    def take(self, event: LlmEvent) -> None:
        """Shows a piece."""
        match event:
            case TextDelta(text):
                self._add(self._text_kind, self._text_kind, text)
            case ReasoningDelta(text):
                self._add("reasoning", "reasoning", text)
            case ToolCallDelta(index, name, arguments):
                self._take_call(index, name, arguments)
            case _:
                for index in self._calls:
                    self._show_call(index)
                self._say_what_was_held()
                self.flush()

    def _take_call(self, index: int, name: str, arguments: str) -> None:
        known_name, known = self._calls.get(index, ("", ""))
        name, text = known_name or name, known + arguments
        self._calls[index] = (name, text)
        partial = _partial(text) if self._thinks or self._speaks(name) else {}
        if self._thinks:
            self._grow(index, "reasoning", "reasoning", partial.get(THINKING))
        if self._speaking is not None and self._speaks(name):
            if not self._may_be_held_back():
                self._grow(index, f"speech/{index}", "assistant", partial.get(self._speaking[1]))
            elif self._speaking[1] in partial:
                self._place(f"speech/{index}")
        elif not self._thinks or (partial and partial.get(THINKING) != ""):
            self._show_call(index)
        # Otherwise nobody knows yet whether the call begins with a thought, whose part comes before it.

    def _say_what_was_held(self) -> None:
        if self._something_waits():
            return
        for index, (name, text) in self._calls.items():
            if self._speaking is not None and self._speaks(name):
                self._grow(index, f"speech/{index}", "assistant", _partial(text).get(self._speaking[1]))

    def _may_be_held_back(self) -> bool:
        return bool(self._gated) and (self._several or self._something_waits())

    def _something_waits(self) -> bool:
        return any(name in self._gated for name, _ in self._calls.values())

    def _speaks(self, name: str) -> bool:
        return self._speaking is not None and name == self._speaking[0]

    def _show_call(self, index: int) -> None:
        """Adds what a call has grown by since it was last shown, as it is written."""
        name, text = self._calls[index]
        slot = f"call/{index}"
        if not self._speaks(name) and (len(text) > self._offsets.get(slot, 0) or slot not in self._offsets):
            self._add(slot, "tool_call", text[self._offsets.get(slot, 0) :], self._call_id(index), name)

    def _grow(self, index: int, slot: str, kind: str, text: object) -> None:
        """Adds what an argument has grown by since it was last seen."""
        if not isinstance(text, str):
            return
        seen = self._shown.get((index, slot), 0)
        if len(text) > seen:
            self._shown[index, slot] = len(text)
            self._add(slot, kind, text[seen:])

    def _add(self, slot: str, kind: str, text: str, call_id: str = "", name: str = "") -> None:
        if not text and not name:
            return
        waiting = self._pending.get(slot)
        if waiting is None:
            part = otid(self._message_id, self._place(slot))
            offset = self._offsets.get(slot, 0)
            self._pending[slot] = Delta(self._message_id, part, offset, kind, text, call_id, name)
        else:
            self._pending[slot] = Delta(
                waiting.message_id, waiting.otid, waiting.offset, kind, waiting.text + text, call_id, name
            )
        self._offsets[slot] = self._offsets.get(slot, 0) + len(text)
        if self._timer is None:
            self._send()
            self._timer = asyncio.get_running_loop().call_later(PAUSE_SECONDS, self._pause_over)

    def _place(self, slot: str) -> int:
        """Which part of the message the slot is."""
        return self._indexes.setdefault(slot, len(self._indexes))

    def _pause_over(self) -> None:
        self._timer = None
        if self._pending:
            self._send()
            self._timer = asyncio.get_running_loop().call_later(PAUSE_SECONDS, self._pause_over)

    def _send(self) -> None:
        pending, self._pending = self._pending, {}
        for delta in pending.values():
            self._publish(delta)

    def flush(self) -> None:
        """Sends what is gathered, and ends."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._send()


def _partial(text: str) -> dict[str, Any]:
    """The arguments as far as they are written; nothing where that is no JSON, or not yet."""
    try:
        value = jiter.from_json(text.encode(), partial_mode="trailing-strings")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
