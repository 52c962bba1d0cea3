"""Dialogues in a store, and comparisons of the word index with the texts of all messages."""

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import sqlalchemy as sa
from mnemesh_kit.ids import RandomIds, new_id
from mnemesh_kit.sql import Database, open_database
from mnemesh_kit.time import FrozenClock
from mnemesh_recall.config import Config
from mnemesh_recall.model.messages import MessageBatch
from mnemesh_recall.model.ranking import Candidate, Candidates, id_of
from mnemesh_recall.model.search import SearchScope, WordCandidates, WordQuery, searchable_text
from mnemesh_recall.store.fulltext import selection
from mnemesh_recall.store.fulltext.indexing import stored_languages
from mnemesh_recall.store.messages import MessageStore
from mnemesh_recall.store.tables import agents
from mnemesh_retrieval.ranking.scores import fingerprint, rarity
from mnemesh_retrieval.words.analysis import terms
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
    """A store, and its database."""

    database: Database
    store: MessageStore
    clock: FrozenClock


@asynccontextmanager
async def opened(database_url: str, directory: Path) -> AsyncIterator[Indexed]:
    """Opens a store as one process does."""
    config = Config(port=0, data_dir=str(directory), database_url=database_url)
    database = await open_database(config, "mnemesh_recall")
    clock = FrozenClock()
    yield Indexed(database, MessageStore(database, clock, RandomIds()), clock)
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
        SearchScope(),
        SearchScope(roles=(Role.USER,), from_time=middle),
    ]


async def postings(indexed: Indexed) -> dict[Any, int]:
    """Returns how many messages each entry of the word index has."""

    def count(conn: sa.Connection) -> dict[Any, int]:
        if conn.dialect.name != "sqlite":
            counts = sa.text("SELECT term, count(*) FROM message_terms, unnest(terms) AS term GROUP BY term")
            return dict(iter(conn.execute(counts)))
        conn.execute(sa.text("CREATE VIRTUAL TABLE entries USING fts5vocab(message_terms, row)"))
        found: dict[Any, int] = dict(iter(conn.execute(sa.text("SELECT term, doc FROM entries"))))
        conn.execute(sa.text("DROP TABLE entries"))
        return found

    return await indexed.database.write(count)


async def check(indexed: Indexed, scope: SearchScope, query: str, stored: Sequence[Message]) -> int:
    """Compares a search by words with one that looks at every message of its scope. Returns the number of candidates.

    `stored` has all messages of the organization.
    """
    ids = [message.id for message in stored]
    counted_scope = SearchScope(agent_id=scope.agent_id, conversation_id=scope.conversation_id, roles=scope.roles)

    def read(conn: sa.Connection) -> tuple[WordCandidates, list[Candidate], list[Candidate], dict[str, str], int]:
        index, words = indexed.store._index, WordQuery(query, fingerprint(query))
        found = selection.select(index, conn, ORGANIZATION, scope, words, len(ids), began=None)
        every = index.read(conn, ORGANIZATION, counted_scope, ids=ids)
        some = index.read(conn, ORGANIZATION, scope, ids=ids)
        size = sa.select(sa.func.sum(agents.c.message_count))
        if scope.agent_id is not None:
            size = size.where(agents.c.agent_id == scope.agent_id)
        return found, every, some, terms(query, stored_languages(conn, ORGANIZATION)), int(conn.scalar(size) or 0)

    found, every, some, own, size = await indexed.database.read(read)
    is_near = scope.agent_id is not None
    holders_of_terms = _matches(every, tuple(own), is_near=is_near).sum(axis=0).tolist()
    counts = {term: min(count, selection.MOST_HOLDERS + 1) for term, count in zip(own, holders_of_terms, strict=True)}
    holders = selection.holders_of_words({term: count for term, count in counts.items() if count}, own)
    assert found.rarities == {term: rarity(count, size) for term, count in holders.items()}
    selected = tuple(selection.selective_terms(holders, found.rarities, size))
    equal = {message.id for message in stored if fingerprint(searchable_text(message)) == fingerprint(query)}
    matching = _matches(some, selected, is_near=is_near).any(axis=1).tolist()
    expected = [each.id for each, is_match in zip(some, matching, strict=True) if is_match or each.id in equal]
    assert list(map(id_of, found.candidates.keys)) == expected
    return len(expected)


def _matches(found: list[Candidate], terms_: tuple[str, ...], *, is_near: bool) -> npt.NDArray[np.bool_]:
    """Returns which messages have which terms: their own ones, and those that they receive from their neighbours.

    In an organization, only questions of the message before count as received.
    """
    counted = Candidates.of(found, terms_)
    received = counted.received if is_near else counted.received[:, :1]
    return (counted.own > 0) | (received > 0).any(axis=1)


async def check_all(indexed: Indexed, chance: random.Random, agent: str, conversations: list[str]) -> None:
    stored = await indexed.store.list_newest(ORGANIZATION, SearchScope(), 1_000)
    ids = [message.id for message in stored]
    found = 0
    for scope in scopes(chance, agent, conversations, ids):
        for query in (
            "oak",
            "東京都 word3",
            "Haus Ada word1 word2",
            "Bob 3 March word9",
            searchable_text(chance.choice(stored)),
            "",
        ):
            found += await check(indexed, scope, query, stored)
    assert found > 100
