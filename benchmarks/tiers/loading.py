"""Fills the stores through the services' own RPCs."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from mnemesh.archival.v1 import archives_pb2, archives_service_pb2
from mnemesh.archival.v1 import passages_service_pb2 as archival
from mnemesh.recall.v1 import messages_service_pb2 as recall
from mnemesh.types.v1 import message_pb2
from mnemesh_kit.ids import derive_id

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

SESSION: Final = 40
"""Messages that are appended at once."""
BATCH: Final = 500
"""Passages that are inserted at once."""
LANES: Final = 4
"""So many calls are on their way beside each other."""
WINDOW: Final = 20
"""Messages in the window of each agent's first conversation, the system message included."""
_MANIFEST: Final = "loaded.json"


class Progress:
    """Tells how far it is, at every twentieth of the way."""

    def __init__(self, what: str, whole: int) -> None:
        self._what = what
        self._whole = whole
        self._done = 0
        self._began = time.perf_counter()

    def advance(self, count: int) -> None:
        """So many more are done."""
        before, self._done = self._done, self._done + count
        if before * 20 // self._whole != self._done * 20 // self._whole:
            took = time.perf_counter() - self._began
            print(f"  {self._done:,}/{self._whole:,} {self._what}, {took:.0f} s", file=sys.stderr, flush=True)


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
    await _messages(to, stock, corpus)
    stored = time.perf_counter()
    await to.processes.until_idle(("recall",), quiet_seconds=1.0, at_most=36_000.0)
    indexed = time.perf_counter()
    archive_ids = await _archives(to, stock, corpus)
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


async def _messages(to: Running, stock: Stock, corpus: Corpus) -> None:
    """Session by session, each of every agent in turn: an agent's rows lie scattered among those of others."""
    older = range(stock.each_agent - (WINDOW - 1))

    async def lane(agents: Sequence[int], progress: Progress) -> None:
        for session in _batches(older, SESSION):
            for number in agents:
                messages = [message(number, place, corpus.text(number, place)) for place in session]
                request = recall.AppendMessagesRequest(agent_id=agent_of(number), messages=messages)
                await to.recall.AppendMessages(request)
                progress.advance(len(messages))
        for number in agents:
            await _window(to, stock, corpus, number)

    progress = Progress("messages", stock.messages)
    await asyncio.gather(*(lane(range(first, stock.agents, LANES), progress) for first in range(LANES)))


async def _window(to: Running, stock: Stock, corpus: Corpus, number: int) -> None:
    """An agent's last messages, in the window of its first conversation."""
    places = range(max(0, stock.each_agent - (WINDOW - 1)), stock.each_agent)
    system = message(number, "system", "You are an assistant with a memory.")
    shown = [message(number, place, corpus.text(number, place)) for place in places]
    await to.recall.CreateContext(
        recall.CreateContextRequest(
            agent_id=agent_of(number), conversation_id=conversation_of(number), messages=[system, *shown]
        )
    )


async def _archives(to: Running, stock: Stock, corpus: Corpus) -> list[str]:
    ids, progress = [""] * stock.archives, Progress("passages", stock.passages)

    async def lane(archives: Sequence[int]) -> None:
        for number in archives:
            ids[number] = await _archive(to, stock, corpus, number)
            progress.advance(stock.each_archive)

    await asyncio.gather(*(lane(range(first, stock.archives, LANES)) for first in range(LANES)))
    return ids


async def _archive(to: Running, stock: Stock, corpus: Corpus, number: int) -> str:
    request = archives_service_pb2.CreateArchiveRequest(
        request_id=derive_id("request", "tiers", str(number)),
        archive=archives_pb2.Archive(name=archive_name(number)),
        agent_ids=[agent_of(number)],
    )
    archive_id: str = (await to.archives.CreateArchive(request)).archive.id
    for batch in _batches(range(stock.each_archive), BATCH):
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


def _batches(places: range, size: int) -> Iterable[range]:
    return (places[start : start + size] for start in range(0, len(places), size))
