"""The word index of an agent finds and scores the same messages as the full-text index, through all changes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import sqlalchemy as sa
from mnemesh.recall.v1 import messages_service_pb2 as rpc
from mnemesh.types.v1 import message_pb2 as pb
from mnemesh_kit.ids import new_id
from mnemesh_kit.sql import Database
from mnemesh_kit.sql.readahead import Readahead
from mnemesh_recall.model.messages import MessageBatch
from mnemesh_recall.model.ranking import id_of
from mnemesh_recall.model.search import SearchScope, WordQuery
from mnemesh_recall.store.fulltext import agent_words, segment_rows, segment_upkeep, selection
from mnemesh_recall.store.fulltext.segments import COLUMNS, LABELS, StoredColumns, packed
from mnemesh_recall.usecases.word_indexing import WordSegmentation
from mnemesh_testkit.timeouts import scaled
from mnemesh_types.messages import TextPart

from .word_indexes import ORGANIZATION, WORDS, Indexed, append, compare, compare_all, opened, said


@pytest_asyncio.fixture
async def indexed(database_url: str, tmp_path: Path) -> AsyncIterator[Indexed]:
    async with opened(database_url, tmp_path) as index:
        yield index


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
        segments = segment_rows.read(conn, segment_rows.segments_of(conn, agent))
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


def random_columns(chance: np.random.Generator, count: int) -> dict[str, Any]:
    """Returns documents of which some have neighbours among them, elsewhere, or none."""
    ids = np.frombuffer(chance.bytes(16 * count), "S16")
    known = np.concatenate([ids, np.frombuffer(chance.bytes(48), "S16"), np.array([b""], "S16")])
    largest = {name: np.iinfo(kind.base).max for name, kind in COLUMNS.items() if kind.base.kind in "iu"}
    values = {
        name: chance.integers(0, top, (count, *COLUMNS[name].shape), COLUMNS[name].base, endpoint=True)
        for name, top in largest.items()
    }
    values["time"] = chance.integers(-(10**15), 2 * 10**15, count)
    values["row_id"] = np.sort(chance.integers(1, 10**9, count))
    for name, step in (("before", 1), ("after", -1)):
        values[name] = np.where(chance.random(count) < 0.5, np.roll(ids, step), chance.choice(known, count))
    return {**values, "id": ids, "ends_in_question": chance.random(count) < 0.5}


@pytest.mark.parametrize("count", [0, 1, 2, 300])
def test_stored_documents_are_read_as_they_were(count: int) -> None:
    columns = random_columns(np.random.default_rng(count), count)
    stored = packed(columns)
    found = StoredColumns(stored)
    assert found.keys() == COLUMNS.keys()
    for name, kind in COLUMNS.items():
        assert (found[name].dtype, found[name].shape) == (kind.base, (count, *kind.shape))
        own = [number for number in range(count) if columns[name][number].tobytes() != columns["id"][number].tobytes()]
        some = np.random.default_rng(7).permutation(np.array(own, np.int64))[: count // 2]
        assert StoredColumns(stored).at(name, some).tolist() == columns[name][some].tolist()
        assert found[name][own].tolist() == columns[name][own].tolist()  # No message is its own neighbour.
        assert found.at(name, some).tolist() == columns[name][some].tolist()


def test_documents_of_a_dialogue_take_few_bytes() -> None:
    count, chance = 5_000, np.random.default_rng(3)
    columns = random_columns(chance, count)
    columns["before"], columns["after"] = np.roll(columns["id"], 1), np.roll(columns["id"], -1)
    columns["row_id"] = np.arange(count) * 3
    columns["time"] = 1_700_000_000_000_000 + np.arange(count) * 60_000_000
    for name in ("length", "received", *LABELS):
        columns[name] = chance.integers(0, 20, columns[name].shape, COLUMNS[name].base)
    assert len(packed(columns)) < 40 * count


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
    monkeypatch.setattr(agent_words, "MOST_TAIL", 10)
    agent = new_id("agent")
    await append(indexed, agent, [said(random.Random(4), agent, place, [new_id("conv")]) for place in range(30)])
    found = await indexed.store.search_words(ORGANIZATION, SearchScope(agent_id=agent), WordQuery("word0", ""), 10)
    assert found.read is None
    assert len(found.candidates)


async def test_first_search_of_an_agent_asks_for_its_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, set[int]] = {}

    def note(_self: Readahead, _conn: Any, table: str, row_ids: Iterable[int], *, overflow: bool = False) -> None:
        asked.setdefault(table, set()).update(row_ids)

    monkeypatch.setattr(Readahead, "rows", note)
    chance, agent, conversations = random.Random(4), new_id("agent"), [new_id("conv")]
    async with opened(f"sqlite:///{tmp_path / 'recall.db'}", tmp_path) as indexed:
        await append(indexed, agent, [said(chance, agent, place, conversations) for place in range(400)])
        await indexed.index(agent)
        words = WordQuery("word0 oak", "")
        found = await indexed.store.search_words(ORGANIZATION, SearchScope(agent_id=agent), words, 20)
        keys = {
            key
            for (key,) in await indexed.database.read(
                lambda conn: conn.execute(sa.text("SELECT key FROM word_documents")).all()
            )
        }
        assert len(keys) > 2  # a part for each page
        assert asked["word_documents"] == keys
        assert asked["word_postings"]
        assert found.row_ids is not None
        rows = {id_of(key): row_id for key, row_id in found.row_ids(found.candidates.keys).items()}
        assert len(rows) == len(found.candidates)
        messages = await indexed.store.get_messages(ORGANIZATION, list(rows), rows)
        assert [message.id for message in messages] == list(rows)
        assert asked["messages"] == set(rows.values())
        asked.clear()
        await indexed.store.search_words(ORGANIZATION, SearchScope(agent_id=agent), words, 20)
        assert asked == {}  # its documents are in memory now
