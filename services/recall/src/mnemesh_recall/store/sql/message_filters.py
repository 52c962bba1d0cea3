"""The conditions by which lists and searches of messages are narrowed."""

from __future__ import annotations

from collections.abc import Iterator

import sqlalchemy as sa

from mnemesh_recall.model.messages import MessageFilter
from mnemesh_recall.model.search import SearchScope
from mnemesh_recall.store.sql.tables import messages, tool_call_rows

Condition = sa.ColumnElement[bool]
_m = messages.c


def owned(organization_id: str | sa.BindParameter[str], *, narrowed: bool = True) -> Condition:
    """The message is the organization's.

    Where something else narrows the query (ids, an agent, a run), the column is kept away from the planner: without
    statistics it would rather walk the organization's index than look a handful of ids up.
    """
    column = _m.organization_id.concat("") if narrowed else _m.organization_id
    return column == organization_id


def narrows(wanted: MessageFilter) -> bool:
    """Whether a list has a condition with an index of its own."""
    return bool(
        wanted.agent_ids
        or wanted.conversation_ids
        or wanted.run_id
        or wanted.step_id
        or wanted.group_id
        or wanted.turn_id
        or wanted.otid
        or wanted.tool_call_id
    )


def listed(wanted: MessageFilter) -> Iterator[Condition]:
    """What a list asks for, the organization aside."""
    if wanted.agent_ids:
        yield _one_of(_m.agent_id, wanted.agent_ids)
    if wanted.conversation_ids:
        yield _one_of(_m.conversation_id, wanted.conversation_ids)
    if wanted.roles:
        yield _m.role.in_([role.value for role in wanted.roles])
    for column, value in (
        (_m.run_id, wanted.run_id),
        (_m.step_id, wanted.step_id),
        (_m.group_id, wanted.group_id),
        (_m.turn_id, wanted.turn_id),
        (_m.otid, wanted.otid),
    ):
        if value is not None:
            yield column == value
    if not wanted.include_err:
        yield sa.or_(_m.is_err.is_(None), _m.is_err.is_(sa.false()))
    if wanted.tool_call_id is not None:
        rows = tool_call_rows.c
        yield _m.id.in_(sa.select(rows.message_id).where(rows.tool_call_id == wanted.tool_call_id))
    if wanted.text is not None:
        yield contains(wanted.text)
    if wanted.from_time is not None:
        yield _m.created_at >= wanted.from_time
    if wanted.until_time is not None:
        yield _m.created_at <= wanted.until_time


def searched(scope: SearchScope, *, narrowed: bool = True) -> Iterator[Condition]:
    """Where a search looks; `narrowed` where rows are given too, which are to be looked up by nothing else."""
    yield owned(scope.organization_id, narrowed=narrowed or scope.agent_id is not None)
    for column, value in ((_m.agent_id, scope.agent_id), (_m.conversation_id, scope.conversation_id)):
        if value is not None:
            yield (column.concat("") if narrowed else column) == value
    if scope.roles:
        yield _m.role.in_([role.value for role in scope.roles])
    if scope.from_time is not None:
        yield _m.created_at >= scope.from_time
    if scope.before_time is not None:
        yield _m.created_at < scope.before_time
    if scope.exclude_ids:
        yield _m.id.not_in(scope.exclude_ids)


def contains(text: str) -> Condition:
    """The searchable text has this run of characters, in whatever case."""
    return _m.search_text.contains(text.casefold(), autoescape=True)


def _one_of(column: sa.Column[str], values: tuple[str, ...]) -> Condition:
    # One value as an equality lets the index give the order too.
    return column == values[0] if len(values) == 1 else column.in_(values)
