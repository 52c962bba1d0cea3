"""Damaged files of an embedded index are found, moved aside, and rebuilt from the records."""

import asyncio
import os
import random
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from mnemesh_retrieval.edge.shard import surviving
from mnemesh_retrieval.errors import IndexDamaged
from mnemesh_retrieval.index_directory import FOLDER, KEPT
from mnemesh_testkit.fakes.notes import NOTES, note_id
from mnemesh_testkit.plugin import sampled
from structlog.testing import capture_logs

Rig = Any
KINDS = ("delete", "empty", "truncate", "zero", "flip", "shuffle")
flat = pytest.mark.parametrize("variant", ["flat on sqlite"], indirect=True)
edge = pytest.mark.parametrize("variant", ["edge on sqlite"], indirect=True)


def damage(file: Path, kind: str, chance: random.Random) -> None:
    """Damages a file that is not open."""
    size = file.stat().st_size
    match kind:
        case "delete":
            file.unlink()
        case "empty" | "truncate":
            os.truncate(file, 0 if kind == "empty" else size // 2)
        case _:
            content = bytearray(file.read_bytes())
            start = chance.randrange(max(1, min(size, 1 << 17) - 4_096))
            some = slice(start, start + 4_096)
            if kind == "zero":
                content[some] = bytes(len(content[some]))
            elif kind == "shuffle":
                header = min(100, size // 2)
                content[header:] = chance.randbytes(size - header)
            else:
                for _ in range(5):
                    content[start + chance.randrange(len(content[some]))] ^= 1 << chance.randrange(8)
            file.write_bytes(content)


async def filled(rig: Rig) -> None:
    """Stops a service with 100 notes."""
    texts = {note_id(number): f"note {number} of many {number * 7919}" for number in range(100)}
    await rig.notebook.put(texts)
    await rig.indexer.drain()
    await rig.stop()


async def require_recovery(rig: Rig) -> list[Any]:
    """Starts the service, and returns its log after the index agrees with the records again."""
    with capture_logs() as logs:
        await rig.start()
        await rig.indexer.drain()
        await rig.indexer.check()
    assert await rig.difference() == {}
    assert rig.indexer.is_complete(NOTES)
    return [(line["event"], line["log_level"]) for line in logs]


@flat
@pytest.mark.parametrize("kind", sampled(KINDS, 2))
async def test_damaged_file_of_a_flat_index_is_rebuilt(rig: Rig, kind: str, is_full: bool) -> None:
    await filled(rig)
    logs: list[Any] = []
    for seed in range(8 if is_full else 2):
        damage(rig.directory / "vectors.db", kind, random.Random(seed))
        logs += await require_recovery(rig)
        await rig.stop()
    # A few bytes may be of a free page, and an empty file is like none.
    if kind in ("truncate", "shuffle"):
        assert ("vector_index_damaged", "error") in logs
        assert ("vector_index_rebuild_finished", "warning") in logs
    assert len(list((rig.directory / FOLDER).glob("*"))) <= KEPT
    await rig.start()


@edge
@pytest.mark.parametrize("kind", ["shuffle", *(pytest.param(kind, marks=pytest.mark.full) for kind in KINDS[:-1])])
async def test_damaged_files_of_a_shard_are_rebuilt(rig: Rig, kind: str, is_full: bool, is_sweep: bool) -> None:
    await filled(rig)
    intact = rig.directory.with_name("intact")
    shutil.copytree(rig.directory, intact)
    files = sorted(path.relative_to(intact) for path in intact.rglob("*") if path.is_file() and path.stat().st_size)
    files = [file for file in files if file.name not in ("index.lock", IDS)]
    for name in random.Random(kind).sample(files, 8 if is_sweep else 3 if is_full else 1):
        shutil.rmtree(rig.directory)
        shutil.copytree(intact, rig.directory)
        damage(rig.directory / name, kind, random.Random(kind))
        await require_recovery(rig)
        await rig.stop()
    await rig.start()


IDS = "mutable_id_tracker.mappings"
"""The engine reads lengths from this file, and ends the process if one is absurd."""

OPEN = """
import asyncio, sys
from pathlib import Path
from mnemesh_retrieval.edge import EdgeIndex
from mnemesh_retrieval.index import Collection

async def open():
    index = await EdgeIndex.open(Path(sys.argv[1]))
    await index.ensure_collection(Collection("notes", 256))

asyncio.run(open())
"""


@edge
@pytest.mark.full
async def test_shard_that_ends_the_process_is_rebuilt(rig: Rig) -> None:
    await filled(rig)
    (file,) = rig.directory.rglob(IDS)
    content = bytearray(file.read_bytes())
    random.Random(1).shuffle(content)
    file.write_bytes(content)
    codes = []
    for _ in range(2):
        opening = await asyncio.create_subprocess_exec(
            sys.executable, "-c", OPEN, str(rig.directory), stderr=asyncio.subprocess.DEVNULL
        )
        codes.append(await opening.wait())
    assert codes[0] == codes[1] != 0
    assert ("vector_index_rebuild_finished", "warning") in await require_recovery(rig)


@edge
async def test_deleted_directory_is_rebuilt(rig: Rig) -> None:
    await filled(rig)
    shutil.rmtree(rig.directory)
    assert ("vector_index_rebuild_finished", "warning") in await require_recovery(rig)


def test_files_that_end_the_process_twice_are_damaged(tmp_path: Path) -> None:
    marker = tmp_path / "loading"
    with surviving(marker, 2, "loaded"):
        assert marker.read_text() == "1"
    assert not marker.exists()
    for _ in range(2):
        guard = surviving(marker, 2, "loaded")
        guard.__enter__()
        marker_text = marker.read_text()
        del guard  # as if the process had ended: the marker stays
        marker.write_text(marker_text)
    with pytest.raises(IndexDamaged, match="ended 2 times while it loaded"), surviving(marker, 2, "loaded"):
        pytest.fail("the files must not be loaded again")
    assert not marker.exists(), "an index that was created in their place is loaded"


@flat
async def test_search_that_finds_damage_causes_a_verification(rig: Rig) -> None:
    await filled(rig)
    damage(rig.directory / "vectors.db", "truncate", random.Random(1))
    with capture_logs():
        await rig.start()
        await rig.indexer.check()
        with pytest.MonkeyPatch.context() as patch:
            verified: list[str] = []

            async def verify(name: str) -> None:
                verified.append(name)

            patch.setattr(rig.index, "verify", verify)
            await rig.indexer.check()
            assert verified == []
            await rig.indexer.report_damage(NOTES, IndexDamaged("a segment differs"))
            await rig.indexer.check()
            assert verified == [NOTES]
    assert await rig.difference() == {}
