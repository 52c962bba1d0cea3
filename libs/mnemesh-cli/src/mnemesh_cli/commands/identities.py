"""`mnemesh identities`: list, show, upsert, attach, detach, delete, erase."""

from enum import StrEnum
from typing import Annotated

import typer
from mnemesh.agents.v1 import identities_pb2
from mnemesh_cli.commands.resources import Resource, enum_text, id_column, resource_app, text_column, with_client
from mnemesh_cli.display.records import Column, print_done, print_record
from mnemesh_cli.options import AttachToOption, YesOption, completer
from mnemesh_client.mnemesh import Mnemesh

IDENTITIES = Resource(
    noun="identity",
    plural="identities",
    columns=(
        id_column(),
        text_column("KEY", lambda row: row.identifier_key),
        text_column("NAME", lambda row: row.name),
        Column("TYPE", lambda row: enum_text(identities_pb2.IdentityType, row.type, "IDENTITY_TYPE_")),
    ),
    list_all=lambda mnemesh, agent_id, limit: mnemesh.identities.list(agent_id=agent_id, limit=limit),
    find=lambda mnemesh, key: mnemesh.identities.get(key),
    delete=lambda mnemesh, identity: mnemesh.identities.delete(identity.id),
    consequence=" (its agents and blocks are kept)",
    of_agent=True,
)
app = resource_app(IDENTITIES, "Create, list, show, attach, delete and erase the people that agents belong to.")


OptionalAgent = Annotated[
    str | None, typer.Argument(metavar="[AGENT]", help="Id or name of the agent.", autocompletion=completer("agent"))
]


class IdentityType(StrEnum):
    """The kinds of identities."""

    USER = "user"
    ORG = "org"
    OTHER = "other"


@app.command("upsert")
@with_client
async def upsert(
    mnemesh: Mnemesh,
    key: Annotated[str, typer.Argument(metavar="KEY", help="Your key of the identity.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name.")],
    type: Annotated[IdentityType, typer.Option(help="What it is.")] = IdentityType.USER,  # noqa: A002
    agent: AttachToOption = None,
) -> None:
    """Create an identity, or change the one with the key. Prints its id."""
    agent_ids = [(await mnemesh.agents.find(each)).id for each in agent or []]
    identity = await mnemesh.identities.upsert(key, name, type.value, agent_ids=agent_ids)
    print_done(identity.id, identity)


IdentityArgument = Annotated[
    str, typer.Argument(metavar="IDENTITY", help="Id of the identity.", autocompletion=completer("identity"))
]
OfBlockOption = Annotated[
    str | None, typer.Option("--block", help="Id of a block, instead of an agent.", autocompletion=completer("block"))
]


@app.command("attach")
@with_client
async def attach(
    mnemesh: Mnemesh, identity: IdentityArgument, agent: OptionalAgent = None, block: OfBlockOption = None
) -> None:
    """Attach an identity to an agent, or to a block with --block."""
    await _change(mnemesh, identity, agent, block, "attached")


@app.command("detach")
@with_client
async def detach(
    mnemesh: Mnemesh, identity: IdentityArgument, agent: OptionalAgent = None, block: OfBlockOption = None
) -> None:
    """Detach an identity from an agent, or from a block with --block. Both are kept."""
    await _change(mnemesh, identity, agent, block, "detached")


async def _change(mnemesh: Mnemesh, identity: str, agent: str | None, block: str | None, verb: str) -> None:
    if (agent is None) == (block is None):
        raise typer.BadParameter("Name an agent, or a block with --block.", param_hint="AGENT")
    agent_id = None if agent is None else (await mnemesh.agents.find(agent)).id
    attaches = verb == "attached"
    change = mnemesh.identities.attach if attaches else mnemesh.identities.detach
    await change(identity, agent_id=agent_id, block_id=block)
    target = {"block_id": block} if agent_id is None else {"agent_id": agent_id}
    text = f"{verb} {identity} {'to' if attaches else 'from'} {agent or block}"
    print_done(text, {verb: identity, **target})


@app.command("erase")
@with_client
async def erase(mnemesh: Mnemesh, identity: IdentityArgument, yes: YesOption = False) -> None:
    """Erase an identity, its agents with their data, and its blocks, for good. Prints what was deleted."""
    if not yes:
        typer.confirm(f"Erase {identity}, its agents and all their data?", abort=True, err=True)
    print_record(await mnemesh.identities.erase(identity))
