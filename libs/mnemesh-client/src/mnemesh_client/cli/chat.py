"""`mnemesh chat`, and the conversation that `mnemesh up --chat` gives."""

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
from mnemesh_client.cli.error_text import explain
from mnemesh_client.cli.memory import print_memory
from mnemesh_client.cli.memory_changes import MemoryWatch
from mnemesh_client.cli.render import LiveView, PlainView, View
from mnemesh_client.cli.stdin import lines, terminal_kept
from mnemesh_client.cli.terminal import notice, output
from mnemesh_client.mnemesh import Mnemesh

_PROMPT: Final = "› "
_QUESTION: Final = "  may it run {tool}? y, n, or why not › "
_HELP: Final = "/memory shows the agent's memory, /help this, /quit ends; Ctrl-C stops a turn."


def chat(
    context: typer.Context,
    agent: Annotated[str | None, typer.Option("--agent", "-a", help="Id or name; else the first agent.")] = None,
) -> None:
    """Talk to an agent. Without a terminal on stdin: a message a line, plain replies."""
    try:
        code = asyncio.run(_chat(context.obj, agent))
    except (KeyboardInterrupt, asyncio.CancelledError):
        code = 0
    raise typer.Exit(code)


async def _chat(connection: Connection, key: str | None) -> int:
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None  # noqa: S101  (a coroutine always runs in one)
    # A loop that minds any signal is woken by each. Else a Ctrl-C that comes as it begins to wait would not be seen.
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, task.cancel)
    async with connection.open() as mnemesh:
        return await converse(mnemesh, await choose_agent(mnemesh, key))


async def converse(mnemesh: Mnemesh, agent: Agent) -> int:
    """Exchanges messages to the end of the input; the exit code: 1 where a turn failed and nobody sits there."""
    conversation = Conversation(mnemesh, agent)
    if not sys.stdin.isatty():
        return await conversation.run(lines(""))
    notice(f"this is {agent.name}. {_HELP}")
    with terminal_kept():
        try:
            await conversation.run(lines(_PROMPT))
        except asyncio.CancelledError:
            output().print()  # what is said next begins behind the prompt that nobody answered
            raise
    return 0


class Conversation:
    """One person, or one pipe, and one agent."""

    def __init__(self, mnemesh: Mnemesh, agent: Agent) -> None:
        self._mnemesh = mnemesh
        self._agent = agent
        self._live = sys.stdin.isatty()
        self._console = output()
        self._view: View = LiveView(self._console) if self._live else PlainView(self._console)
        self._run_id = ""
        self._asked: tuple[message_pb2.ToolCall, ...] = ()

    async def run(self, source: AsyncIterator[str]) -> int:
        """Sends every line that is not blank and not a command; 1 where any turn failed, else 0."""
        failed = self._live and not await self._answer_what_waits()
        async for line in source:
            text = line.strip()
            if self._live and text in ("/quit", "/exit"):
                break
            if self._live and text == "/help":
                notice(_HELP)
            elif self._live and text == "/memory":
                await self._show_memory()
            elif text:
                failed = not await self._exchange(text) or failed
        return int(failed)

    async def _answer_what_waits(self) -> bool:
        """Asks for what the agent had asked before anybody sat here; False where a turn failed."""
        try:
            self._asked = await waiting_calls(self._mnemesh, self._agent)
        except MnemeshError as error:
            self._view.fail(explain(error))
            return False
        if not self._asked:
            return True
        notice("it waits for an answer:")
        request = runs_pb2.ApprovalRequestMessage(tool_calls=self._asked)
        self._view.show(runs_pb2.RunEvent(message=runs_pb2.MessageEvent(approval_request=request)))
        decisions = await self._decisions()
        return decisions is not None and await self._carry_on(self._agent.answer(decisions))

    async def _exchange(self, text: str) -> bool:
        """One message, and the answers to whatever the agent asks for on the way; False where it failed."""
        return await self._carry_on(self._agent.send(text, stream_tokens=self._live))

    async def _carry_on(self, events: AsyncIterator[runs_pb2.RunEvent]) -> bool:
        while await self._interruptible_turn(events):
            if not self._asked:
                return True
            if not self._live:
                self._view.fail("the agent waits for an approval; `mnemesh chat` on a terminal asks for it")
                return False
            decisions = await self._decisions()
            if decisions is None:
                return False
            events = self._agent.answer(decisions)
        return False

    async def _decisions(self) -> list[message_pb2.ApprovalDecision] | None:
        """What the person says to each call that waits; None where the input ends."""
        made = []
        for call in self._asked:
            async with aclosing(lines(_QUESTION.format(tool=call.name))) as answers:
                said = await anext(answers, None)
            if said is None:
                return None
            word = said.strip()
            if word.lower() in ("y", "yes"):
                made.append(approve(call.id))
            else:
                made.append(deny(call.id, None if word.lower() in ("", "n", "no") else word))
        return made

    async def _show_memory(self) -> None:
        try:
            print_memory(self._console, await self._agent.memory())
        except MnemeshError as error:
            self._view.fail(explain(error))

    async def _interruptible_turn(self, events: AsyncIterator[runs_pb2.RunEvent]) -> bool:
        turn = asyncio.ensure_future(self._turn(events))
        with _interrupts(turn):
            try:
                return await turn
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
        await self._cancel_run()
        return False

    async def _turn(self, events: AsyncIterator[runs_pb2.RunEvent]) -> bool:
        """Shows what comes of a message or an answer; False where it failed."""
        self._run_id, self._asked, succeeded = "", (), True
        watch = MemoryWatch(self._mnemesh, self._agent.id) if self._live else None
        try:
            if watch is not None:
                await watch.begin()
            async for event in events:
                if event.HasField("message") and event.message.HasField("approval_request"):
                    self._asked = tuple(event.message.approval_request.tool_calls)
                self._run_id = event.run_id
                self._view.show(event)
                succeeded = succeeded and not event.HasField("error")
                if watch is not None and event.HasField("message") and event.message.HasField("tool_return"):
                    self._view.show_edits(await watch.edits())
        except MnemeshError as error:
            self._view.fail(explain(error))
            return False
        return succeeded

    async def _cancel_run(self) -> None:
        self._view.fail("stopped")
        if self._run_id:
            with suppress(MnemeshError):  # where it cannot be cancelled it ends by itself
                await self._mnemesh.runs.cancel(self._run_id)


async def waiting_calls(mnemesh: Mnemesh, agent: Agent) -> tuple[message_pb2.ToolCall, ...]:
    """The calls of the agent's default conversation that wait for a decision."""
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
def _interrupts(turn: asyncio.Future[bool]) -> Iterator[None]:
    """While a turn runs on a terminal, Ctrl-C ends the turn and not the program."""
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
