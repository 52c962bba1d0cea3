"""`mnemesh models`: list, show."""

from __future__ import annotations

from typing import Annotated, Final

import typer
from mnemesh.agents.v1 import models_pb2
from mnemesh_cli.commands.resources import text_column, with_client
from mnemesh_cli.completion import completer
from mnemesh_cli.display.records import Column, print_list, print_record
from mnemesh_cli.options import LimitOption
from mnemesh_client.mnemesh import Mnemesh

app = typer.Typer(no_args_is_help=True, help="List and show the models of the mesh.")

_UNITS_OF_A_MILLION: Final = 10**6
_UNITS_PER_DOLLAR: Final = 10**12


def _price(model: models_pb2.Model) -> str:
    """Returns US dollars for a million tokens of input and output."""
    if not model.price.HasField("input") or not model.price.HasField("output"):
        return ""
    dollars = (each * _UNITS_OF_A_MILLION / _UNITS_PER_DOLLAR for each in (model.price.input, model.price.output))
    return "/".join(f"{each:g}" for each in dollars)


_COLUMNS: Final = (
    text_column("MODEL", lambda model: model.handle),
    Column("CONTEXT", lambda model: f"{model.context_window:,}", right=True),
    Column("OUTPUT", lambda model: f"{model.max_output_tokens:,}", right=True),
    Column("$ PER MILLION", _price, right=True),
)


@app.command("list")
@with_client
async def list_models(mnemesh: Mnemesh, context: typer.Context, limit: LimitOption = 1000) -> None:
    """List the models that agents can use, with their price for input and output."""
    rows = [model async for model in mnemesh.models.list(limit=limit) if not model.hidden]
    await print_list(rows, _COLUMNS, as_json=context.obj.as_json, empty="There are no models.")


@app.command("show")
@with_client
async def show(
    mnemesh: Mnemesh,
    context: typer.Context,
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="As provider/model.", show_default="the default", autocompletion=completer("model")
        ),
    ] = "",
) -> None:
    """Show a model, or the default model of new agents."""
    print_record(await mnemesh.models.get(model), as_json=context.obj.as_json)
