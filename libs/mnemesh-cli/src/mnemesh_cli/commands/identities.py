"""`mnemesh identities`: list, show, upsert, delete, erase."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer
from mnemesh.agents.v1 import identities_pb2
from mnemesh_cli.commands.resources import Resource, enum_text, id_column, resource_app, run, text_column
from mnemesh_cli.display.records import print_done, print_record
from mnemesh_cli.display.table import Column
from mnemesh_cli.options import AttachToOption, YesOption
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
app = resource_app(IDENTITIES, "Create, list, show, delete and erase the people that agents belong to.")


class IdentityType(StrEnum):
    """The kinds of identities."""

    USER = "user"
    ORG = "org"
    OTHER = "other"


@app.command("upsert")
def upsert(
    context: typer.Context,
    key: Annotated[str, typer.Argument(metavar="KEY", help="Your key of the identity.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name.")],
    type: Annotated[IdentityType, typer.Option(help="What it is.")] = IdentityType.USER,  # noqa: A002
    agent: AttachToOption = None,
) -> None:
    """Create an identity, or change the one with the key. Prints its id."""

    async def command(mnemesh: Mnemesh) -> None:
        agent_ids = [(await mnemesh.agents.find(each)).id for each in agent or []]
        identity = await mnemesh.identities.upsert(key, name, type.value, agent_ids=agent_ids)
        print_done(identity.id, identity, as_json=context.obj.as_json)

    run(context, command)


@app.command("erase")
def erase(
    context: typer.Context,
    identity: Annotated[str, typer.Argument(metavar="IDENTITY", help="Id of the identity.")],
    yes: YesOption = False,
) -> None:
    """Erase an identity, its agents with their data, and its blocks, for good. Prints what was deleted."""
    if not yes:
        typer.confirm(f"Erase {identity}, its agents and all their data?", abort=True, err=True)

    async def command(mnemesh: Mnemesh) -> None:
        print_record(await mnemesh.identities.erase(identity), as_json=context.obj.as_json)

    run(context, command)
