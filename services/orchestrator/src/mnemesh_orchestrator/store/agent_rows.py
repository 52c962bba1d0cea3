"""The rows of agents, of their links and conversations, and of groups and their members."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from mnemesh_kit.errors import InvalidArgument, NotFound
from mnemesh_kit.sql.prepared import Prepared

from mnemesh_orchestrator.errors import GroupChanged
from mnemesh_orchestrator.model.agents import Agent, AgentState, Correction, LinkKind
from mnemesh_orchestrator.model.conversations import Conversation, ConversationState
from mnemesh_orchestrator.model.groups import (
    BACKGROUND_TYPES,
    Group,
    GroupChange,
    GroupState,
    SharedAttachment,
    UnfinishedGroup,
    background_manager,
    definition,
    has_timers,
    manager_field,
)
from mnemesh_orchestrator.store.tables import (
    agent_links,
    agent_tags,
    agents,
    conversations,
    group_members,
    groups,
    identities,
)

_CONVERSATION = msgspec.json.Decoder(Conversation)
_ENCODE = msgspec.json.Encoder().encode

_AGENT = msgspec.json.Decoder(Agent)
_CORRECTIONS = msgspec.json.Decoder(tuple[Correction, ...])


def links_of(agent: Agent) -> Iterator[tuple[LinkKind, str]]:
    """Yields the links of an agent as kind and value, each once."""
    yield from dict.fromkeys((LinkKind.IDENTITY, identity_id) for identity_id in agent.identity_ids)
    yield from dict.fromkeys((LinkKind.TOOL, tool.tool_id) for tool in agent.tools if tool.tool_id is not None)
    if agent.created_for_agent_id is not None:
        yield LinkKind.CREATED_FOR, agent.created_for_agent_id
    for kind in LinkKind.of_origin():
        value = getattr(agent.provenance, kind)
        if value:
            yield kind, value


_INSERT_AGENT: Final = Prepared(agents.insert())
_INSERT_CONVERSATION: Final = Prepared(conversations.insert())
_INSERT_LINK: Final = Prepared(agent_links.insert())
_INSERT_TAG: Final = Prepared(agent_tags.insert())


def write_links(conn: sa.Connection, agent: Agent, *, replaces: bool = True) -> None:
    """Writes the links of an agent. Without `replaces`, it has none."""
    if replaces:
        scope = agent_links.c.organization_id == agent.organization_id
        conn.execute(agent_links.delete().where(scope, agent_links.c.agent_id == agent.id))
    if agent.identity_ids:
        known = sa.select(identities.c.id).where(
            identities.c.organization_id == agent.organization_id, identities.c.id.in_(agent.identity_ids)
        )
        missing = set(agent.identity_ids) - set(conn.execute(known).scalars())
        if missing:
            first = min(missing)
            raise NotFound(f"There is no identity {first}.", field="agent.identity_ids", resource_id=first)
    rows = [
        {"organization_id": agent.organization_id, "kind": kind, "value": value, "agent_id": agent.id}
        for kind, value in links_of(agent)
    ]
    _INSERT_LINK.send_each(conn, rows)


def write_tool_links(conn: sa.Connection, agent: Agent) -> None:
    """Writes the links to the tools of an agent, which were not known when its other links were written."""
    rows = [
        {"organization_id": agent.organization_id, "kind": kind, "value": value, "agent_id": agent.id}
        for kind, value in links_of(agent)
        if kind is LinkKind.TOOL
    ]
    if rows:
        written = sa.and_(agent_links.c.agent_id == agent.id, agent_links.c.kind == LinkKind.TOOL)
        conn.execute(agent_links.delete().where(written))
        conn.execute(agent_links.insert(), rows)


def agents_with_link(conn: sa.Connection, organization_id: str, kind: LinkKind, value: str) -> tuple[str, ...]:
    """Returns the ids of the agents with a link."""
    return tuple(map(str, conn.execute(agents_with_link_query(organization_id, kind, value)).scalars()))


def agents_with_link_query(organization_id: str, kind: LinkKind, value: str) -> sa.Select[tuple[str]]:
    """Returns the query for the ids of the agents with a link."""
    return sa.select(agent_links.c.agent_id).where(
        agent_links.c.organization_id == organization_id, agent_links.c.kind == kind, agent_links.c.value == value
    )


def new_conversation_row(
    conversation: Conversation, state: ConversationState, creation: bytes | None = None
) -> dict[str, Any]:
    return {
        "id": conversation.id,
        "organization_id": conversation.organization_id,
        "agent_id": conversation.agent_id,
        "is_default": conversation.is_default,
        "state": state,
        "creation": creation,
        "last_message_at": conversation.last_message_at,
        "client_key": conversation.key,
        "created_at": conversation.created_at,
        "epoch": 0,
        "next_queue_number": 1,
        **conversation_columns(conversation),
    }


def conversation_columns(conversation: Conversation) -> dict[str, Any]:
    """Returns the columns that a change of a conversation writes. Runs write the column `last_message_at`."""
    return {
        "archived": conversation.archived,
        "summary": conversation.summary,
        "document": _ENCODE(replace(conversation, last_message_at=None)),
        "updated_at": conversation.updated_at,
    }


def decode_conversation(document: bytes) -> Conversation:
    """Returns the conversation of a document, without `last_message_at`."""
    return _CONVERSATION.decode(document)


def conversation_of(row: Any) -> Conversation:
    return replace(decode_conversation(row.document), last_message_at=row.last_message_at)


def conversation_missing(conversation_id: str) -> NotFound:
    """Returns the error for a conversation that does not exist or is not ACTIVE."""
    return NotFound(f"There is no conversation {conversation_id}.", resource_id=conversation_id)


def decode_agent(row: Any) -> Agent:
    """Returns the agent of a row of `agents`.

    The state and the figures of the last run change without the rest, so they are columns.
    """
    agent = _AGENT.decode(row.document)
    return replace(
        agent,
        state=AgentState(row.state),
        last_stop_reason=row.last_stop_reason,
        last_run_completed_at=row.last_run_completed_at,
        last_run_ms=row.last_run_ms,
        corrections=_CORRECTIONS.decode(row.corrections) if row.corrections else (),
    )


def agent_missing(agent_id: str) -> NotFound:
    """Returns the error for an agent that does not exist or is not ACTIVE."""
    return NotFound(f"There is no agent {agent_id}.", resource_id=agent_id)


def agent_columns(agent: Agent) -> dict[str, Any]:
    """Returns the columns that a change of an agent writes."""
    return {
        "organization_id": agent.organization_id,
        "name": agent.name,
        "type": agent.type,
        "state": agent.state,
        "hidden": agent.hidden,
        "document": _ENCODE(agent),
        "created_at": agent.created_at,
        "updated_at": agent.updated_at,
    }


def visible(organization_id: str) -> sa.ColumnElement[bool]:
    """Returns the condition that selects the ACTIVE agents of an organization."""
    return sa.and_(agents.c.organization_id == organization_id, agents.c.state == AgentState.ACTIVE)


def being_created(agent_id: str) -> sa.ColumnElement[bool]:
    """Returns the condition that selects an agent if it is CREATING."""
    return sa.and_(agents.c.id == agent_id, agents.c.state == AgentState.CREATING)


def active(conn: sa.Connection, organization_id: str, agent_id: str) -> Agent:
    """Returns an ACTIVE agent. Raises NotFound."""
    row = conn.execute(sa.select(agents).where(visible(organization_id), agents.c.id == agent_id)).first()
    if row is None:
        raise agent_missing(agent_id)
    return decode_agent(row)


def insert_agent(conn: sa.Connection, agent: Agent, creation: bytes | None = None) -> None:
    """Inserts an agent with its tags, its links and its default conversation."""
    _INSERT_AGENT.send(conn, {**agent_columns(agent), "id": agent.id, "creation": creation})
    write_tags(conn, agent)
    write_links(conn, agent, replaces=False)
    conversation = Conversation(
        id=agent.default_conversation_id,
        organization_id=agent.organization_id,
        agent_id=agent.id,
        is_default=True,
        created_at=agent.created_at,
        updated_at=agent.updated_at,
    )
    _INSERT_CONVERSATION.send(conn, new_conversation_row(conversation, ConversationState.ACTIVE))


def rewrite(conn: sa.Connection, agent: Agent) -> None:
    """Replaces the record of an agent, its tags and its links, under its next revision."""
    agent = replace(agent, revision=agent.revision + 1)
    conn.execute(agents.update().where(agents.c.id == agent.id).values(**agent_columns(agent)))
    conn.execute(agent_tags.delete().where(agent_tags.c.agent_id == agent.id))
    write_tags(conn, agent)
    write_links(conn, agent)


def write_tags(conn: sa.Connection, agent: Agent) -> None:
    """Inserts the tags of an agent that has none."""
    if agent.tags:
        rows = [{"organization_id": agent.organization_id, "tag": tag, "agent_id": agent.id} for tag in agent.tags]
        _INSERT_TAG.send_each(conn, rows)


VISIBLE_STATES: Final = (GroupState.ACTIVE, GroupState.UPDATING)
_c = groups.c
_GROUP = msgspec.json.Decoder(Group)

_CHANGE = msgspec.json.Decoder(GroupChange)


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
    row = conn.execute(sa.select(groups).where(visible_groups(organization_id), _c.id == group_id)).first()
    if row is None:
        raise group_missing(group_id)
    return decode_groups(conn, [row])[0]


def visible_groups(organization_id: str | sa.BindParameter[str]) -> sa.ColumnElement[bool]:
    """Returns the condition for the groups that clients of an organization see."""
    return sa.and_(_c.organization_id == organization_id, _c.state.in_(VISIBLE_STATES))


def insert_group(conn: sa.Connection, group: Group, state: GroupState, **columns: Any) -> None:
    """Inserts a group with its members, its queue and more columns.

    Raises:
        InvalidArgument: The manager of a sleeptime group manages another one.
    """
    _require_agents(conn, group, group.all_agent_ids)
    require_one_background_group(conn, group)
    row = {"id": group.id, "organization_id": group.organization_id, "created_at": group.created_at}
    conn.execute(groups.insert(), row | group_columns(group) | {"state": state} | columns)
    _insert_members(conn, group)
    queue = Conversation(
        id=group.conversation_id,
        organization_id=group.organization_id,
        agent_id="",
        is_default=False,
        created_at=group.created_at,
        updated_at=group.updated_at,
        created_by_id=group.provenance.created_by_id,
    )
    queue_row = new_conversation_row(queue, ConversationState.ACTIVE) | {"agent_id": None, "group_id": group.id}
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


def begin_change(conn: sa.Connection, change: GroupChange) -> None:
    if change.after is None:
        _begin_deletion(conn, change)
    elif change.before is None:
        insert_group(conn, change.after, GroupState.CREATING, change=_ENCODE(change))
    else:
        _begin_update(conn, change, change.before, change.after)


def _begin_update(conn: sa.Connection, change: GroupChange, before: Group, after: Group) -> None:
    current = find_group(conn, change.organization_id, change.group_id)
    if change_in_progress(conn, change.group_id) is not None or definition(current) != definition(before):
        raise GroupChanged(change.group_id)
    change = _with_take_over(conn, change)
    if not change.has_effects:
        _apply(conn, current, after, change)
        return
    require_change(conn, current, after)
    values = {"state": GroupState.UPDATING, "change": _ENCODE(change)}
    conn.execute(groups.update().where(_c.id == change.group_id).values(values))


def _begin_deletion(conn: sa.Connection, change: GroupChange) -> None:
    before = find_group(conn, change.organization_id, change.group_id)
    pending = change_in_progress(conn, change.group_id)
    ends = (*before.attachments, *((*pending.attaches, *pending.by_link) if pending is not None else ()))
    change = _with_take_over(conn, replace(change, before=before, detaches=tuple(dict.fromkeys(ends))))
    values = {"state": GroupState.DELETING, "change": _ENCODE(change)}
    conn.execute(groups.update().where(_c.id == change.group_id).values(values))


def _with_take_over(conn: sa.Connection, change: GroupChange) -> GroupChange:
    """Returns a change without the attachments that other groups of the agents share, which take them over."""
    if not change.detaches:
        return change
    members = sa.select(group_members.c.group_id).where(
        group_members.c.agent_id.in_({pair.agent_id for pair in change.detaches})
    )
    managers = {pair.agent_id for pair in change.detaches}
    query = sa.select(groups).where(
        visible_groups(change.organization_id),
        _c.id != change.group_id,
        sa.or_(_c.id.in_(members), _c.manager_agent_id.in_(managers)),
    )
    taken: set[SharedAttachment] = set()
    for other in decode_groups(conn, conn.execute(query).all()):
        shared = [
            pair
            for pair in change.detaches
            if pair.agent_id in other.all_agent_ids and pair.block_id in other.shared_block_ids
        ]
        taken.update(shared)
        if set(shared) - set(other.attachments):
            attachments = tuple(dict.fromkeys((*other.attachments, *shared)))
            columns = group_columns(replace(other, attachments=attachments))
            conn.execute(groups.update().where(_c.id == other.id).values(document=columns["document"]))
    return replace(change, detaches=tuple(pair for pair in change.detaches if pair not in taken))


def unfinished_groups(conn: sa.Connection, group_id: str | None) -> tuple[UnfinishedGroup, ...]:
    query = sa.select(groups).where(sa.text("groups.state <> 'active'")).order_by(_c.created_at)
    if group_id is not None:
        query = query.where(_c.id == group_id)
    rows = conn.execute(query).all()
    return tuple(
        UnfinishedGroup(group, GroupState(row.state), _CHANGE.decode(row.change))
        for row, group in zip(rows, decode_groups(conn, rows), strict=True)
    )


def change_in_progress(conn: sa.Connection, group_id: str) -> GroupChange | None:
    change = conn.execute(sa.select(_c.change).where(_c.id == group_id)).scalar()
    return None if change is None else _CHANGE.decode(change)


def finish_change(conn: sa.Connection, change: GroupChange) -> bool:
    row = conn.execute(sa.select(groups).where(_c.id == change.group_id)).first()
    stored = _in_progress(row, change)
    if stored is None or stored.is_undone:
        return False
    if change.after is None:
        mark_managers(conn, stored.before, None)
        conn.execute(groups.delete().where(_c.id == change.group_id))
        return True
    (before,) = decode_groups(conn, [row])
    # Meanwhile members may have been deleted, and the group may have taken over attachments, and got a partner.
    known = change.before or before
    taken = (pair for pair in before.attachments if pair not in known.attachments)
    joined = (agent_id for agent_id in before.agent_ids if agent_id not in known.agent_ids)
    after = replace(
        change.after,
        agent_ids=_existing(conn, tuple(dict.fromkeys((*change.after.agent_ids, *joined)))),
        attachments=tuple(dict.fromkeys((*change.after.attachments, *taken))),
    )
    _apply(conn, before, after, change)
    return True


def mark_undone(conn: sa.Connection, change: GroupChange) -> bool:
    row = conn.execute(sa.select(groups).where(_c.id == change.group_id)).first()
    if _in_progress(row, change) is None:
        return False
    undone = _ENCODE(replace(change, is_undone=True))
    conn.execute(groups.update().where(_c.id == change.group_id).values(change=undone))
    return True


def end_undo(conn: sa.Connection, change: GroupChange) -> None:
    row = conn.execute(sa.select(groups).where(_c.id == change.group_id)).first()
    if _in_progress(row, change) is None:
        return
    if change.before is None:
        conn.execute(groups.delete().where(_c.id == change.group_id))
    else:
        values = {"state": GroupState.ACTIVE, "change": None}
        conn.execute(groups.update().where(_c.id == change.group_id).values(values))


def _in_progress(row: Any, change: GroupChange) -> GroupChange | None:
    """Returns the stored change of a row if it is this one, else None."""
    if row is None or row.change is None:
        return None
    stored = _CHANGE.decode(row.change)
    return stored if stored.id == change.id else None


def _apply(conn: sa.Connection, before: Group, after: Group, change: GroupChange) -> None:
    rewrite_group(conn, before, after, is_creation=change.before is None)
    progress = progress_columns(change.start_sequence_id, change.turns_counter)
    values = {"state": GroupState.ACTIVE, "change": None} | progress
    conn.execute(groups.update().where(_c.id == after.id).values(values))
    mark_managers(conn, None if change.before is None else before, after)


def mark_managers(conn: sa.Connection, before: Group | None, after: Group | None) -> None:
    """Sets `enable_sleeptime` of the former and the new manager of a sleeptime group."""
    former, new = background_manager(before), background_manager(after)
    if former == new:
        return
    for group, agent_id, enabled in ((before, former, False), (after, new, True)):
        if group is None or agent_id is None:
            continue
        try:
            agent = active(conn, group.organization_id, agent_id)
        except NotFound:
            continue  # it was deleted
        if bool(agent.enable_sleeptime) != enabled:
            rewrite(conn, replace(agent, enable_sleeptime=enabled))


def _existing(conn: sa.Connection, agent_ids: Sequence[str]) -> tuple[str, ...]:
    query = sa.select(agents.c.id).where(agents.c.id.in_(agent_ids), agents.c.state != AgentState.DELETING)
    known = set(conn.execute(query).scalars())
    return tuple(agent_id for agent_id in agent_ids if agent_id in known)
