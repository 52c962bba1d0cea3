"""Conversations."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

import msgspec
import sqlalchemy as sa
from mnemesh_kit.errors import FailedPrecondition
from mnemesh_kit.idempotency import Ledger, RequestKey
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.sql import Database
from mnemesh_kit.sql.pages import matching, paginate
from mnemesh_kit.time import Clock

from mnemesh_orchestrator.model.agents import AgentState
from mnemesh_orchestrator.model.conversations import (
    Conversation,
    ConversationFilter,
    ConversationOrder,
    ConversationOrigin,
    ConversationState,
    UnfinishedConversation,
)
from mnemesh_orchestrator.store import turn_statements as sql
from mnemesh_orchestrator.store.agent_rows import (
    active,
    conversation_columns,
    conversation_missing,
    conversation_of,
    new_conversation_row,
)
from mnemesh_orchestrator.store.leases import busy_error, first_unfinished_run
from mnemesh_orchestrator.store.tables import agents, conversations, request_ledger
from mnemesh_orchestrator.store.turn_statements import LeaseClock

_c: Final = conversations.c
_UNFINISHED: Final = sa.text("conversations.state <> 'active'")  # exactly the predicate of the partial indexes


class ConversationStore:
    """Conversations. AgentStore creates and deletes the default conversation with its agent.

    Example:
        >>> conversation_id, repeated = await conversations.begin_creation(key, conversation, ConversationOrigin())
        >>> await conversations.activate(conversation, None)
        >>> (await conversations.get(conversation.organization_id, conversation_id)).id == conversation_id
        True
    """

    def __init__(self, database: Database, clock: Clock, lease_clock: LeaseClock | None = None) -> None:
        self._database = database
        self._clock = clock
        self._lease_clock = lease_clock or LeaseClock(clock)
        self._ledger = Ledger(database, request_ledger, clock)

    async def begin_creation(
        self, key: RequestKey | None, conversation: Conversation, origin: ConversationOrigin
    ) -> tuple[str, bool]:
        """Stores a CREATING conversation.

        Returns:
            The id of the conversation, and whether the request is a repeat. A repeat, and a request with the key of an
            existing conversation of the agent, store nothing and return the first id.
        """

        def effect(conn: sa.Connection) -> list[str]:
            active(conn, conversation.organization_id, conversation.agent_id)
            if (existing := _with_key(conn, conversation)) is not None:
                return [existing]
            if conversation.forked_from_id is not None:
                _find(conn, conversation.organization_id, conversation.forked_from_id)
            row = new_conversation_row(conversation, ConversationState.CREATING, msgspec.json.encode(origin))
            conn.execute(conversations.insert(), row)
            return [conversation.id]

        ids, replayed = await self._ledger.write_once(key, effect)
        return ids[0], replayed or ids[0] != conversation.id

    async def list_unfinished(self, conversation_id: str | None = None) -> tuple[UnfinishedConversation, ...]:
        """Returns all CREATING and DELETING conversations, oldest first, or the one with the id."""
        query = sa.select(conversations).where(_UNFINISHED).order_by(_c.created_at)
        if conversation_id is not None:
            query = query.where(_c.id == conversation_id)
        rows = await self._database.read(lambda conn: conn.execute(query).all())
        return tuple(
            UnfinishedConversation(
                conversation_of(row),
                msgspec.json.decode(row.creation, type=ConversationOrigin)
                if row.state == ConversationState.CREATING
                else None,
            )
            for row in rows
        )

    async def activate(self, conversation: Conversation, last_message_at: datetime | None) -> None:
        """Stores a CREATING conversation as ACTIVE. Has no effect if it has another state."""
        values = {"state": ConversationState.ACTIVE, "creation": None, "last_message_at": last_message_at}
        values |= conversation_columns(conversation)
        statement = conversations.update().where(*_being_created(conversation.id)).values(values)
        await self._database.write(lambda conn: conn.execute(statement))

    async def abandon(self, conversation_id: str, key: RequestKey | None) -> bool:
        """Marks a CREATING conversation DELETING and deletes the idempotency key of its creation.

        Returns False, and changes nothing, if the conversation has another state.
        """
        now = self._clock.now()
        values = {"state": ConversationState.DELETING, "client_key": None, "creation": None, "updated_at": now}

        def write(conn: sa.Connection) -> bool:
            marked = conn.execute(conversations.update().where(*_being_created(conversation_id)).values(values))
            if marked.rowcount == 0:
                return False
            self._ledger.forget(conn, key)
            return True

        return await self._database.write(write)

    async def get(self, organization_id: str, conversation_id: str) -> Conversation:
        """Returns an ACTIVE conversation of an ACTIVE agent."""
        return await self._database.read(lambda conn: _find(conn, organization_id, conversation_id))

    async def list(
        self, organization_id: str, filter_: ConversationFilter, order_by: ConversationOrder, page: PageQuery
    ) -> Page[Conversation]:
        """Returns a page of ACTIVE conversations. In the order of LAST_MESSAGE_AT, those without messages come last."""
        scope = _visible(organization_id)
        query = sa.select(conversations).where(scope, *_conditions(filter_))

        def read(conn: sa.Connection) -> Page[Conversation]:
            return paginate(conn, query, page, key=_c[order_by], id=_c.id, scope=scope).map(conversation_of)

        return await self._database.read(read)

    async def update(
        self,
        key: RequestKey | None,
        organization_id: str,
        conversation_id: str,
        change: Callable[[Conversation], Conversation],
    ) -> Conversation:
        """Applies a pure function to the record of a conversation, stores the result, and returns it.

        A repeat under the same key does not apply the function. If the function raises, nothing is stored.
        """

        def effect(conn: sa.Connection) -> Sequence[str]:
            changed = change(_find(conn, organization_id, conversation_id))
            statement = conversations.update().where(_c.id == conversation_id)
            conn.execute(statement.values(conversation_columns(changed)))
            return [conversation_id]

        return await self._ledger.write_and_read(
            key, effect, lambda conn, _: _find(conn, organization_id, conversation_id)
        )

    async def begin_deletion(
        self, key: RequestKey | None, organization_id: str, conversation_id: str
    ) -> Conversation | None:
        """Marks a conversation DELETING and returns it, or None if it is deleted already.

        A repeat returns the conversation again until it is removed.

        Raises:
            FailedPrecondition: It is the default conversation of its agent.
            ConversationBusy: A run of the conversation has not ended, or other work holds its lease.
        """

        def effect(conn: sa.Connection) -> Sequence[str]:
            if _find(conn, organization_id, conversation_id).is_default:
                raise FailedPrecondition(
                    "The default conversation of an agent cannot be deleted. Delete the agent.",
                    resource_id=conversation_id,
                )
            self._require_free(conn, conversation_id)
            values = {"state": ConversationState.DELETING, "client_key": None, "updated_at": self._clock.now()}
            conn.execute(conversations.update().where(_c.id == conversation_id).values(values))
            return [conversation_id]

        deleting = sa.select(conversations).where(_c.id == conversation_id, _c.state == ConversationState.DELETING)

        def read(conn: sa.Connection, _: Sequence[str]) -> Conversation | None:
            row = conn.execute(deleting).first()
            return None if row is None else conversation_of(row)

        return await self._ledger.write_and_read(key, effect, read)

    def _require_free(self, conn: sa.Connection, conversation_id: str) -> None:
        """Raises ConversationBusy if a run has not ended or other work holds the lease."""
        ahead = first_unfinished_run(conn, conversation_id)
        taken = sa.select(_c.id).where(_c.id == conversation_id, sql.LEASE_HOLDS)
        if ahead is not None or conn.execute(taken, self._lease_clock.now).first() is not None:
            raise busy_error(conversation_id, ahead)

    async def remove(self, conversation_id: str) -> None:
        """Deletes the row of a DELETING conversation. Has no effect if it has another state."""
        statement = conversations.delete().where(_c.id == conversation_id, _c.state == ConversationState.DELETING)
        await self._database.write(lambda conn: conn.execute(statement))


def _with_key(conn: sa.Connection, conversation: Conversation) -> str | None:
    """Returns the id of the agent's conversation with the same key, which may still be CREATING."""
    if conversation.key is None:
        return None
    query = sa.select(_c.id).where(_c.agent_id == conversation.agent_id, _c.client_key == conversation.key)
    return conn.execute(query).scalar()


def _find(conn: sa.Connection, organization_id: str, conversation_id: str) -> Conversation:
    query = sa.select(conversations).where(_visible(organization_id), _c.id == conversation_id)
    row = conn.execute(query).first()
    if row is None:
        raise conversation_missing(conversation_id)
    return conversation_of(row)


def _visible(organization_id: str) -> sa.ColumnElement[bool]:
    active_agent = sa.select(agents.c.id).where(agents.c.id == _c.agent_id, agents.c.state == AgentState.ACTIVE)
    return sa.and_(
        _c.organization_id == organization_id,
        _c.state == ConversationState.ACTIVE,
        active_agent.correlate(conversations).exists(),
    )


def _being_created(conversation_id: str) -> tuple[sa.ColumnElement[bool], ...]:
    return _c.id == conversation_id, _c.state == ConversationState.CREATING


def _conditions(filter_: ConversationFilter) -> list[sa.ColumnElement[bool]]:
    conditions = matching(((_c.agent_id, filter_.agent_id), (_c.archived, filter_.archived)))
    if filter_.summary_search:
        conditions.append(sa.func.lower(_c.summary).contains(filter_.summary_search.lower(), autoescape=True))
    return conditions
