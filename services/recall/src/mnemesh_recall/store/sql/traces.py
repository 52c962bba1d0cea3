"""The store of turns and traces on SQL. Each method is one transaction; an export has one per batch."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import astuple
from typing import Final

import sqlalchemy as sa
from mnemesh_kit.clock import Clock
from mnemesh_kit.idempotency import Ledger, RequestKey
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.sql import Database

from mnemesh_recall.model.tool_interactions import ToolInteraction
from mnemesh_recall.model.trace_operations import (
    ImportResult,
    InteractionFilter,
    Record,
    TraceExport,
    TraceImport,
    TurnFilter,
)
from mnemesh_recall.model.traces import Turn
from mnemesh_recall.store.sql import trace_exports as exports
from mnemesh_recall.store.sql import trace_imports as imports
from mnemesh_recall.store.sql import trace_rows as traces
from mnemesh_recall.store.sql.fulltext.engines import fulltext_index
from mnemesh_recall.store.sql.tables import request_ledger
from mnemesh_recall.store.sql.transaction import Transaction
from mnemesh_recall.store.sql.word_segments.changed import ChangedAgents

TURN_BATCH: Final = 50


class SqlTraceStore:
    """The turns and traces on SQLite or PostgreSQL, in the database of the messages."""

    def __init__(self, database: Database, clock: Clock, changed: ChangedAgents | None = None) -> None:
        self._database = database
        self._clock = clock
        self._ledger = Ledger(request_ledger, clock)
        self._fulltext = fulltext_index(database, changed)

    async def list_turns(self, organization_id: str, filter_: TurnFilter, page: PageQuery) -> Page[Turn]:
        """See TraceStore."""
        return await self._database.read(lambda conn: traces.list_turns(conn, organization_id, filter_, page))

    async def list_interactions(
        self, organization_id: str, filter_: InteractionFilter, page: PageQuery
    ) -> Page[ToolInteraction]:
        """See TraceStore."""
        return await self._database.read(lambda conn: traces.list_interactions(conn, organization_id, filter_, page))

    async def export(self, organization_id: str, export: TraceExport) -> AsyncIterator[Sequence[Record]]:
        """See TraceStore."""
        plan = await self._database.read(lambda conn: exports.plan(conn, organization_id, export))
        for start in range(0, len(plan.turns), TURN_BATCH):
            batch = dict(plan.turns[start : start + TURN_BATCH])
            found = await self._database.read(
                lambda conn, batch=batch: traces.traces_as_of(  # type: ignore[misc]
                    conn, export.agent_id, batch, plan.last_sequence_id
                )
            )
            yield [
                trace for turn_id in batch for trace in found.get(turn_id, ()) if export.includes_time(trace.created_at)
            ]
        yield plan.episodes
        yield plan.facts
        yield plan.snapshots

    async def import_records(self, organization_id: str, request: TraceImport, key: RequestKey | None) -> ImportResult:
        """See TraceStore."""

        def put(conn: sa.Connection) -> Sequence[str]:
            tx = Transaction(conn, self._fulltext, organization_id, self._clock.now())
            return [str(count) for count in astuple(imports.import_records(tx, request))]

        def act(conn: sa.Connection) -> ImportResult:
            counts, _ = self._ledger.once(conn, key, lambda: put(conn))
            traces_, episodes, facts, skipped, turns = map(int, counts)
            return ImportResult(traces=traces_, episodes=episodes, facts=facts, skipped=skipped, turns=turns)

        return await self._database.write(act)
