"""Fills the stores through the services' own RPCs."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from engram.archival.v1 import archives_pb2, archives_service_pb2
from engram.archival.v1 import passages_service_pb2 as archival
from engram.recall.v1 import messages_service_pb2 as recall
from engram.types.v1 import message_pb2
from engram_kit.ids import derive_id

from benchmarks.tiers.corpus import Corpus
from benchmarks.tiers.servers import Running
from benchmarks.tiers.stock import (
    Stock,
    agent_of,
    archive_name,
    conversation_of,
    message_of,
    said_at,
    tags_of,
    written_at,
)

BATCH: Final = 500
LANES: Final = 2
"""So many agents are written beside each other."""
WINDOW: Final = 20
"""Messages in the window of each agent's first conversation, the system message included."""
_MANIFEST: Final = "loaded.json"


@dataclass(frozen=True, slots=True)
class Loaded:
    """Stores that are filled, and what it took."""

    stock: Stock
    archive_ids: tuple[str, ...]
    figures: dict[str, float]

    def save(self, directory: Path) -> None:
        """Notes that the stores in `directory` are filled."""
        (directory / _MANIFEST).write_text(json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def find(cls, directory: Path, stock: Stock) -> Loaded | None:
        """What was filled before, with the same stock. ValueError where something else is there."""
        manifest = directory / _MANIFEST
        if not manifest.exists():
            return None
        kept = json.loads(manifest.read_text())
        if Stock(**kept["stock"]) != stock:
            raise ValueError(f"{directory} holds {kept['stock']}, not {asdict(stock)}")
        return cls(stock, tuple(kept["archive_ids"]), kept["figures"])


async def load(to: Running, stock: Stock, corpus: Corpus) -> Loaded:
    """Fills new stores. Seconds of storing, and from there until the vector index has all of it."""
    began = time.perf_counter()
    await _in_lanes(stock.agents, "agents", lambda number: _agent(to, stock, corpus, number))
    stored = time.perf_counter()
    await to.processes.until_idle(("recall",), quiet_seconds=1.0, at_most=36_000.0)
    indexed = time.perf_counter()
    archive_ids = await _in_lanes(stock.archives, "archives", lambda number: _archive(to, stock, corpus, number))
    figures = {
        "messages_seconds": round(stored - began, 1),
        "messages_indexed_seconds": round(indexed - began, 1),
        "passages_seconds": round(time.perf_counter() - indexed, 1),
        "cpu_seconds": round(sum(to.processes.cpu_ms().values()) / 1e3, 1),
    }
    await to.processes.until_idle(("recall", "archival"), quiet_seconds=1.0)
    loaded = Loaded(stock, tuple(archive_ids), figures)
    loaded.save(to.directory)
    return loaded


async def _in_lanes(count: int, what: str, one: Callable[[int], Awaitable[str]]) -> list[str]:
    numbers, results, began = iter(range(count)), [""] * count, time.perf_counter()

    async def lane() -> None:
        for number in numbers:
            results[number] = await one(number)
            if (number + 1) % 10 == 0:
                took = time.perf_counter() - began
                print(f"  {number + 1}/{count} {what}, {took:.0f} s", file=sys.stderr, flush=True)

    await asyncio.gather(*(lane() for _ in range(LANES)))
    return results


async def _agent(to: Running, stock: Stock, corpus: Corpus, number: int) -> str:
    agent_id, conversation_id = agent_of(number), conversation_of(number)
    places = range(stock.each_agent)
    older, shown = places[: -(WINDOW - 1)], places[-(WINDOW - 1) :]
    for batch in _batches(older):
        messages = [message(number, place, corpus.text(number, place)) for place in batch]
        await to.recall.AppendMessages(recall.AppendMessagesRequest(agent_id=agent_id, messages=messages))
    first = message(number, "system", "You are an assistant with a memory.")
    await to.recall.CreateContext(
        recall.CreateContextRequest(
            agent_id=agent_id,
            conversation_id=conversation_id,
            messages=[first, *(message(number, place, corpus.text(number, place)) for place in shown)],
        )
    )
    return agent_id


async def _archive(to: Running, stock: Stock, corpus: Corpus, number: int) -> str:
    request = archives_service_pb2.CreateArchiveRequest(
        request_id=derive_id("request", "tiers", str(number)),
        archive=archives_pb2.Archive(name=archive_name(number)),
        agent_ids=[agent_of(number)],
    )
    archive_id: str = (await to.archives.CreateArchive(request)).archive.id
    for batch in _batches(range(stock.each_archive)):
        given = [passage(corpus.text("passage", number, place), place) for place in batch]
        await to.passages.InsertPassages(archival.InsertPassagesRequest(archive_id=archive_id, passages=given))
    return archive_id


def message(agent: int, place: int | str, text: str, conversation: int | str = 0) -> message_pb2.Message:
    """A message of an agent; the place "system" is the system message's."""
    role = message_pb2.ROLE_SYSTEM
    if isinstance(place, int):
        role = message_pb2.ROLE_ASSISTANT if place % 2 else message_pb2.ROLE_USER
    made = message_pb2.Message(
        id=message_of(agent, place),
        agent_id=agent_of(agent),
        conversation_id=conversation_of(agent, conversation),
        role=role,
        content=[message_pb2.ContentPart(text=message_pb2.TextPart(text=text))],
    )
    made.create_time.FromDatetime(said_at(place if isinstance(place, int) else 0))
    return made


def passage(text: str, place: int) -> archives_pb2.Passage:
    """A passage with two tags and its time."""
    made = archives_pb2.Passage(text=text, tags=tags_of(place))
    made.create_time.FromDatetime(written_at(place))
    return made


def _batches(places: range) -> Iterable[range]:
    return (places[start : start + BATCH] for start in range(0, len(places), BATCH))
