"""The stored data, and how it is loaded."""

import asyncio
import itertools
import json
import random
import sys
import time
from bisect import bisect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from mnemesh.archival.v1 import archives_pb2, archives_service_pb2
from mnemesh.archival.v1 import passages_service_pb2 as archival
from mnemesh.recall.v1 import messages_service_pb2 as recall
from mnemesh.types.v1 import message_pb2
from mnemesh_kit.ids import derive_id

from benchmarks.memory_services import RunningServices

WORDS: Final = 20_000
"""The number of different words, without function words."""
FUNCTION_WORDS: Final = tuple(
    word
    for line in (
        "the of and to a in is it you that he was for on are with as I his they be at one have this from or had by not",
        "but what all were we when your can said there use an each which she do how their if will up other about out",
    )
    for word in line.split()
)
FUNCTION_SHARE: Final = 0.4
"""The share of function words in a sentence."""
RANKS: Final = {"rare": (3_000, 6_000), "middling": (60, 160), "common": (2, 8)}
"""The ranks of the words of each kind. Of 5,000 messages, about 2 contain a rare, 50 a middling and 1,000 a common
word."""
_SYLLABLES: Final = tuple("".join(parts) for parts in itertools.product("bdfgklmnprstvz", "aeiou"))
_ENDINGS: Final = ("", "n", "r", "l", "s", "t", "m", "k")


class Corpus:
    """A vocabulary and sentences. The same seed and position generate the same text."""

    def __init__(self, seed: int = 11) -> None:
        self._seed = seed
        self.words = tuple(itertools.islice(_vocabulary(random.Random(seed)), WORDS))
        self._weights = list(itertools.accumulate(1 / rank for rank in range(1, WORDS + 1)))

    def text(self, *position: object) -> str:
        """Returns one to three sentences of 6 to 18 words."""
        chance = random.Random(f"{self._seed} {position}")
        return " ".join(self._sentence(chance) for _ in range(chance.choice((1, 1, 2, 3))))

    def query(self, kind: str, number: int) -> str:
        """Returns a question with two words of a kind."""
        chance = random.Random(f"{self._seed} {kind} {number}")
        first, second = chance.sample(self.words[slice(*RANKS[kind])], 2)
        return f"What was it about the {first} and {second}?"

    def of_kind(self, kind: str) -> Sequence[str]:
        """Returns the words of a kind."""
        return self.words[slice(*RANKS[kind])]

    def _sentence(self, chance: random.Random) -> str:
        words = [self._word(chance) for _ in range(chance.randrange(6, 19))]
        return f"{' '.join(words).capitalize()}."

    def _word(self, chance: random.Random) -> str:
        if chance.random() < FUNCTION_SHARE:
            return chance.choice(FUNCTION_WORDS)
        return self.words[bisect(self._weights, chance.random() * self._weights[-1])]


def _vocabulary(chance: random.Random) -> Iterator[str]:
    """Yields unique artificial words with different stems."""
    seen = set(FUNCTION_WORDS)
    while True:
        word = "".join(chance.choices(_SYLLABLES, k=chance.choice((2, 2, 3)))) + chance.choice(_ENDINGS)
        stem = word.rstrip("s")
        if stem not in seen and not word.endswith(("ss", "er", "est", "al", "en", "es", "ed", "ies", "e")):
            seen.add(stem)
            yield word


BEGAN: Final = datetime(2025, 1, 1, tzinfo=UTC)
TAGS: Final = tuple(f"tag{number}" for number in range(20))


@dataclass(frozen=True, slots=True)
class Dataset:
    """The amount of data, divided equally among agents and archives."""

    messages: int
    agents: int
    passages: int
    archives: int

    @property
    def messages_per_agent(self) -> int:
        """The number of messages of an agent."""
        return self.messages // self.agents

    @property
    def passages_per_archive(self) -> int:
        """The number of passages of an archive."""
        return self.passages // self.archives

    def scaled(self, messages: int) -> "Dataset":
        """Returns a smaller dataset: fewer agents and archives of the same size."""
        share = messages / self.messages
        return Dataset(
            messages,
            max(1, round(self.agents * share)),
            max(1, round(self.passages * share)),
            max(1, round(self.archives * share)),
        )


def agent_of(number: int) -> str:
    """Returns the id of an agent."""
    return derive_id("agent", "bench-memory", str(number))


def conversation_of(agent: int, number: int | str = 0) -> str:
    """Returns the id of a conversation of an agent. The loaded messages belong to conversation 0."""
    return derive_id("conv", "bench-memory", str(agent), str(number))


def message_of(agent: int, position: int | str) -> str:
    """Returns the id of a message by its position in the agent's history."""
    return derive_id("message", "bench-memory", str(agent), str(position))


def archive_name(number: int) -> str:
    """Returns the name of an archive, by which its id is found again."""
    return f"bench-memory {number}"


def said_at(position: int) -> datetime:
    """Returns the time of a message: sessions of forty messages, two a day."""
    session, minute = divmod(position, 40)
    return BEGAN + timedelta(hours=12 * session, minutes=minute)


def written_at(position: int) -> datetime:
    """Returns the time of a passage."""
    return BEGAN + timedelta(hours=6 * position)


def tags_of(position: int) -> tuple[str, str]:
    """Returns two of the tags."""
    return TAGS[position % len(TAGS)], TAGS[(position // len(TAGS)) % len(TAGS)]


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
