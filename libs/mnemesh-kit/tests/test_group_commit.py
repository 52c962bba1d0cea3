"""Group commit: a write is acknowledged after a flush, and writes that wait together share one."""

import asyncio
import os
import shutil
import threading
from pathlib import Path

import pytest
import sqlalchemy as sa
from mnemesh_kit.errors import Unavailable
from mnemesh_kit.sql import Database, sqlite
from mnemesh_kit.sql.sqlite import GroupWriter, LogFile


class Disk(LogFile):
    """A log that counts flushes, holds them while `is_free` is not set, and fails on request."""

    def __init__(self) -> None:
        super().__init__("unused")
        self.flushes = 0
        self.error: OSError | None = None
        self.is_flushing = threading.Event()
        self.is_free = threading.Event()
        self.is_free.set()

    def flush(self) -> None:
        self.is_flushing.set()
        assert self.is_free.wait(10)
        if self.error is not None:
            raise self.error
        self.flushes += 1


class Rows:
    """A stand-in for a connection: rows that were written, in order."""

    def __init__(self) -> None:
        self.values: list[int] = []

    def write(self, value: int) -> int:
        self.values.append(value)
        return value

    def count(self) -> int:
        return len(self.values)


async def test_write_is_acknowledged_after_the_flush() -> None:
    rows, disk = Rows(), Disk()
    disk.is_free.clear()
    writer = GroupWriter(rows.count, disk)
    write = asyncio.create_task(writer.submit(lambda: rows.write(1)))
    await asyncio.to_thread(disk.is_flushing.wait, 10)
    assert (rows.values, write.done()) == ([1], False)
    disk.is_free.set()
    assert await write == 1
    await writer.close()


async def test_writes_that_wait_share_one_flush_and_keep_their_order() -> None:
    rows, disk = Rows(), Disk()
    disk.is_free.clear()
    writer = GroupWriter(rows.count, disk)
    first = asyncio.create_task(writer.submit(lambda: rows.write(0)))
    await asyncio.to_thread(disk.is_flushing.wait, 10)
    others = [asyncio.create_task(writer.submit(lambda n=n: rows.write(n))) for n in range(1, 11)]
    await asyncio.sleep(0)
    disk.is_free.set()
    assert await asyncio.gather(first, *others) == list(range(11))
    assert rows.values == list(range(11))
    assert disk.flushes == 2
    await writer.close()


async def test_group_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "MAX_GROUP", 4)
    rows, disk = Rows(), Disk()
    disk.is_free.clear()
    writer = GroupWriter(rows.count, disk)
    writes = [asyncio.create_task(writer.submit(lambda: rows.write(0)))]
    await asyncio.to_thread(disk.is_flushing.wait, 10)
    writes += [asyncio.create_task(writer.submit(lambda: rows.write(0))) for _ in range(8)]
    await asyncio.sleep(0)
    disk.is_free.set()
    await asyncio.gather(*writes)
    assert disk.flushes == 3
    await writer.close()


async def test_transactions_without_changes_are_not_flushed() -> None:
    rows, disk = Rows(), Disk()
    writer = GroupWriter(rows.count, disk)
    assert await writer.submit(rows.count) == 0
    assert disk.flushes == 0
    await writer.close()


async def test_failed_flush_fails_every_write_of_its_group() -> None:
    rows, disk = Rows(), Disk()
    disk.error = OSError(5, "Input/output error")
    writer = GroupWriter(rows.count, disk)
    with pytest.raises(Unavailable, match="flushed"):
        await writer.submit(lambda: rows.write(1))
    disk.error = None
    assert await writer.submit(lambda: rows.write(2)) == 2
    await writer.close()


async def test_repeat_without_changes_is_flushed_after_a_failed_flush() -> None:
    rows, disk = Rows(), Disk()
    disk.error = OSError(5, "Input/output error")
    writer = GroupWriter(rows.count, disk)
    with pytest.raises(Unavailable, match="flushed"):
        await writer.submit(lambda: rows.write(1))
    with pytest.raises(Unavailable, match="flushed"):
        await writer.submit(rows.count)
    disk.error = None
    assert await writer.submit(rows.count) == 1
    assert disk.flushes == 1
    await writer.close()


async def test_after_failed_flush_the_log_is_emptied_before_a_flush_counts_again() -> None:
    rows, disk = Rows(), Disk()
    refusals = [OSError(5, "Input/output error")]
    emptied = 0

    def empty_log() -> None:
        nonlocal emptied
        if refusals:
            raise refusals.pop()
        emptied += 1

    writer = GroupWriter(rows.count, disk, empty_log)
    disk.error = OSError(5, "Input/output error")
    with pytest.raises(Unavailable, match="flushed"):
        await writer.submit(lambda: rows.write(1))
    disk.error = None
    with pytest.raises(Unavailable, match="flushed"):
        await writer.submit(lambda: rows.write(2))
    assert await writer.submit(lambda: rows.write(3)) == 3
    assert await writer.submit(lambda: rows.write(4)) == 4
    assert (emptied, disk.flushes) == (1, 2)
    await writer.close()


async def test_database_file_has_what_a_failed_flush_may_have_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database.open(f"sqlite:///{tmp_path}/rows.db")
    await database.write(lambda conn: conn.execute(sa.text("CREATE TABLE rows (n INTEGER)")))

    def fail(_: LogFile) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as failing:
        failing.setattr(LogFile, "flush", fail)
        with pytest.raises(Unavailable, match="flushed"):
            await database.write(lambda conn: conn.execute(sa.text("INSERT INTO rows VALUES (1)")))
    await database.write(lambda conn: conn.execute(sa.text("INSERT INTO rows VALUES (2)")))
    # Without the log, whose pages may be missing on the disk.
    shutil.copy(tmp_path / "rows.db", tmp_path / "copy.db")
    await database.close()
    copy = Database.open(f"sqlite:///{tmp_path}/copy.db")
    assert await copy.read(lambda conn: conn.execute(sa.text("SELECT n FROM rows")).scalars().all()) == [1, 2]
    await copy.close()


async def test_cancelled_caller_does_not_disturb_the_others() -> None:
    rows, disk = Rows(), Disk()
    disk.is_free.clear()
    writer = GroupWriter(rows.count, disk)
    cancelled, kept = (asyncio.create_task(writer.submit(lambda n=n: rows.write(n))) for n in (1, 2))
    await asyncio.to_thread(disk.is_flushing.wait, 10)
    cancelled.cancel()
    disk.is_free.set()
    assert await kept == 2
    assert rows.values == [1, 2]
    await writer.close()


async def test_close_waits_for_submitted_writes() -> None:
    rows = Rows()
    writer = GroupWriter(rows.count, Disk())
    writes = [asyncio.create_task(writer.submit(lambda n=n: rows.write(n))) for n in range(5)]
    await asyncio.sleep(0)
    await writer.close()
    assert await asyncio.gather(*writes) == list(range(5))
    with pytest.raises(RuntimeError, match="closed"):
        await writer.submit(rows.count)


async def test_acknowledged_write_survives_a_power_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files are copied at each flush; the copy is what the disk has after the failure."""
    disk, path = tmp_path / "disk", tmp_path / "data" / "shelf.db"
    path.parent.mkdir()
    flush = os.fdatasync

    def copying_flush(descriptor: int) -> None:
        flush(descriptor)
        shutil.rmtree(disk, ignore_errors=True)
        shutil.copytree(path.parent, disk)

    monkeypatch.setattr(os, "fdatasync", copying_flush)
    database = Database.open(f"sqlite:///{path}")
    await database.write(lambda conn: conn.execute(sa.text("CREATE TABLE shelf (id INTEGER PRIMARY KEY)")))
    for number in range(20):
        await database.write(lambda conn, n=number: conn.execute(sa.text("INSERT INTO shelf VALUES (:n)"), {"n": n}))
    after = Database.open(f"sqlite:///{disk / 'shelf.db'}")
    assert await after.read(lambda conn: conn.execute(sa.text("SELECT count(*) FROM shelf")).scalar_one()) == 20
    await after.close()
    await database.close()
