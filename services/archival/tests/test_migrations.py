"""Databases and indexes of earlier versions keep their data."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from google.protobuf.field_mask_pb2 import FieldMask
from mnemesh.archival.v1.archives_pb2 import PASSAGE_SOURCE_OWNER, Archive, Passage
from mnemesh.archival.v1.archives_service_pb2 import GetArchiveRequest, UpdateArchiveRequest
from mnemesh.archival.v1.passages_service_pb2 import (
    PASSAGE_SEARCH_MODE_TEXT,
    DeletePassageRequest,
    GetPassageRequest,
    ListPassagesRequest,
    PassageFilter,
)
from mnemesh_archival.config import Config
from mnemesh_archival.store.sql.tables import metadata
from mnemesh_archival.vectors import earlier_points
from mnemesh_kit.config import StartupError
from mnemesh_kit.errors import MnemeshError, NotFound
from mnemesh_kit.failpoints import observed_by
from mnemesh_kit.ids import derive_id, new_id
from mnemesh_kit.sql import Database
from mnemesh_retrieval.edge import EdgeIndex
from mnemesh_retrieval.registry import HASHING, WORDLLAMA
from mnemesh_testkit.databases.revisions import Rows, at_revision

from .conftest import ArchivalServer
from .earlier_index import EARLIER, NOW, ORG, STORED, fill_index
from .embedder_changes import wait_until_serving
from .index_damage import damage


async def test_migrations_create_the_declared_tables(tmp_path: Path) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    database = Database.open(f"sqlite:///{tmp_path / 'archival.db'}")
    await database.migrate("mnemesh_archival")
    different = await database.read(lambda conn: compare_metadata(MigrationContext.configure(conn), metadata))
    await database.close()
    assert different == []


def first_version(archive: str, passages: list[dict[str, Any]], agent: str = "") -> Rows:
    """Returns the rows of an archive of the first version, with these passages."""
    rows: dict[str, list[dict[str, Any]]] = {
        "archives": [
            {
                "organization_id": ORG, "id": archive, "name": "notes", "name_folded": "notes", "embedder": EARLIER,
                "dimension": 256, "deduplicate": 0, "passage_count": sum(row["state"] == "live" for row in passages),
                "revision": 3, "changed_at": STORED, "created_at": STORED, "updated_at": STORED, "created_by_id": "",
                "last_updated_by_id": "",
            }
        ],
        "archive_tags": [{"organization_id": ORG, "archive_id": archive, "tag": "tree", "uses": 1}],
        "passages": passages,
    }  # fmt: skip
    if agent:
        rows["agents"] = [{"organization_id": ORG, "id": agent, "base_revision": 1, "changed_at": STORED}]
        held = {"organization_id": ORG, "agent_id": agent, "archive_id": archive, "attached_at": STORED}
        rows["archive_agents"] = [held]
    return rows


def passage_row(archive: str, passage: str, state: str = "live", at: str = STORED) -> dict[str, Any]:
    return {
        "organization_id": ORG, "id": passage, "archive_id": archive, "point_id": passage.removeprefix("passage-"),
        "state": state, "tags": json.dumps(["tree"]), "content_hash": "", "created_at": at,
        "deleted_at": STORED if state == "deleted" else None,
    }  # fmt: skip


async def test_data_of_the_first_version_is_kept(database_url: str, tmp_path: Path, agent: str) -> None:
    archive, passage, deleted = new_id("archive"), new_id("passage"), new_id("passage")
    rows = [passage_row(archive, passage), passage_row(archive, deleted, "deleted")]
    await at_revision(database_url, "mnemesh_archival", "0001", first_version(archive, rows, agent))
    await _index(tmp_path, archive, passage)
    archival = ArchivalServer(Config(port=0, data_dir=str(tmp_path), database_url=database_url, embedder=HASHING))
    await archival.start()
    try:
        assert (await archival.archives.GetArchive(GetArchiveRequest(archive_id=archive))).archive.embedder == HASHING
        assert await archival.texts("oak", filter=PassageFilter(agent_id=agent, tags=["tree"])) == ["an oak"]
        got = (await archival.passages.GetPassage(GetPassageRequest(passage_id=passage))).passage
        assert (got.text, list(got.tags), got.file_name, got.metadata) == ("an oak", ["tree"], "trees.txt", '{"a": 1}')
        assert (got.source, got.create_time.ToDatetime(UTC)) == (PASSAGE_SOURCE_OWNER, NOW)
        summary = await archival.summary(agent)
        assert (summary.revision, summary.passage_count, list(summary.tags)) == (4, 1, ["tree"])
        with pytest.raises(MnemeshError):
            await archival.insert(archive, Passage(id=deleted, text="back again"))
        change = Archive(id=archive, embedder=WORDLLAMA)
        await archival.archives.UpdateArchive(
            UpdateArchiveRequest(archive=change, update_mask=FieldMask(paths=["embedder"]))
        )
        await wait_until_serving(archival, archive, WORDLLAMA)
        assert await archival.texts("oak") == ["an oak"]
        await archival.passages.DeletePassage(DeletePassageRequest(passage_id=passage))
        assert (await archival.archives.GetArchive(GetArchiveRequest(archive_id=archive))).archive.passage_count == 0
    finally:
        await archival.channels.close()
        await archival.stop()


async def test_passage_that_the_earlier_index_lacks_is_missing_until_the_index_is_restored(
    database_url: str, tmp_path: Path, agent: str
) -> None:
    archive, passage = new_id("archive"), new_id("passage")
    rows = first_version(archive, [passage_row(archive, passage)], agent)
    await at_revision(database_url, "mnemesh_archival", "0001", rows)
    archival = ArchivalServer(Config(port=0, data_dir=str(tmp_path), database_url=database_url, embedder=HASHING))
    try:
        await archival.start()
        with pytest.raises(NotFound):
            await archival.passages.GetPassage(GetPassageRequest(passage_id=passage))
        assert ((await archival.summary(agent)).passage_count, await archival.texts("oak")) == (0, [])
        await archival.stop()
        shutil.rmtree(tmp_path / "archival-index")
        await _index(tmp_path, archive, passage)
        await archival.start()
        assert await archival.texts("oak") == ["an oak"]
        summary = await archival.summary(agent)
        assert (summary.passage_count, list(summary.tags)) == (1, ["tree"])
    finally:
        await archival.channels.close()
        await archival.stop()


async def test_earlier_index_that_cannot_be_read_prevents_the_start(database_url: str, tmp_path: Path) -> None:
    archive, passage = new_id("archive"), new_id("passage")
    await at_revision(database_url, "mnemesh_archival", "0001", first_version(archive, [passage_row(archive, passage)]))
    await _index(tmp_path, archive, passage)
    shutil.copytree(tmp_path / "archival-index", tmp_path / "backup")
    damage(tmp_path / "archival-index")
    archival = ArchivalServer(Config(port=0, data_dir=str(tmp_path), database_url=database_url, embedder=HASHING))
    try:
        with pytest.raises(StartupError, match="in the vector index only"):
            await archival.start()
        shutil.rmtree(tmp_path / "archival-index")
        shutil.move(tmp_path / "backup", tmp_path / "archival-index")
        await archival.start()
        assert await archival.texts("oak") == ["an oak"]
    finally:
        await archival.channels.close()
        await archival.stop()


async def test_interrupted_copy_is_resumed(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive, ids = new_id("archive"), [new_id("passage") for _ in range(7)]
    rows = first_version(archive, [passage_row(archive, passage) for passage in ids])
    await at_revision(database_url, "mnemesh_archival", "0001", rows)
    await _index(tmp_path, archive, *ids)
    monkeypatch.setattr(earlier_points, "PAGE", 3)
    left = iter([False, True])

    def crash(reached: str) -> None:
        if reached == "sql.write.before_commit:upgrade.fill" and next(left):
            raise RuntimeError("a crash")

    archival = ArchivalServer(Config(port=0, data_dir=str(tmp_path), database_url=database_url, embedder=HASHING))
    try:
        with observed_by(crash), pytest.raises(RuntimeError):
            await archival.start()
        await archival.start()
        listed = (await archival.passages.ListPassages(ListPassagesRequest())).passages
        assert sorted(each.id for each in listed) == sorted(ids)
        assert {each.text for each in listed} == {"an oak"}
    finally:
        await archival.channels.close()
        await archival.stop()


async def test_recorded_operations_become_passages_and_changes(database_url: str, tmp_path: Path, agent: str) -> None:
    archive, dropped = new_id("archive"), new_id("archive")
    inserted, updated, deleted = (new_id("passage") for _ in range(3))
    rows = dict(first_version(archive, [passage_row(archive, updated)], agent))
    rows["passages"] = [
        *rows["passages"],
        passage_row(archive, inserted, "pending"),
        passage_row(archive, deleted, "deleted"),
    ]
    content = {
        "id": inserted, "archive_id": archive, "text": "an elm", "tags": ["tree"], "metadata": None, "source": 4,
        "agent_id": None, "file_id": None, "folder_id": None, "file_name": None, "chunk_index": 3,
        "created_at": "2026-01-02T03:04:05Z", "updated_at": "2026-01-02T03:04:05Z", "embedding": [],
    }  # fmt: skip
    change = {
        "fields": ["text", "metadata"],
        "updated_at": "2026-02-02T00:00:00Z",
        "text": "an ash",
        "tags": [],
        "metadata": None,
    }
    bodies: dict[str, dict[str, Any]] = {
        "InsertPoints": {"passages": [content], "point_ids": [inserted.removeprefix("passage-")]},
        "UpdatePoint": {"passage_id": updated, "point_id": updated.removeprefix("passage-"), "change": change},
        "DeletePoints": {"point_ids": [deleted.removeprefix("passage-")]},
        "DropArchive": {"archive_id": dropped},
    }
    rows["operations"] = [
        {
            "organization_id": ORG, "id": f"drop-{dropped}" if kind == "DropArchive" else kind, "kind": kind,
            "body": json.dumps({"organization_id": ORG, "embedder": EARLIER, **body}, separators=(",", ":")),
            "created_at": STORED,
            "claimed_until": STORED,
        }
        for kind, body in bodies.items()
    ]  # fmt: skip
    await at_revision(database_url, "mnemesh_archival", "0001", rows)
    await _index(tmp_path, archive, updated, deleted)
    archival = ArchivalServer(Config(port=0, data_dir=str(tmp_path), database_url=database_url, embedder=HASHING))
    await archival.start()
    try:
        assert sorted(await archival.texts("elm ash oak", mode=PASSAGE_SEARCH_MODE_TEXT)) == ["an ash", "an elm"]
        got = (await archival.passages.GetPassage(GetPassageRequest(passage_id=updated))).passage
        assert (got.text, got.HasField("metadata"), got.file_name) == ("an ash", False, "trees.txt")
        assert got.update_time.ToDatetime(UTC) == datetime(2026, 2, 2, tzinfo=UTC)
        got = (await archival.passages.GetPassage(GetPassageRequest(passage_id=inserted))).passage
        assert (got.text, got.chunk_index, got.source) == ("an elm", 3, PASSAGE_SOURCE_OWNER)
        assert (await archival.summary(agent)).passage_count == 2
    finally:
        await archival.channels.close()
        await archival.stop()


async def test_passages_of_earlier_versions_are_ordered_by_time(database_url: str) -> None:
    archives, ids = [new_id("archive"), new_id("archive")], [new_id("passage") for _ in range(6)]
    rows = [passage_row(archives[n % 2], id_, at=f"2026-01-02 0{6 - n}:00:00.000000") for n, id_ in enumerate(ids)]
    await at_revision(database_url, "mnemesh_archival", "0001", {"passages": rows})
    database = Database.open(database_url)
    await database.migrate("mnemesh_archival")
    stored = await database.read(
        lambda conn: conn.execute(sa.select(metadata.tables["passages"]).order_by(sa.text("position"))).all()
    )
    await database.close()
    for number, archive in enumerate(archives):
        positions = [(row.id, row.position) for row in stored if row.archive_id == archive]
        assert positions == [(id_, position) for position, id_ in enumerate(reversed(ids[number::2]), start=1)]


async def test_archives_of_agents_of_earlier_versions_are_deleted_with_them(database_url: str, agent: str) -> None:
    friend = new_id("agent")
    first, second = (derive_id("archive", ORG, agent, str(number)) for number in range(2))
    given = new_id("archive")
    values: dict[str, Any] = {
        "organization_id": ORG, "name": "n", "name_folded": "n", "embedder": HASHING, "dimension": 256,
        "deduplicate": 0, "passage_count": 0, "revision": 0, "created_at": STORED, "updated_at": STORED,
        "created_by_id": "", "last_updated_by_id": "",
    }  # fmt: skip
    held = [(agent, second), (agent, given), (friend, second)]
    rows = {
        "archives": [{**values, "id": archive} for archive in (first, second, given)],
        "archive_agents": [
            {"organization_id": ORG, "agent_id": holder, "archive_id": archive, "attached_at": STORED}
            for holder, archive in held
        ],
    }
    await at_revision(database_url, "mnemesh_archival", "0005", rows)
    database = Database.open(database_url)
    await database.migrate("mnemesh_archival")
    table = metadata.tables["archives"]
    query = sa.select(table.c.id, table.c.created_for_agent_id)
    found = await database.read(lambda conn: {row[0]: row[1] for row in conn.execute(query)})
    await database.close()
    assert found == {first: None, second: agent, given: None}


async def _index(tmp_path: Path, archive: str, *passages: str) -> None:
    """Creates an index as earlier versions wrote it, with these passages."""
    index = await EdgeIndex.open(tmp_path / "archival-index")
    await fill_index(index, archive, *passages)
    await index.close()
