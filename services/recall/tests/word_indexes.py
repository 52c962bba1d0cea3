"""Dialogues in a store, and comparisons of the word index of an agent with the full-text index."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import sqlalchemy as sa
from mnemesh_kit.ids import RandomIds, new_id
from mnemesh_kit.sql import Database, open_database
from mnemesh_kit.time import FrozenClock
from mnemesh_recall.config import Config
from mnemesh_recall.model.messages import MessageBatch
from mnemesh_recall.model.ranking import Candidates, id_of, key_of, rank
from mnemesh_recall.model.search import SearchScope, WordCandidates, WordQuery
from mnemesh_recall.store.fulltext import segment_rows, selection
from mnemesh_recall.store.fulltext.segment_rows import ChangedAgents
from mnemesh_recall.store.fulltext.segment_upkeep import WordSegmentStore
from mnemesh_recall.store.fulltext.selection import fulltext_index
from mnemesh_recall.store.messages import MessageStore
from mnemesh_retrieval.ranking.scores import DEFAULTS, fingerprint
from mnemesh_types.messages import Message, Role, TextPart

ORGANIZATION: Final = "org-1"
BEGAN: Final = datetime(2026, 3, 1, tzinfo=UTC)
WORDS: Final = (
    *(f"word{number}" for number in range(40)),
    "oak", "oaks", "Häuser", "Haus", "東京", "京都", "東京都", "кошки", "won't", "/", "of", "the",
)  # fmt: skip
NAMES: Final = ("Ada", "Zoë", None)


@dataclass
class Indexed:
    """A store, and what its background work uses."""

    database: Database
    store: MessageStore
    segments: WordSegmentStore
    clock: FrozenClock

    async def counts(self, agent: str) -> list[int]:
        """Returns the numbers of documents in the segments of an agent."""
        found = await self.database.read(lambda conn: list(segment_rows.segments_of(conn, agent)))
        return [row.documents for row in found]

    async def tail(self, agent: str) -> int:
        """Returns the length of an agent's tail."""
        return len(await self.database.read(lambda conn: segment_rows.tail(conn, agent, 10_000)))

    async def index(self, agent: str) -> None:
        """Does the background work for an agent, whatever the length of its tail."""
        while await self.segments.move_tail(agent, least=1):
            pass
        while await self.segments.merge(agent):
            pass


@asynccontextmanager
async def opened(database_url: str, directory: Path) -> AsyncIterator[Indexed]:
    """Opens a store as one process does."""
    config = Config(port=0, data_dir=str(directory), database_url=database_url)
    database = await open_database(config, "mnemesh_recall")
    changed = ChangedAgents()
    clock = FrozenClock()
    store = MessageStore(database, clock, RandomIds(), changed)
    yield Indexed(database, store, WordSegmentStore(database, fulltext_index(database, changed)), clock)
    await database.close()


def said(chance: random.Random, agent: str, place: int, conversations: list[str]) -> Message:
    words = chance.choices(WORDS, weights=[1 / (rank + 1) for rank in range(len(WORDS))], k=chance.randrange(1, 14))
    mark = chance.choice(("?", ".", "? I think so.", ""))
    prefix = chance.choice(("", "", "Bob: "))
    return Message(
        id=new_id("message"),
        role=chance.choice((Role.USER, Role.ASSISTANT, Role.TOOL if place % 11 == 0 else Role.USER)),
        created_at=BEGAN + timedelta(hours=place * chance.choice((0.1, 1))),
        content=(TextPart(prefix + " ".join(words) + mark),),
        name=chance.choice(NAMES),
        sender_id=chance.choice(("identity-1", "identity-2", None)),
        conversation_id=chance.choice(conversations),
        agent_id=agent,
    )


async def append(indexed: Indexed, agent: str, messages: list[Message]) -> None:
    for start in range(0, len(messages), 7):
        batch = MessageBatch(agent_id=agent, conversation_id=None, messages=tuple(messages[start : start + 7]))
        await indexed.store.append_messages(ORGANIZATION, batch, None)


def scopes(chance: random.Random, agent: str, conversations: list[str], ids: list[str]) -> list[SearchScope]:
    middle = BEGAN + timedelta(hours=20)
    return [
        SearchScope(agent_id=agent),
        SearchScope(agent_id=agent, conversation_id=conversations[0]),
        SearchScope(agent_id=agent, roles=(Role.USER,)),
        SearchScope(agent_id=agent, from_time=middle),
        SearchScope(agent_id=agent, before_time=middle, exclude_ids=tuple(chance.sample(ids, 5))),
        SearchScope(agent_id=agent, speakers=("ADA", "bob")),
        SearchScope(agent_id=agent, sender_ids=("identity-1",), conversation_id=conversations[-1]),
    ]


def ranked(found: WordCandidates, read: Candidates) -> dict[str, tuple[Any, ...]]:
    """Returns the scores by words and what else ranks, of candidates and of others that were read by their ids."""
    known = set(found.candidates.keys)
    every = found.candidates.joined(read.chosen(np.array([key not in known for key in read], np.bool_)))
    scores = rank(every, found.rarities, {}, 0.0, (), DEFAULTS, depth=10)
    columns = (every.before, every.after, every.abouts, every.asks, every.times, every.is_exact, every.has_word,
               every.follow_questions, every.lengths, every.received_lengths.tolist())  # fmt: skip
    facts = dict(zip(every.keys, zip(*columns, strict=True), strict=True))
    assert len(facts) == len(every)
    return {
        id_of(each.id): (pytest.approx(each.score), pytest.approx(each.text_score), *facts.pop(each.id))
        for each in scores
    } | {id_of(key): of_key for key, of_key in facts.items()}


async def compare(indexed: Indexed, scope: SearchScope, query: str, ids: list[str], leaders: list[str]) -> int:
    """Compares both indexes in one search. Returns the number of candidates."""

    def both(conn: sa.Connection) -> tuple[Any, ...]:
        given = (indexed.store._fulltext, indexed.store._documents, conn, ORGANIZATION, scope)
        words = WordQuery(query, fingerprint(query))
        own = selection.select(*given, words, 100, began=None)
        assert own.read is not None
        more = own.read([key_of(id_) for id_ in ids], [key_of(id_) for id_ in leaders])
        with pytest.MonkeyPatch.context() as without:
            without.setattr(selection, "open_agent", lambda *_: None)
            reference = selection.select(*given, words, 100, began=None)
        read = indexed.store._fulltext.read(conn, ORGANIZATION, scope, ids, leaders)
        return own, more, reference, Candidates.of(read, tuple(reference.rarities))

    own, more, reference, read = await indexed.database.read(both)
    assert own.rarities == reference.rarities
    assert own.candidates.keys == reference.candidates.keys
    assert more.keys == read.keys
    assert ranked(own, more) == ranked(reference, read)
    return len(own.candidates)


async def compare_all(indexed: Indexed, chance: random.Random, agent: str, conversations: list[str]) -> None:
    stored = await indexed.store.list_newest(ORGANIZATION, SearchScope(agent_id=agent), 1_000)
    ids = [message.id for message in stored]
    found = 0
    for scope in scopes(chance, agent, conversations, ids):
        for query in (
            "oak",
            "東京都 word3",
            "Haus Ada word1 word2",
            "Bob 3 March word9",
            chance.choice(stored).text,
            "",
        ):
            found += await compare(indexed, scope, query, chance.sample(ids, 6), chance.sample(ids, 6))
    assert found > 100
