"""`mnemesh prompts`: list, show."""

from __future__ import annotations

from typing import Annotated

import typer
from mnemesh_cli.commands.resources import with_client
from mnemesh_cli.display.records import Column, print_done, print_list
from mnemesh_client.mnemesh import Mnemesh

app = typer.Typer(no_args_is_help=True, help="List and show the system prompts for new agents.")

_COLUMNS = (
    Column("KEY", lambda prompt: prompt.key, flexible=True),
    Column("SOURCE", lambda prompt: "built-in" if prompt.built_in else "operator"),
    Column("CHARACTERS", lambda prompt: str(len(prompt.text)), right=True),
)


@app.command("list")
@with_client
async def list_prompts(mnemesh: Mnemesh, context: typer.Context) -> None:
    """List system prompts by key."""
    rows = mnemesh.prompts.list()
    await print_list(rows, _COLUMNS, as_json=context.obj.as_json, empty="There are no prompts.")


@app.command("show")
@with_client
async def show_prompt(
    mnemesh: Mnemesh,
    context: typer.Context,
    key: Annotated[str, typer.Argument(metavar="KEY", help="Key of the prompt.")],
) -> None:
    """Print a system prompt."""
    prompt = await mnemesh.prompts.get(key)
    print_done(prompt.text, prompt, as_json=context.obj.as_json)
