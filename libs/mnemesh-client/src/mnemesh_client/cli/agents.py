"""`mnemesh agents`: list, create, show, delete."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Annotated

import typer
from mnemesh.agents.v1 import agents_pb2
from rich.table import Column, Table

from mnemesh_client.agent import Agent
from mnemesh_client.cli.connection import Connection
from mnemesh_client.cli.memory import print_memory
from mnemesh_client.cli.terminal import output

app = typer.Typer(no_args_is_help=True, help="Make, list, show and delete agents.")

Key = Annotated[str, typer.Argument(metavar="AGENT", help="Id or name.")]


@app.command("list")
def list_agents(
    context: typer.Context,
    tag: Annotated[list[str] | None, typer.Option(help="Only agents with this tag; may be repeated.")] = None,
    limit: Annotated[int, typer.Option(min=1)] = 100,
) -> None:
    """List agents, newest first."""
    asyncio.run(_list(context.obj, tag or [], limit))


async def _list(connection: Connection, tags: list[str], limit: int) -> None:
    async with connection.open() as mnemesh:
        table = Table(Column("id", no_wrap=True), "name", "model", "type", "tags", box=None)
        async for agent in mnemesh.agents.list(tags_all=tags, limit=limit):
            table.add_row(agent.id, agent.name, agent.model, _type(agent), ", ".join(agent.proto.tags))
        output().print(table if table.row_count else "There is no agent yet; `mnemesh agents create` makes one.")


@app.command("create")
def create_agent(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Empty lets the server make one up.")] = "",
    model: Annotated[
        str | None, typer.Option(envvar="MNEMESH_MODEL", help="As provider/model; else the server's default.")
    ] = None,
    type: Annotated[str, typer.Option(help="letta_v1, memgpt_v2, …")] = "letta_v1",  # noqa: A002
    human: Annotated[str, typer.Option(help="What it knows about you.")] = "",
    persona: Annotated[str, typer.Option(help="What it knows about itself.")] = "",
    block: Annotated[list[str] | None, typer.Option(help="A further block as label=value; may be repeated.")] = None,
    prompt: Annotated[str | None, typer.Option(help="Key of its system prompt; else its type's own.")] = None,
    tool: Annotated[list[str] | None, typer.Option(help="A tool by name or id; may be repeated.")] = None,
    tool_file: Annotated[list[Path] | None, typer.Option(help="A Python file with a tool; may be repeated.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="May be repeated.")] = None,
    continuation: Annotated[
        str | None, typer.Option(help='What it is told behind its tools, as "All tools finished. Continue."')
    ] = None,
) -> None:
    """Create an agent and print its id."""
    blocks = {"human": human, "persona": persona}
    for text in block or []:
        label, separator, value = text.partition("=")
        if not separator:
            raise typer.BadParameter(f"{text!r} is not of the form label=value", param_hint="--block")
        blocks[label] = value
    asyncio.run(
        _create(
            context.obj, name, model or "", type, prompt, blocks, tool or [], tool_file or [], tag or [], continuation
        )
    )


async def _create(
    connection: Connection,
    name: str,
    model: str,
    kind: str,
    prompt: str | None,
    blocks: dict[str, str],
    tools: list[str],
    files: list[Path],
    tags: list[str],
    continuation: str | None,
) -> None:
    sources = [_read(path) for path in files]
    async with connection.open() as mnemesh:
        agent = await mnemesh.agents.create(
            name,
            model=model,
            type=kind,
            system_prompt_key=prompt,
            blocks=blocks,
            tools=tools,
            tool_sources=sources,
            tags=tags,
            continuation_message=continuation,
        )
        output().print(agent.id, markup=False)


@app.command("show")
def show_agent(context: typer.Context, agent: Key) -> None:
    """Show an agent: its settings, tools and core memory."""
    asyncio.run(_show(context.obj, agent))


async def _show(connection: Connection, key: str) -> None:
    async with connection.open() as mnemesh:
        agent = await mnemesh.agents.find(key)
        table = Table(box=None, show_header=False)
        for label, value in (
            ("id", agent.id),
            ("name", agent.name),
            ("type", _type(agent)),
            ("model", agent.model),
            ("tags", ", ".join(agent.proto.tags)),
            ("tools", ", ".join(tool.name for tool in agent.proto.tools)),
            ("created", agent.proto.create_time.ToJsonString()),
        ):
            table.add_row(label, value)
        console = output()
        console.print(table)
        print_memory(console, await agent.memory())


@app.command("delete")
def delete_agent(
    context: typer.Context,
    agent: Key,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete an agent with everything that only it has."""
    asyncio.run(_delete(context.obj, agent, yes))


async def _delete(connection: Connection, key: str, sure: bool) -> None:
    async with connection.open() as mnemesh:
        agent = await mnemesh.agents.find(key)
        if not sure:
            typer.confirm(f"Delete {agent.name} ({agent.id}) and its memory?", abort=True, err=True)
        await agent.delete()
        output().print(f"deleted {agent.id}", markup=False)


def _type(agent: Agent) -> str:
    return agents_pb2.AgentType.Name(agent.proto.type).removeprefix("AGENT_TYPE_").lower()


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise typer.BadParameter(f"{os.fspath(path)}: {error.strerror}", param_hint="--tool-file") from error
