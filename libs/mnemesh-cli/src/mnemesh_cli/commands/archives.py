"""`mnemesh archives` and `mnemesh passages`: archives, and the passages in them."""

from typing import Annotated

import typer
from mnemesh.archival.v1 import archives_pb2
from mnemesh_cli.commands.resources import (
    Resource,
    id_column,
    of_hits,
    resource_app,
    text_column,
    time_column,
    with_client,
)
from mnemesh_cli.display.progress import counted_bar
from mnemesh_cli.display.records import Column, print_done, print_list, print_record
from mnemesh_cli.options import AgentArgument, AttachToOption, LimitOption, OfAgentOption, completer, text_or_stdin
from mnemesh_client.mnemesh import Mnemesh


async def _owner(_: Mnemesh, archive: archives_pb2.Archive) -> list[str]:
    """Returns the agent for which an archive was created."""
    return [archive.created_for_agent_id]


ARCHIVES = Resource(
    noun="archive",
    columns=(
        id_column(),
        text_column("NAME", lambda archive: archive.name),
        Column("PASSAGES", lambda archive: str(archive.passage_count), right=True),
        text_column("DESCRIPTION", lambda archive: archive.description),
    ),
    list_all=lambda mnemesh, agent_id, limit: mnemesh.archives.list(agent_id=agent_id, limit=limit),
    find=lambda mnemesh, key: mnemesh.archives.get(key),
    delete=lambda mnemesh, archive: mnemesh.archives.delete(archive.id),
    consequence=" and its passages",
    of_agent=True,
    agents_of=_owner,
    create="mnemesh archives create NAME",
)
app = resource_app(ARCHIVES, "Create, list, show, change, attach and delete archives of passages.")

ArchiveArgument = Annotated[
    str, typer.Argument(metavar="ARCHIVE", help="Id of the archive.", autocompletion=completer("archive"))
]


@app.command("create")
@with_client
async def create(
    mnemesh: Mnemesh,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the archive.")],
    description: Annotated[str | None, typer.Option("--description", "-d", help="What it contains.")] = None,
    embedder: Annotated[str, typer.Option(help="Embedder, as provider/model.", show_default="the default")] = "",
    deduplicate: Annotated[bool, typer.Option("--deduplicate", help="Store equal texts once.")] = False,
    agent: AttachToOption = None,
) -> None:
    """Create an archive and print its id."""
    agent_ids = [(await mnemesh.agents.find(key)).id for key in agent or []]
    archive = await mnemesh.archives.create(
        name, description=description, embedder=embedder, deduplicate=deduplicate, agent_ids=agent_ids
    )
    print_done(archive.id, archive)


@app.command("update")
@with_client
async def update(
    mnemesh: Mnemesh,
    archive: ArchiveArgument,
    name: Annotated[str | None, typer.Option(help="The new name.")] = None,
    description: Annotated[
        str | None, typer.Option("--description", "-d", help='The new description; "" removes it.')
    ] = None,
    embedder: Annotated[
        str | None, typer.Option(help="The new embedder, as provider/model. All passages are embedded again.")
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", "-w", help="Wait until all passages have a vector of the new embedder.")
    ] = False,
) -> None:
    """Change an archive. Until a new embedder has all passages, searches use the vectors of the one before."""
    values = {"name": name, "description": description, "embedder": embedder}
    fields = {field: value or None for field, value in values.items() if value is not None}
    if not fields:
        raise typer.BadParameter(
            "Name at least one change. See `mnemesh archives update --help`.", param_hint="options"
        )
    updated = await mnemesh.archives.update(archive, **fields)
    if wait and updated.HasField("reembedding"):
        updated = await _wait_for_reembedding(mnemesh, updated)
    print_record(updated)


async def _wait_for_reembedding(mnemesh: Mnemesh, archive: archives_pb2.Archive) -> archives_pb2.Archive:
    """Waits with a bar until an archive has its new embedder, and returns the archive."""
    with counted_bar("Embedding", "passages", archive.reembedding.total_passages) as on_count:
        return await mnemesh.archives.wait(
            archive.id, on_progress=lambda state: on_count(state.reembedding.done_passages)
        )


@app.command("attach")
@with_client
async def attach(mnemesh: Mnemesh, archive: ArchiveArgument, agent: AgentArgument) -> None:
    """Attach an archive to an agent. Several agents can share one."""
    await _change(mnemesh, archive, agent, "attached")


@app.command("detach")
@with_client
async def detach(mnemesh: Mnemesh, archive: ArchiveArgument, agent: AgentArgument) -> None:
    """Detach an archive from an agent. The archive is kept."""
    await _change(mnemesh, archive, agent, "detached")


async def _change(mnemesh: Mnemesh, archive: str, agent: str, verb: str) -> None:
    agent_id = (await mnemesh.agents.find(agent)).id
    attaches = verb == "attached"
    await (mnemesh.archives.attach if attaches else mnemesh.archives.detach)(agent_id, archive)
    text = f"{verb} {archive} {'to' if attaches else 'from'} {agent}"
    print_done(text, {verb: archive, "agent_id": agent_id})


PASSAGES = Resource(
    noun="passage",
    columns=(id_column(), time_column(), text_column("TEXT", lambda passage: passage.text)),
    list_all=lambda mnemesh, agent_id, limit: mnemesh.passages.list(agent_id=agent_id, limit=limit),
    find=lambda mnemesh, key: mnemesh.passages.get(key),
    delete=lambda mnemesh, passage: mnemesh.passages.delete(passage.id),
    of_agent=True,
    create="mnemesh passages create TEXT --agent AGENT",
)
passages_app = resource_app(PASSAGES, "Create, list, search, show and delete archived passages.")

ArchiveOption = Annotated[str | None, typer.Option(help="Id of the archive.", autocompletion=completer("archive"))]
TagOption = Annotated[list[str] | None, typer.Option("--tag", help="A tag. Can be repeated.")]


@passages_app.command("create")
@with_client
async def create_passage(
    mnemesh: Mnemesh,
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
    print_done(passage.id, passage)


@passages_app.command("search")
@with_client
async def search(
    mnemesh: Mnemesh,
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
    await print_list(hits, columns, empty="No passage matches.")
