"""Rows of groups and members. Fields that lists sort or filter by are columns; the others are a JSON document."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from mnemesh_kit.errors import InvalidArgument, NotFound

from mnemesh_orchestrator.model.agents import AgentState
from mnemesh_orchestrator.model.conversations import Conversation, ConversationState
from mnemesh_orchestrator.model.groups import BACKGROUND_TYPES, Group, GroupState, manager_field
from mnemesh_orchestrator.model.sleeptime import has_timers
from mnemesh_orchestrator.store.sql.conversation_rows import new_row
from mnemesh_orchestrator.store.sql.tables import agents, conversations, group_members, groups

VISIBLE_STATES: Final = (GroupState.ACTIVE, GroupState.UPDATING)
_c = groups.c
_GROUP = msgspec.json.Decoder(Group)
_ENCODE = msgspec.json.Encoder().encode


def group_columns(group: Group) -> dict[str, Any]:
    """Returns the columns that a change of a group writes. Runs write the counters and times of sleeptime runs."""
    document = replace(group, agent_ids=(), turns_counter=0, last_processed_message_id=None, last_sleeptime_at=None)
    return {
        "manager_type": group.manager.type,
        "manager_agent_id": group.manager.manager_agent_id,
        "hidden": group.hidden,
        "project_id": group.provenance.project_id,
        "template_id": group.provenance.template_id,
        "base_template_id": group.provenance.base_template_id,
        "deployment_id": group.provenance.deployment_id,
        "document": _ENCODE(document),
        "sleeptime_due_at": group.updated_at if has_timers(group.manager) else None,
        "updated_at": group.updated_at,
    }


def decode_document(document: bytes) -> Group:
    """Returns the group of a document, without its members and what sleeptime runs change."""
    return _GROUP.decode(document)


def decode_record(row: Any) -> Group:
    """Returns the group of a row of `groups`, without its members."""
    return replace(
        decode_document(row.document),
        turns_counter=row.turns_counter,
        last_processed_message_id=row.last_processed_message_id,
        last_sleeptime_at=row.last_sleeptime_at,
    )


def decode_groups(conn: sa.Connection, rows: Sequence[Any]) -> tuple[Group, ...]:
    """Returns the groups of rows of `groups`, with their members."""
    members: dict[str, list[str]] = {row.id: [] for row in rows}
    query = (
        sa.select(group_members.c.group_id, group_members.c.agent_id)
        .join(agents, agents.c.id == group_members.c.agent_id)
        .where(group_members.c.group_id.in_(members), agents.c.state != AgentState.DELETING)
        .order_by(group_members.c.position)
    )
    for row in conn.execute(query) if rows else ():
        members[row.group_id].append(row.agent_id)
    return tuple(replace(decode_record(row), agent_ids=tuple(members[row.id])) for row in rows)


def progress_columns(start_sequence_id: int | None, turns_counter: int | None = None) -> dict[str, Any]:
    """Returns the columns of a group whose sleeptime manager starts, and of a change that sets the count of turns.

    Args:
        start_sequence_id: The message after which a new manager starts; None if there is no new manager.
        turns_counter: The count that is set. None is that of a new manager, 0.
    """
    if start_sequence_id is None:
        return {} if turns_counter is None else {"turns_counter": turns_counter}
    return {
        "turns_counter": turns_counter or 0,
        "seen_sequence_id": start_sequence_id,
        "processed_sequence_id": start_sequence_id,
        "last_processed_message_id": None,
        "last_turn_at": None,
        "last_sleeptime_at": None,
    }


def find_group(conn: sa.Connection, organization_id: str, group_id: str) -> Group:
    """Returns an ACTIVE or UPDATING group. Raises NotFound."""
    row = conn.execute(sa.select(groups).where(visible(organization_id), _c.id == group_id)).first()
    if row is None:
        raise group_missing(group_id)
    return decode_groups(conn, [row])[0]


def visible(organization_id: str) -> sa.ColumnElement[bool]:
    """Returns the condition for the groups that clients of an organization see."""
    return sa.and_(_c.organization_id == organization_id, _c.state.in_(VISIBLE_STATES))


def insert_group(conn: sa.Connection, group: Group, state: GroupState, **columns: Any) -> None:
    """Inserts a group with its members, its queue and more columns.

    Raises:
        NotFound: An agent does not exist.
        InvalidArgument: The manager of a sleeptime group manages another one.
    """
    _require_agents(conn, group, group.all_agent_ids)
    require_one_background_group(conn, group)
    row = {"id": group.id, "organization_id": group.organization_id, "created_at": group.created_at}
    conn.execute(groups.insert(), row | group_columns(group) | {"state": state} | columns)
    _insert_members(conn, group)
    queue = Conversation(
        group.conversation_id,
        group.organization_id,
        "",
        is_default=False,
        created_at=group.created_at,
        updated_at=group.updated_at,
        created_by_id=group.provenance.created_by_id,
    )
    queue_row = new_row(queue, ConversationState.ACTIVE) | {"agent_id": None, "group_id": group.id}
    conn.execute(conversations.insert(), queue_row)


def rewrite_group(conn: sa.Connection, before: Group, after: Group, *, is_creation: bool = False) -> None:
    """Replaces the record of a group and its members, under its next revision unless this completes its creation.

    Raises the errors of `insert_group`.
    """
    require_change(conn, before, after)
    after = replace(after, revision=before.revision + (not is_creation))
    conn.execute(groups.update().where(_c.id == after.id).values(group_columns(after)))
    if after.agent_ids != before.agent_ids:
        conn.execute(group_members.delete().where(group_members.c.group_id == after.id))
        _insert_members(conn, after)


def require_change(conn: sa.Connection, before: Group, after: Group) -> None:
    """Raises the errors of `insert_group` for agents that join, and for a new manager."""
    joining = set(after.all_agent_ids) - set(before.all_agent_ids)
    _require_agents(conn, after, [agent_id for agent_id in after.all_agent_ids if agent_id in joining])
    if after.manager != before.manager:
        require_one_background_group(conn, after)


def require_one_background_group(conn: sa.Connection, group: Group) -> None:
    """Raises InvalidArgument if a sleeptime group has a manager that manages another one."""
    if group.manager.type not in BACKGROUND_TYPES:
        return
    other = sa.select(_c.id).where(
        _c.manager_agent_id == group.manager.manager_agent_id,
        _c.organization_id == group.organization_id,
        _c.manager_type.in_(BACKGROUND_TYPES),
        _c.state != GroupState.DELETING,
        _c.id != group.id,
    )
    found = conn.execute(other).scalar()
    if found is not None:
        raise InvalidArgument(
            f"{manager_field(group.manager)} must name an agent that manages no other sleeptime group. "
            f"The agent manages {found}. Add members to that group, or delete it.",
            field=manager_field(group.manager),
            resource_id=found,
        )


def _insert_members(conn: sa.Connection, group: Group) -> None:
    rows = [
        {"group_id": group.id, "agent_id": agent_id, "position": position}
        for position, agent_id in enumerate(group.agent_ids)
    ]
    if rows:
        conn.execute(group_members.insert(), rows)


def _require_agents(conn: sa.Connection, group: Group, agent_ids: Sequence[str]) -> None:
    """Raises NotFound if an agent does not exist, or is being deleted."""
    if not agent_ids:
        return
    query = sa.select(agents.c.id).where(
        agents.c.organization_id == group.organization_id,
        agents.c.id.in_(agent_ids),
        agents.c.state != AgentState.DELETING,
    )
    known = set(conn.execute(query).scalars())
    for agent_id in agent_ids:
        if agent_id not in known:
            is_manager = agent_id == group.manager.manager_agent_id
            field = manager_field(group.manager) if is_manager else "group.agent_ids"
            raise NotFound(f"There is no agent {agent_id}.", field=field, resource_id=agent_id)


def group_missing(group_id: str) -> NotFound:
    """Returns the error for a group that does not exist, or is not visible."""
    return NotFound(f"There is no group {group_id}.", resource_id=group_id)
