"""The creation, fork, extension and deletion of windows, and the erasure of agents and senders.

An erasure also deletes the episodes and facts that were learned from deleted messages.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from mnemesh_kit.errors import AlreadyExists
from mnemesh_kit.ids import is_id
from mnemesh_kit.sql.prepared import Answer, Prepared
from mnemesh_types.messages import Role

from mnemesh_recall.errors import no_conversation
from mnemesh_recall.model.contexts import (
    ContextFork,
    ContextWindow,
    NewContext,
    is_derived_return,
    last_message_time,
    shared_messages,
)
from mnemesh_recall.model.episodes import Fact, Scope, ScopeKind
from mnemesh_recall.model.messages import AgentErasure, MessageBatch, SenderErasure
from mnemesh_recall.model.traces import opens_turn
from mnemesh_recall.store import episode_rows, message_rows, transaction, windows
from mnemesh_recall.store import transaction as agent_rows
from mnemesh_recall.store.episode_rows import MESSAGE, TURN, fact_from_row, in_scopes, turn_link
from mnemesh_recall.store.fulltext import indexing
from mnemesh_recall.store.fulltext.indexing import remove_agent
from mnemesh_recall.store.message_rows import COLUMNS, message_from_row
from mnemesh_recall.store.tables import (
    agents,
    context_entries,
    contexts,
    episodes,
    facts,
    memory_links,
    messages,
    step_commits,
    tool_call_rows,
    trace_lines,
    turns,
)
from mnemesh_recall.store.tables import facts as fact_table
from mnemesh_recall.store.transaction import Transaction

_l = memory_links.c
_BATCH: Final = 500


class DeletedMemories(NamedTuple):
    """The numbers of deleted memories."""

    episodes: int
    facts: int


def delete_memories_of_agent(tx: Transaction, agent_id: str) -> DeletedMemories:
    """Deletes the memories of an agent and of its conversations, and those of named scopes that it is a source of.

    A fact of a named scope stays for the messages of other agents that it was learned from, too. The agent's messages
    must still exist.
    """
    for row in tx.conn.execute(sa.select(facts).where(*_learned_from_agent(tx, facts, agent_id))).all():
        fact = fact_from_row(row)
        if others := _messages_of_others(tx, agent_id, fact.source.message_ids):
            episode_rows.update(tx, _without_agent(fact, agent_id, others))
    deleted = [
        episode_rows.delete(tx, table, table.c.owner_agent_id == agent_id)
        + episode_rows.delete(tx, table, *_learned_from_agent(tx, table, agent_id))
        for table in (episodes, facts)
    ]
    return DeletedMemories(*deleted)


def delete_memories_learned_from(
    tx: Transaction, agent_id: str, message_ids: Sequence[str], turn_ids: Sequence[str]
) -> DeletedMemories:
    """Deletes the memories, of any scope, that were learned from one of the messages or that cover one of the turns."""
    values = {MESSAGE: list(message_ids), TURN: [turn_link(agent_id, turn_id) for turn_id in turn_ids]}
    deleted = [0, 0]
    for kind, linked in values.items():
        for start in range(0, len(linked), _BATCH):
            ids = sa.select(_l.memory_id).where(_l.kind == kind, _l.value.in_(linked[start : start + _BATCH]))
            found = list(tx.conn.execute(ids).scalars())
            for index, table in enumerate((episodes, facts)):
                deleted[index] += episode_rows.delete(tx, table, table.c.id.in_(found))
    return DeletedMemories(*deleted)


def _learned_from_agent(tx: Transaction, table: sa.Table, agent_id: str) -> tuple[sa.ColumnElement[bool], ...]:
    """Returns the conditions for memories of named scopes that an agent, or one of its messages, is the source of."""
    column = table.c
    of_agent = sa.select(_l.memory_id).where(
        _l.kind == MESSAGE, _l.value.in_(sa.select(_m.id).where(_m.agent_id == agent_id))
    )
    is_source = sa.or_(column.source.contains(agent_id, autoescape=True), column.id.in_(of_agent))
    return (column.organization_id == tx.organization_id, column.owner_agent_id.is_(None), is_source)


def _messages_of_others(tx: Transaction, agent_id: str, message_ids: Sequence[str]) -> tuple[str, ...]:
    found: set[Any] = set()
    for start in range(0, len(message_ids), _BATCH):
        batch = message_ids[start : start + _BATCH]
        is_other = (_m.id.in_(batch), _m.agent_id != agent_id, _m.organization_id == tx.organization_id)
        found |= set(tx.conn.execute(sa.select(_m.id).where(*is_other)).scalars())
    return tuple(id_ for id_ in message_ids if id_ in found)


def _without_agent(fact: Fact, agent_id: str, message_ids: tuple[str, ...]) -> Fact:
    source = replace(fact.source, message_ids=message_ids)
    if source.agent_id == agent_id:
        source = replace(source, agent_id=None, conversation_id=None, run_id=None, episode_id=None, model=None)
    return replace(fact, source=source)


_c, _e, _m = contexts.c, context_entries.c, messages.c
_OWNER: Final = Prepared(sa.select(_c.organization_id).where(_c.conversation_id == sa.bindparam("conversation")))


class Asked(NamedTuple):
    """The answers that the creation of a window needs."""

    owner: Answer
    known: Answer
    agent: Answer


def ask(tx: Transaction, new: NewContext) -> Asked:
    """Asks for what `create` needs, before the transaction has written."""
    return Asked(
        _ask_owner(tx, new.conversation_id),
        message_rows.ask_known(tx, new.messages),
        agent_rows.ask_agent(tx, new.agent_id),
    )


def create(tx: Transaction, new: NewContext, asked: Asked) -> ContextWindow:
    """See MessageStore.create_context."""
    _require_free(tx, new.conversation_id, asked.owner)
    before = message_rows.Before(asked.agent, {})
    stored = message_rows.store(tx, new.agent_id, new.messages, asked.known, before)
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
    return window


def fork(tx: Transaction, request: ContextFork) -> None:
    """See MessageStore.fork_context."""
    source = windows.read_state(tx.conn, tx.organization_id, request.source_conversation_id)
    _require_free(tx, request.conversation_id, _ask_owner(tx, request.conversation_id))
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
    memories = delete_memories_of_agent(tx, agent_id)
    message_ids = sa.select(_m.id).where(_m.agent_id == agent_id)
    conversation_ids = sa.select(_c.conversation_id).where(_c.agent_id == agent_id)
    remove_agent(conn, tx.words, agent_id)
    indexing.forget(conn, agent_id)
    conn.execute(sa.delete(tool_call_rows).where(tool_call_rows.c.message_id.in_(message_ids)))
    conn.execute(sa.delete(context_entries).where(_e.conversation_id.in_(conversation_ids)))
    conn.execute(sa.delete(step_commits).where(step_commits.c.agent_id == agent_id))
    erased_contexts = conn.execute(sa.delete(contexts).where(_c.agent_id == agent_id)).rowcount
    erased_messages = conn.execute(sa.delete(messages).where(_m.agent_id == agent_id)).rowcount
    for table in (turns, trace_lines):
        conn.execute(sa.delete(table).where(table.c.agent_id == agent_id))
    transaction.add_agent_change(conn, agent_id, tx.now)
    return AgentErasure(
        messages=erased_messages, contexts=erased_contexts, episodes=memories.episodes, facts=memories.facts
    )


def _ask_owner(tx: Transaction, conversation_id: str) -> Answer:
    return _OWNER.send(tx.conn, {"conversation": conversation_id})


def _require_free(tx: Transaction, conversation_id: str, asked: Answer) -> None:
    owner = asked.first()
    if owner is not None:
        if owner.organization_id != tx.organization_id:
            raise no_conversation(conversation_id)
        raise AlreadyExists(f"The conversation {conversation_id} has a window.", conversation_id=conversation_id)


BATCH: Final = 50
"""The number of the sender's messages that one transaction erases."""


def erase_sender(tx: Transaction, sender_id: str) -> SenderErasure:
    """See MessageStore.erase_sender."""
    is_senders = sa.and_(_m.sender_id == sender_id, _m.organization_id == tx.organization_id)
    rows = tx.conn.execute(
        sa.select(_m.id, _m.agent_id, _m.turn_id, _m.sequence_id).where(is_senders).order_by(_m.row_id).limit(BATCH + 1)
    ).all()
    by_agent = defaultdict(list)
    for row in rows[:BATCH]:
        by_agent[row.agent_id].append(row)
    deleted, memories, facts = 0, 0, 0
    for agent_id, own in by_agent.items():
        turn_ids = sorted({row.turn_id for row in own if row.turn_id is not None})
        derived = _derived_messages(tx, agent_id, sender_id, turn_ids)
        summaries = _later_summaries(tx, agent_id, min(row.sequence_id for row in own))
        ids = sorted({row.id for row in own} | derived | summaries)
        removed = delete_memories_learned_from(tx, agent_id, ids, turn_ids)
        conversations = set(
            tx.conn.execute(sa.select(_e.conversation_id).where(_e.message_id.in_(ids)).distinct()).scalars()
        )
        deleted += message_rows.delete(tx, agent_id, ids)
        windows.increment_versions(tx.conn, sorted(conversations), tx.now)
        memories, facts = memories + removed.episodes, facts + removed.facts
    if is_id(sender_id, "identity"):
        scope = Scope(ScopeKind.IDENTITY, sender_id)
        memories += episode_rows.delete(tx, episodes, in_scopes(episodes, [scope]))
        facts += episode_rows.delete(tx, fact_table, in_scopes(fact_table, [scope]))
    return SenderErasure(messages=deleted, episodes=memories, facts=facts, remaining=len(rows) > BATCH)


def _derived_messages(tx: Transaction, agent_id: str, sender_id: str, turn_ids: list[str]) -> set[str]:
    """Returns the messages of turns, without the input of other senders."""
    rows = tx.conn.execute(sa.select(*COLUMNS).where(_m.agent_id == agent_id, _m.turn_id.in_(turn_ids)))
    found = map(message_from_row, rows)
    return {message.id for message in found if message.sender_id == sender_id or not opens_turn(message)}


def _later_summaries(tx: Transaction, agent_id: str, sequence_id: int) -> set[str]:
    """Returns the summaries that may tell of a message. Those of the episodic mode tell of all conversations."""
    is_later = (_m.agent_id == agent_id, _m.role == Role.SUMMARY.value, _m.sequence_id > sequence_id)
    return set(tx.conn.execute(sa.select(_m.id).where(*is_later)).scalars())
