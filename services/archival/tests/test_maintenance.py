"""What was erased is not on the disk any more: no byte of it, in any file."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from mnemesh.archival.v1.archives_pb2 import Archive, Passage
from mnemesh.archival.v1.archives_service_pb2 import DeleteArchiveRequest, UpdateArchiveRequest
from mnemesh.archival.v1.passages_service_pb2 import (
    DeletePassageRequest,
    EraseAgentRequest,
    GetPassageRequest,
    UpdatePassageRequest,
)
from mnemesh_archival.maintenance import maintain
from mnemesh_kit.clock import FrozenClock
from mnemesh_kit.errors import NotFound
from mnemesh_kit.ids import new_id
from mnemesh_kit.sql import Database

from .conftest import Room

CANARY = "canaryZq7xVw3"


def planted(directory: Path) -> list[str]:
    """The files that hold the canary, in upper or lower case: text indexes fold what they keep."""
    found = []
    for file in directory.rglob("*"):
        content = file.read_bytes() if file.is_file() else b""
        if CANARY.encode() in content or CANARY.lower().encode() in content:
            found.append(str(file.relative_to(directory)))
    return found


async def plant_and_erase(room: Room) -> None:
    """Put the canary wherever a caller can put text, and take it away in every way there is."""
    doomed, friend = new_id("agent"), new_id("agent")
    own = await room.archive(doomed, name=f"of {CANARY}", description=CANARY, metadata=f'{{"a": "{CANARY}"}}')
    shared = await room.archive(friend, doomed)
    passage = Passage(text=f"it is {CANARY} indeed", tags=[CANARY], metadata=f'{{"a": "{CANARY}"}}', file_name=CANARY)
    await room.insert(own, *[passage] * 20)
    written = Passage(text=f"{CANARY} in a shared one", agent_id=doomed, tags=[CANARY])
    kept, deleted, changed, _ = (
        result.passage.id for result in (await room.insert(shared, "kept", passage, passage, written)).results
    )
    await room.passages.DeletePassage(DeletePassageRequest(passage_id=deleted))
    mask = FieldMask(paths=["text", "tags", "metadata"])
    await room.passages.UpdatePassage(
        UpdatePassageRequest(passage=Passage(id=changed, text="harmless"), update_mask=mask)
    )
    third = await room.archive(name=CANARY)
    harmless = UpdateArchiveRequest(archive=Archive(id=third, name="harmless"), update_mask=FieldMask(paths=["name"]))
    await room.archives.UpdateArchive(harmless)
    fourth = await room.archive()
    await room.insert(fourth, passage)
    await room.archives.DeleteArchive(DeleteArchiveRequest(archive_id=fourth))
    # The name of a file, of the passage that was only changed, is still its own.
    await room.passages.DeletePassage(DeletePassageRequest(passage_id=changed))
    await room.passages.EraseAgent(EraseAgentRequest(agent_id=doomed, delete_shared_passages=True))
    assert await room.texts(CANARY) == ["kept"]
    assert (await room.passages.GetPassage(GetPassageRequest(passage_id=kept))).passage.text == "kept"


async def told(lines: AsyncIterator[str]) -> list[str]:
    return [line async for line in lines]


async def test_no_byte_of_what_was_erased_is_left(room: Room, tmp_path: Path) -> None:
    await plant_and_erase(room)
    await room.stop()
    assert planted(tmp_path)
    report = await told(maintain(room.config))
    assert planted(tmp_path) == []
    assert report[0] == "recorded work that could not be finished: 0"
    assert any("passages:mnemesh/hashing-256: 1 points kept" in line for line in report)
    await room.start()
    assert await room.texts("kept") == ["kept"]


async def test_postgresql_keeps_nothing_in_its_tables(postgres_url: str, tmp_path: Path) -> None:
    from mnemesh_archival.config import Config

    room = Room(Config(port=0, data_dir=str(tmp_path), database_url=postgres_url, embedder="mnemesh/hashing-256"))
    await room.start()
    await plant_and_erase(room)
    await room.stop()
    await room.channels.close()
    files = await _table_files(postgres_url)
    report = await told(maintain(room.config))
    assert await _table_files(postgres_url) != files, "the tables were not rewritten"
    assert any(line.startswith("PostgreSQL database") for line in report)


async def _table_files(url: str) -> list[int]:
    import sqlalchemy as sa

    database = Database.open(url)
    names = sa.text("SELECT relfilenode FROM pg_class WHERE relname IN ('archives', 'operations', 'passages')")
    found = await database.read(lambda conn: list(conn.execute(names).scalars()))
    await database.close()
    return sorted(found)


async def test_tombstones_go_after_their_time(room: Room) -> None:
    archive = await room.archive()
    draft = Passage(text="an oak", id=new_id("passage"))
    await room.insert(archive, draft, request_id="r1")
    await room.passages.DeletePassage(DeletePassageRequest(passage_id=draft.id))
    await room.stop()
    now = datetime.now(UTC)
    soon = await told(maintain(room.config, clock=FrozenClock(now + timedelta(days=29))))
    assert "tombstones of passages forgotten: 0" in soon
    assert "idempotency keys deleted: 3" in soon
    late = await told(maintain(room.config, clock=FrozenClock(now + timedelta(days=31))))
    assert "tombstones of passages forgotten: 1" in late
    await room.start()
    with pytest.raises(NotFound):
        await room.passages.DeletePassage(DeletePassageRequest(passage_id=draft.id))
    await room.insert(archive, draft)
    assert await room.texts("oak") == ["an oak"]


async def test_it_refuses_while_the_service_runs(room: Room, tmp_path: Path) -> None:
    run = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "mnemesh_archival",
        "maintain",
        env={**os.environ, "MNEMESH_DATA_DIR": str(tmp_path)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, said = await run.communicate()
    assert (run.returncode, out) == (2, b"")
    assert len(said.decode().strip().splitlines()) == 1
    assert "in use by another process" in said.decode()
    await room.stop()
    again = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "mnemesh_archival",
        "maintain",
        env={**os.environ, "MNEMESH_DATA_DIR": str(tmp_path), "MNEMESH_ARCHIVAL_DATABASE_URL": room.config.database},
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await again.communicate()
    assert again.returncode == 0
    assert b"MB before" in out
    await room.start()
