"""The search of an agent's messages and passages, and the display of its results."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from enum import StrEnum
from typing import Any, Final

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from mnemesh.archival.v1.passages_service_pb2 import PassageHit
from mnemesh.recall.v1.messages_service_pb2 import MessageHit
from mnemesh_cli.display import terminal
from mnemesh_cli.display.terminal import notice, output, print_labelled
from mnemesh_client.agent import Agent
from mnemesh_client.results import Hits, said, said_by
from mnemesh_kit.time import timestamp_from_proto, zone_from_name
from rich.text import Text

_LONGEST: Final = 300


class Scope(StrEnum):
    """The kinds of memory to search."""

    ALL = "all"
    MESSAGES = "messages"
    PASSAGES = "passages"


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """What to search for, and in which kinds of memory."""

    queries: list[str]
    speakers: list[str]
    scope: Scope
    before: int
    after: int
    limit: int


async def print_results(agent: Agent, query: str) -> None:
    """Prints the messages and passages of an agent that a query finds, as the command does."""
    print_found(agent, [hits async for hits in find(agent, SearchRequest([query], [], Scope.ALL, 0, 0, 5))])


def print_found(agent: Agent, found: list[tuple[str, Hits[Any]]]) -> None:
    """Prints hits, best first, with their times in the agent's time zone."""
    zone = zone_from_name(agent.proto.time_zone, "time_zone")
    for line in _times(found, zone):
        output().print(Text(line, style="dim"))
    for kind, hits in found:
        for hit in hits:
            (_print_message if kind == "message" else _print_passage)(hit, zone)
    if any(hits for _, hits in found):
        notice(f"times are in {agent.proto.time_zone or 'UTC'}")
    else:
        notice("Nothing matches.")


async def find(agent: Agent, asked: SearchRequest) -> AsyncIterator[tuple[str, Hits[Any]]]:
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


def hit_as_dict(hit: Message) -> dict[str, Any]:
    """Returns a hit with the names of its fields in the contract."""
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
    _print_hit(hit, hit.message.create_time, zone, said_by(hit.message), hit.text)
    for message in hit.after:
        _print_beside(said_by(message), said(message))


def _print_passage(hit: PassageHit, zone: tzinfo) -> None:
    for passage in hit.before:
        _print_beside("passage", passage.text)
    tags = f" [{', '.join(hit.passage.tags)}]" if hit.passage.tags else ""
    _print_hit(hit, hit.passage.create_time, zone, "passage", f"{hit.passage.text}{tags}")
    for passage in hit.after:
        _print_beside("passage", passage.text)


def _print_hit(hit: MessageHit | PassageHit, time: Timestamp, zone: tzinfo, kind: str, text: str) -> None:
    label = Text.assemble((f"{hit.score:5.2f}  {_time(time, zone)}", "dim"), " ", (f"{kind:9}", terminal.TOOL))
    print_labelled(label, Text(_shortened(text)))


def _print_beside(kind: str, text: str) -> None:
    print_labelled(Text(f"{'':23} {kind:9}", "dim"), Text(_shortened(text), "dim"))


def _time(time: Timestamp, zone: tzinfo) -> str:
    return timestamp_from_proto(time, "time").astimezone(zone).strftime("%Y-%m-%d %H:%M")


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"
