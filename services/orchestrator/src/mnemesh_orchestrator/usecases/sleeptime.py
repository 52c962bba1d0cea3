"""Sleeptime runs on demand and by the clock, their previews, and the settings of organizations."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from mnemesh_kit.call_context import Principal
from mnemesh_kit.errors import FailedPrecondition
from mnemesh_kit.idempotency import RequestKey

from mnemesh_orchestrator.clients.recall import RecallClient
from mnemesh_orchestrator.model.conversations import default_conversation_id
from mnemesh_orchestrator.model.groups import (
    BACKGROUND_TYPES,
    Group,
    MemberPreview,
    SleeptimePreview,
    SleeptimeSettings,
    SleeptimeTarget,
    range_of_new,
    require_valid_settings,
)
from mnemesh_orchestrator.model.inputs import RunConfig
from mnemesh_orchestrator.model.runs import Run
from mnemesh_orchestrator.runs.transcript_inputs import Transcript, TranscriptInputs
from mnemesh_orchestrator.runs.worker import RunWorker
from mnemesh_orchestrator.store.agents import AgentStore
from mnemesh_orchestrator.store.groups import GroupStore
from mnemesh_orchestrator.store.sleeptime import SleeptimeStore
from mnemesh_orchestrator.usecases.context_windows import PreviewService
from mnemesh_orchestrator.usecases.sagas import reconcile

_DUE_GROUPS: Final = 100
_NO_CONFIG: Final = RunConfig()


@dataclass(frozen=True, eq=False)
class SleeptimeService:
    """Starts and previews sleeptime runs."""

    store: SleeptimeStore
    groups: GroupStore
    agents: AgentStore
    recall: RecallClient
    transcripts: TranscriptInputs
    previews: PreviewService
    worker: RunWorker

    async def start(self, caller: Principal, key: RequestKey | None, target: SleeptimeTarget) -> tuple[Run, ...]:
        """Starts the members of a group with all messages that no transcript has. Returns their runs in order.

        Returns none if there are no such messages, or no members. A repeat returns the runs of the first call.

        Raises:
            FailedPrecondition: The group is of another kind, or the agent manages no sleeptime group.
            Unavailable, DeadlineExceeded: Recall cannot be reached.
        """
        group, newest = await self._find(caller, target)
        started = await self.store.start(key, caller.subject_id, caller.organization_id, group.id, newest)
        await self._begin(started)
        return started

    async def preview(self, caller: Principal, target: SleeptimeTarget) -> SleeptimePreview:
        """Returns what `start` would send. Stores nothing, and calls no model.

        Raises:
            NotFound, FailedPrecondition: Those of `start`.
            Unavailable, DeadlineExceeded: Recall or blocks cannot be reached.
            ModelUnknown: No provider serves the model of a member.
            SystemPromptOverflow: The system message and tools of a member leave no space for a transcript.
        """
        group, newest = await self._find(caller, target)
        progress = await self.store.progress(caller.organization_id, group.id)
        range_ = range_of_new(group, progress.processed, max(progress.seen, newest))
        if range_ is None:
            return SleeptimePreview()
        previews: list[tuple[MemberPreview, Transcript]] = []
        for agent_id in group.agent_ids:
            conversation_id = default_conversation_id(agent_id)
            turn = await self.previews.turn(caller, agent_id, conversation_id, (), _NO_CONFIG)
            transcript = await self.transcripts.compose(turn, range_)
            if transcript is None:
                continue
            messages = transcript.messages
            request = await self.previews.render(caller, agent_id, conversation_id, messages, _NO_CONFIG)
            previews.append((MemberPreview(agent_id, request), transcript))
        if not previews:
            return SleeptimePreview()
        first = previews[0][1]
        return SleeptimePreview(first.text, len(first.entries), tuple(preview for preview, _ in previews))

    async def settings(self, caller: Principal) -> SleeptimeSettings:
        """Returns the settings of the caller's organization."""
        return await self.store.settings(caller.organization_id)

    async def update_settings(
        self, caller: Principal, key: RequestKey | None, changes: Mapping[str, Any]
    ) -> SleeptimeSettings:
        """Changes fields of the settings of the caller's organization, and starts runs that may begin now."""
        current = await self.store.settings(caller.organization_id)
        settings = require_valid_settings(replace(current, **changes))
        stored = await self.store.update_settings(key, caller.organization_id, settings)
        await self.worker.fill_places(caller.organization_id)
        return stored

    async def start_due(self) -> None:
        """Starts the members of groups whose interval or inactivity has passed, in every organization."""
        await reconcile("sleeptime", lambda: self.store.due(_DUE_GROUPS), self._start_due, lambda group: group.id)

    async def _start_due(self, group: Group) -> None:
        await self._begin(await self.store.start_due(group))

    async def _begin(self, started: tuple[Run, ...]) -> None:
        for run in started:
            await self.worker.start_next(run.conversation_id)

    async def _find(self, caller: Principal, target: SleeptimeTarget) -> tuple[Group, int]:
        """Returns a sleeptime group, and the newest sequence id of its manager."""
        group = await self._group(caller, target)
        return group, await self.recall.newest_sequence_id(group.manager.manager_agent_id or "")

    async def _group(self, caller: Principal, target: SleeptimeTarget) -> Group:
        if target.agent_id is not None:
            agent = await self.agents.get(caller.organization_id, target.agent_id)
            managed = await self.groups.of_manager(caller.organization_id, agent.id, tuple(BACKGROUND_TYPES))
            if not managed:
                raise FailedPrecondition(
                    "The agent manages no sleeptime group. Set its enable_sleeptime, or create a group.",
                    resource_id=agent.id,
                )
            return managed[0]
        group = await self.groups.get(caller.organization_id, target.group_id or "")
        if group.manager.type not in BACKGROUND_TYPES:
            raise FailedPrecondition(
                "The group is not a sleeptime group. Send it a message instead.", resource_id=group.id
            )
        await self.agents.get(caller.organization_id, group.manager.manager_agent_id or "")
        return group
