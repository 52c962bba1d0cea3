"""Recording a batch: which of its passages are new, under which ids and points, in which archive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
import sqlalchemy as sa
from mnemesh_kit.ids import derive_id

from mnemesh_archival.errors import ArchiveMoved, PassageExists
from mnemesh_archival.model.archives import Archive, Provenance
from mnemesh_archival.model.operations import InsertPoints, point_of
from mnemesh_archival.model.passages import InsertTarget, Passage
from mnemesh_archival.store.base import DefaultArchive, InsertBatch, InsertEntry
from mnemesh_archival.store.sql import archive_rows, operation_rows, reembedding_rows
from mnemesh_archival.store.sql import passage_rows as rows
from mnemesh_archival.store.sql.tables import archives, passages

DEFAULT_NAME = "Archival memory"


def record(
    conn: sa.Connection, organization_id: str, insert: InsertBatch, now: datetime
) -> tuple[list[str], InsertPoints | None]:
    """Write a batch and its work; its entries, as the request ledger keeps them, and that work, if there is any."""
    row = _resolved(conn, organization_id, insert, now)
    for agent_id in {passage.agent_id for passage in insert.passages if passage and passage.agent_id}:
        archive_rows.require_agent(conn, organization_id, agent_id)
    given = [passage for passage in insert.passages if passage is not None]
    known = {found.id for found in rows.rows(conn, organization_id, [passage.id for passage in given])}
    hashes = {passage.id: rows.content_hash(passage.text) for passage in given}
    twins = rows.twins(conn, organization_id, row.id, list(hashes.values())) if row.deduplicate else {}
    entries: list[InsertEntry] = []
    fresh: list[Passage] = []
    for passage in insert.passages:
        if passage is None:
            entries.append(InsertEntry())
        elif passage.id in known:
            taken = InsertEntry(reason="ALREADY_EXISTS") if passage.id in insert.given_ids else InsertEntry(passage.id)
            entries.append(taken)
        elif hashes[passage.id] in twins:
            entries.append(InsertEntry(twins[hashes[passage.id]], duplicate=True))
        else:
            entries.append(InsertEntry(passage.id))
            fresh.append(replace(passage, archive_id=row.id))
            known.add(passage.id)
            if row.deduplicate:
                twins[hashes[passage.id]] = passage.id
    if not any(entry.passage_id for entry in entries):
        raise PassageExists(next(passage.id for passage in given))
    operation = _add_insert(conn, organization_id, insert, fresh, hashes, now) if fresh else None
    return [msgspec.json.encode(entry).decode() for entry in entries], operation


def _resolved(conn: sa.Connection, organization_id: str, insert: InsertBatch, now: datetime) -> sa.Row[Any]:
    """The archive that the batch goes to, made where an agent has none."""
    row = target_row(conn, organization_id, insert.target)
    if row is None:
        assert insert.target.agent_id is not None  # noqa: S101 - an archive target raises when it is not there
        row = _make_default(conn, organization_id, insert.target.agent_id, insert.default, now)
    if row.embedder != insert.embedder:
        raise ArchiveMoved(row.id)
    reembedding_rows.require_open(conn, organization_id, row.id, now)
    return row


def _make_default(
    conn: sa.Connection, organization_id: str, agent_id: str, default: DefaultArchive, now: datetime
) -> sa.Row[Any]:
    """The agent's own archive. Its id follows from the agent's; the next such id where one is spent."""
    number = 0
    while True:
        archive_id = derive_id("archive", organization_id, agent_id, str(number))
        if (
            conn.execute(sa.select(archives.c.id).where(archive_rows.is_archive(organization_id, archive_id))).first()
            is None
        ):
            break
        number += 1
    archive = Archive(
        id=archive_id,
        name=DEFAULT_NAME,
        description=None,
        embedder=default.embedder,
        dimension=default.dimension,
        metadata=None,
        deduplicate=False,
        created_at=now,
        updated_at=now,
        provenance=Provenance(created_by_id=default.subject_id, last_updated_by_id=default.subject_id),
    )
    archive_rows.insert(conn, organization_id, archive)
    archive_rows.attach(conn, organization_id, agent_id, archive_id, now)
    return archive_rows.require(conn, organization_id, archive_id)


def _add_insert(
    conn: sa.Connection,
    organization_id: str,
    insert: InsertBatch,
    fresh: Sequence[Passage],
    hashes: dict[str, str],
    now: datetime,
) -> InsertPoints:
    points = [_free_point(conn, organization_id, passage.id, passage.id in insert.given_ids) for passage in fresh]
    behind = rows.next_position(conn, organization_id, fresh[0].archive_id)
    conn.execute(
        passages.insert(),
        [
            {
                "organization_id": organization_id,
                "id": passage.id,
                "archive_id": passage.archive_id,
                "point_id": str(point),
                "state": "pending",
                "tags": msgspec.json.encode(passage.tags).decode(),
                "content_hash": hashes[passage.id],
                "agent_id": passage.agent_id,
                "position": position,
                "strand": rows.strand(passage),
                "created_at": passage.created_at,
            }
            for position, (passage, point) in enumerate(zip(fresh, points, strict=True), start=behind)
        ],
    )
    operation = InsertPoints(insert.operation_id, organization_id, insert.embedder, tuple(fresh), tuple(points))
    operation_rows.add(conn, operation, now)
    return operation


def _free_point(conn: sa.Connection, organization_id: str, passage_id: str, given: bool) -> UUID:
    """The passage's own UUID; another where an importer of another organization brought the same id."""
    point = point_of(passage_id)
    if given and conn.execute(sa.select(passages.c.id).where(passages.c.point_id == str(point))).first() is not None:
        return point_of(derive_id("passage", organization_id, passage_id))
    return point


def target_row(conn: sa.Connection, organization_id: str, target: InsertTarget) -> sa.Row[Any] | None:
    """The archive that a target means; None for an agent that holds none yet."""
    if target.archive_id is not None:
        return archive_rows.require(conn, organization_id, target.archive_id)
    assert target.agent_id is not None  # noqa: S101 - a target is one of both
    archive_rows.require_agent(conn, organization_id, target.agent_id)
    held = archive_rows.held(conn, organization_id, target.agent_id)
    return held[0] if held else None
