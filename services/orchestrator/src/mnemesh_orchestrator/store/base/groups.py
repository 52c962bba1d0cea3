"""The store of groups."""

from collections.abc import Callable, Sequence
from typing import Protocol

from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.paging import Page, PageQuery

from mnemesh_orchestrator.model.groups import Group, GroupChange, GroupFilter, GroupOrder, ManagerType, UnfinishedGroup


class GroupStore(Protocol):
    """Groups, with their members and the conversation that is the queue of each group's runs.

    Reads return ACTIVE and UPDATING groups. Members whose agent is deleted, or is being deleted, are left out; the
    manager stays.

    Example:
        >>> group, is_new = await groups.create(key, group)
        >>> (await groups.of_agents(group.organization_id, group.agent_ids))[group.agent_ids[0]]
        ('group-…',)
    """

    async def create(self, key: RequestKey | None, group: Group, start_sequence_id: int = 0) -> tuple[Group, bool]:
        """Stores an ACTIVE group. Returns the stored group, and whether it is new: a repeat returns the first one.

        Agents in creation can be members and managers. Messages of a sleeptime manager up to `start_sequence_id` are
        not processed.

        Raises:
            NotFound: An agent does not exist.
            InvalidArgument: The manager of a sleeptime group manages another one.
            RequestIdReused: The key was used before with other content.
        """
        ...

    async def get(self, organization_id: str, group_id: str) -> Group:
        """Returns a group. Raises NotFound."""
        ...

    async def list(
        self, organization_id: str, filter_: GroupFilter, order_by: GroupOrder, page: PageQuery
    ) -> Page[Group]:
        """Returns a page of groups."""
        ...

    async def count(self, organization_id: str, filter_: GroupFilter) -> int:
        """Returns the number of groups."""
        ...

    async def update(
        self, key: RequestKey | None, organization_id: str, group_id: str, change: Callable[[Group], Group]
    ) -> Group:
        """Applies a pure function to a group, stores the result, and returns it.

        A repeat under the same key does not apply the function. If the function raises, nothing is stored. The
        function cannot change the counters and times of sleeptime runs.

        Raises:
            NotFound: The group, or an agent that joins it, does not exist.
            InvalidArgument: The new manager of a sleeptime group manages another one.
            GroupChanged: A change of the group is in progress.
            RequestIdReused: The key was used before with other content.
        """
        ...

    async def begin(self, key: RequestKey | None, change: GroupChange) -> tuple[str, bool]:
        """Stores a change before its first effect in another service. The group is CREATING, UPDATING or DELETING.

        An update without such effects is complete with this call. An attachment that another group of the agent
        shares is not ended: the other group takes it over. A deletion replaces an update in progress, and ends its
        attachments, too.

        Returns:
            The id of the group, and whether the request is a repeat. A repeat stores nothing and returns the first id.

        Raises:
            NotFound: The group, or an agent that joins it, does not exist.
            InvalidArgument: The manager of a sleeptime group manages another one.
            GroupChanged: The group differs from `change.before`, or an update of it is in progress.
            RequestIdReused: The key was used before with other content.
        """
        ...

    async def unfinished(self, group_id: str | None = None) -> tuple[UnfinishedGroup, ...]:
        """Returns the groups of all organizations with a change in progress, oldest first, or the one with the id."""
        ...

    async def finish(self, change: GroupChange) -> bool:
        """Stores the result of a change whose effects took place. The new manager of a sleeptime group gets
        `enable_sleeptime`, the former one loses it.

        Returns False, and stores nothing, if the change is not in progress any more, or is being undone.

        Raises:
            InvalidArgument: The new manager of a sleeptime group manages another one.
        """
        ...

    async def begin_undo(self, change: GroupChange, key: RequestKey | None) -> bool:
        """Marks a change as failed and deletes its idempotency key. Returns False if it is not in progress any more."""
        ...

    async def end_undo(self, change: GroupChange) -> None:
        """Deletes a CREATING group, or makes an UPDATING one ACTIVE as it was before.

        Has no effect if the change is not in progress any more.
        """
        ...

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

        Raises:
            NotFound: The group does not exist.
            RequestIdReused: The key was used before with other content.
        """
        ...

    async def remove(self, group_id: str) -> None:
        """Deletes the rows of a group, and its queue. Runs and messages are kept. A missing group is no error."""
        ...

    async def of_agents(self, organization_id: str, agent_ids: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Returns the ids of the groups of which each agent is a member or the manager, oldest first.

        Agents without groups are left out.
        """
        ...

    async def of_manager(
        self, organization_id: str, agent_id: str, types: Sequence[ManagerType] = ()
    ) -> tuple[Group, ...]:
        """Returns the groups that an agent manages, oldest first; of these types if any are given."""
        ...
