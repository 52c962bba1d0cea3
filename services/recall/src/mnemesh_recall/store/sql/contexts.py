"""The creation, fork, extension and deletion of windows, and the erasure of agents."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa
from mnemesh_kit.errors import AlreadyExists

from mnemesh_recall.errors import no_conversation
from mnemesh_recall.model.context_rules import last_message_time, shared_messages
from mnemesh_recall.model.contexts import ContextFork, ContextWindow, NewContext
from mnemesh_recall.model.messages import AgentErasure, MessageBatch
from mnemesh_recall.model.unanswered_calls import is_derived_return
from mnemesh_recall.store.sql import agents as agent_rows
from mnemesh_recall.store.sql import derived_memories, message_rows, outbox, windows
from mnemesh_recall.store.sql.fulltext import unindexed
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
_OWNER: Final = sa.select(_c.organization_id).where(_c.conversation_id == sa.bindparam("conversation"))


def create(tx: Transaction, new: NewContext) -> None:
    """See MessageStore.create_context."""
    _require_free(tx, new.conversation_id)
    stored = message_rows.store(tx, new.agent_id, new.messages)
    window = ContextWindow(
        conversation_id=new.conversation_id,
        agent_id=new.agent_id,
        version=1,
        epoch=0,
        agent_message_count=stored.agent_message_count,
        created_at=tx.now,
        updated_at=tx.now,
        last_message_at=last_message_time(new.messages[1:], None),
    )
    windows.insert(tx.conn, tx.organization_id, window, message_rows.ids_of(new.messages))


def fork(tx: Transaction, request: ContextFork) -> None:
    """See MessageStore.fork_context."""
    source = windows.read_state(tx.conn, tx.organization_id, request.source_conversation_id)
    _require_free(tx, request.conversation_id)
    window = windows.read_messages(tx.conn, request.source_conversation_id)
    shared = [
        message.id for message in shared_messages(window, request.until_message_id) if not is_derived_return(message)
    ]
    system = request.system_message
    stored = message_rows.store(tx, source.agent_id, [system])
    forked = ContextWindow(
        conversation_id=request.conversation_id,
        agent_id=source.agent_id,
        version=1,
        epoch=0,
        agent_message_count=stored.agent_message_count,
        created_at=tx.now,
        updated_at=tx.now,
        last_message_at=source.last_message_at,
    )
    windows.insert(tx.conn, tx.organization_id, forked, (system.id, *shared))


def delete(tx: Transaction, conversation_id: str, *, delete_messages: bool) -> int:
    """See MessageStore.delete_context."""
    conn = tx.conn
    state = windows.read_state(conn, tx.organization_id, conversation_id)
    contained = set(windows.read_ids(conn, conversation_id))
    windows.delete_entries(conn, conversation_id)
    conn.execute(sa.delete(contexts).where(_c.conversation_id == conversation_id))
    conn.execute(sa.delete(step_commits).where(step_commits.c.conversation_id == conversation_id))
    # The system message belongs to the window and is always deleted with it.
    candidates = {state.system_message_id}
    if delete_messages:
        written = conn.execute(sa.select(_m.id).where(_m.conversation_id == conversation_id)).scalars()
        candidates |= contained | set(written)
    kept = set(conn.execute(sa.select(_e.message_id).where(_e.message_id.in_(candidates))).scalars())
    deleted = message_rows.delete(tx, state.agent_id, sorted(candidates - kept))
    return deleted if delete_messages else 0


def append(tx: Transaction, batch: MessageBatch) -> tuple[tuple[int, ...], int | None]:
    """See MessageStore.append_messages."""
    if batch.conversation_id is None:
        stored = message_rows.store(tx, batch.agent_id, batch.messages)
        return stored.sequence_ids, None
    state = windows.read_state(tx.conn, tx.organization_id, batch.conversation_id, batch.agent_id)
    stored = message_rows.store(tx, batch.agent_id, batch.messages)
    ids = message_rows.ids_of(batch.messages)
    appended = windows.ids_to_append(tx.conn, batch.conversation_id, ids, stored.known_ids)
    if not appended:
        return stored.sequence_ids, state.version
    windows.insert_entries(tx.conn, batch.conversation_id, state.next_position, appended)
    version = windows.update_state(
        tx.conn,
        state,
        tx.now,
        next_position=state.next_position + len(appended),
        last_message_at=last_message_time(batch.messages, state.last_message_at),
    )
    return stored.sequence_ids, version


def erase_agent(tx: Transaction, agent_id: str) -> AgentErasure:
    """See MessageStore.erase_agent."""
    conn = tx.conn
    owner = conn.execute(
        sa.select(agents.c.organization_id, agents.c.erased_at).where(agents.c.agent_id == agent_id)
    ).first()
    if owner is None:
        agent_rows.insert(tx, agent_id, erased_at=tx.now)
        return AgentErasure(messages=0, contexts=0)
    if owner.erased_at is not None and owner.organization_id == tx.organization_id:
        return AgentErasure(messages=0, contexts=0)
    agent_rows.require_writable(conn, tx.organization_id, agent_id)
    conn.execute(sa.update(agents).where(agents.c.agent_id == agent_id).values(erased_at=tx.now, message_count=0))
    memories = derived_memories.delete_of_agent(tx, agent_id)
    message_ids = sa.select(_m.id).where(_m.agent_id == agent_id)
    conversation_ids = sa.select(_c.conversation_id).where(_c.agent_id == agent_id)
    tx.fulltext.remove_agent(conn, agent_id)
    unindexed.forget(conn, agent_id)
    conn.execute(sa.delete(tool_call_rows).where(tool_call_rows.c.message_id.in_(message_ids)))
    conn.execute(sa.delete(context_entries).where(_e.conversation_id.in_(conversation_ids)))
    conn.execute(sa.delete(step_commits).where(step_commits.c.agent_id == agent_id))
    erased_contexts = conn.execute(sa.delete(contexts).where(_c.agent_id == agent_id)).rowcount
    erased_messages = conn.execute(sa.delete(messages).where(_m.agent_id == agent_id)).rowcount
    for table in (turns, trace_lines):
        conn.execute(sa.delete(table).where(table.c.agent_id == agent_id))
    outbox.add_agent(conn, agent_id, tx.now)
    return AgentErasure(
        messages=erased_messages, contexts=erased_contexts, episodes=memories.episodes, facts=memories.facts
    )


def _require_free(tx: Transaction, conversation_id: str) -> None:
    owner = tx.conn.execute(_OWNER, {"conversation": conversation_id}).scalar()
    if owner is not None:
        if owner != tx.organization_id:
            raise no_conversation(conversation_id)
        raise AlreadyExists(f"The conversation {conversation_id} has a window.", conversation_id=conversation_id)
