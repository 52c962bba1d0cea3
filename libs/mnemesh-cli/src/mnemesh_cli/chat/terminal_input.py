"""What a user types: the line editor of a terminal, and standard input."""

import asyncio
import os
import sys
import termios
import threading
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input import Input, create_input
from prompt_toolkit.input.typeahead import clear_typeahead
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import Output
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.shortcuts import CompleteStyle

PROMPT: Final = "› "
_STYLE: Final = "ansimagenta bold"

_INPUT_FLAGS: Final = 0
_LOCAL_FLAGS: Final = 3


class LineEditor:
    """Reads messages and answers to questions.

    Enter sends. Alt-Enter and Ctrl-J begin a new line, and a pasted text keeps its lines. Ctrl-C clears the text; it
    ends the input if there is none, as Ctrl-D does.
    """

    def __init__(self, commands: Sequence[str], *, source: Input | None = None, output: Output | None = None) -> None:
        source = source or create_input(sys.stdin)
        self._session: PromptSession[str] = PromptSession(
            multiline=True,
            prompt_continuation=" " * len(PROMPT),
            history=InMemoryHistory(),
            completer=_CommandCompleter(commands),
            complete_while_typing=False,
            complete_style=CompleteStyle.READLINE_LIKE,
            reserve_space_for_menu=0,
            key_bindings=_bindings(),
            interrupt_exception=EOFError,
            input=source,
            output=output or _output(),
        )
        self._question: PromptSession[str] = PromptSession(
            interrupt_exception=EOFError, input=source, output=self._session.output
        )

    async def read(self) -> str | None:
        """Returns the next message, or None at the end of the input."""
        return await _read(self._session, PROMPT)

    async def ask(self, question: str) -> str | None:
        """Returns the answer to a question, or None if there is none."""
        return await _read(self._question, question)

    def drop_typed(self) -> None:
        """Drops what was typed and not read: it is not an answer to a question that was not displayed yet."""
        clear_typeahead(self._question.input)
        if sys.stdin.isatty():
            termios.tcflush(sys.stdin, termios.TCIFLUSH)


async def _read(session: PromptSession[str], prompt: str) -> str | None:
    try:
        return await session.prompt_async([(_STYLE, prompt)])
    except EOFError:
        return None


def _output() -> Output:
    output = Vt100_Output.from_pty(sys.stdout, os.environ.get("TERM"))
    output.enable_cpr = False  # not every terminal answers requests for the position of the cursor
    return output


def _bindings() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("enter")
    def _send(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @bindings.add("escape", "enter")
    @bindings.add("c-j")
    def _begin_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    has_text = Condition(lambda: bool(get_app().current_buffer.text))

    @bindings.add("c-c", filter=has_text)
    @bindings.add("<sigint>", filter=has_text)
    def _clear(event: KeyPressEvent) -> None:
        event.current_buffer.reset()

    return bindings


class _CommandCompleter(Completer):
    def __init__(self, commands: Sequence[str]) -> None:
        self._commands = commands

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        del complete_event
        typed = document.text_before_cursor
        if typed.startswith("/"):
            yield from (Completion(name, -len(typed)) for name in self._commands if name.startswith(typed))


async def read_lines() -> AsyncGenerator[str, None]:
    """Yields the lines of stdin to its end. Reads a line only when the caller asks for it.

    The reading thread is a daemon, so that a read without an end does not keep the program alive.
    """
    loop = asyncio.get_running_loop()
    read = PipeReader(sys.stdin.fileno()).read_line
    while True:
        result: asyncio.Future[str | None] = loop.create_future()
        threading.Thread(target=_read_into, args=(read, loop, result), daemon=True).start()
        line = await result
        if line is None:
            return
        yield line


class PipeReader:
    """The lines of a file descriptor.

    It bypasses the buffer of `sys.stdin`: the interpreter aborts at exit if a daemon thread holds that buffer's lock.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._buffer = b""
        self._ended = False

    def read_line(self) -> str | None:
        """Returns the next line without its line break, or None after the last line."""
        while b"\n" not in self._buffer and not self._ended:
            piece = os.read(self._descriptor, 65536)
            self._buffer += piece
            self._ended = not piece
        line, separator, self._buffer = self._buffer.partition(b"\n")
        if not line and not separator:
            return None
        return line.removesuffix(b"\r").decode(errors="replace")


@contextmanager
def typing_kept() -> Iterator[None]:
    """Within it, what a person types is not displayed, but kept for the next prompt. Ctrl-C still interrupts.

    It restores the terminal's settings on exit: an interrupted line editor leaves the terminal without echo.
    """
    if not sys.stdin.isatty():
        yield
        return
    before, settings = termios.tcgetattr(sys.stdin), termios.tcgetattr(sys.stdin)
    settings[_INPUT_FLAGS] &= ~termios.ICRNL
    settings[_LOCAL_FLAGS] &= ~(termios.ECHO | termios.ICANON)
    termios.tcsetattr(sys.stdin, termios.TCSADRAIN, settings)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


@contextmanager
def pastes_marked() -> Iterator[None]:
    """Within it, the terminal marks a pasted text, so that the next prompt takes it as one message."""
    if not sys.stdin.isatty() or not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        yield
        return
    _write("\x1b[?2004h")
    try:
        yield
    finally:
        _write("\x1b[?2004l")


def _write(sequence: str) -> None:
    sys.stdout.write(sequence)
    sys.stdout.flush()


def _read_into(
    read: Callable[[], str | None], loop: asyncio.AbstractEventLoop, result: asyncio.Future[str | None]
) -> None:
    line = read()
    with suppress(RuntimeError):  # the loop may be closed by now
        loop.call_soon_threadsafe(_set_result, result, line)


def _set_result(result: asyncio.Future[Any], line: str | None) -> None:
    if not result.done():
        result.set_result(line)
