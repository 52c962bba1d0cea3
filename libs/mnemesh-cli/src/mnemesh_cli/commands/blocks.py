"""`mnemesh blocks`: list, show, create, update, attach, detach, history, undo, delete."""

from typing import Annotated, Any, Final

import typer
from mnemesh.blocks.v1 import blocks_pb2, blocks_service_pb2
from mnemesh_cli.commands.resources import (
    Resource,
    enum_text,
    id_column,
    resource_app,
    text_column,
    time_column,
    with_client,
)
from mnemesh_cli.display.records import Column, print_done, print_list, print_record
from mnemesh_cli.options import AgentArgument, AttachToOption, LimitOption, completer, text_or_stdin
from mnemesh_client.mnemesh import Mnemesh

_SHOWN_HOLDERS: Final = 5


async def _holders(mnemesh: Mnemesh, block: blocks_pb2.Block) -> list[str]:
    return [agent_id async for agent_id in mnemesh.blocks.agents(block.id, limit=_SHOWN_HOLDERS)]


BLOCKS = Resource(
    noun="block",
    columns=(
        id_column(),
        text_column("LABEL", lambda block: block.label),
        Column("SIZE", lambda block: f"{len(block.value)}/{block.limit}", right=True),
        text_column("VALUE", lambda block: block.value),
    ),
    list_all=lambda mnemesh, agent_id, limit: mnemesh.blocks.list(agent_id=agent_id, limit=limit),
    find=lambda mnemesh, key: mnemesh.blocks.get(key),
    delete=lambda mnemesh, block: mnemesh.blocks.delete(block.id),
    consequence=", also from the agents that hold it",
    of_agent=True,
    agents_of=_holders,
    create="mnemesh blocks create LABEL VALUE",
)
app = resource_app(BLOCKS, "Create, list, show, change, attach and delete blocks of core memory.")

BlockArgument = Annotated[
    str, typer.Argument(metavar="BLOCK", help="Id of the block.", autocompletion=completer("block"))
]
_REVISIONS = (
    Column("REVISION", lambda row: str(row.revision), right=True),
    time_column(title="TIME"),
    Column("OPERATION", lambda row: enum_text(blocks_pb2.BlockOperation, row.operation, "BLOCK_OPERATION_")),
    text_column("VALUE", lambda row: row.value),
)


@app.command("create")
@with_client
async def create_block(
    mnemesh: Mnemesh,
    label: Annotated[str, typer.Argument(metavar="LABEL", help="Label of the block, such as human.")],
    value: Annotated[str, typer.Argument(metavar="VALUE", help="Its text; - reads stdin.")] = "",
    description: Annotated[str | None, typer.Option(help="What the block is for; agents read it.")] = None,
    limit: Annotated[int, typer.Option(min=0, help="Most characters.", show_default="that of the server")] = 0,
    read_only: Annotated[bool, typer.Option("--read-only", help="Agents cannot change it.")] = False,
    tag: Annotated[list[str] | None, typer.Option(help="A tag. Can be repeated.")] = None,
    agent: AttachToOption = None,
) -> None:
    """Create a block and print its id."""
    text = text_or_stdin(value)
    agent_ids = [(await mnemesh.agents.find(key)).id for key in agent or []]
    block = await mnemesh.blocks.create(
        label, text, description=description, limit=limit, read_only=read_only, tags=tag or [], agent_ids=agent_ids
    )
    print_done(block.id, block)


@app.command("update")
@with_client
async def update_block(
    mnemesh: Mnemesh,
    block: BlockArgument,
    value: Annotated[str | None, typer.Option(help="The new text; - reads stdin.")] = None,
    label: Annotated[str | None, typer.Option(help="The new label.")] = None,
    description: Annotated[str | None, typer.Option(help='The new description; "" removes it.')] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Most characters.")] = None,
    read_only: Annotated[
        bool | None, typer.Option("--read-only/--writable", help="Whether agents can change it.")
    ] = None,
) -> None:
    """Change a block. Agents that hold it see the change in their next step."""
    values: dict[str, Any] = {"value": value, "label": label, "limit": limit, "read_only": read_only}
    fields = {name: each for name, each in values.items() if each is not None}
    if value is not None:
        fields["value"] = text_or_stdin(value)
    if description is not None:
        fields["description"] = description or None
    if not fields:
        raise typer.BadParameter("Name at least one change. See `mnemesh blocks update --help`.", param_hint="options")
    print_record(await mnemesh.blocks.update(block, **fields))


@app.command("attach")
@with_client
async def attach_block(mnemesh: Mnemesh, block: BlockArgument, agent: AgentArgument) -> None:
    """Attach a block to an agent. Several agents can share one."""
    agent_id = (await mnemesh.agents.find(agent)).id
    await mnemesh.blocks.attach(agent_id, block)
    done = {"attached": block, "agent_id": agent_id}
    print_done(f"attached {block} to {agent}", done)


@app.command("detach")
@with_client
async def detach_block(
    mnemesh: Mnemesh,
    block: Annotated[str, typer.Argument(metavar="BLOCK", help="Id or label.", autocompletion=completer("block"))],
    agent: AgentArgument,
) -> None:
    """Detach a block from an agent. The block is kept."""
    agent_id = (await mnemesh.agents.find(agent)).id
    named = {"block_id": block} if block.startswith("block-") else {"label": block}
    request = blocks_service_pb2.DetachBlockRequest(agent_id=agent_id, **named)
    detached = (await mnemesh.blocks.stub.DetachBlock(request)).block_id
    done = {"detached": detached, "agent_id": agent_id}
    print_done(f"detached {detached} from {agent}", done)


@app.command("history")
@with_client
async def list_revisions(mnemesh: Mnemesh, block: BlockArgument, limit: LimitOption = 100) -> None:
    """List the revisions of a block, newest first."""
    rows = mnemesh.blocks.revisions(block, limit=limit)
    await print_list(rows, _REVISIONS, empty="The block has no revisions.")


@app.command("undo")
@with_client
async def undo(
    mnemesh: Mnemesh,
    block: BlockArgument,
    revision: Annotated[
        int | None, typer.Option(min=1, help="The revision to return to.", show_default="that before the last change")
    ] = None,
) -> None:
    """Take back the last change of a block, or return to an earlier revision. `history` lists them."""
    request = blocks_service_pb2.RevertBlockRequest(
        block_id=block, author=blocks_pb2.Author(owner=blocks_pb2.OwnerAuthor())
    )
    if revision is None:
        request.undo.SetInParent()
    else:
        request.revision = revision
    print_record((await mnemesh.blocks.stub.RevertBlock(request)).block)
