"""The display of a turn: live on a terminal, or only the replies of the agent."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final, Protocol

from mnemesh.agents.v1 import agents_pb2, runs_pb2
from mnemesh.types.v1 import message_pb2
from rich.console import Console
from rich.text import Text

from mnemesh_client.cli.error_text import error_text
from mnemesh_client.cli.memory_changes import BlockChange
from mnemesh_client.cli.terminal import print_error
from mnemesh_client.errors import RunFailed
from mnemesh_client.inputs import text_of

_ARGUMENT_CHARS: Final = 160
_RETURN_CHARS: Final = 240
_MESSAGE_TOOLS: Final = ("send_message",)
_QUIET_STOPS: Final = (
    agents_pb2.STOP_REASON_END_TURN,
    agents_pb2.STOP_REASON_TOOL_RULE,
    agents_pb2.STOP_REASON_REQUIRES_APPROVAL,
    agents_pb2.STOP_REASON_UNSPECIFIED,
)


class Renderer(Protocol):
    """Displays the events of turns."""

    def show(self, event: runs_pb2.RunEvent) -> None:
        """Displays an event."""
        ...

    def show_changes(self, changes: Sequence[BlockChange]) -> None:
        """Displays changes of core memory."""
        ...

    def show_error(self, line: str) -> None:
        """Displays the reason why the turn failed."""
        ...


class PlainRenderer:
    """Prints the messages of the agent to stdout, and errors to stderr."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def show(self, event: runs_pb2.RunEvent) -> None:
        """Prints the messages of the agent."""
        if event.HasField("message") and event.message.HasField("assistant"):
            text = text_of(event.message.assistant.content)
            self._console.print(text, markup=False, emoji=False)
        elif event.HasField("error"):
            self.show_error(error_text(RunFailed(event.run_id, event.error.error)))

    def show_changes(self, changes: Sequence[BlockChange]) -> None:
        """Does nothing."""

    def show_error(self, line: str) -> None:
        """Prints one line to stderr."""
        print_error(line)


class LiveRenderer:
    """Prints text as it is streamed, tool calls with their returns, and changes of core memory line by line."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._streamed: dict[str, str] = {}
        self._mid_line = False

    def show(self, event: runs_pb2.RunEvent) -> None:
        """Prints the part of an event that is not on the screen yet."""
        kind = event.WhichOneof("event")
        if kind == "step_started" and event.step_started.attempt > 1:
            self._streamed.clear()
            self._print_line("(calling the model again)", "dim")
        elif kind == "delta":
            self._delta(event.delta)
        elif kind == "message":
            self._message(event.message)
        elif kind == "compaction":
            result = event.compaction.result
            self._print_line(
                f"✂ context window compacted: {result.messages_before} → {result.messages_after} messages", "yellow"
            )
        elif kind == "error":
            self.show_error(error_text(RunFailed(event.run_id, event.error.error)))
        elif kind == "stop":
            self._stop(event.stop)

    def show_changes(self, changes: Sequence[BlockChange]) -> None:
        """Prints each changed block with its removed and added lines."""
        for change in changes:
            self._print_line(f"✎ memory [{change.label}]", "bold magenta")
            for line in change.removed:
                self._print_line(f"  - {line}", "red")
            for line in change.added:
                self._print_line(f"  + {line}", "green")

    def show_error(self, line: str) -> None:
        """Prints one line to stderr."""
        self._end_line()
        print_error(line)

    def _delta(self, delta: runs_pb2.Delta) -> None:
        if delta.HasField("assistant_text"):
            known = self._streamed.get(delta.otid, "")
            text = delta.assistant_text[max(0, len(known) - delta.offset) :]
            if text and delta.offset <= len(known):
                self._streamed[delta.otid] = known + text
                self._print_text(text)

    def _message(self, message: runs_pb2.MessageEvent) -> None:
        kind = message.WhichOneof("message")
        if kind == "assistant":
            self._assistant(message)
        elif kind == "reasoning":
            self._print_line(message.reasoning.text, "dim italic")
        elif kind == "tool_call":
            for call in message.tool_call.tool_calls:
                self._print_line(f"▸ {call.name}({_format_arguments(call.arguments)})", "cyan")
        elif kind == "tool_return":
            for result in message.tool_return.tool_returns:
                self._tool_return(result)
        elif kind == "approval_request":
            for call in message.approval_request.tool_calls:
                self._print_line(f"? {call.name}({_format_arguments(call.arguments)})", "yellow")
        elif kind == "summary":
            self._print_line(f"≡ {_truncated(message.summary.text, _RETURN_CHARS)}", "yellow")

    def _assistant(self, message: runs_pb2.MessageEvent) -> None:
        text, known = text_of(message.assistant.content), self._streamed.pop(message.otid, "")
        if known and not text.startswith(known):
            self._end_line()
            known = ""
        self._print_text(text[len(known) :])
        self._end_line()

    def _tool_return(self, result: message_pb2.ToolReturn) -> None:
        failed = result.status == message_pb2.TOOL_RETURN_STATUS_ERROR
        if failed or result.name not in _MESSAGE_TOOLS:
            text = _truncated(text_of(result.content), _RETURN_CHARS) or result.name
            self._print_line(f"  {'✗' if failed else '✓'} {text}", "red" if failed else "dim")

    def _stop(self, stop: runs_pb2.StopEvent) -> None:
        self._end_line()
        if stop.reason not in _QUIET_STOPS and stop.status != runs_pb2.RUN_STATUS_FAILED:
            name = agents_pb2.StopReason.Name(stop.reason).removeprefix("STOP_REASON_").lower().replace("_", " ")
            self._print_line(f"(stopped: {name})", "dim")

    def _print_text(self, text: str) -> None:
        if text:
            self._console.print(text, end="", markup=False, emoji=False, soft_wrap=True)
            self._mid_line = not text.endswith("\n")

    def _print_line(self, text: str, style: str) -> None:
        self._end_line()
        self._console.print(Text(text, style=style))

    def _end_line(self) -> None:
        if self._mid_line:
            self._console.print()
            self._mid_line = False


def _format_arguments(text: str) -> str:
    """Returns the arguments of a tool call as `name=value, …`."""
    try:
        values = json.loads(text or "{}")
    except ValueError:
        return _truncated(text, _ARGUMENT_CHARS)
    if not isinstance(values, dict):
        return _truncated(text, _ARGUMENT_CHARS)
    return ", ".join(
        f"{name}={_truncated(json.dumps(value, ensure_ascii=False), _ARGUMENT_CHARS)}" for name, value in values.items()
    )


def _truncated(text: str, length: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= length else f"{line[:length]}…"
