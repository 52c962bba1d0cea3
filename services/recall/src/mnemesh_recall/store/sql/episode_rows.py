"""Rows of episodes and facts with their dependent rows: links, terms, and changes in the outbox."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import sqlalchemy as sa

from mnemesh_recall.errors import no_memory
from mnemesh_recall.model.episode_operations import MemoryText
from mnemesh_recall.model.episodes import Episode, Fact, Scope, ScopeKind
from mnemesh_recall.store.sql import agents, memory_words, outbox, windows
from mnemesh_recall.store.sql.episode_codec import episode_from_row, episode_to_row, fact_from_row, fact_to_row
from mnemesh_recall.store.sql.episode_tables import episodes, facts, memory_links, memory_terms
from mnemesh_recall.store.sql.transaction import Transaction

Condition = sa.ColumnElement[bool]
TAG, MESSAGE, TURN, EPISODE = "tag", "message", "turn", "episode"
"""The kinds of links."""

_e, _f = episodes.c, facts.c
_LINK: Final = sa.insert(memory_links)


def turn_link(agent_id: str, turn_id: str) -> str:
    """Returns the value of a link to a turn."""
    return f"{agent_id}/{turn_id}"


def owner_of(tx: Transaction, scope: Scope) -> str | None:
    """Returns the agent whose erasure deletes a scope, and creates its row if it has none.

    Raises:
        NotFound: the agent or the conversation is another organization's, or there is no such conversation.
        Erased: the agent was erased.
    """
    match scope.kind:
        case ScopeKind.AGENT:
            agents.take_sequence_ids(tx, scope.id, 0)
            return scope.id
        case ScopeKind.CONVERSATION:
            agent_id: str = windows.read_state(tx.conn, tx.organization_id, scope.id).agent_id
            agents.take_sequence_ids(tx, agent_id, 0)
            return agent_id
        case _:
            return None


def insert(tx: Transaction, memory: Episode | Fact, owner_agent_id: str | None) -> None:
    """Inserts an episode or a fact."""
    if isinstance(memory, Episode):
        tx.conn.execute(sa.insert(episodes), episode_to_row(memory, tx.organization_id, owner_agent_id))
    else:
        tx.conn.execute(sa.insert(facts), fact_to_row(memory, tx.organization_id, owner_agent_id))
    _put_links(tx, memory)
    _put_terms(tx, memory)
    outbox.add_memories(tx.conn, [memory.id], tx.now)


def update(tx: Transaction, memory: Episode | Fact, *, text_changed: bool = False) -> None:
    """Updates the row of an episode or a fact. `text_changed` also updates the indexes of its text."""
    table = episodes if isinstance(memory, Episode) else facts
    row = (
        episode_to_row(memory, tx.organization_id, None)
        if isinstance(memory, Episode)
        else fact_to_row(memory, tx.organization_id, None)
    )
    del row["owner_agent_id"]
    tx.conn.execute(sa.update(table).where(table.c.id == memory.id).values(row))
    tx.conn.execute(sa.delete(memory_links).where(memory_links.c.memory_id == memory.id))
    _put_links(tx, memory)
    if text_changed:
        memory_words.remove(tx.conn, memory.id)
        _put_terms(tx, memory)
        outbox.add_memories(tx.conn, [memory.id], tx.now)


def read_episode(conn: sa.Connection, organization_id: str, episode_id: str) -> Episode:
    """Returns an episode. Raises NotFound."""
    found = conn.execute(sa.select(episodes).where(_e.id == episode_id, _e.organization_id == organization_id)).first()
    if found is None:
        raise no_memory("episode", episode_id)
    return episode_from_row(found)


def read_fact(conn: sa.Connection, organization_id: str, fact_id: str) -> Fact:
    """Returns a fact, closed or not. Raises NotFound."""
    found = conn.execute(sa.select(facts).where(_f.id == fact_id, _f.organization_id == organization_id)).first()
    if found is None:
        raise no_memory("fact", fact_id)
    return fact_from_row(found)


def delete(tx: Transaction, table: sa.Table, *conditions: Condition) -> int:
    """Deletes the rows of the organization that match the conditions. Returns their number."""
    column = table.c
    where = (column.organization_id == tx.organization_id, *conditions)
    ids = list(tx.conn.execute(sa.select(column.id).where(*where)).scalars())
    if not ids:
        return 0
    matching = sa.select(column.id).where(*where)
    for dependent in (memory_links, memory_terms):
        tx.conn.execute(sa.delete(dependent).where(dependent.c.memory_id.in_(matching)))
    tx.conn.execute(sa.delete(table).where(*where))
    outbox.add_memories(tx.conn, ids, tx.now)
    return len(ids)


def read_texts(conn: sa.Connection, ids: Sequence[str]) -> list[MemoryText]:
    """Returns the texts for the vector index, of those of `ids` that exist."""
    found = []
    for table, text in ((episodes, _e.summary), (facts, _f.text)):
        column = table.c
        columns = (column.id, column.organization_id, column.scope_kind, column.scope_id, column.owner_agent_id, text)
        for row in conn.execute(sa.select(*columns).where(column.id.in_(ids))):
            scope = Scope(ScopeKind(row.scope_kind), row.scope_id)
            found.append(MemoryText(row.id, row.organization_id, scope, row.owner_agent_id, row[5]))
    return found


def _put_links(tx: Transaction, memory: Episode | Fact) -> None:
    if links := list(_links(memory)):
        tx.conn.execute(_LINK, links)


def _links(memory: Episode | Fact) -> Iterator[dict[str, Any]]:
    for tag in dict.fromkeys(memory.tags):
        yield {"memory_id": memory.id, "kind": TAG, "value": tag}
    for message_id in dict.fromkeys(memory.source.message_ids):
        yield {"memory_id": memory.id, "kind": MESSAGE, "value": message_id}
    if isinstance(memory, Episode):
        agent_id = covered_agent(memory)
        for turn_id in dict.fromkeys(memory.turn_ids if agent_id is not None else ()):
            yield {"memory_id": memory.id, "kind": TURN, "value": turn_link(agent_id or "", turn_id)}
    elif memory.source.episode_id is not None:
        yield {"memory_id": memory.id, "kind": EPISODE, "value": memory.source.episode_id}


def covered_agent(memory: Episode) -> str | None:
    """Returns the agent whose turns an episode covers; None if it is unknown."""
    own = memory.scope.id if memory.scope.kind is ScopeKind.AGENT else None
    # The source of an imported episode is the exporting agent, and its turns are those of the importing one.
    return own if own is not None and memory.imported_id is not None else memory.source.agent_id or own


def _put_terms(tx: Transaction, memory: Episode | Fact) -> None:
    kind, text = ("episode", memory.summary) if isinstance(memory, Episode) else ("fact", memory.text)
    memory_words.put(tx.conn, tx.organization_id, kind, memory.scope, memory.id, text)
