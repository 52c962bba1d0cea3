"""The store of turns and traces on SQL: each method of the port as one transaction, an export as one for each batch."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import astuple
from typing import Final

import sqlalchemy as sa
from mnemesh_kit.clock import Clock
from mnemesh_kit.idempotency import Ledger, RequestKey
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.sql import Database

from mnemesh_recall.model.trace_operations import Export, Import, Imported, InteractionFilter, Record, TurnFilter
from mnemesh_recall.model.traces import ToolInteraction, Turn
from mnemesh_recall.store.sql import trace_exports as exports
from mnemesh_recall.store.sql import trace_imports as imports
from mnemesh_recall.store.sql import trace_rows as traces
from mnemesh_recall.store.sql.fulltext.engines import word_index
from mnemesh_recall.store.sql.tables import request_ledger
from mnemesh_recall.store.sql.transaction import Transaction

TURNS_AT_ONCE: Final = 50


class SqlTraceStore:
    """Turns and traces on SQLite or PostgreSQL, in the database of the messages."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._ledger = Ledger(request_ledger, clock)
        self._words = word_index(database)

    async def list_turns(self, organization_id: str, wanted: TurnFilter, page: PageQuery) -> Page[Turn]:
        """See TraceStore."""
        return await self._database.read(lambda conn: traces.list_turns(conn, organization_id, wanted, page))

    async def list_interactions(
        self, organization_id: str, wanted: InteractionFilter, page: PageQuery
    ) -> Page[ToolInteraction]:
        """See TraceStore."""
        return await self._database.read(lambda conn: traces.list_interactions(conn, organization_id, wanted, page))

    async def export(self, organization_id: str, wanted: Export) -> AsyncIterator[Sequence[Record]]:
        """See TraceStore."""
        plan = await self._database.read(lambda conn: exports.plan(conn, organization_id, wanted))
        for start in range(0, len(plan.turns), TURNS_AT_ONCE):
            some = dict(plan.turns[start : start + TURNS_AT_ONCE])
            found = await self._database.read(
                lambda conn, some=some: traces.traces_as_of(  # type: ignore[misc]
                    conn, wanted.agent_id, some, plan.last_sequence_id
                )
            )
            yield [
                trace
                for turn_id in some
                for trace in found.get(turn_id, ())
                if exports.in_time(trace.created_at, wanted)
            ]
        yield plan.episodes
        yield plan.facts
        yield plan.snapshots

    async def import_records(self, organization_id: str, wanted: Import, key: RequestKey | None) -> Imported:
        """See TraceStore."""

        def put(conn: sa.Connection) -> Sequence[str]:
            tx = Transaction(conn, self._words, organization_id, self._clock.now())
            return [str(count) for count in astuple(imports.bring_in(tx, wanted))]

        def act(conn: sa.Connection) -> Imported:
            counts, _ = self._ledger.once(conn, key, lambda: put(conn))
            traces_, episodes, facts, skipped, turns = map(int, counts)
            return Imported(traces=traces_, episodes=episodes, facts=facts, skipped=skipped, turns=turns)

        return await self._database.write(act)
