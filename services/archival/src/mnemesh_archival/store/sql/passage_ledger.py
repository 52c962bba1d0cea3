"""The ledger of passages in SQL."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
import sqlalchemy as sa
from mnemesh_kit.clock import Clock
from mnemesh_kit.idempotency import Ledger, RequestKey
from mnemesh_kit.ids import IdSource
from mnemesh_kit.sql import Database
from mnemesh_retrieval.index import Position

from mnemesh_archival.errors import ArchiveReembedding, PassageBusy, PassageNotFound
from mnemesh_archival.model.inserts import InsertEntry, InsertTarget
from mnemesh_archival.model.operations import DeletePoints, InsertPoints, Operation, UpdatePoint
from mnemesh_archival.model.passages import PassageChange, PassagePosition, content_hash
from mnemesh_archival.store.base.passage_ledger import InsertBatch, PassageRow, RecordedInsert, ResolvedTarget
from mnemesh_archival.store.sql import archive_rows, batch_inserts, operation_rows, reembedding_rows
from mnemesh_archival.store.sql import passage_rows as rows
from mnemesh_archival.store.sql.tables import passages, request_ledger


class SqlPassageLedger:
    """See PassageLedger."""

    def __init__(self, database: Database, clock: Clock, ids: IdSource) -> None:
        self._database = database
        self._clock = clock
        self._ids = ids
        self._requests = Ledger(request_ledger, clock)

    async def resolve_target(
        self, organization_id: str, target: InsertTarget, default_embedder: str, key: RequestKey | None
    ) -> ResolvedTarget:
        """See PassageLedger.resolve_target."""

        def read(conn: sa.Connection) -> ResolvedTarget:
            if key is not None and self._is_known(conn, key):
                return ResolvedTarget(None, default_embedder, is_replay=True)
            row = batch_inserts.target_row(conn, organization_id, target)
            if row is None:
                return ResolvedTarget(None, default_embedder, is_replay=False)
            return ResolvedTarget(row.id, row.embedder, is_replay=False)

        return await self._database.read(read)

    async def record_insert(self, organization_id: str, batch: InsertBatch, key: RequestKey | None) -> RecordedInsert:
        """See PassageLedger.record_insert."""

        def write(conn: sa.Connection) -> RecordedInsert:
            recorded: list[Operation] = []

            def effect() -> list[str]:
                entries, operation = batch_inserts.record(conn, organization_id, batch, self._clock.now())
                recorded.extend([operation] if operation is not None else [])
                return entries

            written, replayed = self._requests.once(conn, key, effect)
            entries = tuple(msgspec.json.decode(entry, type=InsertEntry) for entry in written)
            operation = (
                operation_rows.by_id(conn, organization_id, batch.operation_id)
                if replayed
                else next(iter(recorded), None)
            )
            return RecordedInsert(entries, operation if isinstance(operation, InsertPoints) else None, replayed)

        return await self._database.write(write)

    async def settle_insert(self, operation: InsertPoints) -> Operation | None:
        """See PassageLedger.settle_insert."""
        organization_id = operation.organization_id

        def write(conn: sa.Connection) -> Operation | None:
            now = self._clock.now()
            settled = rows.settle(conn, organization_id, [passage.id for passage in operation.passages])
            new = [passage for passage in operation.passages if passage.id in settled]
            if new:
                tags = Counter(tag for passage in new for tag in passage.tags)
                archive_rows.count_passages(conn, organization_id, new[0].archive_id, len(new), tags, now)
            operation_rows.remove(conn, operation)
            others = [passage.id for passage in operation.passages if passage.id not in settled]
            live = settled.union(row.id for row in rows.rows(conn, organization_id, others) if row.state == "live")
            pairs = zip(operation.passages, operation.point_ids, strict=True)
            deleted = tuple(point for passage, point in pairs if passage.id not in live)
            return self._add_delete(conn, organization_id, operation.embedder, deleted) if deleted else None

        return await self._database.write(write)

    async def find(self, organization_id: str, passage_ids: Sequence[str]) -> dict[str, PassageRow]:
        """See PassageLedger.find."""

        def read(conn: sa.Connection) -> dict[str, PassageRow]:
            return {
                row.id: _passage_row(row)
                for row in rows.rows(conn, organization_id, passage_ids)
                if row.state == "live"
            }

        return await self._database.read(read)

    async def list_position(self, organization_id: str, passage_id: str) -> Position:
        """See PassageLedger.list_position."""

        def read(conn: sa.Connection) -> Position:
            for row in rows.rows(conn, organization_id, [passage_id]):
                return Position(row.created_at, UUID(row.point_id))
            raise PassageNotFound(passage_id)

        return await self._database.read(read)

    async def neighbours(self, organization_id: str, point_ids: Sequence[UUID], reach: int) -> list[PassagePosition]:
        """See PassageLedger.neighbours."""
        return await self._database.read(lambda conn: rows.neighbours(conn, organization_id, point_ids, reach))

    async def record_update(
        self, organization_id: str, operation_id: str, known: PassageRow, change: PassageChange, key: RequestKey | None
    ) -> UpdatePoint | None:
        """See PassageLedger.record_update."""

        def write(conn: sa.Connection) -> UpdatePoint | None:
            recorded: list[UpdatePoint] = []

            def effect() -> list[str]:
                row = _require_live(conn, organization_id, known.id)
                if row.embedder != known.embedder:
                    raise ArchiveReembedding(row.archive_id)
                reembedding_rows.require_not_paused(conn, organization_id, row.archive_id, self._clock.now())
                if operation_rows.update_of(conn, organization_id, row.id) is not None:
                    raise PassageBusy(row.id)
                _record_change(conn, organization_id, row, change)
                update = UpdatePoint(
                    operation_id, organization_id, row.embedder, row.id, known.point_id, change, row.archive_id
                )
                recorded.append(update)
                operation_rows.add(conn, update, change.updated_at)
                return [row.id]

            self._requests.once(conn, key, effect)
            return recorded[0] if recorded else None

        return await self._database.write(write)

    async def unfinished_update(self, organization_id: str, passage_id: str) -> Operation | None:
        """See PassageLedger.unfinished_update."""
        return await self._database.read(lambda conn: operation_rows.update_of(conn, organization_id, passage_id))

    async def record_delete(
        self, organization_id: str, operation_id: str, passage_id: str, key: RequestKey | None
    ) -> tuple[Operation, ...]:
        """See PassageLedger.record_delete."""

        def write(conn: sa.Connection) -> tuple[Operation, ...]:
            recorded: list[Operation] = []

            def effect() -> list[str]:
                now = self._clock.now()
                for row in rows.rows(conn, organization_id, [passage_id]):
                    if row.state == "deleted":
                        return [passage_id]
                    conn.execute(
                        passages.update()
                        .where(rows.by_ids(organization_id, [passage_id]))
                        .values(**rows.tombstone_values(now))
                    )
                    if row.state == "live":
                        tags = archive_rows.tag_counter([row.tags])
                        fewer = Counter({tag: -uses for tag, uses in tags.items()})
                        archive_rows.count_passages(conn, organization_id, row.archive_id, -1, fewer, now)
                    for embedder in archive_rows.embedders(conn, organization_id, row.archive_id):
                        name = f"{operation_id}/{len(recorded)}"
                        recorded.append(self._add_delete(conn, organization_id, embedder, (UUID(row.point_id),), name))
                    return [passage_id]
                raise PassageNotFound(passage_id)

            self._requests.once(conn, key, effect)
            return tuple(recorded)

        return await self._database.write(write)

    async def settle(self, operation: Operation) -> None:
        """See PassageLedger.settle."""
        await self._database.write(lambda conn: operation_rows.remove(conn, operation))

    async def claim_unsettled(self, *, everything: bool, limit: int = 100) -> list[Operation]:
        """See PassageLedger.claim_unsettled."""
        return await self._database.write(lambda conn: operation_rows.claim(conn, self._clock.now(), everything, limit))

    async def is_reembedding(self, organization_id: str, archive_id: str) -> bool:
        """See PassageLedger.is_reembedding."""
        return (
            await self._database.read(lambda conn: reembedding_rows.target(conn, organization_id, archive_id))
            is not None
        )

    async def purge_requests(self) -> int:
        """See PassageLedger.purge_requests."""
        return await self._database.write(self._requests.purge)

    async def purge_tombstones(self, older_than: datetime) -> int:
        """See PassageLedger.purge_tombstones."""
        old = passages.delete().where(passages.c.deleted_at < older_than, passages.c.state == "deleted")
        return await self._database.write(lambda conn: conn.execute(old).rowcount)

    def _is_known(self, conn: sa.Connection, key: RequestKey) -> bool:
        ledger = request_ledger.c
        query = sa.select(ledger.request_id).where(
            ledger.organization_id == key.organization_id,
            ledger.method == key.method,
            ledger.request_id == key.request_id,
        )
        return conn.execute(query).first() is not None

    def _add_delete(
        self, conn: sa.Connection, organization_id: str, embedder: str, points: tuple[UUID, ...], operation_id: str = ""
    ) -> DeletePoints:
        operation = DeletePoints(operation_id or self._ids.new("operation"), organization_id, embedder, points)
        operation_rows.add(conn, operation, self._clock.now())
        return operation


def _require_live(conn: sa.Connection, organization_id: str, passage_id: str) -> sa.Row[Any]:
    for row in rows.rows(conn, organization_id, [passage_id]):
        if row.state == "live":
            return row
    raise PassageNotFound(passage_id)


def _record_change(conn: sa.Connection, organization_id: str, row: sa.Row[Any], change: PassageChange) -> None:
    values: dict[str, Any] = {"generation": 0, "changes": passages.c.changes + 1}
    tags: Counter[str] = Counter()
    if "text" in change.fields:
        values["content_hash"] = content_hash(change.text)
    if "tags" in change.fields:
        values["tags"] = msgspec.json.encode(change.tags).decode()
        tags.update(change.tags)
        tags.subtract(archive_rows.tag_counter([row.tags]))
    conn.execute(passages.update().where(rows.by_ids(organization_id, [row.id])).values(**values))
    archive_rows.count_passages(conn, organization_id, row.archive_id, 0, tags, change.updated_at)


def _passage_row(row: sa.Row[Any]) -> PassageRow:
    return PassageRow(row.id, row.archive_id, row.embedder, UUID(row.point_id), row.created_at)
