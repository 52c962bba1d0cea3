"""Files of FlatIndex that earlier versions wrote."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from mnemesh_retrieval.filters import EVERYTHING, Match
from mnemesh_retrieval.flat import FlatIndex, segments
from mnemesh_retrieval.index import SearchMode, SearchQuery
from mnemesh_testkit.suites.nearest_index import PLANTS, pid, point, unit

VERSION_1 = """
    CREATE TABLE collections (collection INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, dimension INTEGER NOT NULL);
    CREATE TABLE blocks (
        block INTEGER PRIMARY KEY, collection INTEGER NOT NULL, tenant TEXT NOT NULL,
        oldest INTEGER NOT NULL, newest INTEGER NOT NULL,
        labels TEXT NOT NULL, head BLOB NOT NULL, vectors BLOB NOT NULL
    );
    CREATE INDEX ix_blocks_tenant ON blocks (collection, tenant, block);
    CREATE TABLE block_labels (
        collection INTEGER NOT NULL, label TEXT NOT NULL, newest INTEGER NOT NULL, block INTEGER NOT NULL,
        oldest INTEGER NOT NULL, PRIMARY KEY (collection, label, newest, block)
    ) WITHOUT ROWID;
    CREATE TABLE points (
        collection INTEGER NOT NULL, id BLOB NOT NULL, block INTEGER NOT NULL, PRIMARY KEY (collection, id)
    ) WITHOUT ROWID;
"""


async def test_file_of_version_1_is_upgraded(tmp_path: Path) -> None:
    index = await FlatIndex.open(tmp_path / "new")
    await index.ensure_collection(PLANTS)
    await index.write("plants", [point(n, tenant=f"t{n % 2}") for n in range(1, 101)])
    await index.close()
    (tmp_path / "old").mkdir()
    with sqlite3.connect(tmp_path / "old" / "vectors.db") as old:
        old.executescript(f"PRAGMA journal_mode = WAL; {VERSION_1} PRAGMA user_version = 1")
        old.execute("ATTACH ? AS new", (str(tmp_path / "new" / "vectors.db"),))
        tables = {"collections": "collections", "segments": "blocks", "segment_labels": "block_labels"}
        for new, name in {**tables, "points": "points"}.items():
            columns = "segment, collection, tenant, oldest, newest, labels, headers, vectors"
            old.execute(f"INSERT INTO main.{name} SELECT {columns if new == 'segments' else '*'} FROM new.{new}")
    old.close()
    index = await FlatIndex.open(tmp_path / "old")
    await index.ensure_collection(PLANTS)
    assert await index.count("plants", Match("tenant", "t1")) == 50
    await index.write("plants", [point(101, tenant="t1")])
    await index.delete("plants", [pid(1)])
    hits = await index.search("plants", SearchQuery(SearchMode.DENSE, vector=unit(1, 0, 0, 0), limit=1_000))
    assert {hit.id.int for hit in hits} == set(range(2, 102))
    await index.close()


async def make_version_3(directory: Path) -> None:
    """Writes a file of version 3: 300 points in segments of 64, in pages of 8 kB."""
    with pytest.MonkeyPatch.context() as earlier:
        earlier.setattr(segments, "CAPACITY", 64)
        index = await FlatIndex.open(directory)
        await index.ensure_collection(PLANTS)
        await index.write("plants", [point(n) for n in range(1, 301)])
        await index.close()
    old = sqlite3.connect(directory / "vectors.db")
    for command in ("journal_mode = DELETE", "page_size = 8192", "user_version = 3"):
        old.execute(f"PRAGMA {command}")
    old.execute("VACUUM")
    old.execute("PRAGMA journal_mode = WAL")
    old.close()


def page_bytes(directory: Path) -> int:
    with closing(sqlite3.connect(directory / "vectors.db")) as conn:
        return int(conn.execute("PRAGMA page_size").fetchone()[0])


def segment_sizes(directory: Path) -> list[int]:
    with closing(sqlite3.connect(directory / "vectors.db")) as conn:
        rows = conn.execute("SELECT count(*) FROM points GROUP BY segment ORDER BY segment")
        return [count for (count,) in rows]


async def test_file_of_version_3_gets_large_pages(tmp_path: Path) -> None:
    await make_version_3(tmp_path)
    assert (page_bytes(tmp_path), segment_sizes(tmp_path)) == (8_192, [64, 64, 64, 64, 44])
    index = await FlatIndex.open(tmp_path)
    await index.ensure_collection(PLANTS)
    assert page_bytes(tmp_path) == 32_768
    await index.write("plants", [point(n) for n in range(301, 401)])
    assert segment_sizes(tmp_path) == [64, 64, 64, 64, 108, 36]
    await index.verify("plants")
    hits = await index.search("plants", SearchQuery(SearchMode.DENSE, vector=unit(1, 0, 0, 0), limit=1_000))
    assert {hit.id.int for hit in hits} == set(range(1, 401))
    await index.close()


async def test_file_that_someone_reads_keeps_its_pages_until_the_next_start(tmp_path: Path) -> None:
    await make_version_3(tmp_path)
    with closing(sqlite3.connect(tmp_path / "vectors.db")) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM points").fetchall()
        index = await FlatIndex.open(tmp_path)
        await index.ensure_collection(PLANTS)
        await index.write("plants", [point(301)])
        assert page_bytes(tmp_path) == 8_192
        await index.close()
    index = await FlatIndex.open(tmp_path)
    await index.ensure_collection(PLANTS)
    assert page_bytes(tmp_path) == 32_768
    assert await index.count("plants", EVERYTHING) == 301
    await index.close()


async def test_file_of_an_unknown_version_is_replaced(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "vectors.db") as old:
        old.execute("CREATE TABLE collections (name TEXT)")
        old.execute("INSERT INTO collections VALUES ('old')")
        old.execute("PRAGMA user_version = 99")
    old.close()
    index = await FlatIndex.open(tmp_path)
    assert await index.collections() == ()
    await index.close()
