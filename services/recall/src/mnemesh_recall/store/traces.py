"""The store of turns and traces on SQL. Each method is one transaction; an export has one per batch."""

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Final, TypeVar

import sqlalchemy as sa
from mnemesh_kit.idempotency import Ledger, RequestKey
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.sql import Database
from mnemesh_kit.time import Clock
from mnemesh_types.recall import Turn

from mnemesh_recall.errors import no_agent, no_conversation
from mnemesh_recall.model.episodes import Episode, Fact, ScopeKind
from mnemesh_recall.model.trace_requests import (
    ImportResult,
    InteractionFilter,
    Record,
    RecordType,
    TraceExport,
    TraceImport,
    TurnFilter,
)
from mnemesh_recall.model.traces import Snapshot, ToolInteraction
from mnemesh_recall.store import trace_imports as imports
from mnemesh_recall.store import trace_rows as traces
from mnemesh_recall.store import windows
from mnemesh_recall.store.episode_rows import episode_from_row, fact_from_row
from mnemesh_recall.store.fulltext.words import WordIndex
from mnemesh_recall.store.tables import agents, contexts, episodes, facts, request_ledger, turns
from mnemesh_recall.store.trace_rows import in_window
from mnemesh_recall.store.transaction import Transaction

M = TypeVar("M", Episode, Fact)

_t, _c = turns.c, contexts.c


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """The turns at the time of the export, in order, with whether they are archived, and all records but traces."""

    last_sequence_id: int
    turns: tuple[tuple[str, bool], ...]
    episodes: tuple[Episode, ...]
    facts: tuple[Fact, ...]
    snapshots: tuple[Snapshot, ...]


def plan_export(conn: sa.Connection, organization_id: str, export: TraceExport) -> ExportPlan:
    """Reads all records but the traces, and the turns of the traces.

    Raises:
        NotFound: the agent has no messages, or has no such conversation.
    """
    last = conn.scalar(
        sa.select(agents.c.last_sequence_id).where(
            agents.c.agent_id == export.agent_id, agents.c.organization_id == organization_id
        )
    )
    if last is None:
        raise no_agent(export.agent_id)
    if export.conversation_id is not None:
        _require_conversation(conn, export.agent_id, export.conversation_id)
    memories = list(_memories(conn, organization_id, export))
    imported_ids = {memory.id: memory.imported_id for memory in memories if memory.imported_id is not None}
    return ExportPlan(
        last_sequence_id=int(last),
        turns=tuple(_turns(conn, organization_id, export)) if export.includes_type(RecordType.TRACE) else (),
        episodes=tuple(_with_imported_ids(memory, imported_ids) for memory in memories if isinstance(memory, Episode)),
        facts=tuple(_with_imported_ids(memory, imported_ids) for memory in memories if isinstance(memory, Fact)),
        snapshots=tuple(_snapshots(conn, organization_id, export)) if export.includes_type(RecordType.SNAPSHOT) else (),
    )


def _require_conversation(conn: sa.Connection, agent_id: str, conversation_id: str) -> None:
    """Refuses a conversation of the agent without a window and without a turn. Raises NotFound."""
    for table in (contexts, turns):
        of_agent = sa.and_(table.c.agent_id == agent_id, table.c.conversation_id == conversation_id)
        if conn.scalar(sa.select(table.c.agent_id).where(of_agent).limit(1)) is not None:
            return
    raise no_conversation(conversation_id)


def _turns(conn: sa.Connection, organization_id: str, export: TraceExport) -> Iterator[tuple[str, bool]]:
    statement = sa.select(_t.turn_id, in_window().label("in_window")).where(
        _t.agent_id == export.agent_id, _t.organization_id == organization_id
    )
    if export.conversation_id is not None:
        statement = statement.where(_t.conversation_id == export.conversation_id)
    for row in conn.execute(statement.order_by(_t.turn_index)):
        if export.archived is None or export.archived is not bool(row.in_window):
            yield row.turn_id, not row.in_window


def _memories(conn: sa.Connection, organization_id: str, export: TraceExport) -> Iterator[Episode | Fact]:
    for kind, table in ((RecordType.EPISODE, episodes), (RecordType.FACT, facts)):
        if not export.includes_type(kind):
            continue
        column = table.c
        is_named = sa.and_(column.scope_kind == ScopeKind.NAME.value, column.scope_id.in_(export.scope_names))
        rows = conn.execute(
            sa.select(table)
            .where(
                column.organization_id == organization_id, sa.or_(column.owner_agent_id == export.agent_id, is_named)
            )
            .order_by(column.created_at, column.row_id)
        )
        for row in rows:
            memory = episode_from_row(row) if table is episodes else fact_from_row(row)
            if export.includes_memory(memory):
                yield memory


def _with_imported_ids(memory: M, imported_ids: dict[str, str]) -> M:
    """Returns a memory with the ids of the trace file that it was imported from."""
    own = imported_ids.get(memory.id, memory.id)
    source = memory.source
    if source.episode_id in imported_ids:
        source = replace(source, episode_id=imported_ids[source.episode_id])
    if isinstance(memory, Episode):
        return replace(memory, id=own, source=source)
    links = {
        link: imported_ids.get(id_, id_)
        for link in ("superseded_by_id", "supersedes_id")
        if (id_ := getattr(memory, link)) is not None
    }
    return replace(memory, id=own, source=source, **links)


def _snapshots(conn: sa.Connection, organization_id: str, export: TraceExport) -> Iterator[Snapshot]:
    statement = sa.select(_c.conversation_id, _c.resets, _c.reset_at).where(
        _c.agent_id == export.agent_id, _c.organization_id == organization_id
    )
    if export.conversation_id is not None:
        statement = statement.where(_c.conversation_id == export.conversation_id)
    for row in conn.execute(statement.order_by(_c.created_at, _c.conversation_id)).all():
        window = windows.read_messages(conn, row.conversation_id)
        yield Snapshot(row.conversation_id, row.resets + 1, row.reset_at, window)


TURN_BATCH: Final = 50


class TraceStore:
    """The turns, traces and tool interactions of all organizations: views of their messages.

    A message gets its turn in the transaction that stores it. The index of a turn is counted per agent and is never
    used again. A turn whose last message was deleted no longer exists.

    Example:
        page = await store.list_turns(organization_id, TurnFilter(agent_id=agent_id, with_traces=True), page_query)
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._ledger = Ledger(database, request_ledger, clock)
        self._index = WordIndex(database)

    async def list_turns(self, organization_id: str, filter_: TurnFilter, page: PageQuery) -> Page[Turn]:
        """Returns a page, ordered by index, in one consistent read."""
        return await self._database.read(lambda conn: traces.list_turns(conn, organization_id, filter_, page))

    async def list_interactions(
        self, organization_id: str, filter_: InteractionFilter, page: PageQuery
    ) -> Page[ToolInteraction]:
        """Returns a page in the order in which the calls were stored.

        A call whose id repeats is paired with the next return that has this id.
        """
        return await self._database.read(lambda conn: traces.list_interactions(conn, organization_id, filter_, page))

    async def export(self, organization_id: str, export: TraceExport) -> AsyncIterator[Sequence[Record]]:
        """Yields the records in batches: traces by turn and seq, episodes and facts by creation time, snapshots.

        Rows that are stored after the first batch was requested are left out. A memory that was imported from a trace
        file has its id in that file.

        Raises:
            NotFound: the agent has no messages, or has no such conversation.
        """
        plan = await self._database.read(lambda conn: plan_export(conn, organization_id, export))
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
        """Stores the records that the agent does not have, all or none.

        A turn whose id belongs to another turn of the agent is renumbered, and so are the other new turns.

        Raises:
            AlreadyExists: the agent has a record with that id and other content, or two traces of the import have the
                same position of a turn (metadata: record_id).
            NotFound: the conversation does not exist, or the agent is another organization's.
            Erased: the agent was erased.
        """

        def put(conn: sa.Connection) -> Sequence[str]:
            tx = Transaction(conn, self._index, organization_id, self._clock.now())
            return [str(count) for count in astuple(imports.import_records(tx, request))]

        counts, _ = await self._ledger.write_once(key, put)
        traces_, episodes, facts, skipped, turns = map(int, counts)
        return ImportResult(traces=traces_, episodes=episodes, facts=facts, skipped=skipped, turns=turns)
