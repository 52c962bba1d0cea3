"""Rows of windows: a conversation's state, and the order of the messages that it shows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import groupby
from typing import Any, Final

import sqlalchemy as sa
from mnemesh_kit.errors import NotFound

from mnemesh_recall.errors import no_conversation
from mnemesh_recall.model.contexts import ContextWindow, ContextWindowIds
from mnemesh_recall.model.messages import Message
from mnemesh_recall.model.unanswered_calls import with_error_returns
from mnemesh_recall.store.sql import agents as agent_rows
from mnemesh_recall.store.sql.rows import COLUMNS, to_message
from mnemesh_recall.store.sql.tables import agents, context_entries, contexts, messages

_c, _e, _m = contexts.c, context_entries.c, messages.c
_CONVERSATION: Final[sa.BindParameter[Any]] = sa.bindparam("conversation")
_ORGANIZATION: Final[sa.BindParameter[Any]] = sa.bindparam("organization")

HEAD: Final = (
    sa.select(contexts, agents.c.message_count)
    .join_from(contexts, agents, agents.c.agent_id == _c.agent_id)
    .where(_c.conversation_id == _CONVERSATION, _c.organization_id == _ORGANIZATION)
)
_SHOWN: Final = (
    sa.select(*COLUMNS)
    .join_from(context_entries, messages, _m.id == _e.message_id)
    .where(_e.conversation_id == _CONVERSATION)
    .order_by(_e.position)
)
_SHOWN_IDS: Final = sa.select(_e.message_id).where(_e.conversation_id == _CONVERSATION).order_by(_e.position)
_SHOWN_AMONG: Final = sa.select(_e.message_id).where(
    _e.conversation_id == _CONVERSATION, _e.message_id.in_(sa.bindparam("ids", expanding=True))
)
_CONVERSATIONS: Final[sa.BindParameter[Any]] = sa.bindparam("conversations", expanding=True)
_IDS_OF: Final = (
    sa.select(_c.conversation_id, _c.agent_id, _c.version, _e.message_id)
    .join_from(contexts, context_entries, _e.conversation_id == _c.conversation_id)
    .where(_c.conversation_id.in_(_CONVERSATIONS), _c.organization_id == _ORGANIZATION)
    .order_by(_c.conversation_id, _e.position)
)
_ENTER: Final = sa.insert(context_entries)
MOVE: Final = (
    sa.update(contexts)
    .where(_c.conversation_id == _CONVERSATION)
    .values({name: sa.bindparam(f"new_{name}", type_=_c[name].type) for name in (
        "version", "epoch", "system_message_id", "next_position", "updated_at", "last_message_at"
    )})
)  # fmt: skip
_SAY: Final = (
    sa.update(messages)
    .where(_m.id == sa.bindparam("message"))
    .values(content=sa.bindparam("new_content"), updated_at=sa.bindparam("now", type_=_m.updated_at.type))
)

_RESET: Final = (
    sa.update(contexts)
    .where(_c.conversation_id == _CONVERSATION)
    .values(resets=_c.resets + 1, reset_at=sa.bindparam("now", type_=_c.reset_at.type))
)

Head = sa.Row[*tuple[Any, ...]]
"""A row of `contexts`, with its agent's message_count."""


def head(conn: sa.Connection, organization_id: str, conversation_id: str, agent_id: str | None = None) -> Head:
    """The state of a window; `agent_id`, where given, must be its agent.

    Raises:
        Erased: there is none, and that agent was erased.
        NotFound: there is none, or it is somebody else's.
    """
    found = conn.execute(HEAD, {"conversation": conversation_id, "organization": organization_id}).first()
    if found is not None and agent_id in (None, found.agent_id):
        return found
    if agent_id is not None:
        raise absent(conn, organization_id, conversation_id, agent_id)
    raise no_conversation(conversation_id)


def absent(conn: sa.Connection, organization_id: str, conversation_id: str, agent_id: str) -> NotFound:
    """That the agent has no such conversation. Raises Erased where the agent was erased."""
    agent_rows.require_writable(conn, organization_id, agent_id)
    return no_conversation(conversation_id)


def count_reset(conn: sa.Connection, conversation_id: str, now: datetime) -> None:
    """Counts that messages were taken out of a window."""
    conn.execute(_RESET, {"conversation": conversation_id, "now": now})


def shown(conn: sa.Connection, conversation_id: str) -> tuple[Message, ...]:
    """The messages of a window, in order, with error returns for calls that have none."""
    return with_error_returns([to_message(row) for row in conn.execute(_SHOWN, {"conversation": conversation_id})])


def shown_ids(conn: sa.Connection, conversation_id: str) -> tuple[str, ...]:
    """The ids of a window's stored messages, in order."""
    return tuple(conn.execute(_SHOWN_IDS, {"conversation": conversation_id}).scalars())


def read(
    conn: sa.Connection, organization_id: str, conversation_id: str, if_version: int | None = None
) -> ContextWindow:
    """A window; without messages where its version is `if_version`."""
    state = head(conn, organization_id, conversation_id)
    known = state.version == if_version
    return to_context(state, None if known else shown(conn, conversation_id))


def read_ids(
    conn: sa.Connection, organization_id: str, conversation_ids: Sequence[str]
) -> tuple[ContextWindowIds, ...]:
    """See MessageStore.get_window_ids. No window is without entries: each has its system message."""
    asked = {"organization": organization_id, "conversations": list(conversation_ids)}
    rows = conn.execute(_IDS_OF, asked)
    found = {
        state[0]: ContextWindowIds(*state, tuple(row.message_id for row in shown))
        for state, shown in groupby(rows, key=lambda row: (row.conversation_id, row.agent_id, row.version))
    }
    return tuple(found[id_] for id_ in conversation_ids if id_ in found)


def to_context(state: Head, window: tuple[Message, ...] | None) -> ContextWindow:
    """The domain's view of a window's row."""
    return ContextWindow(
        conversation_id=state.conversation_id,
        agent_id=state.agent_id,
        version=state.version,
        epoch=state.epoch,
        agent_message_count=state.message_count,
        created_at=state.created_at,
        updated_at=state.updated_at,
        last_message_at=state.last_message_at,
        messages=window,
    )


def create(conn: sa.Connection, organization_id: str, new: ContextWindow, ids: Sequence[str]) -> None:
    """Makes a window over stored messages, the system message first."""
    conn.execute(
        sa.insert(contexts).values(
            conversation_id=new.conversation_id,
            organization_id=organization_id,
            agent_id=new.agent_id,
            version=new.version,
            epoch=new.epoch,
            system_message_id=ids[0],
            next_position=len(ids),
            created_at=new.created_at,
            updated_at=new.updated_at,
            last_message_at=new.last_message_at,
        )
    )
    enter(conn, new.conversation_id, 0, ids)


def enter(conn: sa.Connection, conversation_id: str, position: int, ids: Sequence[str]) -> None:
    """Puts messages into a window, from a position on."""
    if ids:
        conn.execute(
            _ENTER,
            [
                {"conversation_id": conversation_id, "position": position + place, "message_id": id_}
                for place, id_ in enumerate(ids)
            ],
        )


def not_shown(conn: sa.Connection, conversation_id: str, ids: Sequence[str], known: frozenset[str]) -> list[str]:
    """Those of `ids` that the window does not show yet; only a `known` one, stored before, can be shown."""
    old = [id_ for id_ in ids if id_ in known]
    there = (
        set(conn.execute(_SHOWN_AMONG, {"conversation": conversation_id, "ids": old}).scalars()) if old else frozenset()
    )
    return [id_ for id_ in ids if id_ not in there]


def leave(conn: sa.Connection, conversation_id: str) -> None:
    """Empties a window."""
    conn.execute(sa.delete(context_entries).where(_e.conversation_id == conversation_id))


def move(conn: sa.Connection, state: Head, now: datetime, **changes: Any) -> int:
    """Writes a window's next version and what else changed of it; returns the version."""
    conn.execute(MOVE, moved(state, now, **changes))
    return int(state.version + 1)


def moved(state: Head, now: datetime, **changes: Any) -> dict[str, Any]:
    """What MOVE is given for a window's next version."""
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


def say(conn: sa.Connection, system_message_id: str, content: str | None, now: datetime) -> None:
    """Rewrites the content of a system message in place."""
    conn.execute(_SAY, {"message": system_message_id, "new_content": content, "now": now})


def raise_epoch(conn: sa.Connection, conversation_id: str, epoch: int) -> None:
    """Notes a higher epoch where nothing else of the window changes."""
    conn.execute(sa.update(contexts).where(_c.conversation_id == conversation_id).values(epoch=epoch))
