"""The commands that every kind of resource has: list, show and delete."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import wraps
from typing import Annotated, Any, Final

import typer
from mnemesh_cli.display.records import Column, Kind, print_done, print_list, print_record
from mnemesh_cli.display.terminal import is_json
from mnemesh_cli.display.views import AgentNames
from mnemesh_cli.options import LimitOption, OfAgentOption, YesOption, completer
from mnemesh_client.mnemesh import Mnemesh

Find = Callable[[Mnemesh, str], Awaitable[Any]]
AgentsOf = Callable[[Mnemesh, Any], Awaitable[Sequence[str]]]
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
    """Whether `--agent` can filter the list. Without it, a column has the agent of each row."""
    agents_of: AgentsOf | None = None
    """Returns the ids of the agents to which a row belongs, if it has no field `agent_id`."""
    create: str = ""
    """The line that creates the first one, which an empty list names."""

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


def id_column(field: str = "id") -> Column:
    """Returns a column of ids, which a terminal shows as short ones."""
    return Column("ID", lambda row: str(getattr(row, field)), kind=Kind.ID)


def text_column(title: str, value: Callable[[Any], str]) -> Column:
    """Returns a column that is shortened if the terminal is narrow."""
    return Column(title, value, flexible=True)


def time_column(field: str = "create_time", title: str = "CREATED") -> Column:
    return Column(title, lambda row: time_of(row, field), kind=Kind.TIME)


def score_column() -> Column:
    """Returns the column of the scores of hits."""
    return Column("SCORE", lambda hit: f"{hit.score:.2f}", right=True)


def of_hits(field: str, columns: Sequence[Column]) -> tuple[Column, ...]:
    """Returns the columns of hits: their scores, then the columns of what was found, which is in a field."""
    return (score_column(), *(replace(each, value=_of_field(field, each.value)) for each in columns))


def _of_field(field: str, value: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda hit: value(getattr(hit, field))


def time_of(row: Any, field: str) -> datetime | None:
    """Returns a time field of a message; None if it is absent."""
    return getattr(row, field).ToDatetime(UTC) if row.HasField(field) else None


async def agent_column(mnemesh: Mnemesh, rows: Sequence[Any], agents_of: AgentsOf | None = None) -> Column:
    """Returns a column with the names of the agents of each row, for lists over all agents.

    If rows may come from files, the column has the names of the files for these.
    """
    names, texts = AgentNames(mnemesh), dict[str, str]()
    for row in rows:
        ids = await agents_of(mnemesh, row) if agents_of is not None else [row.agent_id]
        texts[row.id] = ", ".join([await names.name(id_) for id_ in ids if id_])
        if not texts[row.id] and hasattr(row, "file_name"):
            texts[row.id] = f"file {row.file_name}" if row.file_name else f"archive {row.archive_id}"
    return text_column("FROM" if any(hasattr(row, "file_name") for row in rows) else "AGENT", lambda row: texts[row.id])


def enum_text(enum: Any, value: int, prefix: str) -> str:
    """Returns the name of a value of an enum as words in lower case."""
    return str(enum.Name(value)).removeprefix(prefix).lower().replace("_", " ")


def with_client(
    command: Callable[..., Coroutine[Any, Any, int | None]], *, deadline: float | None = None
) -> Callable[..., None]:
    """Returns a function for typer that calls a coroutine function with a client of the mesh.

    Args:
        command: its first parameter is the client; the others are those of the command, and `context` if it needs
            that. It returns the exit code, or None for 0.
        deadline: that of the client's calls, in seconds; None is the usual one.
    """

    signature = inspect.signature(command, eval_str=True)

    @wraps(command)
    def run(context: typer.Context, **arguments: Any) -> None:
        if "context" in signature.parameters:
            arguments["context"] = context
        if code := asyncio.run(_call(command, context, deadline, arguments)):
            raise typer.Exit(code)

    own = [each for each in list(signature.parameters.values())[1:] if each.name != "context"]
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter("context", kind, annotation=typer.Context), *own]
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


async def _call(
    command: Callable[..., Awaitable[int | None]], context: typer.Context, deadline: float | None, arguments: Any
) -> int | None:
    async with context.obj.open(deadline=deadline) as mnemesh:
        return await command(mnemesh, **arguments)


def _list_command(resource: Resource) -> Callable[..., None]:
    empty: Final = f"There are no {resource.nouns}."
    hint: Final = f"{empty} Create one with `{resource.create}`." if resource.create else empty

    async def list_of_agent(mnemesh: Mnemesh, agent: OfAgentOption = None, limit: LimitOption = 100) -> None:
        agent_id = None if agent is None else (await mnemesh.agents.find(agent)).id
        rows, columns = resource.list_all(mnemesh, agent_id, limit), tuple(resource.columns)
        if is_json.get() or agent_id is not None or not resource.of_agent:
            said = hint if agent_id is None else f"The agent has no {resource.nouns}."
            await print_list(rows, columns, empty=said, limit=limit)
            return
        collected = [row async for row in rows]
        column = await agent_column(mnemesh, collected, resource.agents_of)
        await print_list(collected, (columns[0], column, *columns[1:]), empty=hint, limit=limit)

    async def list_all(mnemesh: Mnemesh, limit: LimitOption = 100) -> None:
        await list_of_agent(mnemesh, None, limit)

    return with_client(list_of_agent if resource.of_agent else list_all)


def _show_command(resource: Resource) -> Callable[..., None]:
    async def show(mnemesh: Mnemesh, key: str) -> None:
        print_record(await resource.find(mnemesh, key))

    show.__annotations__["key"] = _key_argument(resource)
    return with_client(show)


def _delete_command(resource: Resource) -> Callable[..., None]:
    async def delete(mnemesh: Mnemesh, key: str, yes: YesOption = False) -> None:
        found = await resource.find(mnemesh, key)
        id_ = str(found.id)
        if not yes:
            typer.confirm(f"Delete {resource.noun} {id_}{resource.consequence}?", abort=True, err=True)
        assert resource.delete is not None  # noqa: S101  (the command exists only with it)
        await resource.delete(mnemesh, found)
        print_done(f"deleted {id_}", {"deleted": id_})

    delete.__annotations__["key"] = _key_argument(resource)
    return with_client(delete)


def _key_argument(resource: Resource) -> Any:
    noun = resource.noun
    argument = typer.Argument(
        metavar=noun.upper().replace(" ", "_"), help=f"Id of the {noun}.", autocompletion=completer(noun)
    )
    return Annotated[str, argument]
