"""The display of a turn: Markdown, folded tool calls, the status line, tokens and cost."""

import asyncio
import io
import re
from typing import Any

import pytest
from mnemesh.agents.v1 import models_pb2, runs_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_cli.chat import render
from mnemesh_cli.chat.render import BlockChange, LiveRenderer, StatusLine, duration_text, usage_text
from mnemesh_client.inputs import text_part
from rich.console import Console

ANSWER = "# Tea\n\nYou like:\n- *green*\n- `black`\n\n```python\nprint('<b>')\n```\nAsk <name>\nor me."

ERASE_LINE = "\x1b[2K"


class Screen:
    """A renderer, and what it wrote to a terminal or to a file."""

    def __init__(self, *, terminal: bool, width: int = 80) -> None:
        self._file, self.now = io.StringIO(), 100.0
        console = Console(
            file=self._file, force_terminal=terminal, width=width, highlight=False, _environ={"TERM": "xterm"}
        )
        self.status = StatusLine(console, lambda: self.now)
        self.renderer = LiveRenderer(console, self.status)

    def show(self, **event: Any) -> None:
        """Displays an event."""
        self.renderer.show(runs_pb2.RunEvent(run_id="run-1", **event))

    def say(self, text: str) -> None:
        """Displays a whole answer."""
        self.show(message=message(assistant=runs_pb2.AssistantMessage(content=[text_part(text)])))

    def stream(self, text: str, offset: int = 0) -> None:
        """Displays a part of an answer."""
        self.show(delta=runs_pb2.Delta(otid="otid", assistant_text=text, offset=offset))

    def raw(self) -> str:
        """Returns what was written since the last call, with control sequences."""
        raw = self._file.getvalue()
        self._file.seek(0)
        self._file.truncate()
        return raw

    def written(self) -> str:
        """Returns what was written since the last call, without control sequences."""
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self.raw()).replace("\r", "")


def message(**body: Any) -> runs_pb2.MessageEvent:
    return runs_pb2.MessageEvent(message_id="message-1", otid="otid", **body)


def calls(*names: str, arguments: str = '{"query": "tea"}') -> runs_pb2.MessageEvent:
    made = [message_pb2.ToolCall(id=name, name=name, arguments=arguments) for name in names]
    return message(tool_call=runs_pb2.ToolCallMessage(tool_calls=made))


def returned(name: str, text: str, *, failed: bool = False) -> runs_pb2.MessageEvent:
    status = message_pb2.TOOL_RETURN_STATUS_ERROR if failed else message_pb2.TOOL_RETURN_STATUS_SUCCESS
    result = message_pb2.ToolReturn(tool_call_id=name, name=name, status=status, content=[text_part(text)])
    return message(tool_return=runs_pb2.ToolReturnMessage(tool_returns=[result]))


def test_answer_is_rendered_as_markdown_and_nothing_of_it_is_lost() -> None:
    screen = Screen(terminal=True, width=40)
    screen.say(ANSWER)
    assert [line.strip() for line in screen.written().splitlines() if line.strip()] == [
        *("Tea", "You like:", "• green", "• black", "print('<b>')", "Ask <name>", "or me.")
    ]


def test_output_that_is_no_terminal_has_the_text_as_it_is() -> None:
    screen = Screen(terminal=False)
    screen.stream("# T")
    screen.say(ANSWER)
    assert screen.written() == f"{ANSWER}\n"


@pytest.mark.parametrize("size", [1, 7, 1000])
async def test_streamed_answer_is_printed_once_block_by_block(size: int) -> None:
    whole, streamed = Screen(terminal=True), Screen(terminal=True)
    whole.say(ANSWER)
    for start in range(0, len(ANSWER), size):
        streamed.stream(ANSWER[start : start + size], start)
        streamed.stream(ANSWER[start : start + size], start)  # repeated by a new connection
    before = streamed.written()
    streamed.say(ANSWER)
    assert "Ask" not in before
    assert "You like" in before
    assert before + streamed.written() == whole.written()


async def test_incomplete_block_is_shown_above_the_status_until_it_is_complete() -> None:
    screen = Screen(terminal=True)
    with screen.renderer.begin_turn():
        screen.stream("I am **thin")
        screen.written()
        screen.status.refresh()
        assert "I am **thin" in screen.written()
        screen.show(step_started=runs_pb2.StepStarted(number=1, attempt=2))
        screen.status.refresh()
        assert screen.written().rstrip().splitlines()[-1].endswith("retrying, attempt 2 · 0.0 s")


async def test_status_says_what_the_agent_does_and_for_how_long() -> None:
    screen = Screen(terminal=True)
    with screen.renderer.begin_turn():
        assert "thinking · 0.0 s" in screen.written()
        screen.now += 24.5
        screen.show(step_started=runs_pb2.StepStarted(number=1, attempt=1))
        assert "waiting for the provider · 24 s" in screen.written()
        screen.show(delta=runs_pb2.Delta(otid="otid", reasoning_text="Hm"))
        assert "thinking · 24 s" in screen.written()
        screen.show(message=calls("search", "fetch"))
        assert "running search, fetch · 24 s" in screen.written()
        screen.show(tool_progress=runs_pb2.ToolProgress(name="fetch", progress=1, total=4, message="page 1"))
        assert "running fetch: 25%, page 1 · 24 s" in screen.written()
        screen.show(tool_progress=runs_pb2.ToolProgress(name="fetch", progress=1200.5))
        assert "running fetch: 1,200.5 · 24 s" in screen.written()
        with screen.renderer.speaking("ada", "none"):
            screen.show(step_started=runs_pb2.StepStarted(number=2, attempt=3))
        assert "ada: retrying, attempt 3 · 24 s" in screen.written()
        with screen.renderer.paused():
            screen.written()
            screen.status.refresh()
            assert screen.written() == ""
        assert "retrying" in screen.written()
        screen.show(message=returned("search", "1"))
        screen.show(message=returned("fetch", "2"))
    _, _, after = screen.raw().rpartition("retrying")
    assert ERASE_LINE in after


async def test_output_that_is_no_terminal_has_no_status() -> None:
    screen = Screen(terminal=False)
    with screen.renderer.begin_turn():
        screen.show(step_started=runs_pb2.StepStarted(number=1, attempt=1))
        screen.status.refresh()
    assert screen.written() == ""


@pytest.mark.parametrize(
    ("result", "failed", "line"),
    [
        ("Three\nresults.", False, '▸ search(query="tea") → Three results.'),
        ("None", False, '▸ search(query="tea")'),
        ("", False, '▸ search(query="tea")'),
        ("None", True, '▸ search(query="tea") ✗ failed'),
        ("x" * 200, False, f'▸ search(query="tea") → {"x" * 55}…'),
    ],
)
def test_tool_call_is_one_line_with_the_beginning_of_its_result(result: str, failed: bool, line: str) -> None:
    screen = Screen(terminal=True, width=80)
    screen.show(message=calls("search"))
    screen.show(message=returned("search", result, failed=failed))
    assert screen.written() == f"{line}\n"


def test_long_call_leaves_room_for_its_result() -> None:
    screen = Screen(terminal=True, width=80)
    screen.show(message=calls("search", arguments='{"query": "%s"}' % ("y" * 300)))
    screen.show(message=returned("search", "z" * 300))
    (line,) = screen.written().splitlines()
    assert len(line) == 80
    assert line.count("z") > 20


async def test_call_without_a_result_is_shown_at_the_end_of_the_turn() -> None:
    screen = Screen(terminal=False)
    with screen.renderer.begin_turn():
        screen.show(message=calls("search"))
    assert screen.written() == '▸ search(query="tea")\n'


def test_changes_of_memory_keep_their_text() -> None:
    screen = Screen(terminal=False)
    screen.renderer.show_changes([BlockChange("human", ("[old]",), ("*new*",))])
    assert screen.written() == "✎ memory [human]\n  - [old]\n  + *new*\n"


def test_tokens_and_duration_are_shown_and_the_cost_only_if_it_is_known() -> None:
    used = message_pb2.Usage(prompt_tokens=10_000, completion_tokens=500, cached_input_tokens=4_000)
    price = models_pb2.ModelPrice(input=3_000_000, output=15_000_000)
    assert usage_text(used, 3.21, None) == "10,000 tokens in, 500 out · 3.2 s"
    assert usage_text(used, 3.21, price) == "10,000 tokens in, 500 out · 3.2 s"  # cached tokens have no known price
    price.cached_input = 300_000
    assert usage_text(used, 3.21, price) == "10,000 tokens in, 500 out · 3.2 s · $0.0267"
    assert usage_text(message_pb2.Usage(), 65, price) == "1 min 5 s"
    assert usage_text(used, None, None) == "10,000 tokens in, 500 out"  # of a run of the past
    assert duration_text(9.96) == "10 s"


@pytest.mark.parametrize("no_color", [True, False])
def test_no_color_is_respected(no_color: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    else:
        monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    file = io.StringIO()
    renderer = LiveRenderer(Console(file=file, force_terminal=True, width=80))
    renderer.show_changes([BlockChange("human", (), ("new",))])
    renderer.show(runs_pb2.RunEvent(message=calls("search")))
    renderer.show(runs_pb2.RunEvent(message=returned("search", "1")))
    assert bool(re.search(r"\x1b\[[0-9;]*38;5", file.getvalue())) is not no_color


async def test_silence_of_a_turn_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    said: asyncio.Queue[str] = asyncio.Queue()
    monkeypatch.setattr(render, "_SILENT_SECONDS", 0.01)
    monkeypatch.setattr(render, "notice", said.put_nowait)
    renderer = render.PlainRenderer(Console(file=io.StringIO()))
    with renderer.begin_turn():
        first, second = await said.get(), await said.get()
    assert first.startswith("the turn goes on, but nothing has come for 0 s; `mnemesh doctor`")
    assert second
