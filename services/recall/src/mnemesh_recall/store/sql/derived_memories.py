"""The deletion of episodes and facts that were learned from deleted messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from mnemesh_recall.model.episodes import Fact
from mnemesh_recall.store.sql import episode_rows
from mnemesh_recall.store.sql.episode_codec import fact_from_row
from mnemesh_recall.store.sql.episode_rows import MESSAGE, TURN, turn_link
from mnemesh_recall.store.sql.episode_tables import episodes, facts, memory_links
from mnemesh_recall.store.sql.tables import messages
from mnemesh_recall.store.sql.transaction import Transaction

_m, _l = messages.c, memory_links.c
_BATCH: Final = 500


class DeletedMemories(NamedTuple):
    """The numbers of deleted memories."""

    episodes: int
    facts: int


def delete_of_agent(tx: Transaction, agent_id: str) -> DeletedMemories:
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


def delete_learned_from(
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
