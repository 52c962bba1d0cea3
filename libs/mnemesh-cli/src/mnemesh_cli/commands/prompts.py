"""`mnemesh prompts`: list, show."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer
from mnemesh_cli.connection import Connection
from mnemesh_cli.display.terminal import output
from rich.table import Table

app = typer.Typer(no_args_is_help=True, help="List and show the system prompts for new agents.")


@app.command("list")
def list_prompts(context: typer.Context) -> None:
    """List system prompts by key."""
    asyncio.run(_list(context.obj))


async def _list(connection: Connection) -> None:
    async with connection.open() as mnemesh:
        table = Table("KEY", "SOURCE", "CHARACTERS", box=None)
        async for prompt in mnemesh.prompts.list():
            table.add_row(prompt.key, "built-in" if prompt.built_in else "operator", str(len(prompt.text)))
        output().print(table)


@app.command("show")
def show_prompt(
    context: typer.Context, key: Annotated[str, typer.Argument(metavar="KEY", help="Key of the prompt.")]
) -> None:
    """Print a system prompt."""
    asyncio.run(_show(context.obj, key))


async def _show(connection: Connection, key: str) -> None:
    async with connection.open() as mnemesh:
        typer.echo((await mnemesh.prompts.get(key)).text)
