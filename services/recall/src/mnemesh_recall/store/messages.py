"""The store of messages and context windows on SQL. Each method is one transaction.

The messages around others and the expired ones are read here; steps, windows and rows have modules of their own.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple
from datetime import datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa
from mnemesh_kit.errors import FailedPrecondition
from mnemesh_kit.idempotency import Ledger, RequestKey
from mnemesh_kit.ids import IdSource
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.sql import Database
from mnemesh_kit.sql.pages import paginate
from mnemesh_kit.time import Clock
from mnemesh_types.messages import Message, Role
from mnemesh_types.recall import ContextWindowIds

from mnemesh_recall.errors import no_message
from mnemesh_recall.model.contexts import (
    ContextFork,
    ContextReplacement,
    ContextWindow,
    NewContext,
    StepCommit,
    StepResult,
)
from mnemesh_recall.model.messages import (
    AgentErasure,
    AppendResult,
    MessageBatch,
    MessageFilter,
    SenderErasure,
    updated_message,
)
from mnemesh_recall.model.ranking import Candidate
from mnemesh_recall.model.search import SearchScope, Surroundings, WordCandidates, WordQuery
from mnemesh_recall.store import contexts, episode_rows, message_rows, steps, windows
from mnemesh_recall.store.fulltext import indexing, selection
from mnemesh_recall.store.fulltext.indexing import UnindexedMessages
from mnemesh_recall.store.fulltext.words import WordIndex
from mnemesh_recall.store.message_rows import COLUMNS, message_from_row
from mnemesh_recall.store.tables import DIALOGUE, context_entries, messages, request_ledger
from mnemesh_recall.store.transaction import Transaction
from mnemesh_recall.store.word_rebuilds import WordRebuilds

_m = messages.c
_EXPIRED: Final = (
    sa.select(_m.id, _m.agent_id)
    .where(
        _m.created_at < sa.bindparam("before", type_=_m.created_at.type),
        ~sa.exists().where(context_entries.c.message_id == _m.id),
    )
    .order_by(_m.created_at)
    .limit(sa.bindparam("limit", type_=sa.Integer))
)


def delete_expired(tx: Transaction, before: datetime, limit: int) -> int:
    """See MessageStore.delete_expired."""
    expired: dict[str, list[str]] = {}
    for row in tx.conn.execute(_EXPIRED, {"before": before, "limit": limit}):
        expired.setdefault(row.agent_id, []).append(row.id)
    return sum(message_rows.delete(tx, agent_id, ids) for agent_id, ids in expired.items())


MAX_BYTES: Final = 4 << 20
"""The size of the messages around one message, as they are stored."""
MAX_TOTAL_BYTES: Final = 8 << 20
"""The size of the messages around earlier ones from which on a read returns nothing around a message.

A page of a search ends at 3 MB, and so before that message. What a page has is smaller than what is stored by a third
for images, and by less for texts."""

# A conversation of NULL needs a condition of its own, so that the index serves both.
_SIDES: Final = " UNION ALL ".join(
    f"""SELECT * FROM (
        SELECT {{columns}} FROM messages
        WHERE agent_id = hit.agent_id AND conversation_id {same} AND sequence_id {side} hit.sequence_id AND {DIALOGUE}
        ORDER BY sequence_id {order} LIMIT :{limit}) AS one_side"""  # noqa: S608
    for side, order, limit in (("<", "DESC", "most_before"), (">", "ASC", "most_after"))
    for same in ("= hit.conversation_id", "IS NULL AND hit.conversation_id IS NULL")
)
_SELECT: Final = """
    SELECT hit.id AS hit_id, near.id AS id, near.sequence_id > hit.sequence_id AS is_after,
        coalesce(length(near.content), 0) + coalesce(length(near.tool_calls), 0) AS size
    FROM messages AS hit CROSS JOIN {near}
    WHERE hit.id IN :ids AND hit.organization_id || '' = :organization {condition}
    ORDER BY near.sequence_id
"""
_COLUMNS: Final = "id, sequence_id, content, tool_calls"
# SQLite has no LATERAL, and PostgreSQL would read all rows for an IN that depends on another row.
_STATEMENTS: Final = {
    "sqlite": _SELECT.format(
        near="messages AS near", condition=f"AND near.row_id IN ({_SIDES.format(columns='row_id')})"
    ),
    "postgresql": _SELECT.format(near=f"LATERAL ({_SIDES.format(columns=_COLUMNS)}) AS near", condition=""),
}
_AROUND: Final = {
    dialect: sa.text(statement).bindparams(sa.bindparam("ids", expanding=True))
    for dialect, statement in _STATEMENTS.items()
}


def read_around(
    conn: sa.Connection, organization_id: str, ids: Sequence[str], before: int, after: int
) -> Mapping[str, Surroundings]:
    """See MessageStore.read_around."""
    if not ids or not before + after:
        return {}
    parameters = {"ids": list(ids), "organization": organization_id, "most_before": before, "most_after": after}
    sides: dict[str, tuple[list[Any], list[Any]]] = {id_: ([], []) for id_ in ids}
    for row in conn.execute(_AROUND[conn.dialect.name], parameters):
        sides[row.hit_id][bool(row.is_after)].append(row)
    kept = dict(_within_size(sides))
    wanted = dict.fromkeys(id_ for side in kept.values() for ids_of_side in side for id_ in ids_of_side)
    found = {message.id: message for message in message_rows.read(conn, organization_id, list(wanted))}
    return {
        hit_id: Surroundings(*(tuple(found[id_] for id_ in side if id_ in found) for side in both))
        for hit_id, both in kept.items()
    }


def _within_size(
    sides: Mapping[str, tuple[list[Any], list[Any]]],
) -> Iterator[tuple[str, tuple[list[str], list[str]]]]:
    """Yields the ids of the messages on both sides of each one, the nearest ones that fit into the sizes."""
    total = 0
    for id_, (before, after) in sides.items():
        if total > MAX_TOTAL_BYTES:
            return
        kept: tuple[list[str], list[str]] = ([], [])
        size = 0
        for side, rows in zip(kept, (reversed(before), after), strict=True):
            for row in rows:
                if size + row.size > MAX_BYTES:
                    break
                side.append(row.id)
                size += row.size
        kept[0].reverse()
        total += size
        yield id_, kept


_REPEATED_READ: Final = "words.select_again"
_PURGE_BATCH: Final = 500
REPEAT_LIFE: Final = timedelta(days=7)
"""How long a committed step is known by its id, so that a repeated commit returns the first result. The newest step of
each conversation is always known."""
"""A purge writes in short transactions, so that it does not delay commits."""


class MessageStore:
    """The messages and context windows of all organizations.

    Every method is one transaction. A resource of another organization is NotFound. An agent belongs to the
    organization that writes it first. A write for an erased agent raises Erased.

    Storing a message whose id exists succeeds without a change if both have the same content, and raises AlreadyExists
    otherwise. Sequence ids are assigned in the writing transaction, so their order is the commit order within an agent.

    A repeated `key` returns the first result again, or raises RequestIdReused if the content differs.

    Example:
        window = await store.create_context(organization_id, NewContext(...), key)
        result = await store.commit_step(organization_id, StepCommit(base_version=window.version, ...))
    """

    def __init__(self, database: Database, clock: Clock, ids: IdSource) -> None:
        self._database = database
        self._clock = clock
        self._ids = ids
        self._ledger = Ledger(database, request_ledger, clock)
        self._index = WordIndex(database)
        self._words = WordRebuilds(database, self._index)
        self._unindexed = UnindexedMessages(database, self._index)

    async def create_context(self, organization_id: str, new: NewContext, key: RequestKey | None) -> ContextWindow:
        """Creates a window at version 1 over new messages, and returns it without them.

        Raises:
            AlreadyExists: the conversation has a window.
        """

        def create(conn: sa.Connection) -> ContextWindow:
            tx = self._transaction(conn, organization_id)
            asked: list[contexts.Asked] = []
            created: list[ContextWindow] = []

            def effect() -> Sequence[str]:
                created.append(contexts.create(tx, new, asked[0]))
                return (new.conversation_id,)

            self._ledger.once(conn, key, effect, lambda: asked.append(contexts.ask(tx, new)))
            if created:
                return created[0]
            return windows.window_of(windows.read_state(conn, organization_id, new.conversation_id))

        return await self._database.write(create, name="recall.create_context")

    async def get_context(self, organization_id: str, conversation_id: str, if_version: int | None) -> ContextWindow:
        """Returns a window in one consistent read, without its messages if its version is `if_version`.

        In every window that the store returns, a tool call without a return is followed by an error return
        (model/unanswered_calls.py).
        """
        return await self._database.read(lambda conn: windows.read(conn, organization_id, conversation_id, if_version))

    async def get_context_ids(
        self, organization_id: str, conversation_ids: Sequence[str]
    ) -> tuple[ContextWindowIds, ...]:
        """Returns the ids of the stored messages in windows, in one consistent read.

        The order is that of `conversation_ids`. Conversations without a window are left out.
        """
        if not conversation_ids:
            return ()
        return await self._database.read(lambda conn: windows.read_ids_of_many(conn, organization_id, conversation_ids))

    async def commit_step(self, organization_id: str, step: StepCommit) -> StepResult:
        """Stores the messages of a step, rewrites the text of the system message, and extends the window.

        The checks, in this order:

        1. The step. If it was committed before, the first result is returned.
        2. The epoch. A higher epoch than the stored one is kept.
        3. The version. If the window has moved, the messages are appended to the current window, which is returned.

        The text of the system message and the times of messages are not part of the content of a step, because another
        lease holder renders and stamps them again.

        Raises:
            StepConflict: the step was committed with other messages.
            LeaseLost: the window has a higher epoch.
        """
        content = steps.step_rows(organization_id, step)
        return await self._database.write(
            lambda conn: steps.commit(self._transaction(conn, organization_id), step, content),
            name="messages.commit_step",
            contended=True,
        )

    async def replace_context(
        self, organization_id: str, new: ContextReplacement, key: RequestKey | None
    ) -> ContextWindow:
        """Replaces the whole window, and stores the error returns among its ids.

        The memories are committed in the same transaction, as by EpisodeStore.commit_episode.

        Raises:
            LeaseLost: the window has a higher epoch.
            WindowMoved: the window is not at `base_version`.
            NotFound: the agent has no message with one of the ids.
        """

        def put(tx: Transaction) -> None:
            steps.replace(tx, new)
            for memory in new.memories:
                episode_rows.commit(tx, memory, self._ids)

        return await self._write_window(organization_id, new.conversation_id, key, put)

    async def fork_context(self, organization_id: str, fork: ContextFork, key: RequestKey | None) -> ContextWindow:
        """Creates a window that shares the messages of another one, under its own system message."""
        return await self._write_window(organization_id, fork.conversation_id, key, lambda tx: contexts.fork(tx, fork))

    async def delete_context(
        self, organization_id: str, conversation_id: str, key: RequestKey | None, *, delete_messages: bool
    ) -> int:
        """Deletes a window and returns the number of deleted messages.

        With `delete_messages`, the messages that only this conversation shows or wrote are deleted, too.
        """

        def delete(tx: Transaction) -> Sequence[str]:
            return (str(contexts.delete(tx, conversation_id, delete_messages=delete_messages)),)

        (deleted,) = await self._once(organization_id, key, delete)
        return int(deleted)

    async def append_messages(self, organization_id: str, batch: MessageBatch, key: RequestKey | None) -> AppendResult:
        """Stores all messages of the batch or none, and appends them to the window that the batch names."""

        def append(tx: Transaction) -> Sequence[str]:
            numbers, version = contexts.append(tx, batch)
            return ("" if version is None else str(version), *map(str, numbers))

        version, *numbers = await self._once(organization_id, key, append)
        return AppendResult(sequence_ids=tuple(map(int, numbers)), version=int(version) if version else None)

    async def get_messages(self, organization_id: str, ids: Sequence[str]) -> tuple[Message, ...]:
        """Returns the messages that exist among `ids`, in the order of `ids`."""
        return await self._database.read(lambda conn: message_rows.read(conn, organization_id, ids), snapshot=False)

    async def list_messages(self, organization_id: str, filter_: MessageFilter, page: PageQuery) -> Page[Message]:
        """Returns a page, ordered by sequence id within one agent and by insertion over several agents."""
        owned = message_rows.owned(organization_id, narrowed=message_rows.has_index(filter_))
        statement = sa.select(*COLUMNS).where(owned, *message_rows.list_conditions(filter_))
        key = _m.sequence_id if len(filter_.agent_ids) == 1 else _m.row_id
        scope = message_rows.owned(organization_id)
        return await self._database.read(
            lambda conn: paginate(conn, statement, page, key=key, id=_m.id, scope=scope).map(message_from_row)
        )

    async def update_message(
        self, organization_id: str, changed: Message, fields: frozenset[str], key: RequestKey | None
    ) -> Message:
        """Sets the named fields of a stored message to those of `changed`. Windows that show it get a new version."""

        def update(tx: Transaction) -> Sequence[str]:
            stored = self._read_one(tx.conn, organization_id, changed.id)
            message_rows.update(tx, updated_message(stored, changed, fields))
            windows.increment_versions(tx.conn, windows.containing(tx.conn, changed.id), tx.now)
            return (changed.id,)

        return await self._ledger.write_and_read(
            key,
            lambda conn: update(self._transaction(conn, organization_id)),
            lambda conn, _: self._read_one(conn, organization_id, changed.id),
        )

    async def delete_message(self, organization_id: str, message_id: str, key: RequestKey | None) -> None:
        """Deletes a message from every window and index. A message that does not exist is not an error.

        Raises:
            FailedPrecondition: it is the system message of a window.
        """

        def delete(tx: Transaction) -> Sequence[str]:
            for message in message_rows.read(tx.conn, organization_id, [message_id]):
                conversation_ids = windows.containing(tx.conn, message_id)
                if conversation_ids and message.role is Role.SYSTEM:
                    raise FailedPrecondition("The system message of a window is deleted only with the window.")
                message_rows.delete(tx, message.agent_id, [message_id])
                windows.increment_versions(tx.conn, conversation_ids, tx.now)
            return ()

        await self._once(organization_id, key, delete)

    async def search_words(
        self, organization_id: str, scope: SearchScope, words: WordQuery, limit: int
    ) -> WordCandidates:
        """Returns approximately the `limit` best messages by words, and those that equal the query, newest first.

        Messages of committed steps that are not indexed yet are indexed before, for at most a second. So are, after a
        change of the word analysis, the messages of the agent in scope.
        """
        now = self._clock.now()
        found = await self._select_words(organization_id, scope, words, limit, began=None)
        if found.is_complete:
            return found
        if scope.agent_id is not None:
            await self._words.finish(scope.agent_id)
        await self._unindexed.finish(organization_id, scope.agent_id)
        return await self._select_words(organization_id, scope, words, limit, began=now)

    async def list_candidates(
        self, organization_id: str, scope: SearchScope, ids: Sequence[str], leaders: Sequence[str]
    ) -> list[Candidate]:
        """Returns the messages of the scope with these ids, and those that follow the leaders, newest first."""
        if not ids and not leaders:
            return []
        return await self._database.read(
            lambda conn: self._index.read(conn, organization_id, scope, ids=ids, leaders=leaders), snapshot=False
        )

    async def list_newest(self, organization_id: str, scope: SearchScope, limit: int) -> list[Message]:
        """Returns the searchable messages of the scope that were stored last, newest first."""
        return await self._database.read(lambda conn: message_rows.newest(conn, organization_id, scope, limit))

    async def read_around(
        self, organization_id: str, ids: Sequence[str], before: int, after: int
    ) -> Mapping[str, Surroundings]:
        """Returns the messages of users and agents that are beside messages in their conversation, by id.

        Args:
            organization_id: the organization.
            ids: the messages, best first: beyond a size in total, which exceeds that of a page, the last ones are left
                out. Of those around one message, the nearest ones up to a size are returned.
            before: the largest number of searchable messages before each.
            after: the largest number after each.
        """
        return await self._database.read(lambda conn: read_around(conn, organization_id, ids, before, after))

    async def erase_agent(self, organization_id: str, agent_id: str, key: RequestKey | None) -> AgentErasure:
        """Deletes everything of an agent, and refuses later writes for it. A repeat deletes nothing more.

        Memories of named scopes that were learned from the agent alone are deleted, too.
        """

        def erase(tx: Transaction) -> Sequence[str]:
            return [str(count) for count in astuple(contexts.erase_agent(tx, agent_id))]

        counts = await self._once(organization_id, key, erase)
        return AgentErasure(**dict(zip(("messages", "contexts", "episodes", "facts"), map(int, counts), strict=False)))

    async def erase_sender(self, organization_id: str, sender_id: str) -> SenderErasure:
        """Deletes a bounded number of a sender's messages in all agents, with what derives from them.

        That is: the other messages of their turns except for the input of other senders, the memories of any scope that
        were learned from the deleted messages, and later summaries of their agents.
        """
        return await self._database.write(
            lambda conn: contexts.erase_sender(self._transaction(conn, organization_id), sender_id)
        )

    async def mark_outdated_words(self) -> int:
        """Notes all messages and memories whose words are of another version of the analysis. Returns what waits."""
        return await self._words.mark()

    async def rebuild_some_words(self) -> int | None:
        """Indexes the words of some messages or memories again. Returns their number; None if none wait."""
        return await self._words.index_page()

    async def merge_some_words(self, *, first: bool) -> bool:
        """Merges some parts of the full-text index. `first` begins to merge all. Returns whether there is more."""
        return await self._database.write(lambda conn: self._index.merge(conn, first=first), name="words.merge")

    async def index_some_words(self, agent_ids: Sequence[str] | None = None, *, before: datetime | None = None) -> bool:
        """Indexes the words of some messages of committed steps, and returns whether there may be more.

        Args:
            agent_ids: only of these agents.
            before: only of agents with such messages that were committed earlier.
        """
        return await self._unindexed.index_some(agent_ids, before=before)

    async def rebuild_fulltext(self) -> int:
        """Rebuilds the full-text index from all messages. Returns the number of indexed messages."""

        def rebuild(conn: sa.Connection) -> int:
            count = indexing.index_all(conn, self._index)
            self._words.replaced(conn)
            indexing.forget_all(conn)
            return count

        return await self._database.write(rebuild)

    async def delete_expired(self, before: datetime, limit: int) -> int:
        """Deletes at most `limit` messages with an earlier time that no window shows. Returns their number."""
        return await self._database.write(lambda conn: delete_expired(self._transaction(conn, ""), before, limit))

    async def purge_steps(self, before: datetime) -> int:
        """Deletes the records of steps that were committed earlier, except for the newest of each conversation.

        Returns:
            The number of deleted records.
        """
        total = 0
        while deleted := await self._database.write(lambda conn: steps.delete_old(conn, before, _PURGE_BATCH)):
            total += deleted
        return total

    async def purge_ledger(self) -> int:
        """Deletes the records of requests older than a day. Returns their number."""
        return await self._database.write(self._ledger.purge)

    async def _select_words(
        self, organization_id: str, scope: SearchScope, words: WordQuery, limit: int, *, began: datetime | None
    ) -> WordCandidates:
        """See `selection.select`. A candidate that was changed or deleted between two statements does no harm.

        Failpoints know a repeated read by another name: background work decides whether there is one.
        """
        return await self._database.read(
            lambda conn: selection.select(self._index, conn, organization_id, scope, words, limit, began=began),
            name=None if began is None else _REPEATED_READ,
            snapshot=False,
        )

    def _transaction(self, conn: sa.Connection, organization_id: str) -> Transaction:
        return Transaction(conn, self._index, organization_id, self._clock.now())

    def _read_one(self, conn: sa.Connection, organization_id: str, message_id: str) -> Message:
        found = message_rows.read(conn, organization_id, [message_id])
        if not found:
            raise no_message(message_id)
        return found[0]

    async def _once(
        self, organization_id: str, key: RequestKey | None, effect: Callable[[Transaction], Sequence[str]]
    ) -> tuple[str, ...]:
        return (await self._ledger.write_once(key, lambda conn: effect(self._transaction(conn, organization_id))))[0]

    async def _write_window(
        self,
        organization_id: str,
        conversation_id: str,
        key: RequestKey | None,
        effect: Callable[[Transaction], None],
    ) -> ContextWindow:
        """Runs an effect once, and returns the current window."""

        def once(conn: sa.Connection) -> Sequence[str]:
            effect(self._transaction(conn, organization_id))
            return (conversation_id,)

        return await self._ledger.write_and_read(
            key, once, lambda conn, _: windows.read(conn, organization_id, conversation_id)
        )
