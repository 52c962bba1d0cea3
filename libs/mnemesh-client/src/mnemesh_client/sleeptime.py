"""Sleeptime: the background runs that maintain the memory of an agent."""

from __future__ import annotations

from collections.abc import AsyncIterator

from mnemesh.agents.v1 import groups_service_pb2, runs_pb2
from mnemesh_kit.errors import InvalidArgument

from mnemesh_client.groups import GroupsClient
from mnemesh_client.runs import RunsClient


class SleeptimeClient:
    """Calls of GroupService about sleeptime, as `client.sleeptime`.

    Errors: NotFound; FailedPrecondition if the agent manages no sleeptime group, or the group is of another kind.
    """

    def __init__(self, groups: GroupsClient, runs: RunsClient) -> None:
        self._stub = groups.stub
        self._runs = runs

    async def start(
        self, *, agent_id: str | None = None, group_id: str | None = None, waits: bool = False, request_id: str = ""
    ) -> list[runs_pb2.Run]:
        """Starts the background runs of a sleeptime group now, with all messages that no transcript contains yet.

        Args:
            agent_id: the agent whose memory is maintained.
            group_id: its sleeptime group, instead of the agent.
            waits: return the runs after they have ended, instead of right after their start.
            request_id: the idempotency key, to get the same runs again; empty creates a new one.

        Returns:
            One run per member, in the order of the members; none if there are no new messages. With `waits`, each is
            followed by the runs that processed the messages for which it had no space.
        """
        request = groups_service_pb2.StartSleeptimeRunsRequest(
            request_id=request_id, target=_target(agent_id, group_id)
        )
        runs = list((await self._stub.StartSleeptimeRuns(request)).runs)
        return [ended for run in runs async for ended in self.follow(run.id)] if waits else runs

    async def follow(self, run_id: str) -> AsyncIterator[runs_pb2.Run]:
        """Waits for the end of a sleeptime run, and of the runs that process what it had no space for. Yields each."""
        yield await self._runs.wait(run_id)
        async for rest in self._runs.list(parent_run_id=run_id, origins=("sleeptime",)):
            async for run in self.follow(rest.id):
                yield run

    async def preview(
        self, *, agent_id: str | None = None, group_id: str | None = None
    ) -> groups_service_pb2.PreviewSleeptimeRunsResponse:
        """Returns what `start` would send: the transcript, and the request to each member's model. Changes nothing."""
        request = groups_service_pb2.PreviewSleeptimeRunsRequest(target=_target(agent_id, group_id))
        return await self._stub.PreviewSleeptimeRuns(request)

    async def settings(self) -> groups_service_pb2.SleeptimeSettings:
        """Returns the settings of the organization. An absent field has the server's default."""
        request = groups_service_pb2.GetSleeptimeSettingsRequest()
        return (await self._stub.GetSleeptimeSettings(request)).settings

    async def update_settings(
        self, *, max_concurrent_runs: int | None, request_id: str = ""
    ) -> groups_service_pb2.SleeptimeSettings:
        """Updates the settings of the organization, and returns them.

        Args:
            max_concurrent_runs: the number of sleeptime runs that run at the same time. 0 stops new ones; None is the
                server's default.
            request_id: the idempotency key; empty creates a new one.
        """
        request = groups_service_pb2.UpdateSleeptimeSettingsRequest(
            request_id=request_id,
            settings=groups_service_pb2.SleeptimeSettings(max_concurrent_runs=max_concurrent_runs),
        )
        request.update_mask.paths.append("max_concurrent_runs")
        return (await self._stub.UpdateSleeptimeSettings(request)).settings


def _target(agent_id: str | None, group_id: str | None) -> groups_service_pb2.SleeptimeTarget:
    if (agent_id is None) == (group_id is None):
        raise InvalidArgument("Set exactly one of agent_id and group_id.", field="target")
    if agent_id is not None:
        return groups_service_pb2.SleeptimeTarget(agent_id=agent_id)
    return groups_service_pb2.SleeptimeTarget(group_id=group_id or "")
