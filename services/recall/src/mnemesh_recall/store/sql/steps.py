"""The commit of a step, and the replacement of a window: what a run writes, each in one transaction."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from mnemesh_kit.errors import InvalidArgument, NotFound, RequestIdReused

from mnemesh_recall.errors import LeaseLost, StepConflict, WindowMoved
from mnemesh_recall.model.contexts import Replacement, StepCommit, StepResult
from mnemesh_recall.model.messages import Message, Role
from mnemesh_recall.model.unanswered_calls import is_derived_return
from mnemesh_recall.store.sql import message_rows as messages
from mnemesh_recall.store.sql import tables, windows
from mnemesh_recall.store.sql.rows import text_content
from mnemesh_recall.store.sql.step_commit_rows import write_step_commit
from mnemesh_recall.store.sql.tables import step_commits
from mnemesh_recall.store.sql.transaction import Deferred, Transaction

_s = step_commits.c
_FOUND: Final = sa.select(step_commits).where(
    _s.organization_id == sa.bindparam("organization"),
    sa.or_(_s.step_id == sa.bindparam("step"), sa.and_(_s.request_id != "", _s.request_id == sa.bindparam("request"))),
)
_m = tables.messages.c
_STATE: Final = windows.HEAD.add_columns(
    _FOUND.exists().label("committed"),
    sa.exists(sa.select(_m.id).where(_m.id.in_(sa.bindparam("ids", expanding=True)))).label("stored"),
)
"""What a commit has to know before it writes; nearly always it is the window's state, and that the rest is new."""
_later: Final = step_commits.alias()
_OUTLIVED: Final = (
    sa.select(_s.organization_id, _s.step_id)
    .where(
        _s.created_at < sa.bindparam("before", type_=_s.created_at.type),
        sa.exists().where(_later.c.conversation_id == _s.conversation_id, _later.c.version > _s.version),
    )
    .limit(sa.bindparam("most", type_=sa.Integer))
)
_FORGET: Final = sa.delete(step_commits).where(
    _s.organization_id == sa.bindparam("its_organization"), _s.step_id == sa.bindparam("its_step")
)


def forget(conn: sa.Connection, before: datetime, most: int) -> int:
    """Forgets at most so many steps of before that time; how many. See MessageStore.purge_steps."""
    found = conn.execute(_OUTLIVED, {"before": before, "most": most}).all()
    if found:
        conn.execute(_FORGET, [{"its_organization": row.organization_id, "its_step": row.step_id} for row in found])
    return len(found)


def commit(tx: Transaction, step: StepCommit, fingerprint: str) -> StepResult:
    """See MessageStore.commit_step. The order of the checks is part of the contract."""
    conn, organization_id = tx.conn, tx.organization_id
    given = (*step.messages, *step.hidden_messages)
    state = conn.execute(_STATE, {**_asked(tx, step), "ids": messages.ids_of(given)}).first()
    if state is None or state.committed:
        earlier = _earlier(tx, step)
        if earlier is not None:
            return _replayed(tx, step, fingerprint, earlier)
    if state is None or state.agent_id != step.agent_id:
        raise windows.absent(conn, organization_id, step.conversation_id, step.agent_id)
    if step.epoch < state.epoch:
        raise LeaseLost(step.conversation_id, state.epoch)
    deferred = Deferred()
    stored = messages.store_rows(tx, step.agent_id, given, deferred, all_new=not state.stored)
    entering = windows.not_shown(conn, step.conversation_id, messages.ids_of(step.messages), stored.known_ids)
    if step.system_text is not None:
        windows.say(conn, state.system_message_id, text_content(step.system_text), tx.now)
    moved = windows.moved(
        state,
        tx.now,
        epoch=step.epoch,
        next_position=state.next_position + len(entering),
        last_message_at=_last(step.messages, state.last_message_at),
    )
    result = StepResult(
        version=state.version + 1,
        rebased=state.version != step.base_version,
        replayed=False,
        sequence_ids=stored.sequence_ids,
        agent_message_count=stored.agent_message_count,
    )
    write_step_commit(tx, deferred, state, entering, moved, _record(tx, step, fingerprint, result))
    if not result.rebased:
        return result
    return dataclasses.replace(result, context=windows.read(conn, organization_id, step.conversation_id))


def _asked(tx: Transaction, step: StepCommit) -> dict[str, Any]:
    return {
        "organization": tx.organization_id,
        "conversation": step.conversation_id,
        "step": step.step_id,
        "request": step.request_id,
    }


def _earlier(tx: Transaction, step: StepCommit) -> sa.Row[Any] | None:
    rows = tx.conn.execute(_FOUND, _asked(tx, step)).all()
    for row in rows:
        if row.step_id == step.step_id:
            return row
    if rows:
        raise RequestIdReused(
            "This request_id was used before with other content.", field="request_id", request_id=step.request_id
        )
    return None


def _replayed(tx: Transaction, step: StepCommit, fingerprint: str, earlier: sa.Row[Any]) -> StepResult:
    same = (step.agent_id, step.conversation_id, fingerprint)
    if same != (earlier.agent_id, earlier.conversation_id, earlier.fingerprint):
        raise StepConflict(step.step_id)
    return StepResult(
        version=earlier.version,
        rebased=earlier.rebased,
        replayed=True,
        sequence_ids=tuple(msgspec.json.decode(earlier.sequence_ids, type=list[int])),
        agent_message_count=earlier.message_count,
        context=windows.read(tx.conn, tx.organization_id, step.conversation_id) if earlier.rebased else None,
    )


def _record(tx: Transaction, step: StepCommit, fingerprint: str, result: StepResult) -> dict[str, Any]:
    return {
        "organization_id": tx.organization_id,
        "step_id": step.step_id,
        "request_id": step.request_id,
        "agent_id": step.agent_id,
        "conversation_id": step.conversation_id,
        "fingerprint": fingerprint,
        "version": result.version,
        "rebased": result.rebased,
        "sequence_ids": msgspec.json.encode(result.sequence_ids).decode(),
        "message_count": result.agent_message_count,
        "created_at": tx.now,
    }


def replace(tx: Transaction, new: Replacement) -> None:
    """See MessageStore.replace_context."""
    conn, organization_id = tx.conn, tx.organization_id
    state = windows.head(conn, organization_id, new.conversation_id, new.agent_id)
    if new.epoch is not None and new.epoch < state.epoch:
        raise LeaseLost(new.conversation_id, state.epoch)
    if new.base_version != state.version:
        raise WindowMoved(new.conversation_id, state.version)
    messages.store(tx, new.agent_id, (*new.new_messages, *_repairs(conn, new)))
    _require_window(conn, organization_id, new, state.system_message_id)
    if set(windows.shown_ids(conn, new.conversation_id)) - {state.system_message_id, *new.message_ids}:
        windows.count_reset(conn, new.conversation_id, tx.now)
    windows.leave(conn, new.conversation_id)
    windows.enter(conn, new.conversation_id, 0, new.message_ids)
    if new.system_text is not None:
        windows.say(conn, new.message_ids[0], text_content(new.system_text), tx.now)
    windows.move(
        conn,
        state,
        tx.now,
        epoch=state.epoch if new.epoch is None else new.epoch,
        system_message_id=new.message_ids[0],
        next_position=len(new.message_ids),
        last_message_at=_last(new.new_messages, state.last_message_at),
    )


def _repairs(conn: sa.Connection, new: Replacement) -> list[Message]:
    """The error returns that the window shows without their being stored, and that the new one keeps."""
    kept = set(new.message_ids).difference(
        messages.ids_of(new.new_messages), windows.shown_ids(conn, new.conversation_id)
    )
    window = windows.shown(conn, new.conversation_id) if kept else ()
    return [message for message in window if message.id in kept and is_derived_return(message)]


def _require_window(conn: sa.Connection, organization_id: str, new: Replacement, system_message_id: str) -> None:
    window = messages.read(conn, organization_id, new.message_ids)
    missing = set(new.message_ids) - {message.id for message in window if message.agent_id == new.agent_id}
    if missing:
        absent = min(missing, key=new.message_ids.index)
        raise NotFound(f"The agent has no message {absent}.", resource_id=absent)
    # Another window's system row would be rewritten through this one.
    own = window[0].id == system_message_id or any(message.id == window[0].id for message in new.new_messages)
    if window[0].role is not Role.SYSTEM or not own:
        raise InvalidArgument(
            "message_ids must begin with the conversation's own system message, or a new one.", field="message_ids"
        )


def _last(stored: Sequence[Message], otherwise: datetime | None) -> datetime | None:
    moments = [message.created_at for message in stored]
    return max((*moments, otherwise) if otherwise else moments, default=None)
