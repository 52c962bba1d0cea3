"""Making, forking and deleting windows, and the erasure of agents."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import sqlalchemy as sa
from mnemesh_kit.errors import AlreadyExists, NotFound

from mnemesh_recall.errors import no_conversation
from mnemesh_recall.model.contexts import ContextWindow, Fork, NewContext
from mnemesh_recall.model.messages import Batch, Erasure
from mnemesh_recall.model.unanswered_calls import is_derived_return
from mnemesh_recall.store.sql import agents as agent_rows
from mnemesh_recall.store.sql import episode_rows, message_rows, outbox, windows
from mnemesh_recall.store.sql.tables import (
    agents,
    context_entries,
    contexts,
    messages,
    step_commits,
    tool_call_rows,
    trace_lines,
    turns,
)
from mnemesh_recall.store.sql.transaction import Transaction

_c, _e, _m = contexts.c, context_entries.c, messages.c
_TAKEN: Final = sa.select(_c.organization_id).where(_c.conversation_id == sa.bindparam("conversation"))


def create(tx: Transaction, new: NewContext) -> None:
    """See MessageStore.create_context."""
    _require_free(tx, new.conversation_id)
    stored = message_rows.store(tx, new.agent_id, new.messages)
    state = ContextWindow(
        conversation_id=new.conversation_id,
        agent_id=new.agent_id,
        version=1,
        epoch=0,
        agent_message_count=stored.agent_message_count,
        created_at=tx.now,
        updated_at=tx.now,
        last_message_at=max((message.created_at for message in new.messages[1:]), default=None),
    )
    windows.create(tx.conn, tx.organization_id, state, message_rows.ids_of(new.messages))


def fork(tx: Transaction, wanted: Fork) -> None:
    """See MessageStore.fork_context."""
    conn = tx.conn
    source = windows.head(conn, tx.organization_id, wanted.source_conversation_id)
    _require_free(tx, wanted.conversation_id)
    shown = windows.shown(conn, wanted.source_conversation_id)[1:]
    if wanted.until_message_id is not None:
        ids = message_rows.ids_of(shown)
        if wanted.until_message_id not in ids:
            raise NotFound(
                f"The window does not show {wanted.until_message_id}.",
                field="until_message_id",
                resource_id=wanted.until_message_id,
            )
        shown = shown[: ids.index(wanted.until_message_id) + 1]
    shared = message_rows.ids_of(message for message in shown if not is_derived_return(message))
    system = wanted.system_message
    stored = message_rows.store(tx, source.agent_id, [system])
    state = ContextWindow(
        conversation_id=wanted.conversation_id,
        agent_id=source.agent_id,
        version=1,
        epoch=0,
        agent_message_count=stored.agent_message_count,
        created_at=tx.now,
        updated_at=tx.now,
        last_message_at=source.last_message_at,
    )
    windows.create(tx.conn, tx.organization_id, state, (system.id, *shared))


def delete(tx: Transaction, conversation_id: str, *, messages_too: bool) -> int:
    """See MessageStore.delete_context."""
    conn = tx.conn
    state = windows.head(conn, tx.organization_id, conversation_id)
    shown = set(windows.shown_ids(conn, conversation_id))
    windows.leave(conn, conversation_id)
    conn.execute(sa.delete(contexts).where(_c.conversation_id == conversation_id))
    conn.execute(sa.delete(step_commits).where(step_commits.c.conversation_id == conversation_id))
    # The system message is the window's own: it goes with it.
    doomed = {state.system_message_id}
    if messages_too:
        wrote = conn.execute(sa.select(_m.id).where(_m.conversation_id == conversation_id)).scalars()
        doomed |= shown | set(wrote)
    kept = set(conn.execute(sa.select(_e.message_id).where(_e.message_id.in_(doomed))).scalars())
    gone = message_rows.delete(tx, state.agent_id, sorted(doomed - kept))
    return gone if messages_too else 0


def append(tx: Transaction, batch: Batch) -> tuple[tuple[int, ...], int | None]:
    """See MessageStore.append_messages."""
    if batch.conversation_id is None:
        stored = message_rows.store(tx, batch.agent_id, batch.messages)
        return stored.sequence_ids, None
    conn = tx.conn
    state = windows.head(conn, tx.organization_id, batch.conversation_id, batch.agent_id)
    stored = message_rows.store(tx, batch.agent_id, batch.messages)
    ids = message_rows.ids_of(batch.messages)
    entering = windows.not_shown(conn, batch.conversation_id, ids, stored.known_ids)
    if not entering:
        return stored.sequence_ids, state.version
    windows.enter(conn, batch.conversation_id, state.next_position, entering)
    latest = max(message.created_at for message in batch.messages)
    version = windows.move(
        conn,
        state,
        tx.now,
        next_position=state.next_position + len(entering),
        last_message_at=max(latest, state.last_message_at or latest),
    )
    return stored.sequence_ids, version


def touch(conn: sa.Connection, conversation_ids: Sequence[str], now: datetime) -> None:
    """Gives windows a new version, because a message that they show changed or went."""
    if conversation_ids:
        conn.execute(
            sa.update(contexts)
            .where(_c.conversation_id.in_(conversation_ids))
            .values(version=_c.version + 1, updated_at=now)
        )


def erase(tx: Transaction, agent_id: str) -> Erasure:
    """See MessageStore.erase_agent."""
    conn = tx.conn
    owner = conn.execute(
        sa.select(agents.c.organization_id, agents.c.erased_at).where(agents.c.agent_id == agent_id)
    ).first()
    if owner is None:
        agent_rows.add(tx, agent_id, erased_at=tx.now)
        return Erasure(messages=0, contexts=0)
    if owner.erased_at is not None and owner.organization_id == tx.organization_id:
        return Erasure(messages=0, contexts=0)
    agent_rows.require_writable(conn, tx.organization_id, agent_id)
    conn.execute(sa.update(agents).where(agents.c.agent_id == agent_id).values(erased_at=tx.now, message_count=0))
    of_agent = sa.select(_m.id).where(_m.agent_id == agent_id)
    windows_of_agent = sa.select(_c.conversation_id).where(_c.agent_id == agent_id)
    tx.words.remove_agent(conn, agent_id)
    conn.execute(sa.delete(tool_call_rows).where(tool_call_rows.c.message_id.in_(of_agent)))
    conn.execute(sa.delete(context_entries).where(_e.conversation_id.in_(windows_of_agent)))
    conn.execute(sa.delete(step_commits).where(step_commits.c.agent_id == agent_id))
    erased_windows = conn.execute(sa.delete(contexts).where(_c.agent_id == agent_id)).rowcount
    erased_messages = conn.execute(sa.delete(messages).where(_m.agent_id == agent_id)).rowcount
    for table in (turns, trace_lines):
        conn.execute(sa.delete(table).where(table.c.agent_id == agent_id))
    episode_rows.erase_agent(tx, agent_id)
    outbox.note_agent(conn, agent_id, tx.now)
    return Erasure(messages=erased_messages, contexts=erased_windows)


def _require_free(tx: Transaction, conversation_id: str) -> None:
    owner = tx.conn.execute(_TAKEN, {"conversation": conversation_id}).scalar()
    if owner is not None:
        if owner != tx.organization_id:
            raise no_conversation(conversation_id)
        raise AlreadyExists(f"The conversation {conversation_id} has a window.", conversation_id=conversation_id)
