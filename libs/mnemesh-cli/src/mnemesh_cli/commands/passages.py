"""`mnemesh passages`: list, search, show, create, delete."""

from __future__ import annotations

from typing import Annotated

import typer
from mnemesh_cli.commands.resources import (
    Resource,
    id_column,
    of_hits,
    resource_app,
    text_column,
    time_column,
    with_client,
)
from mnemesh_cli.completion import completer
from mnemesh_cli.display.records import print_done, print_list
from mnemesh_cli.options import LimitOption, OfAgentOption, text_or_stdin
from mnemesh_client.mnemesh import Mnemesh

PASSAGES = Resource(
    noun="passage",
    columns=(id_column(), time_column(), text_column("TEXT", lambda passage: passage.text)),
    list_all=lambda mnemesh, agent_id, limit: mnemesh.passages.list(agent_id=agent_id, limit=limit),
    find=lambda mnemesh, key: mnemesh.passages.get(key),
    delete=lambda mnemesh, passage: mnemesh.passages.delete(passage.id),
    of_agent=True,
    create="mnemesh passages create TEXT --agent AGENT",
)
app = resource_app(PASSAGES, "Create, list, search, show and delete archived passages.")

ArchiveOption = Annotated[str | None, typer.Option(help="Id of the archive.", autocompletion=completer("archive"))]
TagOption = Annotated[list[str] | None, typer.Option("--tag", help="A tag. Can be repeated.")]


@app.command("create")
@with_client
async def create(
    mnemesh: Mnemesh,
    context: typer.Context,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The passage; - reads stdin.")],
    agent: Annotated[
        str | None,
        typer.Option(
            "--agent", "-a", help="Store it in the first archive of this agent.", autocompletion=completer("agent")
        ),
    ] = None,
    archive: ArchiveOption = None,
    tag: TagOption = None,
) -> None:
    """Create a passage in an archive, or in the first archive of an agent, and print its id."""
    if (agent is None) == (archive is None):
        raise typer.BadParameter("use exactly one of --agent and --archive")
    content = text_or_stdin(text)
    agent_id = None if agent is None else (await mnemesh.agents.find(agent)).id
    passage = await mnemesh.passages.insert(content, agent_id=agent_id, archive_id=archive, tags=tag or [])
    print_done(passage.id, passage, as_json=context.obj.as_json)


@app.command("search")
@with_client
async def search(
    mnemesh: Mnemesh,
    context: typer.Context,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="Words or a question.")],
    agent: OfAgentOption = None,
    archive: ArchiveOption = None,
    tag: TagOption = None,
    limit: LimitOption = 10,
) -> None:
    """Search passages by words and meaning, best first. `mnemesh search` also searches messages."""
    if (agent is None) == (archive is None):
        raise typer.BadParameter("use exactly one of --agent and --archive")
    agent_id = None if agent is None else (await mnemesh.agents.find(agent)).id
    hits = await mnemesh.passages.search(
        query, agent_id=agent_id, archive_id=archive, tags=tag or [], limit=min(limit, 100)
    )
    columns = of_hits("passage", PASSAGES.columns)
    await print_list(hits, columns, as_json=context.obj.as_json, empty="No passage matches.")
