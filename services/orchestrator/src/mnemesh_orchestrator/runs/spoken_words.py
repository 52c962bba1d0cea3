"""The words of an agent to the user, read from the events of its runs."""

from contextlib import suppress
from typing import Any

import msgspec
from mnemesh_types.messages import TextPart, ToolCall, ToolStatus

from mnemesh_orchestrator.model.events import MessageEvent, RunEvent
from mnemesh_orchestrator.model.run_config import RunConfig


class SpokenWords:
    """The texts of one or more runs for the user, in order.

    They are the assistant messages and, for runs that show the calls of the speaking tool as calls, the texts of the
    calls that succeeded.
    """

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._calls: dict[str, str] = {}

    def read(self, config: RunConfig, event: RunEvent) -> None:
        """Adds the texts of the next event of a run with this config."""
        body = event.body
        if not isinstance(body, MessageEvent):
            return
        if body.kind == "assistant":
            self._add("".join(part.text for part in body.content if isinstance(part, TextPart)))
        for call in body.tool_calls:
            if call.name == config.assistant_tool_name:
                self._calls[call.id] = _text(config, call)
        for returned in body.tool_returns:
            if returned.status is ToolStatus.SUCCESS:
                self._add(self._calls.get(returned.tool_call_id, ""))

    def _add(self, text: str) -> None:
        if text.strip():
            self.texts.append(text)


def _text(config: RunConfig, call: ToolCall) -> str:
    arguments: Any = None
    with suppress(msgspec.DecodeError):
        arguments = msgspec.json.decode(call.arguments)
    text = arguments.get(config.assistant_tool_argument) if isinstance(arguments, dict) else None
    return text if isinstance(text, str) else ""
