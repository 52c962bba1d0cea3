"""Arguments and options that several commands share, and the completion of their values."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from mnemesh_cli.global_options import connection_of

if TYPE_CHECKING:
    from mnemesh_client.mnemesh import Mnemesh  # only the completion of names calls the mesh

_SECONDS: Final = 1.5
_MOST: Final = 200
Complete = Callable[[typer.Context, str], list[tuple[str, str]]]
FileArgument = Annotated[
    str, typer.Argument(metavar="FILE", help="Id of the file, folder/name, or a name that only one file has.")
]
DataDirOption = Annotated[
    str | None, typer.Option(help="Data directory of the mesh. Overrides MNEMESH_DATA_DIR.", show_default="./data")
]
LimitOption = Annotated[int, typer.Option(min=1, help="Maximum number of rows.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation prompt.")]


def completer(noun: str) -> Complete:
    """Returns what offers the names, or else the ids, of resources of a kind such as "agent"."""

    def complete(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
        if noun not in _SOURCES:
            return []
        try:
            found = asyncio.run(asyncio.wait_for(_names(ctx, noun), _SECONDS))
        except Exception:  # an error message would appear in the middle of the line that the user types
            return []
        return list(islice((each for each in found if each[0].startswith(incomplete)), _MOST))

    return complete


async def _names(ctx: typer.Context, noun: str) -> list[tuple[str, str]]:
    rows, offered = _SOURCES[noun]
    async with connection_of(ctx).open(deadline=_SECONDS) as mnemesh:
        return [each async for row in rows(mnemesh) for each in offered(row)]


def _named(row: Any) -> list[tuple[str, str]]:
    return [(row.name, row.id), (row.id, row.name)]


_SOURCES: "Final[dict[str, tuple[Callable[[Mnemesh], AsyncIterator[Any]], Callable[[Any], list[tuple[str, str]]]]]]" = {
    "agent": (lambda mnemesh: mnemesh.agents.list(limit=_MOST), _named),
    "archive": (lambda mnemesh: mnemesh.archives.list(limit=_MOST), lambda row: [(row.id, row.name)]),
    "block": (lambda mnemesh: mnemesh.blocks.list(limit=_MOST), lambda row: [(row.id, row.label)]),
    "conversation": (lambda mnemesh: mnemesh.conversations.list(limit=_MOST), lambda row: [(row.id, row.summary)]),
    "folder": (lambda mnemesh: mnemesh.folders.list(limit=_MOST), lambda row: [(row.name, row.description)]),
    "group": (
        lambda mnemesh: mnemesh.groups.list(limit=_MOST),
        lambda row: [*([(row.description, row.id)] if row.description else ()), (row.id, row.description)],
    ),
    "identity": (lambda mnemesh: mnemesh.identities.list(limit=_MOST), lambda row: [(row.id, row.name)]),
    "model": (lambda mnemesh: mnemesh.models.list(), lambda row: [(row.handle, row.display_name)]),
    "provider": (lambda mnemesh: mnemesh.providers.list(), lambda row: [(row.name, row.type)]),
    "run": (
        lambda mnemesh: mnemesh.runs.list(limit=_MOST // 10),
        lambda row: [(row.id, row.create_time.ToJsonString()[:16])],
    ),
    "schedule": (lambda mnemesh: mnemesh.schedules.list(limit=_MOST), lambda row: [(row.id, row.name)]),
    "tool": (
        lambda mnemesh: mnemesh.tools.list(limit=_MOST),
        lambda row: [(row.name, row.description.partition("\n")[0])],
    ),
    "webhook": (lambda mnemesh: mnemesh.webhooks.list(limit=_MOST), lambda row: [(row.id, row.url)]),
}
"""By kind of resource: what yields its rows, and what of a row is offered, each with its description."""


AgentArgument = Annotated[
    str, typer.Argument(metavar="AGENT", help="Id or name of the agent.", autocompletion=completer("agent"))
]
GroupArgument = Annotated[
    str, typer.Argument(metavar="GROUP", help="Id or description of the group.", autocompletion=completer("group"))
]
FolderArgument = Annotated[
    str, typer.Argument(metavar="FOLDER", help="Id or name of the folder.", autocompletion=completer("folder"))
]
OptionalAgentArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="AGENT",
        help="Id or name of the agent.",
        show_default="the first agent",
        autocompletion=completer("agent"),
    ),
]
OfAgentOption = Annotated[
    str | None,
    typer.Option("--agent", "-a", help="Only those of this agent, by id or name.", autocompletion=completer("agent")),
]
AttachToOption = Annotated[
    list[str] | None,
    typer.Option("--agent", "-a", help="Attach it to this agent. Can be repeated.", autocompletion=completer("agent")),
]
ModelOption = Annotated[
    str | None, typer.Option(help="The model, as provider/model.", autocompletion=completer("model"))
]


def text_or_stdin(text: str) -> str:
    """Returns the text of an argument; what stdin has, without its last line break, if the argument is "-"."""
    return sys.stdin.read().removesuffix("\n") if text == "-" else text
