"""`mnemesh groups`: send, cancel, messages, reset."""

from __future__ import annotations

import asyncio
from datetime import UTC
from typing import Annotated

import typer
from mnemesh.agents.v1.runs_service_pb2 import CANCEL_OUTCOME_CANCELLED, CancelOutcome
from mnemesh_cli.chat.group_chat import GroupDisplay
from mnemesh_cli.chat.json_renderer import JsonRenderer
from mnemesh_cli.chat.render import LiveRenderer, PlainRenderer
from mnemesh_cli.connection import Connection
from mnemesh_cli.display.group_views import AgentNames, message_text, role_name
from mnemesh_cli.display.records import print_done, print_json
from mnemesh_cli.display.table import local_time_text
from mnemesh_cli.display.terminal import notice, output, print_error
from mnemesh_cli.options import GroupArgument, YesOption
from rich.text import Text


def send(
    context: typer.Context,
    group: GroupArgument,
    message: Annotated[str, typer.Argument(metavar="MESSAGE", help="The text.")],
    background: Annotated[
        bool, typer.Option("--background", help="Print the id of the run, and do not wait for the answers.")
    ] = False,
) -> None:
    """Send a message to a group and print the answers, each with the name of the speaker; with --json each event."""
    raise typer.Exit(asyncio.run(_send(context.obj, group, message, background)))


async def _send(connection: Connection, key: str, message: str, background: bool) -> int:
    async with connection.open() as mnemesh:
        group = await mnemesh.groups.find(key)
        if background:
            started = await group.start(message)
            print_done(started.id, started, as_json=connection.as_json)
            return 0
        console = output()
        live = console.is_terminal and not connection.as_json
        text = LiveRenderer(console) if live else PlainRenderer(console)
        display, failed = GroupDisplay(JsonRenderer(console) if connection.as_json else text), False
        async for item in group.send(message, stream_tokens=live):
            display.show(item)
            failed = failed or item.event.HasField("error")
            if item.event.message.HasField("approval_request"):
                command = f"mnemesh chat --group {group.id}"
                print_error(f"{item.agent_name} is waiting for an approval; run `{command}` in a terminal")
                return 1
        return int(failed)


def cancel(context: typer.Context, group: GroupArgument) -> None:
    """Cancel the runs of a group that have not ended, with the turns of its agents in them."""
    asyncio.run(_cancel(context.obj, group))


async def _cancel(connection: Connection, key: str) -> None:
    async with connection.open() as mnemesh:
        group = await mnemesh.groups.find(key)
        outcomes = await group.cancel()
        cancelled = [run_id for run_id, outcome in outcomes.items() if outcome == CANCEL_OUTCOME_CANCELLED]
        if connection.as_json:
            print_json({run_id: CancelOutcome.Name(outcome) for run_id, outcome in outcomes.items()})
            return
        for run_id in cancelled:
            output().print(f"cancelled {run_id}", markup=False)
        if not cancelled:
            notice("The group has no runs that have not ended.")


def messages(
    context: typer.Context,
    group: GroupArgument,
    agent: Annotated[
        str | None, typer.Option("--agent", "-a", help="Only messages of this agent, by id or name.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of messages.")] = 50,
) -> None:
    """List the newest messages that the agents of a group wrote or received in its runs, oldest first."""
    asyncio.run(_messages(context.obj, group, agent, limit))


async def _messages(connection: Connection, key: str, agent: str | None, limit: int) -> None:
    async with connection.open() as mnemesh:
        group = await mnemesh.groups.find(key)
        agent_id = None if agent is None else (await mnemesh.agents.find(agent)).id
        names, console = AgentNames(mnemesh), output()
        newest = [message async for message in group.messages(agent_id=agent_id, order="desc", limit=limit)]
        newest.reverse()
        # The server lists them as they were stored: those of a turn after those of the agents that it asked.
        for message in sorted(newest, key=lambda each: each.create_time.ToNanoseconds()):
            if connection.as_json:
                print_json(message)
                continue
            time = local_time_text(message.create_time.ToDatetime(UTC))
            name = await names.name(message.agent_id)
            head = (Text(time, style="dim"), Text(name, style="bold"), Text(f"{role_name(message):9}", style="cyan"))
            console.print(*head, Text(message_text(message)))
        if not newest:
            notice("The group has no messages.")


def reset(context: typer.Context, group: GroupArgument, yes: YesOption = False) -> None:
    """Remove all messages from the context windows of a group's agents. The messages can still be searched."""
    asyncio.run(_reset(context.obj, group, yes))


async def _reset(connection: Connection, key: str, confirmed: bool) -> None:
    async with connection.open() as mnemesh:
        group = await mnemesh.groups.find(key)
        if not confirmed:
            label = group.description or group.id
            typer.confirm(f"Remove all messages from the windows of the agents of {label}?", abort=True, err=True)
        await group.reset()
        print_done(f"reset {group.id}", {"reset": group.id}, as_json=connection.as_json)
