"""How a turn is shown: as it happens on a terminal, or as plain replies."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final, Protocol

from mnemesh.agents.v1 import agents_pb2, runs_pb2
from mnemesh.types.v1 import message_pb2
from rich.console import Console
from rich.text import Text

from mnemesh_client.cli.error_text import explain
from mnemesh_client.cli.memory_changes import Edit
from mnemesh_client.cli.terminal import complain
from mnemesh_client.errors import RunFailed
from mnemesh_client.inputs import text_of

_ARGUMENT_CHARS: Final = 160
_RETURN_CHARS: Final = 240
_SPEAKING_TOOLS: Final = ("send_message",)
_QUIET_STOPS: Final = (
    agents_pb2.STOP_REASON_END_TURN,
    agents_pb2.STOP_REASON_TOOL_RULE,
    agents_pb2.STOP_REASON_REQUIRES_APPROVAL,
    agents_pb2.STOP_REASON_UNSPECIFIED,
)


class View(Protocol):
    """Shows one turn after another."""

    def show(self, event: runs_pb2.RunEvent) -> None:
        """Shows what an event adds."""
        ...

    def show_edits(self, edits: Sequence[Edit]) -> None:
        """Shows what changed in core memory."""
        ...

    def fail(self, line: str) -> None:
        """Shows why there is no (further) answer."""
        ...


class PlainView:
    """Only what the agent says, a message a paragraph; problems on stderr."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def show(self, event: runs_pb2.RunEvent) -> None:
        """Prints the agent's messages."""
        if event.HasField("message") and event.message.HasField("assistant"):
            text = text_of(event.message.assistant.content)
            self._console.print(text, markup=False, emoji=False)
        elif event.HasField("error"):
            self.fail(explain(RunFailed(event.run_id, event.error.error)))

    def show_edits(self, edits: Sequence[Edit]) -> None:
        """Nothing: replies only."""

    def fail(self, line: str) -> None:
        """One line on stderr."""
        complain(line)


class LiveView:
    """Words as they come, tool calls with their returns, and memory edits line by line."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._streamed: dict[str, str] = {}
        self._mid_line = False

    def show(self, event: runs_pb2.RunEvent) -> None:
        """Prints what the event adds to the screen."""
        kind = event.WhichOneof("event")
        if kind == "step_started" and event.step_started.attempt > 1:
            self._streamed.clear()
            self._line("(the model is asked again)", "dim")
        elif kind == "delta":
            self._delta(event.delta)
        elif kind == "message":
            self._message(event.message)
        elif kind == "compaction":
            result = event.compaction.result
            self._line(f"✂ window compacted: {result.messages_before} → {result.messages_after} messages", "yellow")
        elif kind == "error":
            self.fail(explain(RunFailed(event.run_id, event.error.error)))
        elif kind == "stop":
            self._stop(event.stop)

    def show_edits(self, edits: Sequence[Edit]) -> None:
        """Prints each changed block with the lines that went and came."""
        for edit in edits:
            self._line(f"✎ memory [{edit.label}]", "bold magenta")
            for line in edit.removed:
                self._line(f"  - {line}", "red")
            for line in edit.added:
                self._line(f"  + {line}", "green")

    def fail(self, line: str) -> None:
        """One line, in red."""
        self._break()
        complain(line)

    def _delta(self, delta: runs_pb2.Delta) -> None:
        if delta.HasField("assistant_text"):
            shown = self._streamed.get(delta.otid, "")
            news = delta.assistant_text[max(0, len(shown) - delta.offset) :]
            if news and delta.offset <= len(shown):
                self._streamed[delta.otid] = shown + news
                self._words(news)

    def _message(self, message: runs_pb2.MessageEvent) -> None:
        kind = message.WhichOneof("message")
        if kind == "assistant":
            self._assistant(message)
        elif kind == "reasoning":
            self._line(message.reasoning.text, "dim italic")
        elif kind == "tool_call":
            for call in message.tool_call.tool_calls:
                self._line(f"▸ {call.name}({_arguments(call.arguments)})", "cyan")
        elif kind == "tool_return":
            for result in message.tool_return.tool_returns:
                self._tool_return(result)
        elif kind == "approval_request":
            for call in message.approval_request.tool_calls:
                self._line(f"? {call.name}({_arguments(call.arguments)})", "yellow")
        elif kind == "summary":
            self._line(f"≡ {_clipped(message.summary.text, _RETURN_CHARS)}", "yellow")

    def _assistant(self, message: runs_pb2.MessageEvent) -> None:
        text, shown = text_of(message.assistant.content), self._streamed.pop(message.otid, "")
        if shown and not text.startswith(shown):
            self._break()
            shown = ""
        self._words(text[len(shown) :])
        self._break()

    def _tool_return(self, result: message_pb2.ToolReturn) -> None:
        failed = result.status == message_pb2.TOOL_RETURN_STATUS_ERROR
        if failed or result.name not in _SPEAKING_TOOLS:
            text = _clipped(text_of(result.content), _RETURN_CHARS)
            self._line(f"  {'✗' if failed else '✓'} {text}", "red" if failed else "dim")

    def _stop(self, stop: runs_pb2.StopEvent) -> None:
        self._break()
        if stop.reason not in _QUIET_STOPS and stop.status != runs_pb2.RUN_STATUS_FAILED:
            name = agents_pb2.StopReason.Name(stop.reason).removeprefix("STOP_REASON_").lower().replace("_", " ")
            self._line(f"(stopped: {name})", "dim")

    def _words(self, text: str) -> None:
        if text:
            self._console.print(text, end="", markup=False, emoji=False, soft_wrap=True)
            self._mid_line = not text.endswith("\n")

    def _line(self, text: str, style: str) -> None:
        self._break()
        self._console.print(Text(text, style=style))

    def _break(self) -> None:
        if self._mid_line:
            self._console.print()
            self._mid_line = False


def _arguments(text: str) -> str:
    """The arguments of a call as a person would write them."""
    try:
        values = json.loads(text or "{}")
    except ValueError:
        return _clipped(text, _ARGUMENT_CHARS)
    if not isinstance(values, dict):
        return _clipped(text, _ARGUMENT_CHARS)
    return ", ".join(
        f"{name}={_clipped(json.dumps(value, ensure_ascii=False), _ARGUMENT_CHARS)}" for name, value in values.items()
    )


def _clipped(text: str, length: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= length else f"{line[:length]}…"
