"""`mnemesh search`: searches the messages and passages of an agent."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from typing import Annotated, Final

import typer
from mnemesh.types.v1 import message_pb2
from rich.text import Text

from mnemesh_client.agent import Agent
from mnemesh_client.cli.connection import Connection, choose_agent
from mnemesh_client.cli.terminal import output

_LONGEST: Final = 300


class Scope(StrEnum):
    """The kinds of memory to search."""

    ALL = "all"
    MESSAGES = "messages"
    PASSAGES = "passages"


def search(
    context: typer.Context,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="Words or a phrase to search for.")],
    agent: Annotated[str | None, typer.Option(help="Id or name of the agent.", show_default="the first agent")] = None,
    scope: Annotated[Scope, typer.Option("--in", help="Memory to search.")] = Scope.ALL,
    limit: Annotated[int, typer.Option(min=1, max=100, help="Maximum number of results of each kind.")] = 5,
) -> None:
    """Search the messages and archived passages of an agent."""
    asyncio.run(_search(context.obj, query, agent, scope, limit))


async def _search(connection: Connection, query: str, key: str | None, scope: Scope, limit: int) -> None:
    async with connection.open() as mnemesh:
        agent = await choose_agent(mnemesh, key)
        found = 0
        if scope is not Scope.PASSAGES:
            found += await _print_messages(agent, query, limit)
        if scope is not Scope.MESSAGES:
            found += await _print_passages(agent, query, limit)
        if not found:
            output().print("no results", style="dim")


async def _print_messages(agent: Agent, query: str, limit: int) -> int:
    hits = await agent.search(query, limit=limit)
    for hit in hits:
        role = message_pb2.Role.Name(hit.message.role).removeprefix("ROLE_").lower()
        _print_hit(hit.message.create_time.ToJsonString(), role, hit.text)
    return len(hits)


async def _print_passages(agent: Agent, query: str, limit: int) -> int:
    hits = await agent.search_passages(query, limit=limit)
    for hit in hits:
        tags = f" [{', '.join(hit.passage.tags)}]" if hit.passage.tags else ""
        _print_hit(hit.passage.create_time.ToJsonString(), "passage", f"{hit.passage.text}{tags}")
    return len(hits)


def _print_hit(time: str, kind: str, text: str) -> None:
    text = " ".join(text.split())
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    output().print(Text(time[:16].replace("T", " "), style="dim"), Text(f"{kind:9}", style="cyan"), Text(text))
