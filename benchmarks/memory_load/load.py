"""Fills the stores through the RPCs of the services."""

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

from benchmarks.memory_load.corpus import Corpus
from benchmarks.memory_load.dataset import (
    Dataset,
    agent_of,
    archive_name,
    conversation_of,
    message_of,
    said_at,
    tags_of,
    written_at,
)
from benchmarks.memory_services import RunningServices

SESSION: Final = 40
"""The number of messages per AppendMessages."""
BATCH: Final = 500
"""The number of passages per InsertPassages."""
LANES: Final = 4
"""The number of concurrent calls."""
WINDOW: Final = 20
"""The number of messages in the window of each agent's first conversation, including the system message."""
_MANIFEST: Final = "loaded.json"


class Progress:
    """Prints the progress in steps of five percent."""

    def __init__(self, what: str, whole: int) -> None:
        self._what = what
        self._whole = whole
        self._done = 0
        self._began = time.perf_counter()

    def advance(self, count: int) -> None:
        """Adds to the number of completed items."""
        before, self._done = self._done, self._done + count
        if before * 20 // self._whole != self._done * 20 // self._whole:
            took = time.perf_counter() - self._began
            print(f"  {self._done:,}/{self._whole:,} {self._what}, {took:.0f} s", file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True)
class Loaded:
    """Filled stores and the figures of filling them."""

    dataset: Dataset
    archive_ids: tuple[str, ...]
    figures: dict[str, float]

    def save(self, directory: Path) -> None:
        """Records that the stores in `directory` are filled."""
        (directory / _MANIFEST).write_text(json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def find(cls, directory: Path, dataset: Dataset) -> "Loaded | None":
        """Returns the record of filled stores, or None. Raises ValueError if they contain another dataset."""
        manifest = directory / _MANIFEST
        if not manifest.exists():
            return None
        kept = json.loads(manifest.read_text())
        if Dataset(**kept["dataset"]) != dataset:
            raise ValueError(f"{directory} holds {kept['dataset']}, not {asdict(dataset)}")
        return cls(dataset, tuple(kept["archive_ids"]), kept["figures"])


async def load(to: RunningServices, dataset: Dataset, corpus: Corpus) -> Loaded:
    """Fills new stores. Measures the time of storing, and until the vector index is complete."""
    started = time.perf_counter()
    await _messages(to, dataset, corpus)
    stored = time.perf_counter()
    await to.processes.until_idle(("recall",), quiet_seconds=1.0, at_most=36_000.0)
    indexed = time.perf_counter()
    archive_ids = await _archives(to, dataset, corpus)
    figures = {
        "messages_seconds": round(stored - started, 1),
        "messages_indexed_seconds": round(indexed - started, 1),
        "passages_seconds": round(time.perf_counter() - indexed, 1),
        "cpu_seconds": round(sum(to.processes.cpu_ms().values()) / 1e3, 1),
    }
    await to.processes.until_idle(("recall", "archival"), quiet_seconds=1.0)
    loaded = Loaded(dataset, tuple(archive_ids), figures)
    loaded.save(to.directory)
    return loaded


async def _messages(to: RunningServices, dataset: Dataset, corpus: Corpus) -> None:
    """Stores session by session for all agents in turn, so that the rows of agents are interleaved as in production."""
    older = range(dataset.messages_per_agent - (WINDOW - 1))

    async def lane(agents: Sequence[int], progress: Progress) -> None:
        for session in _batches(older, SESSION):
            for number in agents:
                messages = [message(number, position, corpus.text(number, position)) for position in session]
                request = recall.AppendMessagesRequest(agent_id=agent_of(number), messages=messages)
                await to.recall.AppendMessages(request)
                progress.advance(len(messages))
        for number in agents:
            await _window(to, dataset, corpus, number)

    progress = Progress("messages", dataset.messages)
    await asyncio.gather(*(lane(range(first, dataset.agents, LANES), progress) for first in range(LANES)))


async def _window(to: RunningServices, dataset: Dataset, corpus: Corpus, number: int) -> None:
    """Stores an agent's last messages in the window of its first conversation."""
    positions = range(max(0, dataset.messages_per_agent - (WINDOW - 1)), dataset.messages_per_agent)
    system = message(number, "system", "You are an assistant with a memory.")
    shown = [message(number, position, corpus.text(number, position)) for position in positions]
    await to.recall.CreateContext(
        recall.CreateContextRequest(
            agent_id=agent_of(number), conversation_id=conversation_of(number), messages=[system, *shown]
        )
    )


async def _archives(to: RunningServices, dataset: Dataset, corpus: Corpus) -> list[str]:
    ids, progress = [""] * dataset.archives, Progress("passages", dataset.passages)

    async def lane(archives: Sequence[int]) -> None:
        for number in archives:
            ids[number] = await _archive(to, dataset, corpus, number)
            progress.advance(dataset.passages_per_archive)

    await asyncio.gather(*(lane(range(first, dataset.archives, LANES)) for first in range(LANES)))
    return ids


async def _archive(to: RunningServices, dataset: Dataset, corpus: Corpus, number: int) -> str:
    request = archives_service_pb2.CreateArchiveRequest(
        request_id=derive_id("request", "bench-memory", str(number)),
        archive=archives_pb2.Archive(name=archive_name(number)),
        agent_ids=[agent_of(number)],
    )
    archive_id: str = (await to.archives.CreateArchive(request)).archive.id
    for batch in _batches(range(dataset.passages_per_archive), BATCH):
        given = [passage(corpus.text("passage", number, position), position) for position in batch]
        await to.passages.InsertPassages(archival.InsertPassagesRequest(archive_id=archive_id, passages=given))
    return archive_id


def message(agent: int, position: int | str, text: str, conversation: int | str = 0) -> message_pb2.Message:
    """Returns a message of an agent; the position "system" is the system message."""
    role = message_pb2.ROLE_SYSTEM
    if isinstance(position, int):
        role = message_pb2.ROLE_ASSISTANT if position % 2 else message_pb2.ROLE_USER
    made = message_pb2.Message(
        id=message_of(agent, position),
        agent_id=agent_of(agent),
        conversation_id=conversation_of(agent, conversation),
        role=role,
        content=[message_pb2.ContentPart(text=message_pb2.TextPart(text=text))],
    )
    made.create_time.FromDatetime(said_at(position if isinstance(position, int) else 0))
    return made


def passage(text: str, position: int) -> archives_pb2.Passage:
    """Returns a passage with two tags and its time."""
    made = archives_pb2.Passage(text=text, tags=tags_of(position))
    made.create_time.FromDatetime(written_at(position))
    return made


def _batches(positions: range, size: int) -> Iterable[range]:
    return (positions[start : start + size] for start in range(0, len(positions), size))
