"""Maintenance removes the bytes of erased data from every file."""

import asyncio
import os
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from mnemesh.archival.v1.archives_pb2 import Archive, EmbedderIdentity, Passage
from mnemesh.archival.v1.archives_service_pb2 import DeleteArchiveRequest, UpdateArchiveRequest
from mnemesh.archival.v1.passages_service_pb2 import (
    DeletePassageRequest,
    EraseAgentRequest,
    GetPassageRequest,
    UpdatePassageRequest,
)
from mnemesh_archival.main import main
from mnemesh_archival.maintenance import maintain
from mnemesh_kit.errors import NotFound
from mnemesh_kit.ids import new_id
from mnemesh_kit.sql import Database
from mnemesh_kit.time import FrozenClock
from mnemesh_testkit.mesh.command_line import run_service

from .conftest import ArchivalServer

CANARY = "canaryZq7xVw3"


def files_with_canary(directory: Path) -> list[str]:
    """Returns the files that contain the canary in any case; text indexes fold case."""
    found = []
    for file in directory.rglob("*"):
        content = file.read_bytes() if file.is_file() else b""
        if CANARY.encode() in content or CANARY.lower().encode() in content:
            found.append(str(file.relative_to(directory)))
    return found


async def plant_and_erase(archival: ArchivalServer) -> None:
    """Writes the canary into every text field and deletes it in every way."""
    erased, friend = new_id("agent"), new_id("agent")
    own = await archival.archive(erased, name=f"of {CANARY}", description=CANARY, metadata=f'{{"a": "{CANARY}"}}')
    shared = await archival.archive(friend, erased)
    passage = Passage(text=f"it is {CANARY} indeed", tags=[CANARY], metadata=f'{{"a": "{CANARY}"}}', file_name=CANARY)
    vector = np.frombuffer(f"{CANARY:1024}".encode(), dtype="<f4")
    passage.embedding.extend(vector.tolist())
    passage.embedded_by.CopyFrom(EmbedderIdentity(handle="mnemesh/hashing-256", dimension=256))
    await archival.insert(own, *[passage] * 20)
    written = Passage(text=f"{CANARY} in a shared one", agent_id=erased, tags=[CANARY])
    kept, deleted, changed, _ = (
        result.passage.id for result in (await archival.insert(shared, "kept", passage, passage, written)).results
    )
    await archival.passages.DeletePassage(DeletePassageRequest(passage_id=deleted))
    mask = FieldMask(paths=["text", "tags", "metadata"])
    await archival.passages.UpdatePassage(
        UpdatePassageRequest(passage=Passage(id=changed, text="harmless"), update_mask=mask)
    )
    third = await archival.archive(name=CANARY)
    harmless = UpdateArchiveRequest(archive=Archive(id=third, name="harmless"), update_mask=FieldMask(paths=["name"]))
    await archival.archives.UpdateArchive(harmless)
    fourth = await archival.archive()
    await archival.insert(fourth, passage)
    await archival.archives.DeleteArchive(DeleteArchiveRequest(archive_id=fourth))
    # The update did not change the file name of the passage.
    await archival.passages.DeletePassage(DeletePassageRequest(passage_id=changed))
    await archival.passages.EraseAgent(
        EraseAgentRequest(agent_id=erased, delete_shared_passages=True, delete_unshared_archives=True)
    )
    assert (await archival.texts(CANARY), await archival.texts("kept")) == ([], ["kept"])
    assert (await archival.passages.GetPassage(GetPassageRequest(passage_id=kept))).passage.text == "kept"


async def report_of(lines: AsyncIterator[str]) -> list[str]:
    return [line async for line in lines]


async def test_no_byte_of_erased_data_remains(archival: ArchivalServer, tmp_path: Path) -> None:
    await plant_and_erase(archival)
    await archival.stop()
    moved_aside = tmp_path / "archival-index" / "damaged" / "file"
    moved_aside.parent.mkdir()
    moved_aside.write_text(CANARY)
    assert files_with_canary(tmp_path)
    report = await report_of(maintain(archival.config))
    assert files_with_canary(tmp_path) == []
    assert report[0] == "changes that the vector index lacks: 0"
    assert any("passages:mnemesh/hashing-256: 1 points kept" in line for line in report)
    await archival.start()
    assert await archival.texts("kept") == ["kept"]


@pytest.mark.full
async def test_postgresql_tables_are_rewritten(postgres_url: str, tmp_path: Path) -> None:
    from mnemesh_archival.config import Config

    archival = ArchivalServer(
        Config(port=0, data_dir=str(tmp_path), database_url=postgres_url, embedder="mnemesh/hashing-256")
    )
    await archival.start()
    await plant_and_erase(archival)
    await archival.stop()
    await archival.channels.close()
    files = await _table_files(postgres_url)
    report = await report_of(maintain(archival.config))
    assert await _table_files(postgres_url) != files, "the tables were not rewritten"
    assert any(line.startswith("PostgreSQL database") for line in report)


async def _table_files(url: str) -> list[int]:
    import sqlalchemy as sa

    database = Database.open(url)
    names = sa.text("SELECT relfilenode FROM pg_class WHERE relname IN ('archives', 'index_outbox', 'passages')")
    found = await database.read(lambda conn: list(conn.execute(names).scalars()))
    await database.close()
    return sorted(found)


async def test_tombstones_expire(archival: ArchivalServer) -> None:
    archive = await archival.archive()
    draft = Passage(text="an oak", id=new_id("passage"))
    await archival.insert(archive, draft, request_id="r1")
    await archival.passages.DeletePassage(DeletePassageRequest(passage_id=draft.id))
    await archival.stop()
    now = datetime.now(UTC)
    soon = await report_of(maintain(archival.config, clock=FrozenClock(now + timedelta(days=29))))
    assert "tombstones of passages deleted: 0" in soon
    assert "idempotency keys deleted: 3" in soon
    late = await report_of(maintain(archival.config, clock=FrozenClock(now + timedelta(days=31))))
    assert "tombstones of passages deleted: 1" in late
    await archival.start()
    with pytest.raises(NotFound):
        await archival.passages.DeletePassage(DeletePassageRequest(passage_id=draft.id))
    await archival.insert(archive, draft)
    assert await archival.texts("oak") == ["an oak"]


async def test_maintenance_is_refused_while_the_service_runs(
    archival: ArchivalServer, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    environment = {**os.environ, "MNEMESH_DATA_DIR": str(tmp_path)}
    capfd.readouterr()
    code = await asyncio.to_thread(run_service, main, "maintain", environment=environment)
    out, errors = capfd.readouterr()
    assert (code, out, len(errors.splitlines())) == (2, "", 1)
    assert "in use by another process" in errors
    await archival.stop()
    environment["MNEMESH_ARCHIVAL_DATABASE_URL"] = archival.config.database
    assert await asyncio.to_thread(run_service, main, "maintain", environment=environment) == 0
    assert "MB before" in capfd.readouterr().out
    await archival.start()
