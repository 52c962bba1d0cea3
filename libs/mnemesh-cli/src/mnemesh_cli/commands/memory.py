"""`mnemesh memory`: shows and edits the core memory of an agent, and its facts."""

from __future__ import annotations

import asyncio
from typing import Annotated

import click
import typer
from mnemesh.blocks.v1 import blocks_pb2
from mnemesh_cli.commands import memory_audit, memory_facts
from mnemesh_cli.connection import Connection, choose_agent
from mnemesh_cli.display.memory_view import print_memory
from mnemesh_cli.display.records import print_json
from mnemesh_cli.display.terminal import output
from mnemesh_cli.options import AgentArgument, OptionalAgentArgument
from mnemesh_client.agent import Agent
from mnemesh_client.mnemesh import Mnemesh
from mnemesh_kit.errors import NotFound

app = typer.Typer(no_args_is_help=True, help="Show, correct and check what agents remember.")
app.command("audit")(memory_audit.audit)
memory_facts.register(app)


@app.command("show")
def show(context: typer.Context, agent: OptionalAgentArgument = None) -> None:
    """Show the blocks of an agent."""
    asyncio.run(_show(context.obj, agent))


async def _show(connection: Connection, key: str | None) -> None:
    async with connection.open() as mnemesh:
        _print(await (await choose_agent(mnemesh, key)).memory(), as_json=connection.as_json)


def _print(memory: blocks_pb2.CoreMemory, *, as_json: bool) -> None:
    if as_json:
        print_json(memory)
    else:
        print_memory(output(), memory)


@app.command("edit")
def edit(
    context: typer.Context,
    agent: AgentArgument,
    label: Annotated[str, typer.Argument(metavar="LABEL", help="Label of the block.")],
    append: Annotated[str | None, typer.Option(help="Append a line of text.")] = None,
    replace: Annotated[
        tuple[str, str] | None, typer.Option(metavar="OLD NEW", help="Replace the only occurrence of a text.")
    ] = None,
    value: Annotated[str | None, typer.Option(help="Replace the whole value.")] = None,
) -> None:
    """Edit a block of an agent. Opens $EDITOR if no option is given.

    The edit is made as the owner of the agent, who may also change read-only blocks.
    """
    if sum(option is not None for option in (append, replace, value)) > 1:
        raise typer.BadParameter("use only one of --append, --replace and --value")
    asyncio.run(_edit(context.obj, agent, label, append, replace, value))


async def _edit(
    connection: Connection,
    key: str,
    label: str,
    append: str | None,
    replace: tuple[str, str] | None,
    value: str | None,
) -> None:
    async with connection.open() as mnemesh:
        agent = await mnemesh.agents.find(key)
        if append is not None:
            await mnemesh.blocks.append(agent.id, label, append)
        elif replace is not None:
            await mnemesh.blocks.replace(agent.id, label, *replace)
        elif value is not None:
            await mnemesh.blocks.rethink(agent.id, label, value)
        else:
            await _edit_in_editor(mnemesh, agent, label)
        _print(await agent.memory(), as_json=connection.as_json)


async def _edit_in_editor(mnemesh: Mnemesh, agent: Agent, label: str) -> None:
    """Opens the value in an editor and writes it back. The write is refused if the block changed meanwhile."""
    block = next((block for block in (await agent.memory()).blocks if block.label == label), None)
    if block is None:
        raise NotFound(f"{agent.name} has no block {label!r}.", resource_id=label)
    edited = await asyncio.to_thread(click.edit, block.value)
    if edited is not None and edited.rstrip("\n") != block.value:
        await mnemesh.blocks.rethink(agent.id, label, edited.rstrip("\n"), base_revision=block.revision)
