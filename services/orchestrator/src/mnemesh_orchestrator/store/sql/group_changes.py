"""Changes of groups in progress: creations, updates and deletions with effects in other services."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import sqlalchemy as sa
from mnemesh_kit.errors import NotFound

from mnemesh_orchestrator.errors import GroupChanged
from mnemesh_orchestrator.model.agents import AgentState
from mnemesh_orchestrator.model.group_changes import GroupChange, UnfinishedGroup, background_manager, definition
from mnemesh_orchestrator.model.groups import Group, GroupState, SharedAttachment
from mnemesh_orchestrator.store.sql.agent_rows import active, rewrite
from mnemesh_orchestrator.store.sql.group_rows import (
    decode_groups,
    find_group,
    group_columns,
    insert_group,
    progress_columns,
    require_change,
    rewrite_group,
    visible,
)
from mnemesh_orchestrator.store.sql.tables import agents, group_members, groups

_c = groups.c
_CHANGE = msgspec.json.Decoder(GroupChange)
_ENCODE = msgspec.json.Encoder().encode


def begin_change(conn: sa.Connection, change: GroupChange) -> None:
    """See GroupStore.begin."""
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
        visible(change.organization_id),
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
    """See GroupStore.unfinished."""
    query = sa.select(groups).where(sa.text("groups.state <> 'active'")).order_by(_c.created_at)
    if group_id is not None:
        query = query.where(_c.id == group_id)
    rows = conn.execute(query).all()
    return tuple(
        UnfinishedGroup(group, GroupState(row.state), _CHANGE.decode(row.change))
        for row, group in zip(rows, decode_groups(conn, rows), strict=True)
    )


def change_in_progress(conn: sa.Connection, group_id: str) -> GroupChange | None:
    """Returns the change of a group that is in progress, or None."""
    change = conn.execute(sa.select(_c.change).where(_c.id == group_id)).scalar()
    return None if change is None else _CHANGE.decode(change)


def finish_change(conn: sa.Connection, change: GroupChange) -> bool:
    """See GroupStore.finish."""
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
    """See GroupStore.begin_undo."""
    row = conn.execute(sa.select(groups).where(_c.id == change.group_id)).first()
    if _in_progress(row, change) is None:
        return False
    undone = _ENCODE(replace(change, is_undone=True))
    conn.execute(groups.update().where(_c.id == change.group_id).values(change=undone))
    return True


def end_undo(conn: sa.Connection, change: GroupChange) -> None:
    """See GroupStore.end_undo."""
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
