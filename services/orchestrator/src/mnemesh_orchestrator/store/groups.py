"""Groups, their members, and the queue of each group's runs."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from mnemesh_kit.errors import InvalidArgument, NotFound
from mnemesh_kit.idempotency import Ledger, RequestKey
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.sql import Database
from mnemesh_kit.sql.pages import matching, paginate
from mnemesh_kit.time import Clock

from mnemesh_orchestrator.errors import GroupChanged
from mnemesh_orchestrator.model.agents import AgentState
from mnemesh_orchestrator.model.conversations import Conversation, ConversationState
from mnemesh_orchestrator.model.groups import (
    BACKGROUND_TYPES,
    Group,
    GroupChange,
    GroupFilter,
    GroupOrder,
    GroupState,
    ManagerType,
    SharedAttachment,
    UnfinishedGroup,
    background_manager,
    definition,
    has_timers,
    manager_field,
)
from mnemesh_orchestrator.store.agent_rows import active, new_conversation_row, rewrite
from mnemesh_orchestrator.store.tables import agents, conversations, group_members, groups, request_ledger

_ENCODE = msgspec.json.Encoder().encode
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
    if not rows:
        return ()
    members: dict[str, list[str]] = {row.id: [] for row in rows}
    query = (
        sa.select(group_members.c.group_id, group_members.c.agent_id)
        .join(agents, agents.c.id == group_members.c.agent_id)
        .where(group_members.c.group_id.in_(members), agents.c.state != AgentState.DELETING)
        .order_by(group_members.c.position)
    )
    for row in conn.execute(query):
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


_ORGANIZATION: Final[sa.BindParameter[str]] = sa.bindparam("p_organization")
_AGENTS: Final[sa.BindParameter[Any]] = sa.bindparam("p_agents", expanding=True)
_OF_AGENTS: Final = (
    sa.select(group_members.c.agent_id, groups.c.id, groups.c.created_at)
    .join(group_members, group_members.c.group_id == groups.c.id)
    .where(visible_groups(_ORGANIZATION), group_members.c.agent_id.in_(_AGENTS))
    .union(
        sa.select(groups.c.manager_agent_id, groups.c.id, groups.c.created_at).where(
            visible_groups(_ORGANIZATION), groups.c.manager_agent_id.in_(_AGENTS)
        )
    )
    .order_by("created_at", "id")
)
"""Built once, as most reads of agents ask for their groups."""


class GroupStore:
    """Groups, with their members and the conversation that is the queue of each group's runs.

    Reads return ACTIVE and UPDATING groups. Members whose agent is deleted, or is being deleted, are left out; the
    manager stays.

    Example:
        >>> group, is_new = await groups.create(key, group)
        >>> (await groups.of_agents(group.organization_id, group.agent_ids))[group.agent_ids[0]]
        ('group-…',)
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._ledger = Ledger(database, request_ledger, clock)

    async def get(self, organization_id: str, group_id: str) -> Group:
        """Returns a group. Raises NotFound."""
        return await self._database.read(lambda conn: find_group(conn, organization_id, group_id))

    async def list(
        self, organization_id: str, filter_: GroupFilter, order_by: GroupOrder, page: PageQuery
    ) -> Page[Group]:
        scope = visible_groups(organization_id)
        query = sa.select(groups).where(scope, *_conditions(filter_))

        def read(conn: sa.Connection) -> Page[Group]:
            found = paginate(conn, query, page, key=_c[order_by], id=_c.id, scope=scope)
            return found.with_items(decode_groups(conn, found.items))

        return await self._database.read(read)

    async def count(self, organization_id: str, filter_: GroupFilter) -> int:
        """Returns the number of groups."""
        query = sa.select(sa.func.count()).select_from(groups)
        query = query.where(visible_groups(organization_id), *_conditions(filter_))
        return await self._database.read(lambda conn: int(conn.execute(query).scalar_one()))

    async def begin(self, key: RequestKey | None, change: GroupChange) -> tuple[str, bool]:
        """Stores a change before its first effect in another service. The group is CREATING, UPDATING or DELETING.

        An update without such effects is complete with this call. An attachment that another group of the agent
        shares is not ended: the other group takes it over. A deletion replaces an update in progress, and ends its
        attachments, too.

        Returns:
            The id of the group, and whether the request is a repeat. A repeat stores nothing and returns the first id.

        Raises:
            InvalidArgument: The manager of a sleeptime group manages another one.
            GroupChanged: The group differs from `change.before`, or an update of it is in progress.
        """

        def effect(conn: sa.Connection) -> list[str]:
            begin_change(conn, change)
            return [change.group_id]

        (group_id,), replayed = await self._ledger.write_once(key, effect)
        return group_id, replayed

    async def list_unfinished(self, group_id: str | None = None) -> tuple[UnfinishedGroup, ...]:
        """Returns the groups of all organizations with a change in progress, oldest first, or the one with the id."""
        return await self._database.read(lambda conn: unfinished_groups(conn, group_id))

    async def finish(self, change: GroupChange) -> bool:
        """Stores the result of a change whose effects took place. The new manager of a sleeptime group gets
        `enable_sleeptime`, the former one loses it.

        Returns False, and stores nothing, if the change is not in progress any more, or is being undone.

        Raises:
            InvalidArgument: The new manager of a sleeptime group manages another one.
        """
        return await self._database.write(lambda conn: finish_change(conn, change), name="groups.finish")

    async def begin_undo(self, change: GroupChange, key: RequestKey | None) -> bool:
        """Marks a change as failed and deletes its idempotency key. Returns False if it is not in progress any more."""

        def write(conn: sa.Connection) -> bool:
            if not mark_undone(conn, change):
                return False
            self._ledger.forget(conn, key)
            return True

        return await self._database.write(write, name="groups.begin_undo")

    async def end_undo(self, change: GroupChange) -> None:
        """Deletes a CREATING group, or makes an UPDATING one ACTIVE as it was before.

        Has no effect if the change is not in progress any more.
        """
        await self._database.write(lambda conn: end_undo(conn, change), name="groups.end_undo")

    async def reset(
        self,
        key: RequestKey | None,
        organization_id: str,
        group_id: str,
        newest_sequence_id: int,
        *,
        keep_turns_counter: bool = False,
    ) -> Group:
        """Sets the counter of turns to 0 unless it is kept, marks the manager's messages up to a sequence id as
        processed, and returns the group.
        """

        def newest(column: sa.Column[int]) -> sa.Case[int]:
            return sa.case((column > newest_sequence_id, column), else_=newest_sequence_id)

        def effect(conn: sa.Connection) -> list[str]:
            find_group(conn, organization_id, group_id)
            seen = newest(_c.seen_sequence_id)
            values: dict[str, Any] = {"seen_sequence_id": seen, "processed_sequence_id": seen}
            if not keep_turns_counter:
                values["turns_counter"] = 0
            conn.execute(groups.update().where(_c.id == group_id).values(values))
            return [group_id]

        return await self._ledger.write_and_read(
            key, effect, lambda conn, _: find_group(conn, organization_id, group_id), name="groups.reset"
        )

    async def of_agents(self, organization_id: str, agent_ids: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Returns the ids of the groups of which each agent is a member or the manager, oldest first.

        Agents without groups are left out.
        """
        if not agent_ids:
            return {}
        found: dict[str, list[str]] = {}
        parameters = {"p_organization": organization_id, "p_agents": list(agent_ids)}
        rows = await self._database.read(lambda conn: conn.execute(_OF_AGENTS, parameters).all())
        for row in rows:
            found.setdefault(row.agent_id, []).append(row.id)
        return {agent_id: tuple(ids) for agent_id, ids in found.items()}

    async def of_manager(
        self, organization_id: str, agent_id: str, types: Sequence[ManagerType] = ()
    ) -> tuple[Group, ...]:
        """Returns the groups that an agent manages, oldest first; of these types if any are given."""
        query = sa.select(groups).where(visible_groups(organization_id), _c.manager_agent_id == agent_id)
        if types:
            query = query.where(_c.manager_type.in_(types))
        query = query.order_by(_c.created_at, _c.id)
        return await self._database.read(lambda conn: decode_groups(conn, conn.execute(query).all()))


def _conditions(filter_: GroupFilter) -> list[sa.ColumnElement[bool]]:
    conditions = matching(
        (
            (_c.id, filter_.group_ids),
            (_c.manager_type, filter_.manager_types),
            (_c.hidden, filter_.hidden),
            (_c.project_id, filter_.project_id),
            (_c.template_id, filter_.template_id),
            (_c.base_template_id, filter_.base_template_id),
            (_c.deployment_id, filter_.deployment_id),
        )
    )
    if filter_.agent_id is not None:
        of_agent = sa.select(group_members.c.group_id).where(group_members.c.agent_id == filter_.agent_id)
        conditions.append(sa.or_(_c.manager_agent_id == filter_.agent_id, _c.id.in_(of_agent)))
    return conditions
