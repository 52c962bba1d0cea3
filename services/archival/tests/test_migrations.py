"""Databases and indexes of earlier versions keep their data."""

from __future__ import annotations

import json
import shutil
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import mnemesh_archival
import pytest
import sqlalchemy as sa
from google.protobuf.field_mask_pb2 import FieldMask
from mnemesh.archival.v1.archives_pb2 import Archive, Passage
from mnemesh.archival.v1.archives_service_pb2 import GetArchiveRequest, UpdateArchiveRequest
from mnemesh.archival.v1.passages_service_pb2 import DeletePassageRequest, PassageFilter
from mnemesh_archival.config import Config
from mnemesh_archival.store.sql.tables import metadata
from mnemesh_kit.errors import MnemeshError
from mnemesh_kit.ids import derive_id, new_id
from mnemesh_kit.principal import DEFAULT_PRINCIPAL
from mnemesh_kit.sql import Database
from mnemesh_retrieval.edge import EdgeIndex
from mnemesh_retrieval.index import Collection, Point, VectorIndex, instant
from mnemesh_retrieval.registry import HASHING, WORDLLAMA, make_embedder
from mnemesh_testkit.databases.revisions import at_revision

from .conftest import ArchivalServer
from .test_reembedding import wait_until_serving

EARLIER = "engram/hashing-256"
"""HASHING before the product was renamed."""
STORED = "2026-01-02 03:04:05.000000"
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ORG = DEFAULT_PRINCIPAL.organization_id


async def test_migrations_create_the_declared_tables(tmp_path: Path) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    database = Database.open(f"sqlite:///{tmp_path / 'archival.db'}")
    await database.migrate("mnemesh_archival")
    different = await database.read(lambda conn: compare_metadata(MigrationContext.configure(conn), metadata))
    await database.close()
    assert different == []


async def _first_version(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> Database:
    """Creates a database of the first version."""
    package = tmp_path / "packages" / "first_archival"
    versions = Path("store") / "migrations" / "versions"
    (package / versions).mkdir(parents=True)
    (package / "__init__.py").touch()
    source = Path(mnemesh_archival.__file__).parent / versions / "0001_archives_and_passages.py"
    shutil.copy(source, package / versions)
    monkeypatch.syspath_prepend(package.parent)
    database = Database.open(url)
    await database.migrate("first_archival")
    sys.modules.pop("first_archival", None)
    return database


async def test_data_of_the_first_version_is_kept(
    database_url: str, tmp_path: Path, agent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, passage, deleted = new_id("archive"), new_id("passage"), new_id("passage")
    point = UUID(passage.removeprefix("passage-"))
    database = await _first_version(tmp_path, database_url, monkeypatch)
    rows: list[tuple[str, dict[str, Any]]] = [
        (
            "archives",
            {
                "organization_id": ORG, "id": archive, "name": "notes", "name_folded": "notes", "embedder": EARLIER,
                "dimension": 256, "deduplicate": False, "passage_count": 1, "revision": 3, "changed_at": NOW,
                "created_at": NOW, "updated_at": NOW, "created_by_id": "", "last_updated_by_id": "",
            },
        ),
        ("agents", {"organization_id": ORG, "id": agent, "base_revision": 1, "changed_at": NOW}),
        (
            "archive_agents",
            {"organization_id": ORG, "agent_id": agent, "archive_id": archive, "attached_at": NOW},
        ),
        ("archive_tags", {"organization_id": ORG, "archive_id": archive, "tag": "tree", "uses": 1}),
        *(
            (
                "passages",
                {
                    "organization_id": ORG, "id": id_, "archive_id": archive,
                    "point_id": id_.removeprefix("passage-"), "state": state, "tags": json.dumps(["tree"]),
                    "content_hash": "", "created_at": NOW, "deleted_at": NOW if state == "deleted" else None,
                },
            )
            for id_, state in ((passage, "live"), (deleted, "deleted"))
        ),
    ]  # fmt: skip

    def fill(conn: sa.Connection) -> None:
        for table, row in rows:
            columns = [column for column in metadata.tables[table].columns if column.name in row]
            conn.execute(sa.table(table, *(sa.column(each.name, each.type) for each in columns)).insert(), row)

    await database.write(fill)
    await database.close()
    await _index(tmp_path, archive, passage, point)
    archival = ArchivalServer(Config(port=0, data_dir=str(tmp_path), database_url=database_url, embedder=HASHING))
    await archival.start()
    try:
        assert (await archival.archives.GetArchive(GetArchiveRequest(archive_id=archive))).archive.embedder == HASHING
        assert await archival.texts("oak", filter=PassageFilter(agent_id=agent, tags=["tree"])) == ["an oak"]
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


async def test_passages_of_earlier_versions_are_ordered_by_time(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archives, ids = [new_id("archive"), new_id("archive")], [new_id("passage") for _ in range(6)]
    database = await _first_version(tmp_path, database_url, monkeypatch)
    columns = ("organization_id", "id", "archive_id", "point_id", "state", "tags", "content_hash", "created_at")
    table = sa.table("passages", *(sa.column(name, metadata.tables["passages"].c[name].type) for name in columns))
    rows = [
        {
            "organization_id": ORG, "id": id_, "archive_id": archives[n % 2], "point_id": id_.removeprefix("passage-"),
            "state": "live", "tags": "[]", "content_hash": "", "created_at": NOW - timedelta(hours=n),
        }
        for n, id_ in enumerate(ids)
    ]  # fmt: skip
    await database.write(lambda conn: conn.execute(table.insert(), rows))
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


async def _index(tmp_path: Path, archive: str, passage: str, point: UUID) -> None:
    """Creates an index of the first version with one passage."""
    index = await EdgeIndex.open(tmp_path / "archival-index")
    await fill_index(index, archive, passage, point)
    await index.close()


async def fill_index(index: VectorIndex, archive: str, passage: str, point: UUID) -> None:
    collection = Collection(
        f"passages:{EARLIER}",
        256,
        keyword_fields=("organization_id", "archive_id", "tags", "agent_id", "file_id", "folder_id", "source"),
        datetime_fields=("created_at",),
        text_fields=("text",),
        tenant_field="archive_id",
    )
    await index.ensure_collection(collection)
    (vector,) = await make_embedder(HASHING).embed(["an oak"])
    payload = {
        "organization_id": ORG, "archive_id": archive, "passage_id": passage, "text": "an oak", "tags": ["tree"],
        "metadata": None, "source": "OWNER", "agent_id": None, "file_id": None, "folder_id": None, "file_name": None,
        "chunk_index": None, "created_at": instant(NOW), "updated_at": instant(NOW),
    }  # fmt: skip
    await index.write(collection.name, [Point(point, vector, "an oak", payload)])
