"""`mnemesh search`: searches the messages and passages of an agent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from enum import StrEnum
from typing import Annotated, Any, Final

import typer
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from mnemesh.archival.v1.passages_service_pb2 import PassageHit
from mnemesh.recall.v1.messages_service_pb2 import MessageHit
from mnemesh_cli.commands import styles
from mnemesh_cli.commands.connection import Connection, choose_agent
from mnemesh_cli.commands.terminal import output
from mnemesh_client.agent import Agent
from mnemesh_client.hits import Hits, said, said_by
from mnemesh_kit.time import timestamp_from_proto, zone_from_name
from rich.text import Text

_LONGEST: Final = 300


class Scope(StrEnum):
    """The kinds of memory to search."""

    ALL = "all"
    MESSAGES = "messages"
    PASSAGES = "passages"


@dataclass(frozen=True, slots=True)
class _Asked:
    """The kinds of memory that the command searches."""

    queries: list[str]
    speakers: list[str]
    scope: Scope
    before: int
    after: int
    limit: int


def search(
    context: typer.Context,
    queries: Annotated[
        list[str],
        typer.Argument(metavar="QUERY...", help="Words or a question; several count as other wordings of it."),
    ],
    agent: Annotated[str | None, typer.Option(help="Id or name of the agent.", show_default="the first agent")] = None,
    scope: Annotated[Scope, typer.Option("--in", help="Memory to search.")] = Scope.ALL,
    speaker: Annotated[
        list[str] | None, typer.Option(help="Only messages of this name; repeat it for several.", show_default="all")
    ] = None,
    before: Annotated[int, typer.Option(min=0, max=10, help="Messages or passages to show before each result.")] = 0,
    after: Annotated[int, typer.Option(min=0, max=10, help="Messages or passages to show after each result.")] = 0,
    limit: Annotated[int, typer.Option(min=1, max=100, help="Maximum number of results of each kind.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per result.")] = False,
) -> None:
    """Search the messages and archived passages of an agent.

    An expression of time in a query, such as "last week", prefers results of that time, in the agent's time zone.
    """
    if speaker and scope is Scope.PASSAGES:
        raise typer.BadParameter("Passages have no speakers.", param_hint="--speaker")
    asked = _Asked(queries, speaker or [], scope, before, after, limit)
    asyncio.run(_search(context.obj, agent, asked, as_json=as_json))


async def _search(connection: Connection, key: str | None, asked: _Asked, *, as_json: bool) -> None:
    async with connection.open() as mnemesh:
        agent = await choose_agent(mnemesh, key)
        found = [hits async for hits in _found(agent, asked)]
    if as_json:
        for kind, hits in found:
            for hit in hits:
                typer.echo(json.dumps({"kind": kind, **_as_dict(hit)}, ensure_ascii=False))
        return
    _print_found(agent, found)


async def print_results(agent: Agent, query: str) -> None:
    """Prints the messages and passages of an agent that a query finds, as the command does."""
    _print_found(agent, [hits async for hits in _found(agent, _Asked([query], [], Scope.ALL, 0, 0, 5))])


def _print_found(agent: Agent, found: list[tuple[str, Hits[Any]]]) -> None:
    zone = zone_from_name(agent.proto.time_zone, "time_zone")
    for line in _times(found, zone):
        output().print(Text(line, style="dim"))
    for kind, hits in found:
        for hit in hits:
            (_print_message if kind == "message" else _print_passage)(hit, zone)
    if not any(hits for _, hits in found):
        output().print("no results", style="dim")


async def _found(agent: Agent, asked: _Asked) -> AsyncIterator[tuple[str, Hits[Any]]]:
    """Yields the hits of each kind of memory with its name."""
    options: dict[str, Any] = {
        "further_queries": asked.queries[1:],
        "before": asked.before,
        "after": asked.after,
        "limit": asked.limit,
        "time_zone": agent.proto.time_zone or None,
        "reference_time": datetime.now(UTC),
    }
    if asked.scope is not Scope.PASSAGES:
        yield "message", await agent.search(asked.queries[0], speakers=asked.speakers, **options)
    if asked.scope is not Scope.MESSAGES and not asked.speakers:
        yield "passage", await agent.search_passages(asked.queries[0], **options)


def _as_dict(hit: Message) -> dict[str, Any]:
    return MessageToDict(hit, preserving_proto_field_name=True)


def _times(found: list[tuple[str, Hits[Any]]], zone: tzinfo) -> Iterator[str]:
    """Yields how expressions of time were understood, each once."""
    ranges = (each for _, hits in found for each in hits.time_ranges)
    lines = (
        f"{each.expression}: from {_bound(each, 'start_time', zone)} until {_bound(each, 'end_time', zone)}"
        for each in ranges
    )
    yield from dict.fromkeys(lines)


def _bound(time_range: Message, field: str, zone: tzinfo) -> str:
    return _time(getattr(time_range, field), zone) if time_range.HasField(field) else "…"


def _print_message(hit: MessageHit, zone: tzinfo) -> None:
    if hit.HasField("question") and not hit.before:
        _print_beside(said_by(hit.question), said(hit.question))
    for message in hit.before:
        _print_beside(said_by(message), said(message))
    _print_hit(hit.message.create_time, zone, said_by(hit.message), hit.text)
    for message in hit.after:
        _print_beside(said_by(message), said(message))


def _print_passage(hit: PassageHit, zone: tzinfo) -> None:
    for passage in hit.before:
        _print_beside("passage", passage.text)
    tags = f" [{', '.join(hit.passage.tags)}]" if hit.passage.tags else ""
    _print_hit(hit.passage.create_time, zone, "passage", f"{hit.passage.text}{tags}")
    for passage in hit.after:
        _print_beside("passage", passage.text)


def _print_hit(time: Timestamp, zone: tzinfo, kind: str, text: str) -> None:
    output().print(Text(_time(time, zone), style="dim"), Text(f"{kind:9}", style=styles.TOOL), Text(_shortened(text)))


def _print_beside(kind: str, text: str) -> None:
    output().print(Text(" " * 16), Text(f"{kind:9} {_shortened(text)}", style="dim"))


def _time(time: Timestamp, zone: tzinfo) -> str:
    return timestamp_from_proto(time, "time").astimezone(zone).strftime("%Y-%m-%d %H:%M")


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"
