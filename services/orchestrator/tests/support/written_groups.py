"""Groups that tests write as they are, without the change that a request plans."""

from collections.abc import Callable

import sqlalchemy as sa
from mnemesh_kit.idempotency import RequestKey
from mnemesh_orchestrator.errors import GroupChanged
from mnemesh_orchestrator.model.groups import Group, GroupState
from mnemesh_orchestrator.store.groups import (
    GroupStore,
    change_in_progress,
    find_group,
    insert_group,
    progress_columns,
    rewrite_group,
)
from mnemesh_orchestrator.store.tables import groups

_c = groups.c


class WrittenGroups(GroupStore):
    """A store whose groups are inserted, replaced and deleted at once, by the functions that changes use."""

    async def create(self, key: RequestKey | None, group: Group, start_sequence_id: int = 0) -> tuple[Group, bool]:
        """Stores an ACTIVE group. Returns the stored group, and whether it is new: a repeat returns the first one.

        Agents in creation can be members and managers. Messages of a sleeptime manager up to `start_sequence_id` are
        not processed.

        Raises:
            InvalidArgument: The manager of a sleeptime group manages another one.
        """

        def effect(conn: sa.Connection) -> list[str]:
            insert_group(conn, group, GroupState.ACTIVE, **progress_columns(start_sequence_id, group.turns_counter))
            return [group.id]

        def write(conn: sa.Connection) -> tuple[Group, bool]:
            (group_id,), replayed = self._ledger.once(conn, key, lambda: effect(conn))
            return find_group(conn, group.organization_id, group_id), not replayed

        return await self._database.write(write, name="groups.create")

    async def update(
        self, key: RequestKey | None, organization_id: str, group_id: str, change: Callable[[Group], Group]
    ) -> Group:
        """Applies a pure function to a group, stores the result, and returns it.

        A repeat under the same key does not apply the function. If the function raises, nothing is stored. The
        function cannot change the counters and times of sleeptime runs.

        Raises:
            InvalidArgument: The new manager of a sleeptime group manages another one.
            GroupChanged: A change of the group is in progress.
        """

        def effect(conn: sa.Connection) -> list[str]:
            before = find_group(conn, organization_id, group_id)
            if change_in_progress(conn, group_id) is not None:
                raise GroupChanged(group_id)
            if (after := change(before)) != before:
                rewrite_group(conn, before, after)
            return [group_id]

        return await self._ledger.write_and_read(
            key, effect, lambda conn, _: find_group(conn, organization_id, group_id), name="groups.update"
        )

    async def remove(self, group_id: str) -> None:
        """Deletes the rows of a group, and its queue. Runs and messages are kept. A missing group is not an error."""
        statement = groups.delete().where(_c.id == group_id)
        await self._database.write(lambda conn: conn.execute(statement), name="groups.remove")
