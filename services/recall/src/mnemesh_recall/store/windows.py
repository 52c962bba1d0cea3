"""Rows of context windows: the state of a conversation, and the order of the messages in its window."""

from collections.abc import Sequence
from datetime import datetime
from itertools import groupby
from typing import Any, Final

import sqlalchemy as sa
from mnemesh_kit.errors import NotFound
from mnemesh_kit.sql.prepared import Prepared
from mnemesh_types.messages import Message
from mnemesh_types.recall import ContextWindowIds

from mnemesh_recall.errors import no_conversation
from mnemesh_recall.model.contexts import ContextWindow, with_error_returns
from mnemesh_recall.store import transaction as agent_rows
from mnemesh_recall.store.message_rows import COLUMNS, message_from_row
from mnemesh_recall.store.tables import agents, context_entries, contexts, messages

_c, _e, _m = contexts.c, context_entries.c, messages.c
_CONVERSATION: Final[sa.BindParameter[Any]] = sa.bindparam("conversation")
_ORGANIZATION: Final[sa.BindParameter[Any]] = sa.bindparam("organization")

STATE: Final = (
    sa.select(contexts, agents.c.message_count)
    .join_from(contexts, agents, agents.c.agent_id == _c.agent_id)
    .where(_c.conversation_id == _CONVERSATION, _c.organization_id == _ORGANIZATION)
)
_READ_STATE: Final = Prepared(STATE)
_MESSAGES: Final = Prepared(
    sa.select(*COLUMNS)
    .join_from(context_entries, messages, _m.id == _e.message_id)
    .where(_e.conversation_id == _CONVERSATION)
    .order_by(_e.position)
)
_IDS: Final = sa.select(_e.message_id).where(_e.conversation_id == _CONVERSATION).order_by(_e.position)
_IDS_AMONG: Final = sa.select(_e.message_id).where(
    _e.conversation_id == _CONVERSATION, _e.message_id.in_(sa.bindparam("ids", expanding=True))
)
_IDS_OF_MANY: Final = (
    sa.select(_c.conversation_id, _c.agent_id, _c.version, _e.message_id)
    .join_from(contexts, context_entries, _e.conversation_id == _c.conversation_id)
    .where(_c.conversation_id.in_(sa.bindparam("conversations", expanding=True)), _c.organization_id == _ORGANIZATION)
    .order_by(_c.conversation_id, _e.position)
)
_INSERT: Final = Prepared(sa.insert(contexts))
_INSERT_ENTRIES: Final = Prepared(sa.insert(context_entries))
UPDATE_STATE: Final = (
    sa.update(contexts)
    .where(_c.conversation_id == _CONVERSATION)
    .values({name: sa.bindparam(f"new_{name}", type_=_c[name].type) for name in (
        "version", "epoch", "system_message_id", "next_position", "updated_at", "last_message_at"
    )})
)  # fmt: skip
_UPDATE_SYSTEM: Final = Prepared(
    sa.update(messages)
    .where(_m.id == sa.bindparam("message"))
    .values(content=sa.bindparam("new_content"), updated_at=sa.bindparam("now", type_=_m.updated_at.type))
)
_COUNT_RESET: Final = (
    sa.update(contexts)
    .where(_c.conversation_id == _CONVERSATION)
    .values(resets=_c.resets + 1, reset_at=sa.bindparam("now", type_=_c.reset_at.type))
)

State = sa.Row[*tuple[Any, ...]]
"""A row of `contexts`, with the message_count of its agent."""


def read_state(conn: sa.Connection, organization_id: str, conversation_id: str, agent_id: str | None = None) -> State:
    """Returns the state of a window. Its agent must be `agent_id`, unless that is None.

    Raises:
        Erased: there is no such window, and the agent was erased.
        NotFound: there is no such window, or it is another organization's or agent's.
    """
    found: State | None = _READ_STATE.first(conn, {"conversation": conversation_id, "organization": organization_id})
    if found is not None and agent_id in (None, found.agent_id):
        return found
    if agent_id is not None:
        raise missing(conn, organization_id, conversation_id, agent_id)
    raise no_conversation(conversation_id)


def missing(conn: sa.Connection, organization_id: str, conversation_id: str, agent_id: str) -> NotFound:
    """Returns the error for a conversation that the agent does not have. Raises Erased if the agent was erased."""
    agent_rows.require_writable(conn, organization_id, agent_id)
    return no_conversation(conversation_id)


def read_messages(conn: sa.Connection, conversation_id: str) -> tuple[Message, ...]:
    """Returns the messages of a window, in order, with error returns for unanswered calls."""
    return _window(_MESSAGES.all(conn, {"conversation": conversation_id}))


def _window(rows: Sequence[Any]) -> tuple[Message, ...]:
    return with_error_returns([message_from_row(row) for row in rows])


def read_ids(conn: sa.Connection, conversation_id: str) -> tuple[str, ...]:
    """Returns the ids of the stored messages in a window, in order."""
    return tuple(conn.execute(_IDS, {"conversation": conversation_id}).scalars())


def read(
    conn: sa.Connection, organization_id: str, conversation_id: str, if_version: int | None = None
) -> ContextWindow:
    """Returns a window, without its messages if its version is `if_version`."""
    # Both are sent before the first is awaited, unless the caller may know the messages.
    asked = _MESSAGES.send(conn, {"conversation": conversation_id}) if if_version is None else None
    state = read_state(conn, organization_id, conversation_id)
    if asked is not None:
        window: tuple[Message, ...] | None = _window(asked.all())
    else:
        window = None if state.version == if_version else read_messages(conn, conversation_id)
    return window_of(state, window)


def window_of(state: State, messages: tuple[Message, ...] | None = None) -> ContextWindow:
    """Returns a window with a state."""
    return ContextWindow(
        conversation_id=state.conversation_id,
        agent_id=state.agent_id,
        version=state.version,
        epoch=state.epoch,
        agent_message_count=state.message_count,
        created_at=state.created_at,
        updated_at=state.updated_at,
        last_message_at=state.last_message_at,
        messages=messages,
    )


def read_ids_of_many(
    conn: sa.Connection, organization_id: str, conversation_ids: Sequence[str]
) -> tuple[ContextWindowIds, ...]:
    """See MessageStore.get_context_ids. Every window has an entry, because it has a system message."""
    parameters = {"organization": organization_id, "conversations": list(conversation_ids)}
    rows = conn.execute(_IDS_OF_MANY, parameters)
    found = {
        key[0]: ContextWindowIds(*key, tuple(row.message_id for row in entries))
        for key, entries in groupby(rows, key=lambda row: (row.conversation_id, row.agent_id, row.version))
    }
    return tuple(found[id_] for id_ in conversation_ids if id_ in found)


def insert(conn: sa.Connection, organization_id: str, new: ContextWindow, ids: Sequence[str]) -> None:
    """Inserts a window over stored messages, the system message first."""
    row = {
        "conversation_id": new.conversation_id,
        "organization_id": organization_id,
        "agent_id": new.agent_id,
        "version": new.version,
        "epoch": new.epoch,
        "system_message_id": ids[0],
        "next_position": len(ids),
        "created_at": new.created_at,
        "updated_at": new.updated_at,
        "last_message_at": new.last_message_at,
    }
    _INSERT.send(conn, row)
    insert_entries(conn, new.conversation_id, 0, ids)


def insert_entries(conn: sa.Connection, conversation_id: str, position: int, ids: Sequence[str]) -> None:
    """Appends messages to a window, starting at a position."""
    if ids:
        _INSERT_ENTRIES.send_each(
            conn,
            [
                {"conversation_id": conversation_id, "position": position + index, "message_id": id_}
                for index, id_ in enumerate(ids)
            ],
        )


def ids_to_append(conn: sa.Connection, conversation_id: str, ids: Sequence[str], known: frozenset[str]) -> list[str]:
    """Returns those of `ids` that the window does not contain. It can contain only ids in `known`."""
    old = [id_ for id_ in ids if id_ in known]
    present = (
        set(conn.execute(_IDS_AMONG, {"conversation": conversation_id, "ids": old}).scalars()) if old else frozenset()
    )
    return [id_ for id_ in ids if id_ not in present]


def delete_entries(conn: sa.Connection, conversation_id: str) -> None:
    """Removes all messages from a window."""
    conn.execute(sa.delete(context_entries).where(_e.conversation_id == conversation_id))


def update_state(conn: sa.Connection, state: State, now: datetime, **changes: Any) -> int:
    """Writes the next version of a window with the changes to its state. Returns the version."""
    conn.execute(UPDATE_STATE, next_state(state, now, **changes))
    return int(state.version + 1)


def next_state(state: State, now: datetime, **changes: Any) -> dict[str, Any]:
    """Returns the parameters of UPDATE_STATE for the next version of a window."""
    values = {
        "epoch": state.epoch,
        "system_message_id": state.system_message_id,
        "next_position": state.next_position,
        "last_message_at": state.last_message_at,
        **changes,
        "version": state.version + 1,
        "updated_at": now,
    }
    return {"conversation": state.conversation_id, **{f"new_{name}": value for name, value in values.items()}}


def update_system_message(conn: sa.Connection, system_message_id: str, content: str | None, now: datetime) -> None:
    """Replaces the content of a system message in its row."""
    _UPDATE_SYSTEM.send(conn, {"message": system_message_id, "new_content": content, "now": now})


def update_epoch(conn: sa.Connection, conversation_id: str, epoch: int) -> None:
    """Stores a higher epoch without a new version."""
    conn.execute(sa.update(contexts).where(_c.conversation_id == conversation_id).values(epoch=epoch))


def count_reset(conn: sa.Connection, conversation_id: str, now: datetime) -> None:
    """Counts that messages were removed from a window."""
    conn.execute(_COUNT_RESET, {"conversation": conversation_id, "now": now})


def increment_versions(conn: sa.Connection, conversation_ids: Sequence[str], now: datetime) -> None:
    """Gives windows a new version, because one of their messages changed or was deleted."""
    if conversation_ids:
        conn.execute(
            sa.update(contexts)
            .where(_c.conversation_id.in_(conversation_ids))
            .values(version=_c.version + 1, updated_at=now)
        )


def containing(conn: sa.Connection, message_id: str) -> list[str]:
    """Returns the conversations whose windows contain a message."""
    return list(conn.execute(sa.select(_e.conversation_id).where(_e.message_id == message_id)).scalars())
