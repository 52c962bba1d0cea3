"""The commands that every kind of resource has: list, show and delete."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer
from mnemesh_cli.completion import completer
from mnemesh_cli.connection import Connection
from mnemesh_cli.display.records import print_done, print_list, print_record
from mnemesh_cli.display.table import Column
from mnemesh_cli.options import LimitOption, OfAgentOption, YesOption
from mnemesh_client.mnemesh import Mnemesh

Find = Callable[[Mnemesh, str], Awaitable[Any]]
ListAll = Callable[[Mnemesh, str | None, int], AsyncIterator[Any]]
"""Yields at most so many rows, of an agent by id or of all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """A kind of resource."""

    noun: str
    """In the singular, such as "block"."""
    plural: str = ""
    """Unless it is the noun with an s."""
    columns: Sequence[Column]
    list_all: ListAll
    find: Find
    """Returns one by its id, or by its name if it has one."""
    delete: Callable[[Mnemesh, Any], Awaitable[Any]] | None = None
    consequence: str = ""
    """What is deleted with the resource, such as " and its passages"."""
    of_agent: bool = False
    """Whether `--agent` can filter the list."""

    @property
    def nouns(self) -> str:
        """The noun in the plural."""
        return self.plural or f"{self.noun}s"


def resource_app(resource: Resource, help: str) -> typer.Typer:  # noqa: A002
    """Returns a group of commands with list, show and delete."""
    app = typer.Typer(no_args_is_help=True, help=help)
    app.command("list", help=f"List {resource.nouns}.")(_list_command(resource))
    app.command("show", help=f"Show one {resource.noun} with all its fields.")(_show_command(resource))
    if resource.delete is not None:
        app.command("delete", help=f"Delete one {resource.noun}{resource.consequence}.")(_delete_command(resource))
    return app


def id_column(field: str = "id", title: str = "ID") -> Column:
    """Returns a column that is never shortened."""
    return Column(title, lambda row: str(getattr(row, field)))


def text_column(title: str, value: Callable[[Any], str]) -> Column:
    """Returns a column that is shortened if the terminal is narrow."""
    return Column(title, value, flexible=True)


def time_column(field: str = "create_time", title: str = "CREATED") -> Column:
    """Returns a column with a time as YYYY-MM-DD HH:MM in UTC."""
    return Column(title, lambda row: time_text(row, field))


def time_text(row: Any, field: str) -> str:
    """Returns a time field of a message as YYYY-MM-DD HH:MM in UTC; "" if it is absent."""
    return getattr(row, field).ToJsonString()[:16].replace("T", " ") if row.HasField(field) else ""


def enum_text(enum: Any, value: int, prefix: str) -> str:
    """Returns the name of a value of an enum as words in lower case."""
    return str(enum.Name(value)).removeprefix(prefix).lower().replace("_", " ")


def run(context: typer.Context, command: Callable[[Mnemesh], Awaitable[Any]]) -> Any:
    """Runs a command with a client of the mesh, and returns what it returns."""
    return asyncio.run(_with_client(context.obj, command))


async def _with_client(connection: Connection, command: Callable[[Mnemesh], Awaitable[Any]]) -> Any:
    async with connection.open() as mnemesh:
        return await command(mnemesh)


def _list_command(resource: Resource) -> Callable[..., None]:
    empty: Final = f"There are no {resource.nouns}."

    async def list_rows(connection: Connection, agent: str | None, limit: int) -> None:
        async with connection.open() as mnemesh:
            agent_id = None if agent is None else (await mnemesh.agents.find(agent)).id
            rows = resource.list_all(mnemesh, agent_id, limit)
            await print_list(rows, resource.columns, as_json=connection.as_json, empty=empty)

    def list_of_agent(context: typer.Context, agent: OfAgentOption = None, limit: LimitOption = 100) -> None:
        asyncio.run(list_rows(context.obj, agent, limit))

    def list_all(context: typer.Context, limit: LimitOption = 100) -> None:
        asyncio.run(list_rows(context.obj, None, limit))

    return list_of_agent if resource.of_agent else list_all


def _show_command(resource: Resource) -> Callable[..., None]:
    def show(context: typer.Context, key: str) -> None:
        async def command(mnemesh: Mnemesh) -> None:
            print_record(await resource.find(mnemesh, key), as_json=context.obj.as_json)

        run(context, command)

    show.__annotations__.update(context=typer.Context, key=_key_argument(resource))
    return show


def _delete_command(resource: Resource) -> Callable[..., None]:
    def delete(context: typer.Context, key: str, yes: YesOption = False) -> None:
        async def command(mnemesh: Mnemesh) -> None:
            found = await resource.find(mnemesh, key)
            id_ = str(found.id)
            if not yes:
                typer.confirm(f"Delete {resource.noun} {id_}{resource.consequence}?", abort=True, err=True)
            assert resource.delete is not None  # noqa: S101  (the command exists only with it)
            await resource.delete(mnemesh, found)
            print_done(f"deleted {id_}", {"deleted": id_}, as_json=context.obj.as_json)

        run(context, command)

    delete.__annotations__.update(context=typer.Context, key=_key_argument(resource), yes=YesOption)
    return delete


def _key_argument(resource: Resource) -> Any:
    noun = resource.noun
    argument = typer.Argument(
        metavar=noun.upper().replace(" ", "_"), help=f"Id of the {noun}.", autocompletion=completer(noun)
    )
    return Annotated[str, argument]
