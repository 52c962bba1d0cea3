"""The store on SQL: each method of the port as one transaction over the functions of this folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final, TypeVar

import sqlalchemy as sa
from mnemesh_kit.clock import Clock
from mnemesh_kit.errors import FailedPrecondition
from mnemesh_kit.idempotency import Ledger, RequestKey
from mnemesh_kit.ids import IdSource
from mnemesh_kit.paging import Page, PageQuery, paginate
from mnemesh_kit.sql import Database

from mnemesh_recall.errors import no_message
from mnemesh_recall.model.contexts import (
    ContextWindow,
    ContextWindowIds,
    Fork,
    NewContext,
    Replacement,
    StepCommit,
    StepResult,
)
from mnemesh_recall.model.messages import Appended, Batch, Erasure, Message, MessageFilter, Role
from mnemesh_recall.model.outbox import ChangeKind, OutboxRow
from mnemesh_recall.model.search import SearchScope
from mnemesh_recall.store.sql import contexts, episode_writes, message_rows, outbox, retention, steps, windows
from mnemesh_recall.store.sql import message_filters as filters
from mnemesh_recall.store.sql.fulltext import documents, ranking
from mnemesh_recall.store.sql.fulltext.engines import word_index
from mnemesh_recall.store.sql.rows import COLUMNS, fingerprint, to_message
from mnemesh_recall.store.sql.tables import context_entries, messages, request_ledger
from mnemesh_recall.store.sql.transaction import Transaction

T = TypeVar("T")

_m = messages.c
_SEARCHABLE: Final = _m.search_text.is_not(None)
_PURGED_AT_ONCE: Final = 500
"""A purge writes in short transactions: nobody's step waits for it."""


class SqlMessageStore:
    """Recall on SQLite or PostgreSQL."""

    def __init__(self, database: Database, clock: Clock, ids: IdSource) -> None:
        self._database = database
        self._clock = clock
        self._ids = ids
        self._ledger = Ledger(request_ledger, clock)
        self._words = word_index(database)

    async def create_context(self, organization_id: str, new: NewContext, key: RequestKey | None) -> ContextWindow:
        """See MessageStore."""

        def make(conn: sa.Connection) -> None:
            contexts.create(self._transaction(conn, organization_id), new)

        return await self._window_after(organization_id, new.conversation_id, key, make)

    async def get_context(self, organization_id: str, conversation_id: str, if_version: int | None) -> ContextWindow:
        """See MessageStore."""
        return await self._database.read(lambda conn: windows.read(conn, organization_id, conversation_id, if_version))

    async def get_window_ids(
        self, organization_id: str, conversation_ids: Sequence[str]
    ) -> tuple[ContextWindowIds, ...]:
        """See MessageStore."""
        if not conversation_ids:
            return ()
        return await self._database.read(lambda conn: windows.read_ids(conn, organization_id, conversation_ids))

    async def commit_step(self, organization_id: str, step: StepCommit) -> StepResult:
        """See MessageStore."""
        content = fingerprint(step.messages, step.hidden_messages)
        return await self._database.write(
            lambda conn: steps.commit(self._transaction(conn, organization_id), step, content),
            name="messages.commit_step",
        )

    async def replace_context(self, organization_id: str, new: Replacement, key: RequestKey | None) -> ContextWindow:
        """See MessageStore."""

        def put(conn: sa.Connection) -> None:
            tx = self._transaction(conn, organization_id)
            steps.replace(tx, new)
            for memory in new.memories:
                episode_writes.commit(tx, memory, self._ids)

        return await self._window_after(organization_id, new.conversation_id, key, put)

    async def fork_context(self, organization_id: str, fork: Fork, key: RequestKey | None) -> ContextWindow:
        """See MessageStore."""

        def make(conn: sa.Connection) -> None:
            contexts.fork(self._transaction(conn, organization_id), fork)

        return await self._window_after(organization_id, fork.conversation_id, key, make)

    async def delete_context(
        self, organization_id: str, conversation_id: str, key: RequestKey | None, *, delete_messages: bool
    ) -> int:
        """See MessageStore."""

        def drop(conn: sa.Connection) -> Sequence[str]:
            tx = self._transaction(conn, organization_id)
            gone = contexts.delete(tx, conversation_id, messages_too=delete_messages)
            return (str(gone),)

        (gone,) = await self._once(key, drop)
        return int(gone)

    async def append_messages(self, organization_id: str, batch: Batch, key: RequestKey | None) -> Appended:
        """See MessageStore."""

        def put(conn: sa.Connection) -> Sequence[str]:
            numbers, version = contexts.append(self._transaction(conn, organization_id), batch)
            return ("" if version is None else str(version), *map(str, numbers))

        version, *numbers = await self._once(key, put)
        return Appended(sequence_ids=tuple(map(int, numbers)), version=int(version) if version else None)

    async def get_messages(self, organization_id: str, ids: Sequence[str]) -> tuple[Message, ...]:
        """See MessageStore."""
        return await self._database.read(lambda conn: message_rows.read(conn, organization_id, ids))

    async def list_messages(self, organization_id: str, wanted: MessageFilter, page: PageQuery) -> Page[Message]:
        """See MessageStore."""
        of_organization = filters.owned(organization_id, narrowed=filters.narrows(wanted))
        statement = sa.select(*COLUMNS).where(of_organization, *filters.listed(wanted))
        key = _m.sequence_id if len(wanted.agent_ids) == 1 else _m.row_id

        def read(conn: sa.Connection) -> Page[Message]:
            return paginate(conn, statement, page, key=key, id=_m.id, scope=filters.owned(organization_id)).map(
                to_message
            )

        return await self._database.read(read)

    async def update_message(
        self, organization_id: str, changed: Message, fields: frozenset[str], key: RequestKey | None
    ) -> Message:
        """See MessageStore."""

        def write(conn: sa.Connection) -> Sequence[str]:
            tx = self._transaction(conn, organization_id)
            found = message_rows.read(conn, organization_id, [changed.id])
            if not found:
                raise no_message(changed.id)
            message = replace(found[0], **{field: getattr(changed, field) for field in fields})
            message_rows.rewrite(tx, message)
            contexts.touch(conn, _showing(conn, changed.id), tx.now)
            return (changed.id,)

        def act(conn: sa.Connection) -> Message:
            self._ledger.once(conn, key, lambda: write(conn))
            found = message_rows.read(conn, organization_id, [changed.id])
            if not found:
                raise no_message(changed.id)
            return found[0]

        return await self._database.write(act)

    async def delete_message(self, organization_id: str, message_id: str, key: RequestKey | None) -> None:
        """See MessageStore."""

        def drop(conn: sa.Connection) -> Sequence[str]:
            tx = self._transaction(conn, organization_id)
            for message in message_rows.read(conn, organization_id, [message_id]):
                showing = _showing(conn, message_id)
                if showing and message.role is Role.SYSTEM:
                    raise FailedPrecondition("The system message of a window goes with the window only.")
                message_rows.delete(tx, message.agent_id, [message_id])
                contexts.touch(conn, showing, tx.now)
            return ()

        await self._once(key, drop)

    async def search_words(self, scope: SearchScope, terms: Sequence[str], limit: int) -> list[tuple[str, float]]:
        """See MessageStore."""
        if not terms:
            return []
        return await self._database.read(lambda conn: ranking.search(self._words, conn, scope, terms, limit))

    async def newest(self, scope: SearchScope, limit: int) -> list[Message]:
        """See MessageStore."""
        order = _m.row_id if scope.agent_id is None else _m.sequence_id
        statement = (
            sa.select(*COLUMNS)
            .where(_SEARCHABLE, *filters.searched(scope, narrowed=False))
            .order_by(order.desc())
            .limit(limit)
        )
        return await self._database.read(lambda conn: list(map(to_message, conn.execute(statement))))

    async def searchable(self, organization_id: str, ids: Sequence[str]) -> frozenset[str]:
        """See MessageStore."""
        return await self._database.read(lambda conn: message_rows.searchable(conn, organization_id, ids))

    async def erase_agent(self, organization_id: str, agent_id: str, key: RequestKey | None) -> Erasure:
        """See MessageStore."""

        def erase(conn: sa.Connection) -> Sequence[str]:
            gone = contexts.erase(self._transaction(conn, organization_id), agent_id)
            return (str(gone.messages), str(gone.contexts))

        gone_messages, gone_contexts = await self._once(key, erase)
        return Erasure(messages=int(gone_messages), contexts=int(gone_contexts))

    async def rebuild_words(self, *, only_if_empty: bool = False) -> int | None:
        """See MessageStore."""

        def build(conn: sa.Connection) -> int | None:
            if only_if_empty and not self._words.is_empty(conn):
                return None
            return documents.index_all(conn, self._words)

        return await self._database.write(build)

    async def delete_outlived(self, before: datetime, most: int) -> int:
        """See MessageStore."""
        return await self._database.write(
            lambda conn: retention.delete_outlived(self._transaction(conn, ""), before, most)
        )

    async def pending(self, limit: int) -> tuple[tuple[OutboxRow, ...], dict[str, tuple[str, Message]]]:
        """See MessageStore."""

        def read(conn: sa.Connection) -> tuple[tuple[OutboxRow, ...], dict[str, tuple[str, Message]]]:
            rows = outbox.pending(conn, limit)
            ids = {row.subject_id for row in rows if row.kind is ChangeKind.MESSAGE}
            if not ids:
                return rows, {}
            found = conn.execute(sa.select(*COLUMNS, _m.organization_id).where(_m.id.in_(ids), _SEARCHABLE))
            return rows, {row.id: (row.organization_id, to_message(row)) for row in found}

        return await self._database.read(read)

    async def note_all(self) -> int:
        """See MessageStore."""
        return await self._database.write(lambda conn: outbox.note_all(conn, self._clock.now()))

    async def hold_news(self, holder: str, lasts: timedelta) -> bool:
        """See MessageStore."""
        return await self._database.write(lambda conn: outbox.hold(conn, holder, self._clock.now(), lasts))

    async def let_go_of_news(self, holder: str) -> None:
        """See MessageStore."""
        await self._database.write(lambda conn: outbox.let_go(conn, holder))

    async def settle(self, rows: Sequence[OutboxRow], holder: str | None = None) -> bool:
        """See MessageStore."""

        def forget(conn: sa.Connection) -> bool:
            if holder is not None and not outbox.is_held(conn, holder):
                outbox.note_again(conn, rows, self._clock.now())
                return False
            outbox.settle(conn, [row.row_id for row in rows])
            return True

        return await self._database.write(forget)

    async def purge_steps(self, before: datetime) -> int:
        """See MessageStore."""
        total = 0
        while gone := await self._database.write(lambda conn: steps.forget(conn, before, _PURGED_AT_ONCE)):
            total += gone
        return total

    async def purge_ledger(self) -> int:
        """Forgets requests older than a day."""
        return await self._database.write(self._ledger.purge)

    def _transaction(self, conn: sa.Connection, organization_id: str) -> Transaction:
        return Transaction(conn, self._words, organization_id, self._clock.now())

    async def _once(self, key: RequestKey | None, effect: Callable[[sa.Connection], Sequence[str]]) -> tuple[str, ...]:
        return (await self._database.write(lambda conn: self._ledger.once(conn, key, lambda: effect(conn))))[0]

    async def _window_after(
        self,
        organization_id: str,
        conversation_id: str,
        key: RequestKey | None,
        effect: Callable[[sa.Connection], None],
    ) -> ContextWindow:
        """The window after an effect that happens once, as it is now."""

        def effected(conn: sa.Connection) -> Sequence[str]:
            effect(conn)
            return (conversation_id,)

        def act(conn: sa.Connection) -> ContextWindow:
            self._ledger.once(conn, key, lambda: effected(conn))
            return windows.read(conn, organization_id, conversation_id)

        return await self._database.write(act)


def _showing(conn: sa.Connection, message_id: str) -> list[str]:
    entries = context_entries.c
    return list(conn.execute(sa.select(entries.conversation_id).where(entries.message_id == message_id)).scalars())
