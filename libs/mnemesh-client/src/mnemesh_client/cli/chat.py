"""`mnemesh chat`, and the chat of `mnemesh up --chat`."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, contextmanager, suppress
from typing import Annotated, Final

import typer
from mnemesh.agents.v1 import runs_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_kit.errors import MnemeshError

from mnemesh_client.agent import Agent
from mnemesh_client.approvals import approve, deny
from mnemesh_client.cli.connection import Connection, choose_agent
from mnemesh_client.cli.error_text import error_text
from mnemesh_client.cli.memory import print_memory
from mnemesh_client.cli.memory_changes import MemoryTracker
from mnemesh_client.cli.render import LiveRenderer, PlainRenderer, Renderer
from mnemesh_client.cli.stdin import read_lines, terminal_restored
from mnemesh_client.cli.terminal import notice, output
from mnemesh_client.mnemesh import Mnemesh

_PROMPT: Final = "› "
_QUESTION: Final = "  run {tool}? y, n, or a reason to deny › "
_HELP: Final = "/memory shows the agent's memory, /help shows this help, /quit quits; Ctrl-C stops a turn."


def chat(
    context: typer.Context,
    agent: Annotated[
        str | None, typer.Option("--agent", "-a", help="Id or name of the agent.", show_default="the first agent")
    ] = None,
) -> None:
    """Chat with an agent.

    If stdin is not a terminal, each line is a message, and only the replies are printed.
    """
    try:
        code = asyncio.run(_chat(context.obj, agent))
    except (KeyboardInterrupt, asyncio.CancelledError):
        code = 0
    raise typer.Exit(code)


async def _chat(connection: Connection, key: str | None) -> int:
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None  # noqa: S101  (a coroutine always runs in one)
    # A loop with any signal handler is woken by every signal. Without one, it would miss a Ctrl-C that arrives just
    # before it blocks.
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, task.cancel)
    async with connection.open() as mnemesh:
        return await converse(mnemesh, await choose_agent(mnemesh, key))


async def converse(mnemesh: Mnemesh, agent: Agent) -> int:
    """Exchanges messages until the input ends.

    Returns:
        The exit code: 1 if stdin is not a terminal and a turn failed, else 0.
    """
    conversation = Conversation(mnemesh, agent)
    if not sys.stdin.isatty():
        return await conversation.run(read_lines(""))
    notice(f"chatting with {agent.name}. {_HELP}")
    with terminal_restored():
        try:
            await conversation.run(read_lines(_PROMPT))
        except asyncio.CancelledError:
            output().print()  # the next message starts on the line after the prompt
            raise
    return 0


class Conversation:
    """A chat of a person, or of a program that writes to stdin, with an agent."""

    def __init__(self, mnemesh: Mnemesh, agent: Agent) -> None:
        self._mnemesh = mnemesh
        self._agent = agent
        self._live = sys.stdin.isatty()
        self._console = output()
        self._renderer: Renderer = LiveRenderer(self._console) if self._live else PlainRenderer(self._console)
        self._run_id = ""
        self._pending: tuple[message_pb2.ToolCall, ...] = ()

    async def run(self, lines: AsyncIterator[str]) -> int:
        """Sends each line that is not blank and not a command. Returns 1 if any turn failed, else 0."""
        failed = self._live and not await self._answer_pending()
        async for line in lines:
            text = line.strip()
            if self._live and text in ("/quit", "/exit"):
                break
            if self._live and text == "/help":
                notice(_HELP)
            elif self._live and text == "/memory":
                await self._show_memory()
            elif text:
                failed = not await self._send(text) or failed
        return int(failed)

    async def _answer_pending(self) -> bool:
        """Asks for decisions about tool calls that were pending before this chat. Returns False if a turn failed."""
        try:
            self._pending = await pending_calls(self._mnemesh, self._agent)
        except MnemeshError as error:
            self._renderer.show_error(error_text(error))
            return False
        if not self._pending:
            return True
        notice("the agent is waiting for your approval:")
        request = runs_pb2.ApprovalRequestMessage(tool_calls=self._pending)
        self._renderer.show(runs_pb2.RunEvent(message=runs_pb2.MessageEvent(approval_request=request)))
        decisions = await self._ask_decisions()
        return decisions is not None and await self._follow(self._agent.answer(decisions))

    async def _send(self, text: str) -> bool:
        """Sends one message, and asks for the approvals that follow. Returns False if a turn failed."""
        return await self._follow(self._agent.send(text, stream_tokens=self._live))

    async def _follow(self, events: AsyncIterator[runs_pb2.RunEvent]) -> bool:
        while await self._interruptible_turn(events):
            if not self._pending:
                return True
            if not self._live:
                self._renderer.show_error("the agent is waiting for an approval; run `mnemesh chat` in a terminal")
                return False
            decisions = await self._ask_decisions()
            if decisions is None:
                return False
            events = self._agent.answer(decisions)
        return False

    async def _ask_decisions(self) -> list[message_pb2.ApprovalDecision] | None:
        """Asks for a decision about each pending call. Returns None if the input ends."""
        decisions = []
        for call in self._pending:
            async with aclosing(read_lines(_QUESTION.format(tool=call.name))) as lines:
                line = await anext(lines, None)
            if line is None:
                return None
            answer = line.strip()
            if answer.lower() in ("y", "yes"):
                decisions.append(approve(call.id))
            else:
                decisions.append(deny(call.id, None if answer.lower() in ("", "n", "no") else answer))
        return decisions

    async def _show_memory(self) -> None:
        try:
            print_memory(self._console, await self._agent.memory())
        except MnemeshError as error:
            self._renderer.show_error(error_text(error))

    async def _interruptible_turn(self, events: AsyncIterator[runs_pb2.RunEvent]) -> bool:
        turn = asyncio.ensure_future(self._turn(events))
        with _interrupt_cancels(turn):
            try:
                return await turn
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
        await self._cancel_run()
        return False

    async def _turn(self, events: AsyncIterator[runs_pb2.RunEvent]) -> bool:
        """Displays the events of one turn. Returns False if it failed."""
        self._run_id, self._pending, succeeded = "", (), True
        tracker = MemoryTracker(self._mnemesh, self._agent.id) if self._live else None
        try:
            if tracker is not None:
                await tracker.start()
            async for event in events:
                if event.HasField("message") and event.message.HasField("approval_request"):
                    self._pending = tuple(event.message.approval_request.tool_calls)
                self._run_id = event.run_id
                self._renderer.show(event)
                succeeded = succeeded and not event.HasField("error")
                if tracker is not None and event.HasField("message") and event.message.HasField("tool_return"):
                    self._renderer.show_changes(await tracker.changes())
        except MnemeshError as error:
            self._renderer.show_error(error_text(error))
            return False
        return succeeded

    async def _cancel_run(self) -> None:
        self._renderer.show_error("stopped")
        if self._run_id:
            with suppress(MnemeshError):  # a run that cannot be cancelled ends by itself
                await self._mnemesh.runs.cancel(self._run_id)


async def pending_calls(mnemesh: Mnemesh, agent: Agent) -> tuple[message_pb2.ToolCall, ...]:
    """Returns the tool calls in the agent's default conversation that wait for a decision."""
    await agent.refresh()
    if not agent.proto.HasField("pending_approval_request_id"):
        return ()
    return tuple(
        call
        for message in await mnemesh.messages.get(agent.proto.pending_approval_request_id)
        if message.conversation_id == agent.proto.default_conversation_id
        for call in message.tool_calls
    )


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
