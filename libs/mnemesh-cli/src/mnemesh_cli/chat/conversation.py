"""A chat: reading lines with their history and completion, commands, turns, and approvals."""

import asyncio
import os
import signal
import sys
import termios
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, Final

from mnemesh.agents.v1 import runs_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_cli.chat.render import JsonRenderer, LiveRenderer, PlainRenderer
from mnemesh_cli.display.error_text import error_text
from mnemesh_cli.display.terminal import is_json, notice, output
from mnemesh_client.inputs import approve, deny
from mnemesh_client.mnemesh import Mnemesh
from mnemesh_client.transport import closing
from mnemesh_kit.errors import MnemeshError
from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input import create_input
from prompt_toolkit.input.typeahead import clear_typeahead
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import Output
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.shortcuts import CompleteStyle
from rich.console import Console
from rich.text import Text

PROMPT: Final = "› "
_STYLE: Final = "ansimagenta bold"

_INPUT_FLAGS: Final = 0
_LOCAL_FLAGS: Final = 3


class LineEditor:
    """Reads messages and answers to questions.

    Enter sends. Alt-Enter and Ctrl-J begin a new line, and a pasted text keeps its lines. Ctrl-C clears the text; it
    ends the input if there is none, as Ctrl-D does.
    """

    def __init__(self, commands: Sequence[str]) -> None:
        source = create_input(sys.stdin)
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
            output=_output(),
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


_ALIASES: Final = {"/exit": "/quit"}

_QUESTION: Final = "  run {tool}? y, n, or a reason to deny › "


class CommandError(Exception):
    """A line that begins with a slash is not a command, or its argument is missing or not allowed."""


@dataclass(frozen=True, slots=True)
class ChatCommand:
    """A command: its name with the slash, its argument as in "[HANDLE]", what it does, and how."""

    name: str
    argument: str
    description: str
    run: Callable[[str], Awaitable[None]]

    @property
    def usage(self) -> str:
        """How it is typed."""
        return f"{self.name} {self.argument}".rstrip()


class ChatCommands:
    def __init__(self, commands: Iterable[ChatCommand]) -> None:
        self._commands = {command.name: command for command in commands}

    @property
    def names(self) -> list[str]:
        """The names, with their slashes."""
        return list(self._commands)

    async def run(self, line: str) -> None:
        """Executes a line that begins with a slash.

        Raises:
            CommandError: there is no such command, or its argument is missing or not allowed.
        """
        name, *rest = line.split(maxsplit=1)
        argument = rest[0].strip() if rest else ""
        command = self._commands.get(_ALIASES.get(name, name))
        if command is None:
            raise CommandError(
                f"There is no command {name}. Use {', '.join(self.names)}; begin a message with a space to send it."
            )
        if bool(argument) > bool(command.argument) or (command.argument[:1].isalpha() and not argument):
            raise CommandError(f"Type `{command.usage}`.")
        await command.run(argument)

    def print_help(self, console: Console) -> None:
        """Prints what each command does, and the keys."""
        lines = [(command.usage, command.description) for command in self._commands.values()]
        keys = [
            ("Enter", "send the message"),
            ("Alt-Enter, Ctrl-J", "begin a new line; a pasted text keeps its lines"),
            ("Up, Down", "earlier messages of this session"),
            ("Ctrl-C", "stop the turn; without a turn, clear the text or leave"),
        ]
        width = max(len(usage) for usage, _ in (*lines, *keys)) + 2
        for usage, description in (*lines, *keys):
            console.print(Text.assemble((f"  {usage:{width}}", "bold"), description))


class Conversation(ABC):
    """The exchange of messages with an agent or a group."""

    def __init__(self, mnemesh: Mnemesh, name: str) -> None:
        self.mnemesh = mnemesh
        self.live = sys.stdin.isatty() and not is_json.get()
        self.console = output()
        text = LiveRenderer(self.console) if self.live else PlainRenderer(self.console)
        self.renderer = JsonRenderer(self.console) if is_json.get() else text
        self.run_id = ""
        self._name = name
        self._ended = False
        self._commands = ChatCommands(self.commands())
        self._lines = read_lines()
        self._editor = LineEditor(self._commands.names) if self.live and sys.stdout.isatty() else None

    @abstractmethod
    async def begin(self) -> bool:
        """Handles what was pending before this chat. Only on a terminal. Returns False if a turn failed."""

    @abstractmethod
    async def send(self, text: str) -> bool:
        """Sends a message and displays the answer. Returns False if it failed."""

    @abstractmethod
    async def show_memory(self) -> None:
        """Displays the memory of the agents."""

    def commands(self) -> list[ChatCommand]:
        """Returns the commands of the chat, in the order of the help."""
        return [
            ChatCommand("/memory", "", "show the memory", self._show_memory),
            ChatCommand("/help", "", "show this help", self._show_help),
            ChatCommand("/quit", "", "leave the chat (also /exit, Ctrl-D)", self._quit),
        ]

    async def converse(self) -> int:
        """Exchanges messages until the input ends.

        Returns:
            The exit code: 1 if stdin is not a terminal and a turn failed, else 0.
        """
        if not self.live:
            return await self._run()
        notice(f"chatting with {self._name}. /help lists the commands.")
        with typing_kept() if self._editor is not None else nullcontext():
            try:
                await self._run()
            except asyncio.CancelledError:
                output().print()  # the next message starts on the line after the prompt
                raise
        return 0

    def end(self) -> None:
        """Makes the chat read no further messages."""
        self._ended = True

    async def ask_decisions(self, calls: Sequence[message_pb2.ToolCall]) -> list[message_pb2.ApprovalDecision] | None:
        """Asks for a decision about each pending call. Returns None if the input ends."""
        decisions = []
        if self._editor is not None:
            self._editor.drop_typed()
        for call in calls:
            with self.renderer.paused():
                line = await self._ask(_QUESTION.format(tool=call.name))
            if line is None:
                return None
            answer = line.strip()
            if answer.lower() in ("y", "yes"):
                decisions.append(approve(call.id))
            else:
                decisions.append(deny(call.id, None if answer.lower() in ("", "n", "no") else answer))
        return decisions

    async def decide_for(self, event: runs_pb2.RunEvent, agent_name: str, command: str) -> bool:
        """Asks for decisions about the calls of an agent that a run waits for. The run goes on after them.

        Args:
            event: the agent's request, in the stream of the run.
            agent_name: its name.
            command: the chat in which a person can decide.

        Returns:
            False if there is no decision. The chat reads no further messages then: they would wait behind this one.
        """
        if not await self._is_undecided(event):
            return True
        if not self.live:
            self.renderer.show_error(f"{agent_name} is waiting for an approval; run `{command}` in a terminal")
            self.end()
            return False
        decisions = await self.ask_decisions(event.message.approval_request.tool_calls)
        if decisions is None:
            self.end()  # The next chat asks again.
            return False
        request_id = event.message.message_id
        try:
            async with closing(
                self.mnemesh.runs.answer(event.agent_id, decisions, approval_request_id=request_id)
            ) as answered:
                await anext(answered)
        except MnemeshError as error:  # such as: another client has answered
            self.renderer.show_error(error_text(error))
        return True

    async def _is_undecided(self, event: runs_pb2.RunEvent) -> bool:
        """Returns whether a request waits for a decision. The stream of an earlier run also has decided ones."""
        turn = await self.mnemesh.runs.get(event.child_run_id)
        if turn.status == runs_pb2.RUN_STATUS_RUNNING:
            return True  # It stops at any moment.
        agent = await self.mnemesh.agents.get(event.agent_id)
        return agent.proto.pending_approval_request_id == event.message.message_id

    async def interruptible(self, turn: Coroutine[Any, Any, bool]) -> bool:
        """Runs a turn. On a terminal, Ctrl-C cancels it. Returns what it returns; False if it was cancelled."""
        task = asyncio.ensure_future(turn)
        with _interrupt_cancels(task), self._waiting():
            try:
                return await task
            except asyncio.CancelledError:
                current = asyncio.current_task()
                if current is not None and current.cancelling():
                    raise
        self.renderer.show_error("stopped")
        if self.run_id:
            with suppress(MnemeshError):  # a run that cannot be cancelled ends by itself
                await self.mnemesh.runs.cancel(self.run_id)
        return False

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """On a terminal, shows the state of the turn."""
        if not self.live:
            yield
            return
        with pastes_marked(), self.renderer.begin_turn():
            yield

    async def _run(self) -> int:
        """Sends each message that is not blank. Returns 1 if any turn failed, else 0."""
        failed = self.live and not await self.begin()
        async for text in self._messages():
            if self.live and text.startswith("/"):
                await self._run_command(text)
            elif text.strip():
                failed = not await self.send(text.strip()) or failed
            if self._ended:
                break
        return int(failed)

    async def _messages(self) -> AsyncIterator[str]:
        if self._editor is None:
            async for line in self._lines:
                yield line
            return
        while (text := await self._editor.read()) is not None:
            yield text

    async def _ask(self, question: str) -> str | None:
        if self._editor is None:
            return await anext(self._lines, None)
        return await self._editor.ask(question)

    async def _run_command(self, line: str) -> None:
        try:
            await self._commands.run(line)
        except CommandError as error:
            self.renderer.show_error(str(error))
        except MnemeshError as error:
            self.renderer.show_error(error_text(error))

    async def _show_memory(self, _: str) -> None:
        await self.show_memory()

    async def _show_help(self, _: str) -> None:
        self._commands.print_help(self.console)

    async def _quit(self, _: str) -> None:
        self.end()


@contextmanager
def _interrupt_cancels(turn: asyncio.Future[bool]) -> Iterator[None]:
    """On a terminal, makes Ctrl-C cancel the turn instead of the program."""
    if not sys.stdin.isatty():
        yield
        return
    loop = asyncio.get_running_loop()
    before = signal.getsignal(signal.SIGINT)
    loop.add_signal_handler(signal.SIGINT, turn.cancel)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, before)
