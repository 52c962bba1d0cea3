"""The erasure of a sender's messages in all agents, with what derives from them and the scope of its memories."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

import sqlalchemy as sa
from mnemesh_kit.ids import is_id
from mnemesh_types.messages import Role

from mnemesh_recall.model.episodes import Scope, ScopeKind
from mnemesh_recall.model.messages import SenderErasure
from mnemesh_recall.model.traces import opens_turn
from mnemesh_recall.store.sql import derived_memories, episode_rows, message_rows, windows
from mnemesh_recall.store.sql.episode_filters import in_scopes
from mnemesh_recall.store.sql.episode_tables import episodes
from mnemesh_recall.store.sql.episode_tables import facts as fact_table
from mnemesh_recall.store.sql.rows import COLUMNS, message_from_row
from mnemesh_recall.store.sql.tables import context_entries, messages
from mnemesh_recall.store.sql.transaction import Transaction

_m, _e = messages.c, context_entries.c
BATCH: Final = 50
"""The number of the sender's messages that one transaction erases."""


def erase(tx: Transaction, sender_id: str) -> SenderErasure:
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
        removed = derived_memories.delete_learned_from(tx, agent_id, ids, turn_ids)
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
