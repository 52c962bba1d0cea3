"""Groups, their members, and the queue of each group's runs."""

from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa
from mnemesh_kit.clock import Clock
from mnemesh_kit.idempotency import Ledger, RequestKey
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.sql import Database
from mnemesh_kit.sql.pages import paginate

from mnemesh_orchestrator.errors import GroupChanged
from mnemesh_orchestrator.model.group_changes import GroupChange, UnfinishedGroup
from mnemesh_orchestrator.model.groups import Group, GroupFilter, GroupOrder, GroupState, ManagerType
from mnemesh_orchestrator.store.sql.group_changes import (
    begin_change,
    change_in_progress,
    end_undo,
    finish_change,
    mark_undone,
    unfinished_groups,
)
from mnemesh_orchestrator.store.sql.group_rows import (
    decode_groups,
    find_group,
    insert_group,
    progress_columns,
    rewrite_group,
    visible,
)
from mnemesh_orchestrator.store.sql.tables import group_members, groups, request_ledger

_c = groups.c


class SqlGroupStore:
    """GroupStore on SQLite or PostgreSQL."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._ledger = Ledger(request_ledger, clock)

    async def create(self, key: RequestKey | None, group: Group, start_sequence_id: int = 0) -> tuple[Group, bool]:
        """See GroupStore."""

        def effect(conn: sa.Connection) -> list[str]:
            insert_group(conn, group, GroupState.ACTIVE, **progress_columns(start_sequence_id, group.turns_counter))
            return [group.id]

        def write(conn: sa.Connection) -> tuple[Group, bool]:
            (group_id,), replayed = self._ledger.once(conn, key, lambda: effect(conn))
            return find_group(conn, group.organization_id, group_id), not replayed

        return await self._database.write(write, name="groups.create")

    async def get(self, organization_id: str, group_id: str) -> Group:
        """See GroupStore."""
        return await self._database.read(lambda conn: find_group(conn, organization_id, group_id))

    async def list(
        self, organization_id: str, filter_: GroupFilter, order_by: GroupOrder, page: PageQuery
    ) -> Page[Group]:
        """See GroupStore."""
        scope = visible(organization_id)
        query = sa.select(groups).where(scope, *_conditions(filter_))

        def read(conn: sa.Connection) -> Page[Group]:
            found = paginate(conn, query, page, key=_c[order_by], id=_c.id, scope=scope)
            return found.with_items(decode_groups(conn, found.items))

        return await self._database.read(read)

    async def count(self, organization_id: str, filter_: GroupFilter) -> int:
        """See GroupStore."""
        query = sa.select(sa.func.count()).select_from(groups)
        query = query.where(visible(organization_id), *_conditions(filter_))
        return await self._database.read(lambda conn: int(conn.execute(query).scalar_one()))

    async def update(
        self, key: RequestKey | None, organization_id: str, group_id: str, change: Callable[[Group], Group]
    ) -> Group:
        """See GroupStore."""

        def effect(conn: sa.Connection) -> list[str]:
            before = find_group(conn, organization_id, group_id)
            if change_in_progress(conn, group_id) is not None:
                raise GroupChanged(group_id)
            if (after := change(before)) != before:
                rewrite_group(conn, before, after)
            return [group_id]

        def write(conn: sa.Connection) -> Group:
            self._ledger.once(conn, key, lambda: effect(conn))
            return find_group(conn, organization_id, group_id)

        return await self._database.write(write, name="groups.update")

    async def begin(self, key: RequestKey | None, change: GroupChange) -> tuple[str, bool]:
        """See GroupStore."""

        def effect(conn: sa.Connection) -> list[str]:
            begin_change(conn, change)
            return [change.group_id]

        def write(conn: sa.Connection) -> tuple[str, bool]:
            (group_id,), replayed = self._ledger.once(conn, key, lambda: effect(conn))
            return group_id, replayed

        return await self._database.write(write, name="groups.begin")

    async def unfinished(self, group_id: str | None = None) -> tuple[UnfinishedGroup, ...]:
        """See GroupStore."""
        return await self._database.read(lambda conn: unfinished_groups(conn, group_id))

    async def finish(self, change: GroupChange) -> bool:
        """See GroupStore."""
        return await self._database.write(lambda conn: finish_change(conn, change), name="groups.finish")

    async def begin_undo(self, change: GroupChange, key: RequestKey | None) -> bool:
        """See GroupStore."""

        def write(conn: sa.Connection) -> bool:
            if not mark_undone(conn, change):
                return False
            self._ledger.forget(conn, key)
            return True

        return await self._database.write(write, name="groups.begin_undo")

    async def end_undo(self, change: GroupChange) -> None:
        """See GroupStore."""
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
        """See GroupStore."""

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

        def write(conn: sa.Connection) -> Group:
            self._ledger.once(conn, key, lambda: effect(conn))
            return find_group(conn, organization_id, group_id)

        return await self._database.write(write, name="groups.reset")

    async def remove(self, group_id: str) -> None:
        """See GroupStore."""
        statement = groups.delete().where(_c.id == group_id)
        await self._database.write(lambda conn: conn.execute(statement), name="groups.remove")

    async def of_agents(self, organization_id: str, agent_ids: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """See GroupStore."""
        if not agent_ids:
            return {}
        columns = (_c.id, _c.created_at)
        member = group_members.c.agent_id
        query = (
            sa.select(member.label("agent_id"), *columns)
            .join(group_members, group_members.c.group_id == _c.id)
            .where(visible(organization_id), member.in_(agent_ids))
            .union(
                sa.select(_c.manager_agent_id.label("agent_id"), *columns).where(
                    visible(organization_id), _c.manager_agent_id.in_(agent_ids)
                )
            )
        )
        found: dict[str, list[str]] = {}
        rows = await self._database.read(lambda conn: conn.execute(query.order_by("created_at", "id")).all())
        for row in rows:
            found.setdefault(row.agent_id, []).append(row.id)
        return {agent_id: tuple(ids) for agent_id, ids in found.items()}

    async def of_manager(
        self, organization_id: str, agent_id: str, types: Sequence[ManagerType] = ()
    ) -> tuple[Group, ...]:
        """See GroupStore."""
        query = sa.select(groups).where(visible(organization_id), _c.manager_agent_id == agent_id)
        if types:
            query = query.where(_c.manager_type.in_(types))
        query = query.order_by(_c.created_at, _c.id)
        return await self._database.read(lambda conn: decode_groups(conn, conn.execute(query).all()))


def _conditions(filter_: GroupFilter) -> list[sa.ColumnElement[bool]]:
    conditions: list[sa.ColumnElement[bool]] = []
    if filter_.group_ids:
        conditions.append(_c.id.in_(filter_.group_ids))
    if filter_.manager_types:
        conditions.append(_c.manager_type.in_(filter_.manager_types))
    if filter_.agent_id is not None:
        of_agent = sa.select(group_members.c.group_id).where(group_members.c.agent_id == filter_.agent_id)
        conditions.append(sa.or_(_c.manager_agent_id == filter_.agent_id, _c.id.in_(of_agent)))
    for column, wanted in (
        (_c.hidden, filter_.hidden),
        (_c.project_id, filter_.project_id),
        (_c.template_id, filter_.template_id),
        (_c.base_template_id, filter_.base_template_id),
        (_c.deployment_id, filter_.deployment_id),
    ):
        if wanted is not None:
            conditions.append(column == wanted)
    return conditions
