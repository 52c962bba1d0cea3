"""EdgeIndex: the suite of every VectorIndex, and tests of its directory, of crashes and of its rewrite."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from mnemesh_retrieval.edge import EdgeIndex
from mnemesh_retrieval.edge.shard import Shard, write_back
from mnemesh_retrieval.errors import CollectionMismatch, IndexClosed, IndexFull, IndexLocked, VectorIndexError
from mnemesh_retrieval.filters import EVERYTHING
from mnemesh_retrieval.index import Collection, Point, SearchMode, SearchQuery
from mnemesh_testkit.plugin import sampled
from mnemesh_testkit.suites.vector_index import PLANTS, VectorIndexSuite, pid, point, unit


class TestEdgeIndex(VectorIndexSuite):
    @pytest.fixture
    async def index(self, tmp_path: Path) -> AsyncIterator[EdgeIndex]:
        index = await EdgeIndex.open(tmp_path / "index")
        yield index
        await index.close()


async def test_points_survive_a_restart(tmp_path: Path) -> None:
    index = await EdgeIndex.open(tmp_path)
    await index.ensure_collection(PLANTS)
    await index.write("plants", [point(n, "oak", tags=["old"]) for n in range(1, 4)])
    await index.delete("plants", [pid(2)])
    await index.close()
    await index.close()

    again = await EdgeIndex.open(tmp_path)
    assert await again.collections() == ("plants",)
    with pytest.raises(CollectionMismatch):
        await again.ensure_collection(Collection("plants", dimension=8))
    await again.ensure_collection(PLANTS)
    hits = await again.search("plants", SearchQuery(SearchMode.VECTOR, vector=unit(1, 0, 0, 0)))
    assert [hit.id.int for hit in hits] == [1, 3]
    assert await again.facets("plants", "tags", EVERYTHING) == {"old": 2}
    await again.close()


WRITER = """
import asyncio, sys
from pathlib import Path
from mnemesh_retrieval.edge import EdgeIndex
from mnemesh_testkit.suites.vector_index import PLANTS, pid, point

async def write_for_ever():
    index = await EdgeIndex.open(Path(sys.argv[1]), flush_interval_seconds=0.05)
    await index.ensure_collection(PLANTS)
    number = 0
    while True:
        number += 1
        await index.write("plants", [point(number, "oak")])
        if number % 3 == 0:
            await index.delete("plants", [pid(number)])
        print(number, flush=True)

asyncio.run(write_for_ever())
"""


@pytest.mark.parametrize("enough", sampled([300, 1], 2))
async def test_kill_9_loses_no_acknowledged_write(tmp_path: Path, enough: int) -> None:
    with subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        acknowledged = 0
        while acknowledged < enough:
            acknowledged = int(writer.stdout.readline())
        with pytest.raises(IndexLocked, match=f"in use by another process .pid {writer.pid}."):
            await EdgeIndex.open(tmp_path)
        writer.send_signal(signal.SIGKILL)
        acknowledged = int(([str(acknowledged), *writer.stdout.read().split()])[-1])
    index = await EdgeIndex.open(tmp_path)
    await index.ensure_collection(PLANTS)
    found = {id_.int for id_ in await index.scan("plants", EVERYTHING, limit=1_000_000)}
    expected = {n for n in range(1, acknowledged + 1) if n % 3}
    assert expected <= found
    assert found - expected <= {acknowledged + 1}
    hits = await index.search("plants", SearchQuery(SearchMode.TEXT, text="oak", limit=1_000_000))
    assert {hit.id.int for hit in hits} == found
    await index.close()


@pytest.mark.parametrize("leftover", ["plants.shard", "plants.shard.building"])
async def test_crash_while_a_collection_is_created_is_cleaned_up(tmp_path: Path, leftover: str) -> None:
    (tmp_path / leftover).mkdir()
    (tmp_path / leftover / "edge_config.json").write_text("{")
    (tmp_path / "plants.shard.creating").touch()
    index = await EdgeIndex.open(tmp_path)
    await index.ensure_collection(PLANTS)
    await index.write("plants", [point(1)])
    assert await index.count("plants", EVERYTHING) == 1
    await index.close()


async def test_collection_that_could_not_be_created_is_created_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError("No space left on device (os error 28)")

    index = await EdgeIndex.open(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr("mnemesh_retrieval.edge.shard.add_missing_indexes", fail)
        with pytest.raises(IndexFull):
            await index.ensure_collection(PLANTS)
    await index.ensure_collection(PLANTS)
    await index.write("plants", [point(1, tags=["old"])])
    await index.close()
    again = await EdgeIndex.open(tmp_path)
    await again.ensure_collection(PLANTS)
    assert await again.facets("plants", "tags", EVERYTHING) == {"old": 1}
    await again.close()


async def test_shard_that_cannot_be_flushed_does_not_keep_the_index_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = await EdgeIndex.open(tmp_path)
    other = replace(PLANTS, name="animals")
    for collection in (PLANTS, other):
        await index.ensure_collection(collection)
        await index.write(collection.name, [point(1)])
    close = Shard.close

    def fail_once(shard: Shard) -> None:
        close(shard)
        monkeypatch.setattr(Shard, "close", close)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Shard, "close", fail_once)
    with pytest.raises(IndexFull):
        await index.close()
    again = await EdgeIndex.open(tmp_path)
    for collection in (PLANTS, other):
        await again.ensure_collection(collection)
        assert await again.count(collection.name, EVERYTHING) == 1
    await again.close()


async def test_closed_index_raises_index_closed(tmp_path: Path) -> None:
    index = await EdgeIndex.open(tmp_path)
    await index.close()
    with pytest.raises(IndexClosed):
        await index.collections()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
async def test_forked_child_is_refused(tmp_path: Path) -> None:
    index = await EdgeIndex.open(tmp_path)
    await index.ensure_collection(PLANTS)
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        message = b"used it"
        try:
            index._usable()
        except IndexClosed as error:
            message = str(error).encode()
        os.write(write_end, message)
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        assert "forked child" in pipe.read()
    await index.close()


async def test_concurrent_callers(tmp_path: Path) -> None:
    index = await EdgeIndex.open(tmp_path)
    await index.ensure_collection(PLANTS)

    async def one(number: int) -> None:
        await index.write("plants", [point(number, f"oak {number}")])
        assert await index.get("plants", [pid(number)])

    await asyncio.gather(*(one(number) for number in range(1, 201)))
    assert await index.count("plants", EVERYTHING) == 200
    await index.close()


async def test_searches_and_writes_go_on_while_a_flush_waits_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting, disk = threading.Event(), threading.Event()

    def wait_for_disk(path: Path) -> None:
        waiting.set()
        assert disk.wait(60)
        write_back(path)

    monkeypatch.setattr("mnemesh_retrieval.edge.index.write_back", wait_for_disk)
    index = await EdgeIndex.open(tmp_path)
    await index.ensure_collection(PLANTS)
    await index.write("plants", [point(1, "oak")])
    flush = asyncio.create_task(index.flush())
    await asyncio.to_thread(waiting.wait, 60)
    await index.write("plants", [point(2, "elm")])
    found = await index.search("plants", SearchQuery(SearchMode.TEXT, text="elm"))
    assert [hit.id for hit in found] == [pid(2)]
    assert not flush.done()
    disk.set()
    await flush
    await index.close()


async def test_a_flush_that_fails_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[Path] = []

    def fail_first(path: Path) -> None:
        flushed.append(path)
        if len(flushed) == 2:
            raise OSError(5, "Input/output error")
        write_back(path)

    monkeypatch.setattr("mnemesh_retrieval.edge.index.write_back", fail_first)
    index = await EdgeIndex.open(tmp_path)
    await index.ensure_collection(PLANTS)
    await index.write("plants", [point(1, "oak")])
    with pytest.raises(VectorIndexError):
        await index.flush()
    await index.flush()
    assert len(flushed) == 4
    await index.flush()
    assert len(flushed) == 4, "nothing waits"
    await index.close()


async def test_rewrite_removes_the_bytes_of_deleted_points(tmp_path: Path) -> None:
    index = await EdgeIndex.open(tmp_path)
    await index.ensure_collection(PLANTS)
    await index.write("plants", [point(n, f"oak canary{n} tree", (1, n, 0, 0), tags=[f"t{n}"]) for n in range(1, 1201)])
    await index.write("plants", [Point(pid(2000), None, "wordless", {"tenant": "t1"})])
    await index.delete("plants", [pid(n) for n in range(1, 1201) if n % 2])
    await index.write("plants", [point(2, "replaced")])
    await index.flush()
    assert files_containing(tmp_path, b"canary1 ")
    (report,) = await index.rewrite()
    assert (report.collection, report.points) == ("plants", 601)
    assert report.bytes_after < report.bytes_before
    assert not files_containing(tmp_path, b"canary1 ")
    assert not files_containing(tmp_path, b"canary2 ")
    assert files_containing(tmp_path, b"canary4 ")
    await index.ensure_collection(PLANTS)
    assert await index.count("plants", EVERYTHING) == 601
    query = SearchQuery(SearchMode.TEXT, text="canary1200")
    assert (await index.search("plants", query))[0].id == pid(1200)
    assert await index.facets("plants", "tags", EVERYTHING, limit=3000) == {f"t{n}": 1 for n in range(4, 1201, 2)}
    assert [h.id.int for h in await index.search("plants", SearchQuery(SearchMode.TEXT, text="wordless"))] == [2000]
    await index.close()


def files_containing(directory: Path, canary: bytes) -> list[Path]:
    return [file for file in directory.rglob("*") if file.is_file() and canary in file.read_bytes()]


@pytest.mark.parametrize("step", sampled(["in the swap", "building", "before the swap", "after the swap"], 4))
async def test_crash_during_a_rewrite_leaves_one_complete_collection(tmp_path: Path, step: str) -> None:
    index = await EdgeIndex.open(tmp_path)
    await index.ensure_collection(PLANTS)
    await index.write("plants", [point(n, "oak") for n in range(1, 10)])
    await index.close()
    shard = tmp_path / "plants.shard"
    copy = {"building": ".building", "after the swap": ".dropped"}.get(step, ".rewritten")
    shutil.copytree(shard, tmp_path / f"plants.shard{copy}")
    if step == "in the swap":
        shard.rename(tmp_path / "plants.shard.dropped")
    again = await EdgeIndex.open(tmp_path)
    assert await again.collections() == ("plants",)
    await again.ensure_collection(PLANTS)
    assert await again.count("plants", EVERYTHING) == 9
    assert not list(tmp_path.glob("*.dropped"))
    assert not list(tmp_path.glob("*.rewritten"))
    await again.close()


def resident_bytes(directory: Path) -> int:
    """Returns the resident size of the mapped files under a directory."""
    found, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if line.split()[0][-1] != ":":
            inside = str(directory) in line
        elif inside and line.startswith("Rss:"):
            found += int(line.split()[1]) * 1024
    return found


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and madvise")
async def test_unused_pages_are_released_and_read_again(tmp_path: Path) -> None:
    points = [point(number, vector=np.eye(256)[number % 256]) for number in range(1, 5_000)]
    wide = Collection("wide", dimension=256)
    query = SearchQuery(SearchMode.VECTOR, vector=points[6].vector)
    for limit, settled in ((2**62, lambda mapped: mapped > 5_000_000), (0, lambda mapped: mapped < 1_000_000)):
        index = await EdgeIndex.open(tmp_path, flush_interval_seconds=0.05, max_mapped_bytes=limit)
        await index.ensure_collection(wide)
        await index.write("wide", points)
        async with asyncio.timeout(60):  # the kernel reports no event
            while not settled(resident_bytes(tmp_path)):
                await asyncio.sleep(0.02)
        assert [round(hit.score, 3) for hit in await index.search("wide", query)] == [1.0] * query.limit
        await index.close()
