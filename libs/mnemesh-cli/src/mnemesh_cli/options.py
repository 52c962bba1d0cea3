"""Arguments and options that several commands share, and the completion of their values."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Final

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
    async with connection_of(ctx).open(deadline=_SECONDS) as mnemesh:
        return [row async for row in _SOURCES[noun](mnemesh)]


async def _agents(mnemesh: "Mnemesh") -> AsyncIterator[tuple[str, str]]:
    async for agent in mnemesh.agents.list(limit=_MOST):
        yield agent.name, agent.id
        yield agent.id, agent.name


async def _groups(mnemesh: "Mnemesh") -> AsyncIterator[tuple[str, str]]:
    async for group in mnemesh.groups.list(limit=_MOST):
        if group.description:
            yield group.description, group.id
        yield group.id, group.description


async def _folders(mnemesh: "Mnemesh") -> AsyncIterator[tuple[str, str]]:
    async for folder in mnemesh.folders.list(limit=_MOST):
        yield folder.name, folder.description


async def _tools(mnemesh: "Mnemesh") -> AsyncIterator[tuple[str, str]]:
    async for tool in mnemesh.tools.list(limit=_MOST):
        yield tool.name, tool.description.partition("\n")[0]


async def _models(mnemesh: "Mnemesh") -> AsyncIterator[tuple[str, str]]:
    async for model in mnemesh.models.list():
        yield model.handle, model.display_name


async def _providers(mnemesh: "Mnemesh") -> AsyncIterator[tuple[str, str]]:
    async for provider in mnemesh.providers.list():
        yield provider.name, provider.type


async def _archives(mnemesh: "Mnemesh") -> AsyncIterator[tuple[str, str]]:
    async for archive in mnemesh.archives.list(limit=_MOST):
        yield archive.id, archive.name


async def _blocks(mnemesh: "Mnemesh") -> AsyncIterator[tuple[str, str]]:
    async for block in mnemesh.blocks.list(limit=_MOST):
        yield block.id, block.label


async def _runs(mnemesh: "Mnemesh") -> AsyncIterator[tuple[str, str]]:
    async for run in mnemesh.runs.list(limit=_MOST // 10):
        yield run.id, run.create_time.ToJsonString()[:16]


async def _conversations(mnemesh: "Mnemesh") -> AsyncIterator[tuple[str, str]]:
    async for conversation in mnemesh.conversations.list(limit=_MOST):
        yield conversation.id, conversation.summary


async def _identities(mnemesh: "Mnemesh") -> AsyncIterator[tuple[str, str]]:
    async for identity in mnemesh.identities.list(limit=_MOST):
        yield identity.id, identity.name


async def _schedules(mnemesh: "Mnemesh") -> AsyncIterator[tuple[str, str]]:
    async for schedule in mnemesh.schedules.list(limit=_MOST):
        yield schedule.id, schedule.name


async def _webhooks(mnemesh: "Mnemesh") -> AsyncIterator[tuple[str, str]]:
    async for webhook in mnemesh.webhooks.list(limit=_MOST):
        yield webhook.id, webhook.url


_SOURCES: Final = {
    "agent": _agents,
    "archive": _archives,
    "block": _blocks,
    "conversation": _conversations,
    "folder": _folders,
    "group": _groups,
    "identity": _identities,
    "model": _models,
    "provider": _providers,
    "run": _runs,
    "schedule": _schedules,
    "tool": _tools,
    "webhook": _webhooks,
}


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
