"""`mnemesh providers`: add, list, check, remove."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated, Any

import typer
from mnemesh.agents.v1 import models_pb2
from mnemesh_cli.connection import Connection
from mnemesh_cli.display.terminal import output, print_error
from mnemesh_cli.options import YesOption
from rich.table import Column, Table

app = typer.Typer(no_args_is_help=True, help="Add, list, check and remove model providers.")

ProviderArgument = Annotated[str, typer.Argument(metavar="PROVIDER", help="Id or name of the provider.")]


@app.command("add")
def add_provider(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the provider: the first part of model handles.")],
    type: Annotated[  # noqa: A002
        str, typer.Option(help="Provider type: openai, anthropic, groq, openai_compatible, …")
    ],
    base_url: Annotated[str | None, typer.Option(help="Base URL of the API.", show_default="the vendor's URL")] = None,
    api_version: Annotated[str | None, typer.Option(help="API version. Only for Azure.")] = None,
    region: Annotated[str | None, typer.Option(help="Region. Only for Bedrock.")] = None,
    key_file: Annotated[
        typer.FileText | None,
        typer.Option(help="File with the API key, or - for stdin.", show_default="prompt on a terminal"),
    ] = None,
) -> None:
    """Add a model provider for your organization and print its id."""
    options = {"base_url": base_url, "api_version": api_version, "region": region}
    fields = {field: value for field, value in options.items() if value is not None}
    asyncio.run(_add(context.obj, name, type, _read_key(key_file), fields))


async def _add(connection: Connection, name: str, kind: str, api_key: str | None, fields: dict[str, Any]) -> None:
    async with connection.open() as mnemesh:
        provider = await mnemesh.providers.create(name, kind, api_key=api_key, **fields)
        output().print(provider.id, markup=False)
        if provider.last_refresh_error:
            print_error(f"The provider was added, but its models cannot be listed: {provider.last_refresh_error}")


@app.command("list")
def list_providers(context: typer.Context) -> None:
    """List the providers of the server and of your organization."""
    asyncio.run(_list(context.obj))


async def _list(connection: Connection) -> None:
    async with connection.open() as mnemesh:
        table = Table("NAME", "TYPE", "OWNER", "KEY", "MODELS", Column("ID", no_wrap=True), box=None)
        async for provider in mnemesh.providers.list():
            is_own = provider.category == models_pb2.PROVIDER_CATEGORY_BYOK
            table.add_row(
                provider.name,
                provider.type,
                "organization" if is_own else "server",
                "yes" if provider.has_api_key else "no",
                "disabled" if provider.disabled else str(provider.model_count),
                provider.id,
            )
        output().print(table)


@app.command("check")
def check_provider(context: typer.Context, provider: ProviderArgument) -> None:
    """Check that a provider works, and list its models."""
    asyncio.run(_check(context.obj, provider))


async def _check(connection: Connection, key: str) -> None:
    async with connection.open() as mnemesh:
        for name in await mnemesh.providers.check(key):
            output().print(name, markup=False, soft_wrap=True)


@app.command("remove")
def remove_provider(context: typer.Context, provider: ProviderArgument, yes: YesOption = False) -> None:
    """Remove a provider of your organization, and its API key."""
    asyncio.run(_remove(context.obj, provider, yes))


async def _remove(connection: Connection, key: str, confirmed: bool) -> None:
    async with connection.open() as mnemesh:
        provider = await mnemesh.providers.get(key)
        if not confirmed:
            typer.confirm(f"Remove {provider.name} ({provider.id}) and its API key?", abort=True, err=True)
        await mnemesh.providers.delete(provider.id)
        output().print(f"removed {provider.id}", markup=False)


def _read_key(file: typer.FileText | None) -> str | None:
    """Returns the key from a file or a prompt. There is no option for it: other users can read command lines."""
    if file is not None:
        return file.read().strip() or None
    if not sys.stdin.isatty():
        return None
    return typer.prompt("API key (empty for none)", default="", hide_input=True, show_default=False, err=True) or None
