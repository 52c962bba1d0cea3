"""The store of sleeptime runs: their starts other than by a turn, and the settings of organizations."""

from typing import Protocol

from mnemesh_kit.idempotency import RequestKey

from mnemesh_orchestrator.model.groups import Group
from mnemesh_orchestrator.model.runs import Run
from mnemesh_orchestrator.model.sleeptime import SleeptimeProgress, SleeptimeSettings


class SleeptimeStore(Protocol):
    """Starts of sleeptime runs. The end of a turn starts them, too; see `RunStore.finish`.

    Example:
        >>> runs = await sleeptime.start(key, "me", group.organization_id, group.id, newest)
        >>> [run.agent_id for run in runs] == list(group.agent_ids)
        True
    """

    async def progress(self, organization_id: str, group_id: str) -> SleeptimeProgress:
        """Returns how far a group is. Raises NotFound."""
        ...

    async def start(
        self, key: RequestKey | None, subject_id: str, organization_id: str, group_id: str, until: int
    ) -> tuple[Run, ...]:
        """Stores a run of each member for all messages that no transcript has, and returns them in their order.

        Returns none if there are no such messages, or no members. A repeat returns the runs of the first call.

        Args:
            key: The key of the request.
            subject_id: The subject on whose behalf the runs execute.
            organization_id: The organization of the group.
            group_id: The group.
            until: The newest sequence id of the manager. Newer messages of completed turns are included.

        Raises:
            NotFound: The group does not exist.
            RequestIdReused: The key was used before with other content.
        """
        ...

    async def due(self, limit: int) -> tuple[Group, ...]:
        """Returns groups whose interval or inactivity is to be checked now, those that are due longest first."""
        ...

    async def start_due(self, group: Group) -> tuple[Run, ...]:
        """Starts the members if the interval or the inactivity of a group has passed, and notes the next check.

        Of several processes, one starts them. Their subject is that of the manager's last run.
        """
        ...

    async def settings(self, organization_id: str) -> SleeptimeSettings:
        """Returns the settings of an organization."""
        ...

    async def update_settings(
        self, key: RequestKey | None, organization_id: str, settings: SleeptimeSettings
    ) -> SleeptimeSettings:
        """Replaces the settings of an organization, and returns the current ones. A repeat changes nothing.

        Raises:
            RequestIdReused: The key was used before with other content.
        """
        ...
