"""The SQL conditions of lists and searches of messages."""

from __future__ import annotations

from collections.abc import Iterator

import sqlalchemy as sa

from mnemesh_recall.model.messages import MessageFilter
from mnemesh_recall.model.search import SearchScope
from mnemesh_recall.store.sql.tables import messages, tool_call_rows

Condition = sa.ColumnElement[bool]
_m = messages.c


def owned(organization_id: str | sa.BindParameter[str], *, narrowed: bool = True) -> Condition:
    """Returns the condition that a message belongs to the organization.

    If another condition narrows the query (ids, an agent, a run), the column is hidden from the planner: without
    statistics it would read the organization's index instead of a few rows by id.
    """
    column = _m.organization_id.concat("") if narrowed else _m.organization_id
    return column == organization_id


def has_index(filter_: MessageFilter) -> bool:
    """Returns whether one of the conditions has its own index."""
    return bool(
        filter_.agent_ids
        or filter_.conversation_ids
        or filter_.run_id
        or filter_.step_id
        or filter_.group_id
        or filter_.turn_id
        or filter_.otid
        or filter_.tool_call_id
    )


def list_conditions(filter_: MessageFilter) -> Iterator[Condition]:
    """Yields the conditions of a list, without that of the organization."""
    if filter_.agent_ids:
        yield _one_of(_m.agent_id, filter_.agent_ids)
    if filter_.conversation_ids:
        yield _one_of(_m.conversation_id, filter_.conversation_ids)
    if filter_.roles:
        yield _m.role.in_([role.value for role in filter_.roles])
    for column, value in (
        (_m.run_id, filter_.run_id),
        (_m.step_id, filter_.step_id),
        (_m.group_id, filter_.group_id),
        (_m.turn_id, filter_.turn_id),
        (_m.otid, filter_.otid),
    ):
        if value is not None:
            yield column == value
    if not filter_.include_err:
        yield sa.or_(_m.is_err.is_(None), _m.is_err.is_(sa.false()))
    if filter_.tool_call_id is not None:
        rows = tool_call_rows.c
        yield _m.id.in_(sa.select(rows.message_id).where(rows.tool_call_id == filter_.tool_call_id))
    if filter_.text is not None:
        yield _m.search_text.contains(filter_.text.casefold(), autoescape=True)
    if filter_.from_time is not None:
        yield _m.created_at >= filter_.from_time
    if filter_.until_time is not None:
        yield _m.created_at <= filter_.until_time
    if filter_.after_sequence_id is not None:
        yield _m.sequence_id > filter_.after_sequence_id
    if filter_.until_sequence_id is not None:
        yield _m.sequence_id <= filter_.until_sequence_id


def scope_conditions(organization_id: str, scope: SearchScope) -> Iterator[Condition]:
    """Yields the conditions of the scope of a search."""
    yield owned(organization_id, narrowed=scope.agent_id is not None)
    for column, value in ((_m.agent_id, scope.agent_id), (_m.conversation_id, scope.conversation_id)):
        if value is not None:
            yield column == value
    if scope.roles:
        yield _m.role.in_([role.value for role in scope.roles])
    if scope.from_time is not None:
        yield _m.created_at >= scope.from_time
    if scope.before_time is not None:
        yield _m.created_at < scope.before_time
    if scope.exclude_ids:
        yield _m.id.not_in(scope.exclude_ids)
    if scope.speakers:
        yield _m.speaker.in_([name.casefold() for name in scope.speakers])
    if scope.sender_ids:
        yield _m.sender_id.in_(scope.sender_ids)


def _one_of(column: sa.Column[str], values: tuple[str, ...]) -> Condition:
    # With one value, an equality lets the index also provide the order.
    return column == values[0] if len(values) == 1 else column.in_(values)
