"""`mnemesh prompts`: list, show."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer
from mnemesh_cli.connection import Connection
from mnemesh_cli.display.records import Column, print_done, print_list

app = typer.Typer(no_args_is_help=True, help="List and show the system prompts for new agents.")

_COLUMNS = (
    Column("KEY", lambda prompt: prompt.key, flexible=True),
    Column("SOURCE", lambda prompt: "built-in" if prompt.built_in else "operator"),
    Column("CHARACTERS", lambda prompt: str(len(prompt.text)), right=True),
)


@app.command("list")
def list_prompts(context: typer.Context) -> None:
    """List system prompts by key."""
    asyncio.run(_list(context.obj))


async def _list(connection: Connection) -> None:
    async with connection.open() as mnemesh:
        rows = mnemesh.prompts.list()
        await print_list(rows, _COLUMNS, as_json=connection.as_json, empty="There are no prompts.")


@app.command("show")
def show_prompt(
    context: typer.Context, key: Annotated[str, typer.Argument(metavar="KEY", help="Key of the prompt.")]
) -> None:
    """Print a system prompt."""
    asyncio.run(_show(context.obj, key))


async def _show(connection: Connection, key: str) -> None:
    async with connection.open() as mnemesh:
        prompt = await mnemesh.prompts.get(key)
        print_done(prompt.text, prompt, as_json=connection.as_json)
