"""The word index of an agent finds and scores the same messages as the full-text index, through all changes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pytest
import pytest_asyncio
import sqlalchemy as sa
from mnemesh.recall.v1 import messages_service_pb2 as rpc
from mnemesh.types.v1 import message_pb2 as pb
from mnemesh_kit.clock import FrozenClock
from mnemesh_kit.ids import RandomIds, new_id
from mnemesh_kit.sql import Database, open_database
from mnemesh_recall.config import Config
from mnemesh_recall.model.candidates import Candidates, id_of, key_of
from mnemesh_recall.model.message_ranking import rank
from mnemesh_recall.model.messages import MessageBatch
from mnemesh_recall.model.search import SearchScope, WordCandidates, WordQuery
from mnemesh_recall.store.sql.fulltext import agent_reading, segment_upkeep, selection
from mnemesh_recall.store.sql.fulltext.engines import fulltext_index
from mnemesh_recall.store.sql.fulltext.segment_upkeep import SqlWordSegments
from mnemesh_recall.store.sql.messages import SqlMessageStore
from mnemesh_recall.store.sql.word_segments import rows as segment_rows
from mnemesh_recall.store.sql.word_segments.changed import ChangedAgents
from mnemesh_recall.usecases.word_segments import WordSegmentation
from mnemesh_retrieval.ranking.constants import DEFAULTS
from mnemesh_retrieval.ranking.exact import fingerprint
from mnemesh_testkit.timeouts import scaled
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
    store: SqlMessageStore
    segments: SqlWordSegments

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


@pytest_asyncio.fixture
async def indexed(database_url: str, tmp_path: Any) -> AsyncIterator[Indexed]:
    config = Config(port=0, data_dir=str(tmp_path), database_url=database_url)
    database = await open_database(config, "mnemesh_recall")
    changed = ChangedAgents()
    store = SqlMessageStore(database, FrozenClock(), RandomIds(), changed)
    yield Indexed(database, store, SqlWordSegments(database, fulltext_index(database, changed)))
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
        own = selection.select(*given, words, 100)
        assert own.read is not None
        more = own.read([key_of(id_) for id_ in ids], [key_of(id_) for id_ in leaders])
        with pytest.MonkeyPatch.context() as without:
            without.setattr(selection, "open_agent", lambda *_: None)
            reference = selection.select(*given, words, 100)
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


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.full)])
async def test_word_index_of_an_agent_equals_the_fulltext_index(indexed: Indexed, seed: int) -> None:
    chance = random.Random(seed)
    agent, conversations = new_id("agent"), [new_id("conv") for _ in range(3)]
    history = [said(chance, agent, place, conversations) for place in range(260)]
    await append(indexed, agent, history[:120])
    await compare_all(indexed, chance, agent, conversations)  # a tail alone
    await indexed.index(agent)
    assert await indexed.tail(agent) == 0
    await compare_all(indexed, chance, agent, conversations)  # segments alone
    await append(indexed, agent, history[120:200])
    await compare_all(indexed, chance, agent, conversations)  # both
    await indexed.segments.move_tail(agent, least=1)
    await append(indexed, agent, history[200:])
    for message in chance.sample(history, 12):
        changed = replace(message, content=(TextPart(f"now about {chance.choice(WORDS)} and oaks?"),))
        await indexed.store.update_message(ORGANIZATION, changed, frozenset({"content"}), None)
    for message in chance.sample(history, 12):
        await indexed.store.delete_message(ORGANIZATION, message.id, None)
    await compare_all(indexed, chance, agent, conversations)
    await indexed.index(agent)
    await compare_all(indexed, chance, agent, conversations)


async def test_long_texts_and_common_words_are_the_same(indexed: Indexed, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(5)
    monkeypatch.setattr(selection, "MOST_HOLDERS", 20)
    monkeypatch.setattr(selection, "FEW_HOLDERS", 10)
    agent, conversations = new_id("agent"), [new_id("conv")]
    history = [said(chance, agent, place, conversations) for place in range(60)]
    long = " ".join(f"filler{number}" for number in range(1_500))
    history[30] = replace(history[30], content=(TextPart(f"oak {long} elm"),))
    await append(indexed, agent, history)
    for _ in range(2):
        for query in ("elm", "oak filler1", "word0", "word0 word1", "word0 elm oak"):
            await compare(indexed, SearchScope(agent_id=agent), query, [history[3].id], [history[30].id])
        await indexed.index(agent)


async def test_erased_words_leave_the_segments(indexed: Indexed) -> None:
    agent = new_id("agent")
    chance = random.Random(3)
    history = [said(chance, agent, place, [new_id("conv")]) for place in range(40)]
    history[5] = replace(history[5], content=(TextPart("The secret is xylophone"),), name="Xylo", sender_id="xy")
    await append(indexed, agent, history[:20])
    await indexed.index(agent)
    await append(indexed, agent, history[20:])
    await indexed.segments.move_tail(agent, least=1)
    await indexed.store.delete_message(ORGANIZATION, history[5].id, None)
    found = await indexed.store.search_words(ORGANIZATION, SearchScope(agent_id=agent), WordQuery("xylophone", ""), 10)
    assert not len(found.candidates)
    await indexed.segments.rewrite(agent)

    def words(conn: sa.Connection) -> set[str]:
        ids = [row.id for row in segment_rows.segments_of(conn, agent)]
        segments = segment_rows.read(conn, ids)
        labels = {text for segment in segments for texts in segment.documents.labels for text in texts}
        return labels | {term for segment in segments for term in segment.postings.terms}

    stored = await indexed.database.read(words)
    assert "word0" in stored
    assert not {word for word in stored if word.startswith("xy")}
    assert sum(await indexed.counts(agent)) == 39


async def test_erased_agent_has_no_segments(indexed: Indexed) -> None:
    agent = new_id("agent")
    chance = random.Random(4)
    await append(indexed, agent, [said(chance, agent, place, [new_id("conv")]) for place in range(30)])
    await indexed.segments.move_tail(agent, least=1)
    await indexed.store.erase_agent(ORGANIZATION, agent, None)
    assert await indexed.segments.agents() == []
    found = await indexed.store.search_words(ORGANIZATION, SearchScope(agent_id=agent), WordQuery("oak", ""), 10)
    assert not len(found.candidates)


async def test_agent_of_another_organization_is_not_searched(indexed: Indexed) -> None:
    agent = new_id("agent")
    await append(indexed, agent, [said(random.Random(4), agent, place, [new_id("conv")]) for place in range(30)])
    found = await indexed.store.search_words("org-2", SearchScope(agent_id=agent), WordQuery("oak word1", ""), 10)
    assert not len(found.candidates)


async def test_number_of_segments_is_logarithmic(indexed: Indexed) -> None:
    agent = new_id("agent")
    chance = random.Random(6)
    for start in range(0, 240, 12):
        await append(indexed, agent, [said(chance, agent, start + place, [new_id("conv")]) for place in range(12)])
        await indexed.index(agent)
    counts = await indexed.counts(agent)
    assert sum(counts) == 240
    assert len(counts) <= 5
    assert all(first > 2 * second for first, second in pairwise(counts))


async def test_background_indexes_what_this_and_earlier_processes_stored(indexed: Indexed) -> None:
    earlier, agent, quiet = new_id("agent"), new_id("agent"), new_id("agent")
    chance = random.Random(7)
    await append(indexed, earlier, [said(chance, earlier, place, [new_id("conv")]) for place in range(70)])
    indexed.segments.changed_agents()  # what an earlier process knew is forgotten
    background = WordSegmentation(indexed.segments)
    await background.step()
    assert sum(await indexed.counts(earlier)) == 70
    for name, number in ((agent, 100), (quiet, 20)):
        await append(indexed, name, [said(chance, name, place, [new_id("conv")]) for place in range(number)])
    await background.step()
    assert (sum(await indexed.counts(agent)), await indexed.tail(agent)) == (100, 0)
    assert (sum(await indexed.counts(quiet)), await indexed.tail(quiet)) == (0, 20)


async def test_agent_is_looked_at_after_the_commit_of_its_documents(
    indexed: Indexed, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, chance = new_id("agent"), random.Random(8)
    messages = tuple(said(chance, agent, place, [new_id("conv")]) for place in range(80))
    batch = MessageBatch(agent_id=agent, conversation_id=None, messages=messages)
    looked: list[list[str]] = []
    note = segment_rows.note

    def look_meanwhile(*args: Any) -> None:
        note(*args)
        looked.append(indexed.segments.changed_agents())

    with monkeypatch.context() as patched:
        patched.setattr(segment_rows, "note", look_meanwhile)
        await indexed.store.append_messages(ORGANIZATION, batch, None)
    assert looked
    assert not any(looked)
    await WordSegmentation(indexed.segments).step()
    assert (sum(await indexed.counts(agent)), await indexed.tail(agent)) == (80, 0)


async def test_service_indexes_in_the_background(serve: Any, database_url: str) -> None:
    agent = new_id("agent")
    database = Database.open(database_url)
    counted = sa.text("SELECT coalesce(sum(documents), 0) FROM word_segments")
    async with serve(database_url=database_url) as recall, asyncio.timeout(scaled(60)):
        given = [pb.Message(id=new_id("message"), role=pb.ROLE_USER) for _ in range(80)]
        for message in given:
            message.content.add().text.text = "We saw alpacas"
        await recall.AppendMessages(rpc.AppendMessagesRequest(agent_id=agent, messages=given))
        while await database.read(lambda conn: conn.scalar(counted)) < 80:
            await asyncio.sleep(0.05)
        found = await recall.SearchMessages(
            rpc.SearchMessagesRequest(query="alpaca", agent_id=agent, mode=rpc.SEARCH_MODE_TEXT)
        )
        assert len(found.hits) > 0
    await database.close()


def test_few_large_segments_are_not_merged() -> None:
    assert segment_upkeep.to_merge([16_000, 9_000, 9_000]) == 1
    assert segment_upkeep.to_merge([100, 64, 64]) == 3
    assert segment_upkeep.to_merge([1_000, 64]) == 1
    assert segment_upkeep.to_merge([16_000, 256, 256, 64]) == 3
    assert segment_upkeep.to_merge([]) == 0


def test_a_small_newest_segment_does_not_keep_older_ones_apart() -> None:
    assert segment_upkeep.to_merge([1_240, 256, 256, 256, 256, 82]) == 6
    assert segment_upkeep.to_merge([4_000, 256, 256, 82]) == 3


async def test_long_tail_is_searched_in_the_fulltext_index(indexed: Indexed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_reading, "MOST_TAIL", 10)
    agent = new_id("agent")
    await append(indexed, agent, [said(random.Random(4), agent, place, [new_id("conv")]) for place in range(30)])
    found = await indexed.store.search_words(ORGANIZATION, SearchScope(agent_id=agent), WordQuery("word0", ""), 10)
    assert found.read is None
    assert len(found.candidates)
