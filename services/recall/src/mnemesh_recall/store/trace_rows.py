"""Reads of turns, traces and tool interactions from the rows of messages, and the rows of imported lines."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from mnemesh_kit.errors import NotFound
from mnemesh_kit.paging import Cursor, Page, PageQuery, fitting
from mnemesh_kit.sql.pages import paginate
from mnemesh_types.messages import Message, Role
from mnemesh_types.recall import Media, Turn

from mnemesh_recall.model.trace_requests import InteractionFilter, TurnFilter
from mnemesh_recall.model.traces import ImportedLine, ToolInteraction, Trace, pair, traces_of_turn
from mnemesh_recall.store.episode_rows import TURN, turn_link
from mnemesh_recall.store.message_rows import COLUMNS, message_from_row
from mnemesh_recall.store.tables import (
    context_entries,
    episodes,
    memory_links,
    messages,
    tool_call_rows,
    trace_lines,
    turns,
)

_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode


def line_to_row(line: ImportedLine, agent_id: str) -> dict[str, Any]:
    """Returns the columns of a line."""
    return {
        "message_id": line.message_id,
        "ordinal": line.ordinal,
        "agent_id": agent_id,
        "trace_id": line.trace_id,
        "seq": line.seq,
        "differing": msgspec.json.encode(line.overrides).decode(),
    }


def line_from_row(row: sa.Row[Any]) -> ImportedLine:
    """Returns the line of a row that selects all columns."""
    overrides = _decode(row.differing)
    if overrides.get("media") is not None:
        overrides["media"] = Media(**{name: tuple(urls) for name, urls in overrides["media"].items()})
    if "tags" in overrides:
        overrides["tags"] = tuple(overrides["tags"])
    if "created_at" in overrides:
        overrides["created_at"] = datetime.fromisoformat(overrides["created_at"])
    return ImportedLine(row.message_id, row.ordinal, row.trace_id, row.seq, overrides)


_t, _m, _r, _l = turns.c, messages.c, tool_call_rows.c, trace_lines.c
CALL_BATCH: Final = 200
"""The number of messages with calls that are read at a time."""
_MAKES_CALLS: Final = sa.and_(_m.tool_calls.is_not(None), _m.role != Role.APPROVAL.value)
"""A request for approval repeats the calls of another message."""


def in_window(turn: Any = turns) -> sa.ColumnElement[bool]:
    """Returns the condition that a window contains a message of the turn."""
    return (
        sa.exists()
        .where(
            _m.agent_id == turn.c.agent_id,
            _m.turn_id == turn.c.turn_id,
            context_entries.c.message_id == _m.id,
        )
        .correlate(turn)
    )


def list_turns(conn: sa.Connection, organization_id: str, filter_: TurnFilter, page: PageQuery) -> Page[Turn]:
    """See TraceStore.list_turns."""
    of_agent = sa.and_(_t.agent_id == filter_.agent_id, _t.organization_id == organization_id)
    statement = sa.select(turns, in_window().label("in_window")).where(of_agent)
    if filter_.conversation_id is not None:
        statement = statement.where(_t.conversation_id == filter_.conversation_id)
    if filter_.turn_ids:
        statement = statement.where(_t.turn_id.in_(filter_.turn_ids))
    if filter_.from_time is not None:
        statement = statement.where(_t.started_at >= filter_.from_time)
    if filter_.before_time is not None:
        statement = statement.where(_t.started_at < filter_.before_time)
    if filter_.compacted is not None:
        statement = statement.where(~in_window() if filter_.compacted else in_window())
    page_of_rows = paginate(conn, statement, page, key=_t.turn_index, id=_t.turn_id, scope=of_agent)
    if filter_.with_traces:
        page_of_rows = _fitting_page(conn, filter_.agent_id, page_of_rows, page.max_bytes)
    rows = page_of_rows.items
    ids = [row.turn_id for row in rows]
    counts = _counts(conn, filter_.agent_id, ids)
    episode_ids = _covering_episodes(conn, filter_.agent_id, ids)
    archived = {row.turn_id: not row.in_window for row in rows}
    traces_of = traces_as_of(conn, filter_.agent_id, archived) if filter_.with_traces else {}
    return page_of_rows.map(
        lambda row: Turn(
            id=row.turn_id,
            agent_id=row.agent_id,
            conversation_id=row.conversation_id or "",
            index=row.turn_index,
            compacted=not row.in_window,
            episode_id=episode_ids.get(row.turn_id),
            started_at=row.started_at,
            imported_id=row.imported_id,
            traces=traces_of.get(row.turn_id, ()),
            **counts[row.turn_id],
        )
    )


def _fitting_page(conn: sa.Connection, agent_id: str, page: Page[Any], max_bytes: int | None) -> Page[Any]:
    """Returns as much of a page of turns as fits into a response with the traces."""
    columns = (_m.content, _m.tool_calls, _m.tool_returns)
    size = sum((sa.func.coalesce(sa.func.sum(sa.func.length(column)), 0) for column in columns), sa.literal(0))
    ids = [row.turn_id for row in page.items]
    statement = sa.select(_m.turn_id, size).where(_m.agent_id == agent_id, _m.turn_id.in_(ids)).group_by(_m.turn_id)
    sizes = {turn_id: int(size) for turn_id, size in conn.execute(statement)}
    return page.first(fitting(page.items, lambda row: sizes.get(row.turn_id, 0), max_bytes))


def traces(conn: sa.Connection, agent_id: str, turn_ids: Sequence[str]) -> dict[str, tuple[Trace, ...]]:
    """Returns the traces of turns, by turn."""
    shown = sa.select(_t.turn_id, in_window()).where(_t.agent_id == agent_id, _t.turn_id.in_(turn_ids))
    return traces_as_of(conn, agent_id, {row[0]: not row[1] for row in conn.execute(shown)})


def traces_as_of(
    conn: sa.Connection, agent_id: str, archived: Mapping[str, bool], last_sequence_id: int | None = None
) -> dict[str, tuple[Trace, ...]]:
    """Returns the traces of turns, by turn, up to a sequence id. `archived` maps a turn to whether it is archived."""
    turn_ids = list(archived)
    statement = sa.select(*COLUMNS).where(_m.agent_id == agent_id, _m.turn_id.in_(turn_ids))
    if last_sequence_id is not None:
        statement = statement.where(_m.sequence_id <= last_sequence_id)
    rows = conn.execute(statement.order_by(_m.sequence_id))
    by_turn: dict[str, list[Message]] = {}
    for message in map(message_from_row, rows):
        by_turn.setdefault(message.turn_id or "", []).append(message)
    in_turns = sa.select(_m.id).where(_m.agent_id == agent_id, _m.turn_id.in_(turn_ids))
    lines: dict[str, list[ImportedLine]] = {}
    for row in conn.execute(sa.select(trace_lines).where(_l.agent_id == agent_id, _l.message_id.in_(in_turns))):
        lines.setdefault(row.message_id, []).append(line_from_row(row))
    imported = dict(
        conn.execute(
            sa.select(_t.turn_id, _t.imported_id).where(_t.agent_id == agent_id, _t.turn_id.in_(turn_ids))
        ).all()
    )
    return {
        turn_id: traces_of_turn(found, lines, archived=archived[turn_id], imported_turn_id=imported.get(turn_id))
        for turn_id, found in by_turn.items()
    }


def list_interactions(
    conn: sa.Connection, organization_id: str, filter_: InteractionFilter, page: PageQuery
) -> Page[ToolInteraction]:
    """See TraceStore.list_interactions."""
    start = page.cursor or (
        _cursor_of(conn, organization_id, filter_.agent_id, "after_id", page.after_id)
        if page.after_id is not None
        else None
    )
    stop = (
        _cursor_of(conn, organization_id, filter_.agent_id, "before_id", page.before_id)
        if page.before_id is not None
        else None
    )
    found: list[tuple[Cursor, ToolInteraction]] = []
    size = 0
    for interaction in _interactions(conn, organization_id, filter_, start, ascending=page.ascending):
        cursor = Cursor(interaction.calling.sequence_id, interaction.call.id)
        if stop is not None and _reached(cursor, stop, ascending=page.ascending):
            break
        if filter_.tool_name is not None and interaction.call.name != filter_.tool_name:
            continue
        if filter_.statuses and interaction.status not in filter_.statuses:
            continue
        found.append((cursor, interaction))
        size += _interaction_bytes(interaction)
        if len(found) > page.limit or (len(found) > 1 and page.max_bytes is not None and size > page.max_bytes):
            break
    all_found = Page(tuple(item for _, item in found), tuple(cursor for cursor, _ in found))
    return all_found.first(min(page.limit, fitting(all_found.items, _interaction_bytes, page.max_bytes)))


def _interaction_bytes(interaction: ToolInteraction) -> int:
    returned = interaction.tool_return
    return len(interaction.call.arguments) + (0 if returned is None else len(returned.text))


def _reached(cursor: Cursor, stop: Cursor, *, ascending: bool) -> bool:
    if cursor == stop:
        return True
    here, there = int(cursor.value or 0), int(stop.value or 0)
    return here > there if ascending else here < there


def _interactions(
    conn: sa.Connection,
    organization_id: str,
    filter_: InteractionFilter,
    start: Cursor | None,
    *,
    ascending: bool,
) -> Iterator[ToolInteraction]:
    statement = sa.select(*COLUMNS).where(
        _m.agent_id == filter_.agent_id, _m.organization_id == organization_id, _MAKES_CALLS
    )
    for column, value in (
        (_m.conversation_id, filter_.conversation_id), (_m.turn_id, filter_.turn_id), (_m.run_id, filter_.run_id),
    ):  # fmt: skip
        if value is not None:
            statement = statement.where(column == value)
    statement = statement.order_by(_m.sequence_id.asc() if ascending else _m.sequence_id.desc()).limit(CALL_BATCH)
    at, skip = (None, None) if start is None else (int(start.value or 0), start.id)
    while True:
        # The message of the cursor is read again, because it may contain further calls.
        rows = statement if at is None else statement.where(_m.sequence_id >= at if ascending else _m.sequence_id <= at)
        calling = [message_from_row(row) for row in conn.execute(rows)]
        others = _mentioning(conn, filter_.agent_id, [call.id for message in calling for call in message.tool_calls])
        for message in calling:
            calls = message.tool_calls if ascending else message.tool_calls[::-1]
            if message.sequence_id == at:
                ids = [call.id for call in calls]
                calls = calls[ids.index(skip) + 1 :] if skip in ids else ()
            for call in calls:
                yield pair(message, call, others.get(call.id, ()))
        if len(calling) < CALL_BATCH:
            return
        last = calling[-1]
        at, skip = last.sequence_id, (last.tool_calls if ascending else last.tool_calls[::-1])[-1].id


def _mentioning(conn: sa.Connection, agent_id: str, call_ids: Sequence[str]) -> dict[str, list[Message]]:
    """Returns the messages of an agent that make, return or decide each call, by call id, ordered by sequence id."""
    rows = conn.execute(
        sa.select(*COLUMNS, _r.tool_call_id)
        .join_from(tool_call_rows, messages, _m.id == _r.message_id)
        .where(_r.tool_call_id.in_(call_ids), _m.agent_id == agent_id)
        .order_by(_m.sequence_id)
    )
    found: dict[str, list[Message]] = {}
    for row in rows:
        found.setdefault(row.tool_call_id, []).append(message_from_row(row))
    return found


def _cursor_of(conn: sa.Connection, organization_id: str, agent_id: str, field: str, call_id: str) -> Cursor:
    sequence_id = conn.scalar(
        sa.select(_m.sequence_id)
        .join_from(tool_call_rows, messages, _m.id == _r.message_id)
        .where(
            _r.tool_call_id == call_id,
            _m.agent_id == agent_id,
            _m.organization_id == organization_id,
            _MAKES_CALLS,
        )
        .order_by(_m.sequence_id)
        .limit(1)
    )
    if sequence_id is None:
        raise NotFound(f"{field} names no row of this list.", field=field, resource_id=call_id)
    return Cursor(int(sequence_id), call_id)


def _counts(conn: sa.Connection, agent_id: str, turn_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
    calls = sa.cast(_m.tool_calls, sa.JSON) if conn.dialect.name == "postgresql" else _m.tool_calls
    made = sa.case((_m.role != Role.APPROVAL.value, calls))
    first, last = sa.func.min(_m.sequence_id), sa.func.max(_m.sequence_id)
    summed = (
        sa.select(
            _m.turn_id,
            first.label("first"),
            last.label("last"),
            sa.func.count().label("message_count"),
            sa.func.coalesce(sa.func.sum(sa.func.json_array_length(made)), 0).label("tool_call_count"),
        )
        .where(_m.agent_id == agent_id, _m.turn_id.in_(turn_ids))
        .group_by(_m.turn_id)
        .subquery("summed")
    )
    start, end = messages.alias("start"), messages.alias("end")
    rows = conn.execute(
        sa.select(
            summed,
            start.c.id.label("first_id"),
            end.c.id.label("last_id"),
            end.c.created_at.label("ended_at"),
        )
        .join_from(summed, start, sa.and_(start.c.agent_id == agent_id, start.c.sequence_id == summed.c.first))
        .join(end, sa.and_(end.c.agent_id == agent_id, end.c.sequence_id == summed.c.last))
    )
    return {
        row.turn_id: {
            "first_message_id": row.first_id,
            "last_message_id": row.last_id,
            "message_count": int(row.message_count),
            "tool_call_count": int(row.tool_call_count),
            "ended_at": row.ended_at,
        }
        for row in rows
    }


def _covering_episodes(conn: sa.Connection, agent_id: str, turn_ids: Sequence[str]) -> dict[str, str]:
    """Returns the newest episode that covers each turn, by turn. Turns without one are left out."""
    links = memory_links.c
    rows = conn.execute(
        sa.select(links.value, episodes.c.id)
        .join_from(memory_links, episodes, episodes.c.id == links.memory_id)
        .where(links.kind == TURN, links.value.in_([turn_link(agent_id, id_) for id_ in turn_ids]))
        .order_by(episodes.c.row_id)
    )
    return {row.value.removeprefix(turn_link(agent_id, "")): row.id for row in rows}
