"""What a chat prints: the events of a turn as text or JSON, and the status line."""

import asyncio
import difflib
import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Final

from mnemesh.agents.v1 import agents_pb2, models_pb2, runs_pb2
from mnemesh.blocks.v1 import blocks_pb2
from mnemesh.files.v1 import agent_files_service_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_cli.display import terminal
from mnemesh_cli.display.error_text import error_text
from mnemesh_cli.display.markdown import complete_blocks, markdown_lines
from mnemesh_cli.display.records import print_json
from mnemesh_cli.display.terminal import notice, print_error
from mnemesh_cli.display.views import citation_text
from mnemesh_client.agent_files import AgentFiles
from mnemesh_client.errors import RunFailed
from mnemesh_client.inputs import text_of
from mnemesh_client.mnemesh import Mnemesh
from mnemesh_kit.errors import MnemeshError
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

_FRAMES: Final = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_REFRESH_SECONDS: Final = 0.1
_LINES_BELOW: Final = 3


class StatusLine:
    """Shows the activity of the agent and the elapsed time below lines that can still change. Only for terminals.

    What is printed to the console meanwhile appears above it. It is removed at the end of the turn.
    """

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._enabled = console.is_terminal and not console.is_dumb_terminal
        self._live: Live | None = None
        self._started: float | None = None
        self._activity = ""
        self._draft: Callable[[], Sequence[Text]] = tuple

    @property
    def elapsed(self) -> float | None:
        """The seconds since the beginning of the turn; None if nothing was shown, as for a run of the past."""
        return None if self._started is None else self._clock() - self._started

    @contextmanager
    def shown(self, activity: str) -> Iterator[None]:
        """Within it, the line is shown and the time counts."""
        self._started, self._activity, self._draft = self._clock(), activity, tuple
        if not self._enabled:
            yield
            return
        ticker = asyncio.get_running_loop().create_task(self._tick())
        self._show()
        try:
            yield
        finally:
            ticker.cancel()
            self._hide()

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Within it, the line is removed, so that others can write to the terminal."""
        was_shown = self._live is not None
        self._hide()
        try:
            yield
        finally:
            if was_shown:
                self._show()

    def set_activity(self, activity: str) -> None:
        """Changes what the agent does."""
        if activity != self._activity:
            self._activity = activity
            self.refresh()

    def set_draft(self, draft: Callable[[], Sequence[Text]]) -> None:
        """Changes the lines that are not final yet. They are rendered at each refresh."""
        self._draft = draft

    def clear_draft(self) -> None:
        """Removes the lines that are not final yet."""
        self._draft = tuple

    def refresh(self) -> None:
        """Displays the current state. It happens several times a second by itself."""
        if self._live is not None:
            self._live.refresh()

    def __rich__(self) -> Group:
        elapsed = self.elapsed or 0.0
        frame = _FRAMES[int(elapsed / _REFRESH_SECONDS) % len(_FRAMES)]
        text = f"{frame} {self._activity} · {duration_text(elapsed)}"
        status = Text(text, "dim", no_wrap=True, overflow="ellipsis")
        visible = max(0, self._console.height - _LINES_BELOW)
        return Group(*(self._draft()[-visible:] if visible else ()), status)

    def _show(self) -> None:
        self._live = Live(
            self,
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start(refresh=True)

    def _hide(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_REFRESH_SECONDS)
            self.refresh()


def duration_text(seconds: float) -> str:
    """Returns a duration as a person reads it: 3.2 s, 24 s, 2 min 5 s."""
    if round(seconds, 1) < 10:
        return f"{seconds:.1f} s"
    whole = int(seconds + 0.05)
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60} s"


_ARGUMENT_CHARS: Final = 160
_SHARE_OF_CALL: Final = 0.6
_PROGRESS_CHARS: Final = 200
_EMPTY: Final = ("", "None", "null")

_PRICE_UNITS_PER_DOLLAR: Final = 10**12

_SUMMARY_CHARS: Final = 240
_MESSAGE_TOOLS: Final = ("send_message",)
_QUIET_STOPS: Final = (
    agents_pb2.STOP_REASON_END_TURN,
    agents_pb2.STOP_REASON_TOOL_RULE,
    agents_pb2.STOP_REASON_REQUIRES_APPROVAL,
    agents_pb2.STOP_REASON_UNSPECIFIED,
)
_SILENT_SECONDS: Final = 30.0
_DOCTOR: Final = "`mnemesh doctor` shows what is wrong with the mesh, such as a full disk"


@dataclass(frozen=True, slots=True)
class BlockChange:
    """The lines that were removed from a block and added to it."""

    label: str
    removed: tuple[str, ...]
    added: tuple[str, ...]


class MemoryTracker:
    """Tracks the core memory of one agent. It sees every change, whichever tool made it."""

    def __init__(self, mnemesh: Mnemesh, agent_id: str) -> None:
        self._mnemesh = mnemesh
        self._agent_id = agent_id
        self._known: blocks_pb2.CoreMemory | None = None

    async def changes(self) -> list[BlockChange]:
        """Returns the changes since the last call; none at the first call, and while the memory cannot be read."""
        before = self._known
        try:
            if before is None:
                self._known = await self._mnemesh.blocks.core_memory(self._agent_id)
                return []
            after = await self._mnemesh.blocks.core_memory_since(self._agent_id, before.revision)
        except MnemeshError:
            # The chat continues while only the view of the memory is unavailable.
            return []
        if after is None:
            return []
        self._known = after
        return block_changes(before, after)


def block_changes(before: blocks_pb2.CoreMemory, after: blocks_pb2.CoreMemory) -> list[BlockChange]:
    """Returns the changed blocks, in the order of their labels in `before` and then in `after`."""
    old = {block.label: block.value for block in before.blocks}
    new = {block.label: block.value for block in after.blocks}
    return [
        _change(label, old.get(label, ""), new.get(label, ""))
        for label in dict.fromkeys((*old, *new))
        if old.get(label) != new.get(label)
    ]


def _change(label: str, old: str, new: str) -> BlockChange:
    lines = [line for line in difflib.ndiff(old.splitlines(), new.splitlines()) if line[:2] in ("- ", "+ ")]
    return BlockChange(
        label,
        removed=tuple(line[2:] for line in lines if line.startswith("- ")),
        added=tuple(line[2:] for line in lines if line.startswith("+ ")),
    )


def call_line(mark: str, call: message_pb2.ToolCall, width: int, style: str = terminal.TOOL) -> Text:
    """Returns a call without a result, as `mark name(argument=value, …)`."""
    return Text(shortened(f"{mark} {call.name}({_arguments(call.arguments)})", width), style)


def folded_line(call: message_pb2.ToolCall, result: message_pb2.ToolReturn, width: int) -> Text:
    """Returns a call and the beginning of its result in one line."""
    failed = result.status == message_pb2.TOOL_RETURN_STATUS_ERROR
    answer = " ".join(text_of(result.content).split())
    if answer in _EMPTY:
        answer = "failed" if failed else ""
    if not answer:
        return call_line("▸", call, width)
    line = call_line("▸", call, max(int(width * _SHARE_OF_CALL), width - len(answer) - 3))
    left = max(0, width - line.cell_len - 3)
    return line.append(f" {'✗' if failed else '→'} {shortened(answer, left)}", terminal.REMOVED if failed else "dim")


def progress_text(progress: runs_pb2.ToolProgress) -> str:
    """Returns how far a call is, as `running name: 40%, message`; without a whole, the part that is done."""
    if progress.HasField("total") and progress.total > 0:
        done = f"{min(1.0, max(0.0, progress.progress / progress.total)):.0%}"
    else:
        done = f"{progress.progress:,.10g}"
    message = f", {progress.message}" if progress.message else ""
    return shortened(f"running {progress.name}: {done}{message}", _PROGRESS_CHARS)


def shortened(text: str, length: int) -> str:
    """Returns a text as one line of at most `length` characters."""
    line = " ".join(text.split())
    return line if len(line) <= length else f"{line[: max(0, length - 1)]}…"


def _arguments(text: str) -> str:
    """Returns the arguments of a tool call as `name=value, …`."""
    try:
        values = json.loads(text or "{}")
    except ValueError:
        return shortened(text, _ARGUMENT_CHARS)
    if not isinstance(values, dict):
        return shortened(text, _ARGUMENT_CHARS)
    return ", ".join(
        f"{name}={shortened(json.dumps(value, ensure_ascii=False), _ARGUMENT_CHARS)}" for name, value in values.items()
    )


def usage_text(usage: message_pb2.Usage, seconds: float | None, price: models_pb2.ModelPrice | None) -> str:
    """Returns the tokens that the provider reported, the duration and the cost in US dollars if they are known."""
    parts = []
    if usage.HasField("prompt_tokens") or usage.HasField("completion_tokens"):
        parts.append(f"{usage.prompt_tokens:,} tokens in, {usage.completion_tokens:,} out")
    if seconds is not None:
        parts.append(duration_text(seconds))
    cost = _cost(usage, price)
    if cost is not None:
        parts.append(f"${cost:.4f}")
    return " · ".join(parts)


def _cost(usage: message_pb2.Usage, price: models_pb2.ModelPrice | None) -> float | None:
    """Returns the cost in US dollars. None if the tokens or the price of a kind of token that was used is unknown."""
    if price is None or not (usage.HasField("prompt_tokens") and usage.HasField("completion_tokens")):
        return None
    cached, written = usage.cached_input_tokens, usage.cache_write_tokens  # both are part of the prompt
    kinds = (
        (max(0, usage.prompt_tokens - cached - written), price.HasField("input"), price.input),
        (cached, price.HasField("cached_input"), price.cached_input),
        (written, price.HasField("cache_write"), price.cache_write),
        (usage.completion_tokens, price.HasField("output"), price.output),
    )
    if any(count and not known for count, known, _ in kinds):
        return None
    return sum(count * each for count, _, each in kinds) / _PRICE_UNITS_PER_DOLLAR


class StreamedText:
    """The text of one answer. Its complete blocks are printed while it is streamed."""

    def __init__(self) -> None:
        self.printed = ""
        self._received = ""

    @property
    def rest(self) -> str:
        """The received text that is not printed yet."""
        return self._received[len(self.printed) :]

    def add(self, text: str, offset: int) -> bool:
        """Adds a part that begins at an offset of the text. Returns False if a part before it is missing."""
        if offset > len(self._received):
            return False
        self._received += text[len(self._received) - offset :]
        return True

    def take_complete(self) -> str:
        """Returns the blocks that are complete and not printed. They count as printed."""
        if "\n" not in self.rest:
            return ""
        complete, _ = complete_blocks(self.rest)
        self.printed += complete
        return complete

    def finish(self, text: str) -> str:
        """Returns what is left to print of the whole text: all of it, if it is not the text that was streamed."""
        if not text.startswith(self.printed):
            self.printed = ""
        return text[len(self.printed) :]


class PlainRenderer:
    """Prints the messages of the agent to stdout, and errors to stderr."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._speaker = Text()
        self._shown = 0

    @contextmanager
    def begin_turn(self) -> Iterator[None]:
        """Within it, a notice says when nothing has come for a while: the model is slow, or the mesh waits."""
        watching = asyncio.get_running_loop().create_task(self._report_silence())
        try:
            yield
        finally:
            watching.cancel()

    async def _report_silence(self) -> None:
        silent = 0.0
        while True:
            before = self._shown
            await asyncio.sleep(_SILENT_SECONDS)
            silent = silent + _SILENT_SECONDS if before == self._shown else 0.0
            if silent:
                notice(f"the turn goes on, but nothing has come for {silent:.0f} s; {_DOCTOR}")

    def paused(self) -> AbstractContextManager[None]:
        """Does nothing."""
        return nullcontext()

    @contextmanager
    def speaking(self, name: str, style: str) -> Iterator[None]:
        """Within it, messages begin with the name of their speaker, in a style."""
        self._speaker = Text(f"{name}: " if name else "", style=f"bold {style}")
        yield
        self._speaker = Text()

    def show(self, event: runs_pb2.RunEvent) -> None:
        """Prints the messages of the agent."""
        self._shown += 1
        if event.HasField("message") and event.message.HasField("assistant"):
            text = text_of(event.message.assistant.content)
            self._console.print(self._speaker, Text(text), sep="")
        elif event.HasField("error"):
            self.show_error(error_text(RunFailed(event.run_id, event.error.error)))

    def show_changes(self, changes: Sequence[BlockChange]) -> None:
        """Does nothing."""

    def show_note(self, text: str) -> None:
        """Does nothing."""

    def show_error(self, line: str) -> None:
        """Prints one line to stderr."""
        print_error(line)


class LiveRenderer:
    """Prints answers as Markdown while they are streamed, each tool call in one line, and changes of core memory.

    On a terminal, a status line shows what the agent does during a turn.
    """

    def __init__(self, console: Console, status: StatusLine | None = None) -> None:
        self._console = console
        self._status = status or StatusLine(console)
        self._streamed: dict[str, StreamedText] = {}
        self._calls: dict[str, message_pb2.ToolCall] = {}
        self._asked: dict[str, message_pb2.ToolCall] = {}
        self._speaker, self._speaker_style = "", ""
        self.price: models_pb2.ModelPrice | None = None
        """The price of the agent's model; None if it is unknown."""

    @contextmanager
    def begin_turn(self) -> Iterator[None]:
        """Within it, the status line is shown. At its end, calls without a result are printed."""
        with self._status.shown("thinking"):
            try:
                yield
            finally:
                self._streamed.clear()
                for call in self._calls.values():
                    self._print(call_line("▸", call, self._width))
                self._calls.clear()

    def paused(self) -> AbstractContextManager[None]:
        """Within it, the status line is not shown."""
        return self._status.hidden()

    @contextmanager
    def speaking(self, name: str, style: str) -> Iterator[None]:
        """Within it, texts and lines begin with the name of their speaker, in a style."""
        self._speaker, self._speaker_style = name, f"bold {style}"
        yield
        self._speaker = ""

    def show(self, event: runs_pb2.RunEvent) -> None:
        kind = event.WhichOneof("event")
        if kind == "step_started":
            self._step_started(event.step_started)
        elif kind == "delta":
            self._delta(event.delta)
        elif kind == "tool_progress":
            self._set_activity(progress_text(event.tool_progress))
        elif kind == "message":
            self._message(event.message)
        elif kind == "compaction":
            result = event.compaction.result
            sizes = f"{result.messages_before} → {result.messages_after} messages"
            self._print_line(f"✂ context window compacted: {sizes}", terminal.WARNING)
        elif kind == "error":
            self.show_error(error_text(RunFailed(event.run_id, event.error.error)))
        elif kind == "stop":
            self._stop(event.stop)
        elif kind == "usage":
            self._print_line(usage_text(event.usage.usage, self._status.elapsed, self.price), "dim")

    def show_changes(self, changes: Sequence[BlockChange]) -> None:
        """Prints each changed block with its removed and added lines."""
        for change in changes:
            self._print_line(f"✎ memory [{change.label}]", terminal.MEMORY)
            for line in change.removed:
                self._print_line(f"  - {line}", terminal.REMOVED)
            for line in change.added:
                self._print_line(f"  + {line}", terminal.ADDED)

    def show_note(self, text: str) -> None:
        """Prints a line about the turn itself."""
        self._print_line(text, "dim")

    def show_error(self, line: str) -> None:
        """Prints one line to stderr."""
        with self._status.hidden():
            print_error(line)

    def _step_started(self, step: runs_pb2.StepStarted) -> None:
        if step.attempt <= 1:
            self._set_activity("waiting for the provider")
            return
        if any(streamed.printed for streamed in self._streamed.values()):
            self._print_line("(calling the model again)", "dim")
        self._streamed.clear()
        self._status.clear_draft()
        self._set_activity(f"retrying, attempt {step.attempt}")

    def _delta(self, delta: runs_pb2.Delta) -> None:
        if delta.HasField("assistant_text"):
            self._set_activity("answering")
            streamed = self._streamed.setdefault(delta.otid, StreamedText())
            if self._console.is_terminal and streamed.add(delta.assistant_text, delta.offset):
                follows = bool(streamed.printed)
                self._print_answer(streamed.take_complete(), follows=follows)
                self._status.set_draft(partial(self._answer_lines, streamed.rest, self._label(bool(streamed.printed))))
        elif delta.HasField("reasoning_text"):
            self._set_activity("thinking")
        elif delta.tool_call.name:
            self._set_activity(f"calling {delta.tool_call.name}")

    def _message(self, message: runs_pb2.MessageEvent) -> None:
        kind = message.WhichOneof("message")
        if kind == "assistant":
            self._assistant(message)
        elif kind == "reasoning":
            self._print_line(message.reasoning.text, "dim italic")
        elif kind == "tool_call":
            calls = [call for call in message.tool_call.tool_calls if call.name not in _MESSAGE_TOOLS]
            self._calls.update((call.id, call) for call in calls)
            if calls:
                self._set_activity(f"running {', '.join(dict.fromkeys(call.name for call in calls))}")
        elif kind == "tool_return":
            for result in message.tool_return.tool_returns:
                self._tool_return(result)
        elif kind == "approval_request":
            for call in message.approval_request.tool_calls:
                self._asked[call.id] = call
                self._print(call_line("?", call, self._width, terminal.WARNING))
        elif kind == "summary":
            self._print_line(f"≡ {shortened(message.summary.text, _SUMMARY_CHARS)}", terminal.WARNING)

    def _assistant(self, message: runs_pb2.MessageEvent) -> None:
        text = text_of(message.assistant.content)
        streamed = self._streamed.pop(message.otid, StreamedText())
        self._status.clear_draft()
        rest = streamed.finish(text)
        self._print_answer(rest, follows=bool(streamed.printed))

    def _tool_return(self, result: message_pb2.ToolReturn) -> None:
        asked = self._asked.pop(result.tool_call_id, message_pb2.ToolCall(name=result.name))
        call = self._calls.pop(result.tool_call_id, asked)
        if result.status == message_pb2.TOOL_RETURN_STATUS_ERROR or result.name not in _MESSAGE_TOOLS:
            self._print(folded_line(call, result, self._width))

    def _stop(self, stop: runs_pb2.StopEvent) -> None:
        if stop.reason not in _QUIET_STOPS and stop.status != runs_pb2.RUN_STATUS_FAILED:
            name = agents_pb2.StopReason.Name(stop.reason).removeprefix("STOP_REASON_").lower().replace("_", " ")
            self._print_line(f"(stopped: {name})", "dim")

    def _set_activity(self, activity: str) -> None:
        self._status.set_activity(f"{self._speaker}: {activity}" if self._speaker else activity)

    def _print_answer(self, text: str, *, follows: bool) -> None:
        """Prints complete blocks of an answer. `follows`: they follow other blocks of it."""
        if not text.strip():
            return
        if follows:
            self._console.print()
        if not self._console.is_terminal:
            self._console.print(self._label(follows), Text(text.rstrip("\n")), sep="")
            return
        for line in self._answer_lines(text, self._label(follows)):
            self._console.print(line)

    def _answer_lines(self, text: str, label: Text) -> list[Text]:
        """Returns Markdown as lines. The first one begins with a label."""
        lines = markdown_lines(self._console, text, max(20, self._console.width - label.cell_len))
        return [Text.assemble(label, lines[0]), *lines[1:]] if lines else []

    def _label(self, follows: bool) -> Text:
        """Returns the name of the speaker, before the first block of an answer."""
        return Text(f"{self._speaker}: " if self._speaker and not follows else "", self._speaker_style)

    @property
    def _width(self) -> int:
        """The width of a line without the name of its speaker."""
        return self._console.width - (len(self._speaker) + 1 if self._speaker else 0)

    def _print_line(self, text: str, style: str) -> None:
        self._print(Text(text, style))

    def _print(self, line: Text) -> None:
        if self._speaker:
            line = Text.assemble((f"{self._speaker} ", self._speaker_style), line)
        self._console.print(line)


class JsonRenderer(PlainRenderer):
    """Prints each event to stdout, in a group with the field `agent_name`, and errors of the command to stderr."""

    _agent_name = ""

    @contextmanager
    def speaking(self, name: str, style: str) -> Iterator[None]:
        """Within it, events have the name of the agent that they come from."""
        del style
        self._agent_name = name
        yield
        self._agent_name = ""

    def show(self, event: runs_pb2.RunEvent) -> None:
        """Prints an event."""
        others = {"agent_name": self._agent_name} if self._agent_name else {}
        print_json(event, **others)


_CITATION: Final = re.compile(r":\d+(-\d+)?\]")
"""The form of a citation. Only answers that contain this form are sent to the server."""
_MOST: Final = 10


async def show_sources(renderer: LiveRenderer | PlainRenderer, files: AgentFiles, event: runs_pb2.RunEvent) -> None:
    """Shows what an answer of an agent cites, each source once. Nothing if the files service does not answer."""
    answer = text_of(event.message.assistant.content)
    if not _CITATION.search(answer):
        return
    try:
        citations = await files.citations(answer)
    except MnemeshError:
        return
    lines = list(dict.fromkeys(map(_line, citations)))
    if lines:
        renderer.show_note("sources:")
    for line in lines[:_MOST]:
        renderer.show_note(f"  {line}")
    if len(lines) > _MOST:
        renderer.show_note(f"  and {len(lines) - _MOST} others")


def _line(citation: agent_files_service_pb2.Citation) -> str:
    return citation_text(citation) + ("" if citation.HasField("file_id") else " (not found)")
