"""The editor of messages on a terminal: several lines, pasted texts, and the history of the session."""

from __future__ import annotations

import os
import sys
import termios
from collections.abc import Iterable, Sequence
from typing import Final

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
        """Drops what was typed and not read: it is no answer to a question that was not displayed yet."""
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
