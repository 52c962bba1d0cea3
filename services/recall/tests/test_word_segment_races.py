"""Several processes that work on the word index of one agent at the same time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import sqlalchemy as sa
from mnemesh_kit.ids import new_id
from mnemesh_recall.model.search import SearchScope, WordQuery
from mnemesh_recall.store.fulltext import segment_rows, segment_upkeep, selection
from mnemesh_recall.store.fulltext.segments import valid
from mnemesh_types.messages import TextPart

from .word_indexes import ORGANIZATION, Indexed, append, compare_all, opened, said

Pair = tuple[Indexed, Indexed]


@pytest_asyncio.fixture
async def processes(database_url: str, tmp_path: Path) -> AsyncIterator[Pair]:
    """Two processes with one database, such as replicas, or a service and its maintenance."""
    async with opened(database_url, tmp_path) as first, opened(database_url, tmp_path) as second:
        yield first, second


async def places(indexed: Indexed, agent: str) -> list[int]:
    """Returns the row ids of all valid documents in segments and of those in the tail, ascending."""

    def read(conn: sa.Connection) -> list[int]:
        segments = segment_rows.segments_of(conn, agent)
        contents, _ = segment_rows.contents_of(conn, segments, ())
        parts = [contents[row.id] for row in segments]
        masks = valid(parts)
        found = [part.columns["row_id"][mask].tolist() for part, mask in zip(parts, masks, strict=True)]
        return sorted(sum(found, segment_rows.tail(conn, agent, 10_000)))

    return await indexed.database.read(read)


async def test_merge_gives_up_if_another_process_has_moved_a_tail(
    processes: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = processes
    chance, agent, conversations = random.Random(1), new_id("agent"), [new_id("conv") for _ in range(2)]
    history = [said(chance, agent, place, conversations) for place in range(120)]
    for start in (0, 40):
        await append(first, agent, history[start : start + 40])
        await first.segments.move_tail(agent, least=1)
    await append(first, agent, history[80:])
    loop, merged = asyncio.get_running_loop(), segment_upkeep._merged
    moved: list[int] = []

    def merge_while_the_other_moves(*args: Any, **more: Any) -> Any:
        if not moved:
            moved.append(asyncio.run_coroutine_threadsafe(second.segments.move_tail(agent, least=1), loop).result(60))
        return merged(*args, **more)

    monkeypatch.setattr(segment_upkeep, "_merged", merge_while_the_other_moves)
    assert not await first.segments.merge(agent)
    assert moved[0] >= 40  # The newest messages, and earlier ones that are beside them.
    assert len(await first.counts(agent)) == 3
    assert await first.segments.merge(agent)
    assert (await second.counts(agent), await second.tail(agent)) == ([120], 0)
    await compare_all(second, chance, agent, conversations)


@pytest.mark.parametrize("is_cached", [True, False])
async def test_search_reads_again_if_segments_are_replaced_after_it_has_listed_them(
    processes: Pair, monkeypatch: pytest.MonkeyPatch, is_cached: bool
) -> None:
    first, second = processes
    chance, agent, conversations = random.Random(2), new_id("agent"), [new_id("conv")]
    history = [said(chance, agent, place, conversations) for place in range(80)]
    for start in (0, 40):
        await append(first, agent, history[start : start + 40])
        await first.segments.move_tail(agent, least=1)
    scope, words = SearchScope(agent_id=agent), WordQuery("word0 word1", "")
    if is_cached:
        await second.store.search_words(ORGANIZATION, scope, words, 20)
    overview = selection.read_overview
    old = await second.database.read(
        lambda conn: overview(conn, ORGANIZATION, agent, 100, datetime.max.replace(tzinfo=UTC))
    )
    assert len(old.segments) == 2
    assert await first.segments.merge(agent)
    earlier = [old]
    monkeypatch.setattr(selection, "read_overview", lambda *given: earlier.pop() if earlier else overview(*given))
    found = await second.store.search_words(ORGANIZATION, scope, words, 20)
    assert not earlier
    assert found.rarities
    assert found.candidates.keys == (await first.store.search_words(ORGANIZATION, scope, words, 20)).candidates.keys


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(2, 6))])
async def test_no_document_is_lost_or_twice_in_segments_while_two_processes_index(processes: Pair, seed: int) -> None:
    first, second = processes
    chance, agent, conversations = random.Random(seed), new_id("agent"), [new_id("conv") for _ in range(2)]
    history = [said(chance, agent, place, conversations) for place in range(240)]
    done = asyncio.Event()

    async def index(of: Indexed) -> None:
        while not done.is_set():
            await of.segments.move_tail(agent, least=chance.choice((1, 8)))
            await of.segments.merge(agent)

    async def talk() -> None:
        for start in range(0, 240, 12):
            await append(chance.choice(processes), agent, history[start : start + 12])
            for message in chance.sample(history[: start + 12], 2):
                text = f"now about {chance.choice(('oak', 'word1'))} {start} {message.id}"
                await first.store.update_message(
                    ORGANIZATION, replace(message, content=(TextPart(text),)), frozenset({"content"}), None
                )
        for message in history[5:15]:
            await second.store.delete_message(ORGANIZATION, message.id, None)
        done.set()

    async with asyncio.TaskGroup() as tasks:
        for each in processes:
            tasks.create_task(index(each))
        tasks.create_task(talk())
    stored = await first.store.list_newest(ORGANIZATION, SearchScope(agent_id=agent), 1_000)
    assert len(stored) == 230
    await first.index(agent)
    row_ids = await places(first, agent)
    assert len(row_ids) == len(set(row_ids)) == 230
    for each in processes:
        await compare_all(each, chance, agent, conversations)
