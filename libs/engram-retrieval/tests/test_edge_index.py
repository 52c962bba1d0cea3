"""The embedded engine under the suite of all vector indexes, and what is its own: one process, and its death."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from engram_retrieval.edge import EdgeIndex
from engram_retrieval.errors import CollectionMismatch, IndexClosed, IndexLocked
from engram_retrieval.filters import EVERYTHING
from engram_retrieval.index import Collection, SearchMode, SearchQuery
from engram_testkit.suites.vector_index import PLANTS, VectorIndexSuite, pid, point, unit


class TestEdgeIndex(VectorIndexSuite):
    @pytest.fixture
    async def index(self, tmp_path: Path) -> AsyncIterator[EdgeIndex]:
        index = await EdgeIndex.open(tmp_path / "index")
        yield index
        await index.close()


async def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
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
    hits = await again.search("plants", SearchQuery(SearchMode.HYBRID, text="oak", vector=unit(1, 0, 0, 0)))
    assert [hit.id.int for hit in hits] == [1, 3]
    assert await again.facets("plants", "tags", EVERYTHING) == {"old": 2}
    await again.close()


WRITER = """
import asyncio, sys
from pathlib import Path
from engram_retrieval.edge import EdgeIndex
from engram_testkit.suites.vector_index import PLANTS, pid, point

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


@pytest.mark.parametrize("enough", [1, 300])
async def test_kill_9_takes_nothing_that_was_acknowledged(tmp_path: Path, enough: int) -> None:
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


async def test_a_death_while_a_collection_is_made_leaves_no_ruin(tmp_path: Path) -> None:
    ruin = tmp_path / "plants.shard.building"
    ruin.mkdir()
    (ruin / "edge_config.json").write_text("{")
    index = await EdgeIndex.open(tmp_path)
    await index.ensure_collection(PLANTS)
    await index.write("plants", [point(1)])
    assert await index.count("plants", EVERYTHING) == 1
    await index.close()


async def test_a_closed_index_says_so(tmp_path: Path) -> None:
    index = await EdgeIndex.open(tmp_path)
    await index.close()
    with pytest.raises(IndexClosed):
        await index.collections()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
async def test_a_forked_child_is_refused(tmp_path: Path) -> None:
    index = await EdgeIndex.open(tmp_path)
    await index.ensure_collection(PLANTS)
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        said = b"used it"
        try:
            index._usable()
        except IndexClosed as error:
            said = str(error).encode()
        os.write(write_end, said)
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write_end)
    with os.fdopen(read_end) as told:
        assert "forked child" in told.read()
    await index.close()


async def test_many_callers_at_once(tmp_path: Path) -> None:
    index = await EdgeIndex.open(tmp_path)
    await index.ensure_collection(PLANTS)

    async def one(number: int) -> None:
        await index.write("plants", [point(number, f"oak {number}")])
        assert await index.get("plants", [pid(number)])

    await asyncio.gather(*(one(number) for number in range(1, 201)))
    assert await index.count("plants", EVERYTHING) == 200
    await index.close()
