"""The contract of outbox and indexer, on every SQL engine and every index."""

import asyncio
import random
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from mnemesh_kit.failpoints import observed_by
from mnemesh_retrieval.errors import IndexUnavailable
from mnemesh_retrieval.filters import EVERYTHING
from mnemesh_retrieval.index import Point
from mnemesh_retrieval.indexing import indexer, walks
from mnemesh_retrieval.indexing.indexer import Indexer
from mnemesh_retrieval.indexing.pending import CLAIM_DURATION
from mnemesh_testkit.fakes.notes import NOTES, REFUSED, note_id
from structlog.testing import capture_logs

Rig = Any
full = pytest.mark.full
embedded = pytest.mark.parametrize("variant", ["flat on sqlite", "edge on sqlite"], indirect=True)
replicated = pytest.mark.parametrize("variant", ["server on postgresql"], indirect=True)
WORDS = ["fox", "owl", "oak", "elm", "sea", "ash", "bee", "cat", "dog", "hen", "ice", "jar", "kit", "log", "map", "net"]


def texts(numbers: Sequence[int], word: str = "tree") -> dict[str, str]:
    return {note_id(number): f"{word} {WORDS[number % 16]} number{number}" for number in numbers}


@pytest.mark.parametrize(
    "variant",
    ["flat on sqlite", "edge on sqlite", "server on postgresql", pytest.param("flat on postgresql", marks=full)],
    indirect=True,
)
async def test_index_follows_the_records_and_changes_are_kept_until_flushed(rig: Rig) -> None:
    await rig.notebook.put(texts(range(40)))
    await rig.notebook.put(texts(range(40, 45)), book="two")
    assert await rig.indexer.catch_up() == 45
    assert await rig.indexer.catch_up() == 0
    assert await rig.outbox.count() == 45
    await rig.notebook.put(texts(range(5), "changed"))
    await rig.notebook.delete([note_id(7)])
    await rig.notebook.drop("two")
    assert rig.indexer.lag_seconds() == 0
    assert await rig.indexer.catch_up() == 7
    assert await rig.difference() == {}
    await rig.flush()
    assert await rig.outbox.count() == 0
    assert rig.indexer.is_complete(NOTES)


@embedded
async def test_few_changes_are_read_once(rig: Rig) -> None:
    reached: list[str] = []
    await rig.notebook.put(texts(range(20)))
    with observed_by(reached.append):
        assert await rig.indexer.catch_up() == 20
    assert reached.count("sql.read.before:index_outbox.read") == 1
    await rig.notebook.put(texts(range(20, 22)))
    assert await rig.indexer.catch_up() == 2


@embedded
async def test_many_changes_are_read_in_batches(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexer, "BATCH", 8)
    await rig.notebook.put(texts(range(20)))
    assert await rig.indexer.catch_up() == 20
    assert await rig.difference() == {}


async def test_unflushed_changes_are_repeated_after_a_power_failure(rig: Rig) -> None:
    await rig.notebook.put(texts(range(20)))
    await rig.indexer.catch_up()
    await rig.flush()
    await rig.notebook.put(texts(range(10, 30), "later"))
    await rig.notebook.delete([note_id(3)])
    await rig.indexer.catch_up()
    await rig.lose_power()
    await rig.start()
    assert await rig.indexer.catch_up() == 21, "repeats are harmless where nothing was lost"
    assert await rig.difference() == {}


@embedded
async def test_changes_are_kept_if_the_index_cannot_be_flushed(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    async def flush() -> None:
        raise IndexUnavailable("the disk is away")

    await rig.notebook.put(texts(range(5)))
    await rig.indexer.catch_up()
    with monkeypatch.context() as patched:
        patched.setattr(rig.index, "flush", flush)
        with pytest.raises(IndexUnavailable):
            await rig.indexer.flush()
    assert await rig.outbox.count() == 5
    await rig.flush()
    assert await rig.outbox.count() == 0


async def test_caller_indexes_at_once_or_in_the_background(rig: Rig) -> None:
    changes = await rig.notebook.put(texts(range(3)), claim=rig.indexer.claim())
    assert await rig.indexer.apply(changes)
    assert await rig.difference() == {}
    rig.embedder.is_away = True
    changes = await rig.notebook.put(texts(range(3, 6)), claim=rig.indexer.claim())
    await rig.notebook.delete([note_id(0)])
    assert not await rig.indexer.apply(changes)
    assert set(rig.indexer.failures()) == {NOTES}
    rig.clock.advance(7)
    await rig.indexer.catch_up()
    assert rig.indexer.lag_seconds() == 7
    rig.embedder.is_away = False
    rig.indexer.retry()
    assert await rig.indexer.catch_up() == 4
    assert await rig.difference() == {}
    assert rig.indexer.failures() == {}


async def test_concurrent_writers_and_the_background_task_converge(rig: Rig) -> None:
    async def write(number: int) -> None:
        changes = await rig.notebook.put(texts(range(number, number + 5), f"word{number}"), claim=rig.indexer.claim())
        await rig.indexer.apply(changes)

    await asyncio.gather(*(write(number) for number in range(8)), rig.indexer.catch_up(), rig.indexer.catch_up())
    await rig.indexer.catch_up()
    rig.clock.advance(CLAIM_DURATION.total_seconds())
    await rig.indexer.catch_up()
    assert await rig.difference() == {}


@embedded
@pytest.mark.parametrize("instance_id", [None, "replica"])
async def test_changes_of_a_cancelled_call_are_applied_in_the_background(rig: Rig, instance_id: str | None) -> None:
    indexer = Indexer(rig.outbox, rig.index, rig.clock, instance_id=instance_id)
    await indexer.register(NOTES, rig.source)
    await indexer.open()
    changes = await rig.notebook.put(texts(range(3)), claim=indexer.claim())
    writing = asyncio.Event()

    async def hold(name: str) -> None:
        if name.startswith("index.before_write"):
            writing.set()
            await asyncio.Event().wait()

    with observed_by(hold):
        call = asyncio.create_task(indexer.apply(changes))
        await writing.wait()
        call.cancel()
        await asyncio.wait([call])
    assert await indexer.catch_up() == 3
    assert await rig.difference() == {}


async def test_refused_text_does_not_block_the_others(rig: Rig) -> None:
    await rig.notebook.put({**texts(range(5)), note_id(5): REFUSED, note_id(6): " "})
    await rig.indexer.catch_up()
    kept = 2 if rig.source.keep_without_vector else 0
    assert await rig.index.count(NOTES, EVERYTHING) == 5 + kept
    assert await rig.difference() == {}
    await rig.indexer.check()
    assert rig.indexer.is_complete(NOTES), "a record without a vector is not a gap"


async def test_records_wait_for_an_embedder_that_refuses_every_text(rig: Rig) -> None:
    await rig.notebook.put(texts(range(3)))
    rig.embedder.refuses_all = True
    await rig.indexer.catch_up()
    assert set(rig.indexer.failures()) == {NOTES}
    rig.embedder.refuses_all = False
    rig.indexer.retry()
    await rig.indexer.catch_up()
    assert await rig.index.count(NOTES, EVERYTHING) == 3
    assert await rig.difference() == {}
    assert len(rig.embedder.embedded) == 3


async def test_restored_database_removes_extra_points_from_the_index(rig: Rig) -> None:
    await rig.notebook.put(texts(range(10)))
    await rig.indexer.drain()
    backup = await rig.notebook.backup()
    await rig.notebook.put(texts(range(10, 15)))
    await rig.indexer.drain()
    await rig.stop()
    await rig.notebook.restore(backup)
    await rig.start()
    await rig.indexer.check()
    assert await rig.difference() == {}


@embedded
async def test_index_of_another_history_is_rebuilt(rig: Rig) -> None:
    """A changed record is neither missing nor extra: only the mark shows that its point has another state."""
    await rig.notebook.put(texts(range(10)))
    await rig.flush()
    await rig.indexer.drain()
    backup = await rig.notebook.backup()
    await rig.notebook.put(texts(range(5), "changed"))
    await rig.indexer.drain()
    await rig.stop()
    await rig.start()
    assert await rig.index.count(NOTES, EVERYTHING) == 10, "the history is the same"
    await rig.stop()
    await rig.notebook.restore(backup)
    with capture_logs() as logs:
        await rig.start()
    assert [line["log_level"] for line in logs if line["event"] == "vector_index_of_another_history"] == ["error"]
    assert not rig.indexer.is_complete(NOTES)
    await rig.indexer.drain()
    assert await rig.difference() == {}


async def test_missing_records_are_found_and_indexed(rig: Rig) -> None:
    """As after the restore of an older copy of the index."""
    await rig.notebook.put(texts(range(20)))
    await rig.indexer.catch_up()
    await rig.flush()
    await rig.index.delete(NOTES, [rig.source.point_id(note_id(number)) for number in range(6)])
    await rig.flush()
    await rig.stop()
    await rig.start()
    assert not rig.indexer.is_complete(NOTES)
    await rig.indexer.check()
    assert rig.indexer.is_complete(NOTES)
    assert await rig.difference() == {}


async def test_deleted_collection_is_rebuilt_and_a_crash_resumes_the_rebuild(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walks, "PAGE", 20)
    await rig.notebook.put(texts(range(100)))
    await rig.indexer.drain()
    await rig.index.drop_collection(NOTES)
    await rig.lose_power() if rig.server else await rig.stop()
    shutil.rmtree(rig.directory, ignore_errors=True)
    await rig.start()
    assert not rig.indexer.is_complete(NOTES)
    assert rig.indexer.metrics[2].read() == 100
    rig.embedder.embedded.clear()
    seen: list[str] = []

    def leave(name: str) -> None:
        seen.append(name)
        rig.embedder.is_away = len(rig.embedder.embedded) >= 50

    with observed_by(leave):
        await rig.indexer.check()
    assert not rig.indexer.is_complete(NOTES)
    await rig.indexer.close()
    await rig.lose_power() if rig.server else await rig.stop()
    rig.embedder.is_away = False
    await rig.start()
    rig.embedder.embedded.clear()
    await rig.indexer.drain()
    assert rig.indexer.is_complete(NOTES)
    assert await rig.difference() == {}
    assert len(rig.embedder.embedded) <= 60, "what was indexed before the crash is not embedded again"


@embedded
async def test_full_disk_stops_the_index_but_not_the_records(rig: Rig) -> None:
    await rig.notebook.put(texts(range(5)))
    await rig.indexer.drain()
    rig.index._reserve._reserve_bytes = 1 << 60
    await rig.notebook.put(texts(range(5, 9)))
    await rig.notebook.delete([note_id(0)])
    assert await rig.indexer.catch_up() == 0
    assert "free space" in str(rig.indexer.failures()[NOTES])
    assert await rig.outbox.count() == 5
    rig.index._reserve._reserve_bytes = 0
    rig.indexer.retry()
    assert await rig.indexer.catch_up() == 5
    assert await rig.difference() == {}


@asynccontextmanager
async def other_replica(rig: Rig) -> AsyncIterator[Indexer]:
    index = await rig._open_index()
    other = Indexer(rig.outbox, index, rig.clock, instance_id="other")
    await other.register(NOTES, rig.source)
    await other.open()
    yield other
    await index.close()


@replicated
async def test_late_write_of_another_replica_is_repeated(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    await rig.notebook.put({note_id(1): "old fox"})
    writing, released = asyncio.Event(), asyncio.Event()
    write = rig.index.write

    async def slow(collection: str, points: Sequence[Point]) -> None:
        writing.set()
        await released.wait()
        await write(collection, points)

    async with other_replica(rig) as other:
        monkeypatch.setattr(rig.index, "write", slow)
        late = asyncio.create_task(rig.indexer.catch_up())
        await writing.wait()
        changes = await rig.notebook.put({note_id(1): "new owl"}, claim=other.claim())
        assert await other.apply(changes)
        await other.flush()
        released.set()
        await late
        assert set((await rig.difference()).values()) == {"stale"}
        monkeypatch.undo()
        await rig.indexer.flush()
        rig.clock.advance(CLAIM_DURATION.total_seconds())
        await other.catch_up()
        await other.flush()
        assert await rig.outbox.count() == 0
        assert await rig.difference() == {}


@replicated
async def test_one_replica_verifies_and_the_others_wait(rig: Rig) -> None:
    await rig.notebook.put(texts(range(30)))
    await rig.indexer.drain()
    await rig.index.drop_collection(NOTES)
    await rig.stop()
    await rig.start()
    async with other_replica(rig) as other:
        assert not rig.indexer.is_complete(NOTES)
        assert not other.is_complete(NOTES)
        rig.embedder.embedded.clear()
        await asyncio.gather(rig.indexer.check(), other.check())
        await rig.indexer.check()
        await other.check()
        assert other.is_complete(NOTES)
        assert len(rig.embedder.embedded) == 30
        assert await rig.difference() == {}


@replicated
async def test_changes_that_a_server_did_not_flush_are_repeated_after_its_restart(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rig.notebook.put(texts(range(5)))
    await rig.indexer.catch_up()

    async def away(*_: Any) -> None:
        raise IndexUnavailable("away")

    monkeypatch.setattr(rig.index, "write", away)
    await rig.notebook.put(texts(range(5, 6)))
    assert await rig.indexer.catch_up() == 0
    monkeypatch.undo()
    await rig.index.delete(NOTES, [rig.source.point_id(note_id(2))])
    rig.indexer.retry()
    await rig.indexer.catch_up()
    assert await rig.difference() == {}


@embedded
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=full) for seed in (2, 3))])
async def test_any_sequence_of_writes_and_crashes_converges(rig: Rig, seed: int) -> None:
    chance = random.Random(seed)
    crash: set[str] = set()

    class Died(BaseException):
        pass

    def dying(name: str) -> None:
        if name.startswith("index.") and crash and chance.random() < 0.5:
            raise Died

    async def write() -> None:
        some = chance.sample(range(60), chance.randrange(1, 12))
        match chance.randrange(5):
            case 0:
                await rig.notebook.delete([note_id(number) for number in some])
            case 1:
                await rig.notebook.drop(f"book {chance.randrange(20)}")
            case 2:
                number = chance.randrange(1_000, 2_000)
                await rig.notebook.put(texts([number]), book=f"book {number % 20}")
                if number % 3 == 0:
                    await rig.notebook.drop(f"book {number % 20}")
            case _:
                await rig.notebook.put(texts(some, f"word{chance.randrange(5)}"))

    with observed_by(dying):
        for _ in range(40 if rig.engine == "flat" else 15):
            match chance.randrange(8):
                case 0:
                    await rig.flush()
                case 1:
                    await rig.lose_power()
                    await rig.start()
                case 2:
                    crash.add("now")
                    try:
                        await rig.indexer.catch_up()
                    except Died:
                        await rig.lose_power()
                        await rig.start()
                    crash.clear()
                case 3:
                    await rig.indexer.catch_up()
                case _:
                    await write()
        await rig.lose_power()
        await rig.start()
        await rig.indexer.catch_up()
        # By the changes of the outbox alone: no check has run.
        assert await rig.difference() == {}
        await rig.indexer.drain()
        assert await rig.difference() == {}
        assert await rig.outbox.count() == 0
