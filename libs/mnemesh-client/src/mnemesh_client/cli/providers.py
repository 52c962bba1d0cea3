"""`mnemesh providers`: add, list, check, remove."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated, Any

import typer
from mnemesh.agents.v1 import models_pb2
from rich.table import Column, Table

from mnemesh_client.cli.connection import Connection
from mnemesh_client.cli.terminal import complain, output

app = typer.Typer(no_args_is_help=True, help="Register, list, check and remove providers of models.")

Key = Annotated[str, typer.Argument(metavar="PROVIDER", help="Id or name.")]


@app.command("add")
def add_provider(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="First part of its models' handles.")],
    type: Annotated[str, typer.Option(help="openai, anthropic, groq, openai_compatible, …")],  # noqa: A002
    base_url: Annotated[str | None, typer.Option(help="Where it is; the vendor's own place otherwise.")] = None,
    api_version: Annotated[str | None, typer.Option(help="Of Azure's dated API.")] = None,
    region: Annotated[str | None, typer.Option(help="Of Bedrock.")] = None,
    key_file: Annotated[
        typer.FileText | None,
        typer.Option(help="A file with its key, - for standard input; a terminal is asked otherwise."),
    ] = None,
) -> None:
    """Register a provider for your organization, and print its id."""
    fields = {"base_url": base_url, "api_version": api_version, "region": region}
    given = {field: value for field, value in fields.items() if value is not None}
    asyncio.run(_add(context.obj, name, type, _key(key_file), given))


async def _add(connection: Connection, name: str, kind: str, api_key: str | None, fields: dict[str, Any]) -> None:
    async with connection.open() as mnemesh:
        provider = await mnemesh.providers.create(name, kind, api_key=api_key, **fields)
        output().print(provider.id, markup=False)
        if provider.last_refresh_error:
            complain(f"It is registered, but does not work yet: {provider.last_refresh_error}")


@app.command("list")
def list_providers(context: typer.Context) -> None:
    """List the providers of the server and of your organization."""
    asyncio.run(_list(context.obj))


async def _list(connection: Connection) -> None:
    async with connection.open() as mnemesh:
        table = Table("name", "type", "whose", "key", "models", Column("id", no_wrap=True), box=None)
        async for provider in mnemesh.providers.list():
            is_own = provider.category == models_pb2.PROVIDER_CATEGORY_BYOK
            table.add_row(
                provider.name,
                provider.type,
                "yours" if is_own else "server's",
                "yes" if provider.has_api_key else "no",
                "disabled" if provider.disabled else str(provider.model_count),
                provider.id,
            )
        output().print(table)


@app.command("check")
def check_provider(context: typer.Context, provider: Key) -> None:
    """Ask a provider which models it has, and say why where it does not work."""
    asyncio.run(_check(context.obj, provider))


async def _check(connection: Connection, key: str) -> None:
    async with connection.open() as mnemesh:
        for name in await mnemesh.providers.check(key):
            output().print(name, markup=False, soft_wrap=True)


@app.command("remove")
def remove_provider(
    context: typer.Context,
    provider: Key,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove one of your organization's providers, and its key."""
    asyncio.run(_remove(context.obj, provider, yes))


async def _remove(connection: Connection, key: str, sure: bool) -> None:
    async with connection.open() as mnemesh:
        provider = await mnemesh.providers.get(key)
        if not sure:
            typer.confirm(f"Remove {provider.name} ({provider.id}) and its key?", abort=True, err=True)
        await mnemesh.providers.delete(provider.id)
        output().print(f"removed {provider.id}", markup=False)


def _key(file: typer.FileText | None) -> str | None:
    """The key from the file, or typed unseen; never from the command line, which others can read."""
    if file is not None:
        return file.read().strip() or None
    if not sys.stdin.isatty():
        return None
    return typer.prompt("API key (empty for none)", default="", hide_input=True, show_default=False, err=True) or None
