"""Groups, their members, and the queue of each group's runs."""

from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sa
from mnemesh_kit.idempotency import Ledger, RequestKey
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.sql import Database
from mnemesh_kit.sql.pages import matching, paginate
from mnemesh_kit.time import Clock

from mnemesh_orchestrator.model.groups import (
    Group,
    GroupChange,
    GroupFilter,
    GroupOrder,
    ManagerType,
    UnfinishedGroup,
)
from mnemesh_orchestrator.store.agent_rows import (
    _c,
    begin_change,
    decode_groups,
    end_undo,
    find_group,
    finish_change,
    mark_undone,
    unfinished_groups,
)
from mnemesh_orchestrator.store.agent_rows import visible_groups as visible
from mnemesh_orchestrator.store.tables import group_members, groups, request_ledger

_ORGANIZATION: Final[sa.BindParameter[str]] = sa.bindparam("p_organization")
_AGENTS: Final[sa.BindParameter[Any]] = sa.bindparam("p_agents", expanding=True)
_OF_AGENTS: Final = (
    sa.select(group_members.c.agent_id, groups.c.id, groups.c.created_at)
    .join(group_members, group_members.c.group_id == groups.c.id)
    .where(visible(_ORGANIZATION), group_members.c.agent_id.in_(_AGENTS))
    .union(
        sa.select(groups.c.manager_agent_id, groups.c.id, groups.c.created_at).where(
            visible(_ORGANIZATION), groups.c.manager_agent_id.in_(_AGENTS)
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
        scope = visible(organization_id)
        query = sa.select(groups).where(scope, *_conditions(filter_))

        def read(conn: sa.Connection) -> Page[Group]:
            found = paginate(conn, query, page, key=_c[order_by], id=_c.id, scope=scope)
            return found.with_items(decode_groups(conn, found.items))

        return await self._database.read(read)

    async def count(self, organization_id: str, filter_: GroupFilter) -> int:
        """Returns the number of groups."""
        query = sa.select(sa.func.count()).select_from(groups)
        query = query.where(visible(organization_id), *_conditions(filter_))
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
        query = sa.select(groups).where(visible(organization_id), _c.manager_agent_id == agent_id)
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
