"""`mnemesh search`: searches the messages and passages of an agent."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated

import typer
from mnemesh_cli.connection import Connection, choose_agent
from mnemesh_cli.display.search_results import Scope, SearchRequest, find, hit_as_dict, print_found


def search(
    context: typer.Context,
    queries: Annotated[
        list[str],
        typer.Argument(metavar="QUERY...", help="Words or a question; several count as other wordings of it."),
    ],
    agent: Annotated[
        str | None, typer.Option("--agent", "-a", help="Id or name of the agent.", show_default="the first agent")
    ] = None,
    scope: Annotated[Scope, typer.Option("--in", help="Memory to search.")] = Scope.ALL,
    speaker: Annotated[
        list[str] | None, typer.Option(help="Only messages of this name; repeat it for several.", show_default="all")
    ] = None,
    before: Annotated[int, typer.Option(min=0, max=10, help="Messages or passages to show before each result.")] = 0,
    after: Annotated[int, typer.Option(min=0, max=10, help="Messages or passages to show after each result.")] = 0,
    limit: Annotated[int, typer.Option(min=1, max=100, help="Maximum number of results of each kind.")] = 5,
) -> None:
    """Search the messages and archived passages of an agent.

    An expression of time in a query, such as "last week", prefers results of that time, in the agent's time zone.
    """
    if speaker and scope is Scope.PASSAGES:
        raise typer.BadParameter("Passages have no speakers.", param_hint="--speaker")
    asked = SearchRequest(queries, speaker or [], scope, before, after, limit)
    asyncio.run(_search(context.obj, agent, asked, as_json=context.obj.as_json))


async def _search(connection: Connection, key: str | None, asked: SearchRequest, *, as_json: bool) -> None:
    async with connection.open() as mnemesh:
        agent = await choose_agent(mnemesh, key)
        found = [hits async for hits in find(agent, asked)]
    if as_json:
        for kind, hits in found:
            for hit in hits:
                typer.echo(json.dumps({"kind": kind, **hit_as_dict(hit)}, ensure_ascii=False))
        return
    print_found(agent, found)
