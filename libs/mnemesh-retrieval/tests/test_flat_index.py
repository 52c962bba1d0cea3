"""FlatIndex: the suite of every NearestIndex, and tests of its file, its bounded search and its rewrite."""

import asyncio
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mnemesh_retrieval.errors import IndexClosed, IndexDamaged, IndexLocked, PointInvalid, VectorIndexError
from mnemesh_retrieval.filters import EVERYTHING, HasWords, Match, MatchAny, TimeRange, all_of
from mnemesh_retrieval.flat import FlatIndex, connections, search
from mnemesh_retrieval.flat.connections import READER_THREADS, Connections
from mnemesh_retrieval.flat.file import CAPACITY, Codes
from mnemesh_retrieval.index import Collection, Point, SearchMode, SearchQuery
from mnemesh_retrieval.index_directory import move_aside
from mnemesh_testkit.plugin import sampled
from mnemesh_testkit.suites.vector_index import NOON, PLANTS, NearestIndexSuite, pid, point, unit


class TestFlatIndex(NearestIndexSuite):
    @pytest.fixture
    async def index(self, tmp_path: Path) -> AsyncIterator[FlatIndex]:
        index = await FlatIndex.open(tmp_path / "index")
        yield index
        await index.close()


@pytest.fixture
async def plants(tmp_path: Path) -> AsyncIterator[FlatIndex]:
    index = await FlatIndex.open(tmp_path)
    await index.ensure_collection(PLANTS)
    yield index
    await index.close()


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[search.SearchState]:
    """The state of each search, with the amount of data that it read."""
    states: list[search.SearchState] = []
    nearest = search.nearest

    def recorded(*arguments: Any) -> search.SearchState:
        states.append(nearest(*arguments))
        return states[-1]

    monkeypatch.setattr(search, "nearest", recorded)
    return states


async def test_long_vectors_are_compared_in_small_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library for linear algebra would use threads for more numbers, and these would wait for each other."""
    dimension, sizes = 2_048, []
    add = search._Products.add

    def observed(products: search._Products, codes: Codes) -> None:
        sizes.append(codes.size)
        add(products, codes)

    monkeypatch.setattr(search._Products, "add", observed)
    index = await FlatIndex.open(tmp_path)
    wide = Collection(name="wide", dimension=dimension)
    await index.ensure_collection(wide)
    vectors = np.random.default_rng(5).standard_normal((300, dimension)).astype(np.float32)
    await index.write("wide", [Point(pid(number), vector, "") for number, vector in enumerate(vectors)])

    query = SearchQuery(mode=SearchMode.VECTOR, vector=vectors[7] + vectors[299], limit=300)
    found = {hit.id: hit.score for hit in await index.search("wide", query)}

    cosines = search.unit(vectors[7] + vectors[299]) @ (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).T
    assert [found[pid(number)] for number in range(300)] == pytest.approx(cosines.tolist(), abs=0.003)
    assert len(sizes) == 3
    assert max(sizes) <= search.NUMBERS_PER_BLOCK
    await index.close()


async def test_points_survive_a_restart(tmp_path: Path) -> None:
    index = await FlatIndex.open(tmp_path)
    await index.ensure_collection(PLANTS)
    await index.write("plants", [point(n, tenant=f"t{n % 3}") for n in range(1, 200)])
    await index.delete("plants", [pid(2)])
    await index.close()
    await index.close()
    with pytest.raises(IndexClosed):
        await index.collections()
    again = await FlatIndex.open(tmp_path)
    assert await again.collections() == ("plants",)
    await again.ensure_collection(PLANTS)
    assert await again.count("plants", Match("tenant", "t2")) == 65
    await again.close()


async def test_search_reads_no_segment_of_another_tenant(plants: FlatIndex, searches: list[search.SearchState]) -> None:
    for start in range(0, 600, 20):  # in turns, so that the points of the tenants alternate
        await plants.write("plants", [point(1 + start + n, tenant=f"t{start // 20 % 3}") for n in range(20)])
    await plants.search("plants", SearchQuery(SearchMode.VECTOR, vector=unit(1, 0, 0, 0), filter=Match("tenant", "t1")))
    assert (searches[-1].points, searches[-1].segments) == (200, 2)
    among = SearchQuery(SearchMode.VECTOR, vector=unit(1, 0, 0, 0), filter=MatchAny("tenant", ("t1", "t2", "t9")))
    await plants.search("plants", among)
    assert (searches[-1].points, searches[-1].segments) == (400, 4)


async def test_search_with_two_labels_reads_the_segments_of_the_rarer(
    plants: FlatIndex, searches: list[search.SearchState]
) -> None:
    await plants.write("plants", [point(n, tags=["few" if n < 11 else "many"]) for n in range(1, 1001)])
    both = all_of(Match("tenant", "t1"), Match("tags", "few"))
    query = SearchQuery(SearchMode.VECTOR, vector=unit(1, 0, 0, 0), filter=both, limit=50)
    assert len(await plants.search("plants", query)) == 10
    assert searches[-1].segments == 1


async def test_bounded_search_covers_the_newest_and_the_additional_points(
    plants: FlatIndex, searches: list[search.SearchState]
) -> None:
    """The number of vectors read is the same for 5,000 points as for 1,000."""

    def at(number: int) -> datetime:
        return NOON + timedelta(minutes=number)

    query = SearchQuery(
        SearchMode.VECTOR, vector=unit(1, 0, 0, 0), filter=Match("tenant", "t1"), limit=900, newest=300, also=(pid(3),)
    )
    counted = []
    for first, last in ((1, 1_001), (1_001, 5_001)):
        points = [point(n, vector=(1, n, 0, 0), at=at(n), tenant="t1") for n in range(first, last)]
        await plants.write("plants", points)
        hits = {hit.id.int for hit in await plants.search("plants", query)}
        assert hits >= {3, *range(last - 300, last)}
        assert hits <= {3, *range(last - 300 - CAPACITY, last)}
        counted.append((searches[-1].points, searches[-1].segments))
        assert searches[-1].points <= 300 + 2 * CAPACITY
        assert searches[-1].segments <= 300 // CAPACITY + 3
    assert abs(counted[0][0] - counted[1][0]) <= CAPACITY
    # The filter applies to the points in `also`, too.
    early = replace(query, filter=all_of(query.filter, TimeRange("created_at", gte=at(4_990))))
    assert {hit.id.int for hit in await plants.search("plants", early)} == set(range(4_990, 5_001))
    # With an upper bound in time, the newest points before it are covered.
    late = replace(query, filter=all_of(query.filter, TimeRange("created_at", lt=at(500))))
    assert {hit.id.int for hit in await plants.search("plants", late)} >= {3, *range(300, 500)}


async def test_bounded_search_reads_few_segments_even_if_they_are_nearly_empty(
    plants: FlatIndex, searches: list[search.SearchState]
) -> None:
    await plants.write("plants", [point(n, tenant=f"t{n}", tags=["all"]) for n in range(1, 201)])
    query = SearchQuery(SearchMode.VECTOR, vector=unit(1, 0, 0, 0), filter=Match("tags", "all"), newest=160)
    await plants.search("plants", query)
    assert searches[-1].segments == 160 // search.MIN_POINTS


async def test_full_segment_of_vectors_of_256_numbers_is_one_page(tmp_path: Path) -> None:
    index = await FlatIndex.open(tmp_path)
    await index.ensure_collection(
        Collection("wide", 256, tenant_field="agent", keyword_fields=("agent", "conversation"))
    )
    payload = {"agent": f"agent-{pid(1)}", "conversation": f"conv-{pid(2)}"}
    vectors = np.random.default_rng(6).standard_normal((20 * CAPACITY, 256), dtype=np.float32)
    await index.write("wide", [Point(pid(n), vector, "", payload) for n, vector in enumerate(vectors)])
    await index.close()
    with closing(sqlite3.connect(tmp_path / "vectors.db")) as conn:
        (pages,) = conn.execute("PRAGMA page_count").fetchone()
    assert 20 < pages < 20 + 14  # The other tables and indexes are small.


async def test_similarity_is_exact_to_two_thousandths(tmp_path: Path) -> None:
    index = await FlatIndex.open(tmp_path)
    chance = np.random.default_rng(5)
    await index.ensure_collection(Collection("wide", dimension=256))
    vectors = chance.standard_normal((400, 256), dtype=np.float32)
    await index.write("wide", [Point(pid(n), vectors[n], "") for n in range(400)])
    query = vectors[7] + chance.standard_normal(256, dtype=np.float32)
    hits = await index.search("wide", SearchQuery(SearchMode.VECTOR, vector=query, limit=400))
    lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(query)
    exact = (vectors @ query) / lengths
    assert max(abs(hit.score - exact[hit.id.int]) for hit in hits) < 0.002
    assert len(hits) == 400
    assert hits[0].id == pid(7)
    await index.close()


async def test_unsupported_points_filters_and_modes_are_refused(plants: FlatIndex) -> None:
    many = point(1, tags=[f"g{n}" for n in range(65)])
    with pytest.raises(PointInvalid):
        await plants.write("plants", [point(2), many])
    assert await plants.count("plants", EVERYTHING) == 0
    for text in (SearchMode.TEXT, SearchMode.HYBRID):
        with pytest.raises(VectorIndexError):
            await plants.search("plants", SearchQuery(text, text="oak", vector=unit(1, 0, 0, 0)))
    await plants.write("plants", [point(1)])
    with pytest.raises(VectorIndexError):
        await plants.count("plants", HasWords("text", "oak"))
    with pytest.raises(VectorIndexError):
        await plants.ensure_collection(Collection("twice", 4, datetime_fields=("one", "two")))


async def test_points_with_many_labels_are_each_found_by_their_own(plants: FlatIndex) -> None:
    await plants.write("plants", [point(n, tags=[f"g{n}", f"h{n}"]) for n in range(1, 151)])
    assert await plants.count("plants", EVERYTHING) == 150
    for number in (1, 32, 150):
        assert await plants.scan("plants", Match("tags", f"h{number}")) == [pid(number)]


async def test_point_written_without_a_vector_is_deleted(plants: FlatIndex) -> None:
    await plants.write("plants", [point(1), point(2)])
    await plants.write("plants", [point(1, vector=None), point(2, vector=(0, 0, 0, 0)), point(3, vector=None)])
    assert await plants.count("plants", EVERYTHING) == 0


WRITER = """
import asyncio, sys
from pathlib import Path
from mnemesh_retrieval.flat import FlatIndex
from mnemesh_testkit.suites.vector_index import PLANTS, pid, point

async def write_forever():
    index = await FlatIndex.open(Path(sys.argv[1]), flush_interval_seconds=0.05)
    await index.ensure_collection(PLANTS)
    number = 0
    while True:
        number += 1
        await index.write("plants", [point(number, tenant=f"t{number % 2}")])
        if number % 3 == 0:
            await index.delete("plants", [pid(number)])
        print(number, flush=True)

asyncio.run(write_forever())
"""


@pytest.mark.parametrize("enough", sampled([300, 1], 2))
async def test_sigkill_loses_no_acknowledged_write(tmp_path: Path, enough: int) -> None:
    with subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        acknowledged = 0
        while acknowledged < enough:
            acknowledged = int(writer.stdout.readline())
        with pytest.raises(IndexLocked, match=f"in use by another process .pid {writer.pid}."):
            await FlatIndex.open(tmp_path)
        writer.send_signal(signal.SIGKILL)
        acknowledged = int(([str(acknowledged), *writer.stdout.read().split()])[-1])
    index = await FlatIndex.open(tmp_path)
    await index.ensure_collection(PLANTS)
    found = {id_.int for id_ in await index.scan("plants", EVERYTHING, limit=1_000_000)}
    expected = {n for n in range(1, acknowledged + 1) if n % 3}
    assert expected <= found
    assert found - expected <= {acknowledged + 1}
    hits = await index.search("plants", SearchQuery(SearchMode.VECTOR, vector=unit(1, 0, 0, 0), limit=1_000_000))
    assert {hit.id.int for hit in hits} == found
    await index.close()


async def test_file_that_is_not_a_database_is_reported_and_moved_aside(tmp_path: Path) -> None:
    (tmp_path / "vectors.db").write_bytes(b"no database at all " * 1_000)
    index = await FlatIndex.open(tmp_path)
    for _ in range(2):
        with pytest.raises(IndexDamaged, match="not a database"):
            await index.ensure_collection(PLANTS)
    moved_to = await index.set_aside("plants")
    assert moved_to is not None
    assert (Path(moved_to) / "vectors.db").read_bytes().startswith(b"no database")
    await index.ensure_collection(PLANTS)
    await index.write("plants", [point(1)])
    assert await index.count("plants", EVERYTHING) == 1
    await index.close()


async def test_read_during_the_move_does_not_keep_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = await FlatIndex.open(tmp_path)
    await index.ensure_collection(PLANTS)
    await index.write("plants", [point(1)])
    files = Connections(tmp_path)
    loop = asyncio.get_running_loop()

    def count(conn: sqlite3.Connection) -> int:
        return int(conn.execute("SELECT count(*) FROM points").fetchone()[0])

    def move_during_a_read(directory: Path, paths: Sequence[Path]) -> Path | None:
        reads = [asyncio.run_coroutine_threadsafe(files.read(count), loop) for _ in range(READER_THREADS)]
        assert [read.result(10) for read in reads] == [1, 1]
        return move_aside(directory, paths)

    monkeypatch.setattr(connections, "move_aside", move_during_a_read)
    await files.move_aside()
    await files.alone(lambda _: None)  # creates the new file
    assert await asyncio.gather(*(files.read(count) for _ in range(4))) == [0, 0, 0, 0]
    await files.close()
    await index.close()


def files_containing(directory: Path, canary: bytes) -> list[Path]:
    return [file for file in directory.rglob("*") if file.is_file() and canary in file.read_bytes()]


async def test_rewrite_leaves_no_byte_of_deleted_points(tmp_path: Path) -> None:
    index = await FlatIndex.open(tmp_path)
    await index.ensure_collection(PLANTS)
    await index.write("plants", [point(n, tags=[f"canary{n}", "all"]) for n in range(1, 601)])
    await index.write("plants", [point(999, tenant="gone")])
    await index.delete("plants", [pid(n) for n in range(1, 601) if n % 2])
    await index.delete_where("plants", Match("tenant", "gone"))
    before = await index.search("plants", SearchQuery(SearchMode.VECTOR, vector=unit(1, 0, 0, 0), limit=1_000))
    report = await index.rewrite()
    assert report.points == {"plants": 300}
    assert report.bytes_after < report.bytes_before
    for deleted in (b'canary1"', b"tags=canary599", pid(999).bytes, b"tenant=gone"):
        assert not files_containing(tmp_path, deleted)
    for kept in (b'canary2"', b"tags=canary600", pid(600).bytes):
        assert files_containing(tmp_path, kept)
    assert await index.search("plants", SearchQuery(SearchMode.VECTOR, vector=unit(1, 0, 0, 0), limit=1_000)) == before
    await index.close()


async def test_concurrent_reads_and_writes(plants: FlatIndex) -> None:
    query = SearchQuery(SearchMode.VECTOR, vector=unit(1, 0, 0, 0), filter=Match("tenant", "t1"), limit=1_000)

    async def one(number: int) -> None:
        await plants.write("plants", [point(number)])
        assert pid(number) in {hit.id for hit in await plants.search("plants", query)}

    await asyncio.gather(*(one(number) for number in range(1, 101)))
    assert await plants.count("plants", EVERYTHING) == 100


async def test_times_of_all_zones_are_compared_in_utc(plants: FlatIndex) -> None:
    payload = {"tenant": "t1", "created_at": "2026-03-01T13:00:00+01:00"}
    await plants.write("plants", [Point(pid(1), unit(1, 0, 0, 0), "", payload), Point(pid(2), unit(1, 0, 0, 0), "")])
    noon = datetime(2026, 3, 1, 12, tzinfo=UTC)
    assert await plants.scan("plants", TimeRange("created_at", gte=noon, lt=noon + timedelta(seconds=1))) == [pid(1)]
    assert await plants.scan("plants", TimeRange("created_at", gte=datetime.min.replace(tzinfo=UTC))) == [pid(1)]


async def test_file_of_another_version_is_replaced(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "vectors.db")) as old, old:
        old.execute("CREATE TABLE collections (name TEXT)")
        old.execute("INSERT INTO collections VALUES ('old')")
        old.execute("PRAGMA user_version = 99")
    old.close()
    index = await FlatIndex.open(tmp_path)
    assert await index.collections() == ()
    await index.close()
