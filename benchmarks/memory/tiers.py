"""Stores dialogues in recall and in archival through their services, and searches there for questions."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from mnemesh.archival.v1 import archives_pb2
from mnemesh.archival.v1 import archives_service_pb2 as archives
from mnemesh.archival.v1 import passages_service_pb2 as archival
from mnemesh.recall.v1 import messages_service_pb2 as recall
from mnemesh.types.v1 import message_pb2
from mnemesh_kit.ids import derive_id, new_id

from benchmarks.datasets import Dialogue, Question, Turn

BATCH: Final = 100
_INDEX_SECONDS: Final = 3_600.0
_POLL_SECONDS: Final = 0.05
_NAMESPACE: Final = "memory-benchmark"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Configuration:
    """A way to search."""

    mode: str
    """HYBRID, TEXT or VECTOR."""
    rerank: bool = False


CONFIGURATIONS: Final = {
    "words": Configuration("TEXT"),
    "vectors": Configuration("VECTOR"),
    "hybrid": Configuration("HYBRID"),
    "reranker": Configuration("HYBRID", rerank=True),
}


@dataclass(frozen=True, slots=True)
class Found:
    """The hits of a search."""

    turns: tuple[str, ...]
    """The ids of the turns, best first."""
    reranked: bool
    similar: frozenset[str]
    """Those that were found by similarity."""


class Tier(Protocol):
    """A memory service."""

    name: str

    async def store(self, dialogue: Dialogue) -> None:
        """Stores all turns of a dialogue, and waits until they can be found by similarity."""

    async def search(self, dialogue: Dialogue, question: Question, how: Configuration, depth: int) -> Found:
        """Returns the best `depth` hits of a question in a stored dialogue."""


class RecallTier:
    """Messages of one agent per dialogue."""

    name = "recall"

    def __init__(self, messages: Any, pictures: bool) -> None:
        """Takes the stub of MessageService, and whether descriptions of pictures are stored."""
        self._messages = messages
        self._pictures = pictures
        self._agents: dict[str, str] = {}
        self._turns: dict[str, str] = {}

    async def store(self, dialogue: Dialogue) -> None:
        """See Tier.store."""
        await self.store_for(agent_of(dialogue), dialogue)

    async def store_for(self, agent_id: str, dialogue: Dialogue) -> None:
        """Stores a dialogue as the messages of an agent."""
        self._agents[dialogue.id] = agent_id
        turns = list(stored_turns(dialogue, self._pictures))
        for batch in _batches(turns):
            messages = [_message(agent_id, dialogue, turn, text) for turn, text in batch]
            self._turns |= {message.id: turn.id for message, (turn, _) in zip(messages, batch, strict=True)}
            await self._messages.AppendMessages(recall.AppendMessagesRequest(agent_id=agent_id, messages=messages))
        await _until_found(self, dialogue, turns)

    async def search(self, dialogue: Dialogue, question: Question, how: Configuration, depth: int) -> Found:
        """See Tier.search."""
        request = recall.SearchMessagesRequest(
            query=question.text,
            mode=recall.SearchMode.Value(f"SEARCH_MODE_{how.mode}"),
            limit=depth,
            agent_id=self._agents[dialogue.id],
            rerank=how.rerank,
        )
        if question.asked_at is not None:
            request.reference_time.FromDatetime(question.asked_at)
        response = await self._messages.SearchMessages(request)
        return _found([(self._turns[hit.message.id], hit) for hit in response.hits], response)


class ArchivalTier:
    """Passages of one archive per dialogue."""

    name = "archival"

    def __init__(self, archives: Any, passages: Any, pictures: bool) -> None:
        """Takes the stubs of ArchiveService and PassageService, and whether descriptions of pictures are stored."""
        self._archives = archives
        self._passages = passages
        self._pictures = pictures
        self.archive_ids: dict[str, str] = {}
        """The archives by the ids of the dialogues."""
        self._turns: dict[str, str] = {}

    async def store(self, dialogue: Dialogue) -> None:
        """See Tier.store."""
        request = archives.CreateArchiveRequest(
            request_id=new_id("request"), archive=archives_pb2.Archive(name=dialogue.id[:200])
        )
        archive_id = (await self._archives.CreateArchive(request)).archive.id
        self.archive_ids[dialogue.id] = archive_id
        turns = list(stored_turns(dialogue, self._pictures))
        for batch in _batches(turns):
            await self._insert(archive_id, batch)
        await _until_found(self, dialogue, turns)

    async def _insert(self, archive_id: str, batch: Sequence[tuple[Turn, str]]) -> None:
        passages = []
        for turn, text in batch:
            passage = archives_pb2.Passage(text=f"{turn.speaker}: {text}" if turn.speaker else text)
            passage.create_time.FromDatetime(turn.said_at)
            passages.append(passage)
        response = await self._passages.InsertPassages(
            archival.InsertPassagesRequest(archive_id=archive_id, passages=passages)
        )
        for (turn, _), result in zip(batch, response.results, strict=True):
            if result.HasField("failure"):
                raise RuntimeError(f"Turn {turn.id} was not stored: {result.failure.message}")
            self._turns[result.passage.id] = turn.id

    async def search(self, dialogue: Dialogue, question: Question, how: Configuration, depth: int) -> Found:
        """See Tier.search."""
        request = archival.SearchPassagesRequest(
            query=question.text,
            mode=archival.PassageSearchMode.Value(f"PASSAGE_SEARCH_MODE_{how.mode}"),
            limit=depth,
            filter=archival.PassageFilter(archive_id=self.archive_ids[dialogue.id]),
            rerank=how.rerank,
        )
        if question.asked_at is not None:
            request.reference_time.FromDatetime(question.asked_at)
        response = await self._passages.SearchPassages(request)
        return _found([(self._turns[hit.passage.id], hit) for hit in response.hits], response)


def agent_of(dialogue: Dialogue) -> str:
    """Returns the id of a dialogue's agent in recall."""
    return derive_id("agent", _NAMESPACE, dialogue.id)


def stored_turns(dialogue: Dialogue, pictures: bool) -> Iterator[tuple[Turn, str]]:
    """Yields the turns that have a text, with it. Services refuse empty texts."""
    for turn in dialogue.turns():
        text = turn.text_with_picture if pictures else turn.text
        if text.strip():
            yield turn, text


def _message(agent_id: str, dialogue: Dialogue, turn: Turn, text: str) -> message_pb2.Message:
    message = message_pb2.Message(
        id=derive_id("message", _NAMESPACE, agent_id, dialogue.id, turn.id),
        agent_id=agent_id,
        role=message_pb2.ROLE_USER if turn.role == "user" else message_pb2.ROLE_ASSISTANT,
        content=[message_pb2.ContentPart(text=message_pb2.TextPart(text=text))],
    )
    if turn.speaker:
        message.name = turn.speaker
    message.create_time.FromDatetime(turn.said_at)
    return message


def _found(hits: Sequence[tuple[str, Any]], response: Any) -> Found:
    similar = frozenset(turn for turn, hit in hits if hit.HasField("vector_rank"))
    return Found(tuple(turn for turn, _ in hits), response.reranked, similar)


async def _until_found(tier: Tier, dialogue: Dialogue, turns: Sequence[tuple[Turn, str]]) -> None:
    """Waits until the index has the last turn, because it applies changes in their order."""
    last = next(((turn, text) for turn, text in reversed(turns) if len(text.split()) > 2), None)
    if last is None:
        return
    turn, text = last
    asked = Question(id="index", text=text[:2_000], category="")
    async with asyncio.timeout(_INDEX_SECONDS):
        # Words find a text that equals the query before the index has it.
        while turn.id not in (await tier.search(dialogue, asked, CONFIGURATIONS["vectors"], 100)).similar:
            await asyncio.sleep(_POLL_SECONDS)


def _batches(items: Sequence[T]) -> Iterator[Sequence[T]]:
    return (items[start : start + BATCH] for start in range(0, len(items), BATCH))
