"""The import of episodes and facts, into the scope of the agent or into a named scope."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import sqlalchemy as sa
from mnemesh_kit.ids import derive_id, is_id

from mnemesh_recall.errors import record_exists
from mnemesh_recall.model.episodes import Episode, Fact, Scope, ScopeKind
from mnemesh_recall.store.sql import episode_rows
from mnemesh_recall.store.sql.episode_codec import episode_from_row, fact_from_row
from mnemesh_recall.store.sql.episode_tables import episodes, facts
from mnemesh_recall.store.sql.transaction import Transaction


class MemoryImport:
    """Stores the memories of one import. A record is known by its id in the file, within its scope."""

    def __init__(self, tx: Transaction, agent_id: str, turn_ids: Mapping[str, str], *, exact: bool = False) -> None:
        """Takes the agent, its turn for each turn id of the file, and TraceImport.exact."""
        self._tx = tx
        self._exact = exact
        self._agent_id = agent_id
        self._own = Scope(ScopeKind.AGENT, agent_id)
        self._turn_ids = turn_ids
        self._episodes: dict[Scope, dict[str, Episode]] = {}
        self._facts: dict[Scope, dict[str, Fact]] = {}

    def store_episode(self, record: Episode) -> bool:
        """Stores an episode, unless it exists. Returns whether it is new.

        Raises:
            AlreadyExists: it exists with other content.
        """
        scope = self._scope_of(record)
        existing = self._known_episodes(scope)
        turn_ids = record.turn_ids
        if scope == self._own or record.source.agent_id == self._agent_id:
            turn_ids = tuple(self._turn_ids.get(id_, id_) for id_ in turn_ids)
        known = existing.get(record.id)
        if known is not None:
            is_same = (known.summary, known.created_at) == (record.summary, record.created_at)
            if not is_same or known.turn_ids not in (turn_ids, record.turn_ids):
                raise record_exists(record.id)
            return False
        id_ = self._id("episode", scope, record.id)
        episode = replace(record, id=id_, scope=scope, turn_ids=turn_ids, imported_id=_if_other(record.id, id_))
        episode_rows.insert(self._tx, episode, self._owner(scope))
        existing[record.id] = episode
        return True

    def store_facts(self, given: Sequence[Fact]) -> int:
        """Stores the facts that do not exist, with their links. Returns their number.

        Raises:
            AlreadyExists: one exists with other content.
        """
        given_ids = {(self._scope_of(record), record.id) for record in given}
        return sum(self._store_fact(record, given_ids) for record in given)

    def _store_fact(self, record: Fact, given_ids: set[tuple[Scope, str]]) -> bool:
        scope = self._scope_of(record)
        existing = self._known_facts(scope)
        known = existing.get(record.id)
        if known is not None:
            if (known.text, known.created_at, known.valid_from) != (record.text, record.created_at, record.valid_from):
                raise record_exists(record.id)
            return False

        def stored_id(id_: str | None) -> str | None:
            if id_ is None:
                return None
            if id_ in existing:
                return existing[id_].id
            return self._id("fact", scope, id_) if self._exact or (scope, id_) in given_ids else None

        before = None if record.supersedes_id is None else existing.get(record.supersedes_id)
        source = record.source
        if source.episode_id is not None:
            episode = self._known_episodes(scope).get(source.episode_id)
            source = replace(source, episode_id=None if episode is None else episode.id)
        fact_id = self._id("fact", scope, record.id)
        fact = replace(
            record,
            id=fact_id,
            scope=scope,
            source=source,
            imported_id=_if_other(record.id, fact_id),
            supersedes_id=stored_id(record.supersedes_id),
            superseded_by_id=stored_id(record.superseded_by_id),
            chain_id=fact_id if before is None else before.chain_id,
        )
        episode_rows.insert(self._tx, fact, self._owner(scope))
        existing[record.id] = fact
        return True

    def _scope_of(self, record: Episode | Fact) -> Scope:
        return record.scope if record.scope.id else self._own

    def _owner(self, scope: Scope) -> str | None:
        return self._agent_id if self._is_of_agent(scope) else None

    def _is_of_agent(self, scope: Scope) -> bool:
        return scope == self._own or scope.kind is ScopeKind.CONVERSATION

    def _id(self, prefix: str, scope: Scope, record_id: str) -> str:
        if self._exact and is_id(record_id, prefix) and self._is_free(prefix, record_id):
            return record_id
        if self._is_of_agent(scope):
            return derive_id(prefix, self._agent_id, record_id)
        return derive_id(prefix, self._tx.organization_id, scope.key, record_id)

    def _is_free(self, prefix: str, record_id: str) -> bool:
        table = episodes if prefix == "episode" else facts
        return self._tx.conn.scalar(sa.select(table.c.id).where(table.c.id == record_id)) is None

    def _known_episodes(self, scope: Scope) -> dict[str, Episode]:
        scope = self._own if self._is_of_agent(scope) else scope
        if scope not in self._episodes:
            rows = self._rows(episodes, scope)
            self._episodes[scope] = {key: episode_from_row(row) for row, keys in rows for key in keys}
        return self._episodes[scope]

    def _known_facts(self, scope: Scope) -> dict[str, Fact]:
        scope = self._own if self._is_of_agent(scope) else scope
        if scope not in self._facts:
            rows = self._rows(facts, scope)
            self._facts[scope] = {key: fact_from_row(row) for row, keys in rows for key in keys}
        return self._facts[scope]

    def _rows(self, table: sa.Table, scope: Scope) -> Iterator[tuple[Any, tuple[str, ...]]]:
        """Yields the rows of a scope, each with the ids that a file may use for it.

        The scope of the agent has the memories of its conversations, too.
        """
        column = table.c
        is_named = sa.and_(column.scope_kind == scope.kind.value, column.scope_id == scope.id)
        of_scope = column.owner_agent_id == self._agent_id if scope == self._own else is_named
        rows = self._tx.conn.execute(
            sa.select(table).where(of_scope, column.organization_id == self._tx.organization_id)
        )
        for row in rows:
            yield row, (row.id,) if row.imported_id is None else (row.imported_id, row.id)


def _if_other(imported_id: str, own_id: str) -> str | None:
    """Returns the id in the file, if the memory got another one."""
    return imported_id if imported_id != own_id else None
