"""`mnemesh search`: an agent's messages and passages, by words and meaning."""

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


class Tier(StrEnum):
    """Where to look."""

    ALL = "all"
    MESSAGES = "messages"
    PASSAGES = "passages"


def search(
    context: typer.Context,
    query: Annotated[str, typer.Argument(help="What to look for.")],
    agent: Annotated[str | None, typer.Option(help="Id or name; else the first agent.")] = None,
    tier: Annotated[Tier, typer.Option("--in", help="Where to look.")] = Tier.ALL,
    limit: Annotated[int, typer.Option(min=1, max=100, help="Most hits of each kind.")] = 5,
) -> None:
    """Search what an agent heard, said and archived."""
    asyncio.run(_search(context.obj, query, agent, tier, limit))


async def _search(connection: Connection, query: str, key: str | None, tier: Tier, limit: int) -> None:
    async with connection.open() as mnemesh:
        agent = await choose_agent(mnemesh, key)
        found = 0
        if tier is not Tier.PASSAGES:
            found += await _messages(agent, query, limit)
        if tier is not Tier.MESSAGES:
            found += await _passages(agent, query, limit)
        if not found:
            output().print("nothing found", style="dim")


async def _messages(agent: Agent, query: str, limit: int) -> int:
    hits = await agent.search(query, limit=limit)
    for hit in hits:
        role = message_pb2.Role.Name(hit.message.role).removeprefix("ROLE_").lower()
        _line(hit.message.create_time.ToJsonString(), role, hit.text)
    return len(hits)


async def _passages(agent: Agent, query: str, limit: int) -> int:
    hits = await agent.search_passages(query, limit=limit)
    for hit in hits:
        tags = f" [{', '.join(hit.passage.tags)}]" if hit.passage.tags else ""
        _line(hit.passage.create_time.ToJsonString(), "passage", f"{hit.passage.text}{tags}")
    return len(hits)


def _line(time: str, kind: str, text: str) -> None:
    text = " ".join(text.split())
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    output().print(Text(time[:16].replace("T", " "), style="dim"), Text(f"{kind:9}", style="cyan"), Text(text))
