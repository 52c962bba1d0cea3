"""Runs: starts, streams, retries and cancellations."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from typing import Final

from mnemesh_kit.call_context import Principal
from mnemesh_kit.errors import TEMPORARY, InvalidArgument, NotFound, Unimplemented
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.ids import IdSource
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.time import Clock
from mnemesh_types.usage import Usage

from mnemesh_orchestrator.errors import GroupUnusable, RunEnded, RunUnderWay
from mnemesh_orchestrator.llm.model_catalog import ModelCatalog, require_served, require_usable_settings
from mnemesh_orchestrator.model.agents import Agent, AgentFilter, AgentOrder
from mnemesh_orchestrator.model.conversations import ApprovalAnswer, default_conversation_id
from mnemesh_orchestrator.model.events import DurableBody, RunEvent, StartedRun, StopEvent, UsageEvent, retried_plan
from mnemesh_orchestrator.model.groups import (
    BACKGROUND_TYPES,
    Group,
    GroupPlan,
    ManagerType,
    Speaker,
    group_conversation_id,
)
from mnemesh_orchestrator.model.inputs import (
    SHOWN_ROLES,
    OnBusy,
    require_keepalive,
    require_valid_inputs,
    sent_messages,
    valid_config,
)
from mnemesh_orchestrator.model.runs import (
    CancelOutcome,
    Run,
    RunFilter,
    RunRequest,
    RunStatus,
    Step,
    StepFilter,
    StepTrace,
    StopReason,
    require_feedback,
    require_valid_step_filter,
    valid_step_tags,
)
from mnemesh_orchestrator.processors import Processors
from mnemesh_orchestrator.runs.run_stream import RunStreamer
from mnemesh_orchestrator.runs.turn_builder import EarlyReads, InputRecorder
from mnemesh_orchestrator.runs.worker import RunWorker
from mnemesh_orchestrator.store.agents import AgentStore
from mnemesh_orchestrator.store.groups import GroupStore
from mnemesh_orchestrator.store.leases import LeaseStore
from mnemesh_orchestrator.store.run_rows import StepStore
from mnemesh_orchestrator.store.runs import RunStore

_MAX_RUNS: Final = 1_000
_POLL_SECONDS: Final = 1.0
"""The time between two reads of a run that another process is to cancel, if no event of it arrives earlier."""


@dataclass(frozen=True, eq=False)
class RunCancellations:
    """Cancels runs, and has their inputs recorded."""

    store: RunStore
    leases: LeaseStore
    worker: RunWorker
    streamer: RunStreamer
    inputs: InputRecorder
    clock: Clock

    async def cancel(self, caller: Principal, filter_: RunFilter, run_ids: Sequence[str]) -> dict[str, CancelOutcome]:
        """Cancels runs by id, or without ids all unfinished runs of a filter. Returns the outcomes by run."""
        if run_ids:
            return await self._cancel_all(caller, run_ids, were_active=False)
        page = await self.store.list(
            caller.organization_id, replace(filter_, active=True), PageQuery(_MAX_RUNS, ascending=False)
        )
        # Newest first, so that a waiting run does not start because the run before it was cancelled. The turns in a run
        # of a group end with it; if one ended before, the next agent would begin its turn.
        groups = {run.id for run in page.items if run.plan is not None}
        turns = [run.id for run in page.items if any(waiting.run_id in groups for waiting in run.lineage.ancestors)]
        others = [run.id for run in page.items if run.id not in turns]
        outcomes = await self._cancel_all(caller, others, were_active=True)
        return outcomes | await self._cancel_all(caller, turns, were_active=True)

    async def _cancel_all(
        self, caller: Principal, run_ids: Sequence[str], *, were_active: bool
    ) -> dict[str, CancelOutcome]:
        unrecorded: list[Run] = []
        outcomes = {
            run_id: await self._cancel(caller, run_id, unrecorded, was_active=were_active) for run_id in run_ids
        }
        if unrecorded:
            await self.inputs.record_missing()
        return {
            run_id: await self._await_cancellation(caller, run_id) if outcome is None else outcome
            for run_id, outcome in outcomes.items()
        }

    async def cancel_unbegun(self, run: Run) -> bool:
        """Cancels a run that has not begun, and has its input recorded. Returns False if it has begun or ended."""
        ended = await self._end_unbegun(run)
        if ended is None:
            return False
        await self.inputs.record_missing()
        return True

    async def _end_unbegun(self, run: Run) -> Run | None:
        """Stores the end of a run that has not begun, and returns the run as it ended; None if it has begun."""
        now = self.clock.now()
        ended = replace(run, status=RunStatus.CANCELLED, stop_reason=StopReason.CANCELLED, completed_at=now)
        bodies: tuple[DurableBody, ...] = (
            StopEvent(StopReason.CANCELLED, RunStatus.CANCELLED),
            UsageEvent(Usage(), 0),
        )
        events = [RunEvent(run.id, now, body, number) for number, body in enumerate(bodies, run.last_sequence + 1)]
        ended = replace(ended, last_sequence=run.last_sequence + len(events), input_unrecorded=True)
        if not await self.store.cancel_waiting(ended, events):
            return None
        self.worker.end_unbegun(ended, events)
        return ended

    async def _cancel(
        self, caller: Principal, run_id: str, unrecorded: list[Run], *, was_active: bool
    ) -> CancelOutcome | None:
        """Cancels a run and returns the outcome, or None if another process is to cancel it.

        Adds a run that has not begun to `unrecorded`. A run that `was_active` can have been cancelled meanwhile, with
        the run that waits for it.
        """
        try:
            run = await self.store.get(caller.organization_id, run_id)
        except NotFound:
            return CancelOutcome.NOT_FOUND
        if run.status is RunStatus.CREATED and (ended := await self._end_unbegun(run)) is not None:
            unrecorded.append(ended)
            return CancelOutcome.CANCELLED
        if run.status.ended:
            return await self._outcome(caller, run_id) if was_active else CancelOutcome.ENDED_BEFORE
        if not await self.worker.cancel(run):
            asked = await self.leases.request_cancel(caller.organization_id, run_id)
            return None if asked else CancelOutcome.ENDED_BEFORE
        return await self._outcome(caller, run_id)

    async def _outcome(self, caller: Principal, run_id: str) -> CancelOutcome:
        run = await self.store.get(caller.organization_id, run_id)
        cancelled = run.stop_reason is StopReason.CANCELLED
        return CancelOutcome.CANCELLED if cancelled else CancelOutcome.ENDED_BEFORE

    async def _await_cancellation(self, caller: Principal, run_id: str) -> CancelOutcome:
        """Waits until another process has cancelled a run, or until its lease has expired and this process has."""
        subscription = self.streamer.subscribe(run_id)
        try:
            while not (run := await self.store.get(caller.organization_id, run_id)).status.ended:
                subscription.is_stored = True
                with suppress(TimeoutError):
                    await subscription.next(_POLL_SECONDS)
                await self.worker.claim_and_run(run.conversation_id)
        finally:
            subscription.close()
        return await self._outcome(caller, run_id)


@dataclass(frozen=True, eq=False)
class GroupPlanner:
    """Addresses runs to groups."""

    groups: GroupStore
    agents: AgentStore

    async def plan(self, run: Run, group_id: str) -> Run:
        """Returns a run as one of a group: with the plan of its turns, or, for a sleeptime group, as its manager's.

        Raises:
            GroupUnusable: The group has no members, or its manager was deleted.
            Unimplemented: The members of the group hand over to one another.
        """
        group = await self.groups.get(run.organization_id, group_id)
        if group.manager.type is ManagerType.SWARM:
            raise Unimplemented(
                "This server does not run swarm groups. Change the group's manager_config to another kind.",
                field="group_id",
                resource_id=group_id,
            )
        agents = await self._agents_of(group)
        members = tuple(_speaker(agents[id_]) for id_ in group.agent_ids if id_ in agents)
        if not members:
            raise GroupUnusable("The group has no members. Add agents to it.", resource_id=group_id)
        manager_id = group.manager.manager_agent_id
        if manager_id is not None and manager_id not in agents:
            raise GroupUnusable("The manager of the group was deleted. Name another agent.", resource_id=group_id)
        run = replace(run, group_id=group_id)
        if manager_id is not None and group.manager.type in BACKGROUND_TYPES:
            return replace(run, agent_id=manager_id, conversation_id=default_conversation_id(manager_id))
        manager_name = agents[manager_id].name if manager_id is not None else None
        plan = GroupPlan(group_id, group.manager, members, manager_name)
        return replace(run, agent_id="", conversation_id=group.conversation_id, plan=plan)

    async def _agents_of(self, group: Group) -> dict[str, Agent]:
        wanted = AgentFilter(agent_ids=group.all_agent_ids)
        page = PageQuery(max(1, len(group.all_agent_ids)), ascending=True)
        if not wanted.agent_ids:
            return {}
        found = await self.agents.list(group.organization_id, wanted, AgentOrder.CREATED_AT, page)
        return {agent.id: agent for agent in found.items}


def _speaker(agent: Agent) -> Speaker:
    return Speaker(agent.id, agent.name, agent.description or "")


@dataclass(frozen=True, eq=False)
class RunService:
    """Starts, streams, retries, cancels and deletes the runs of agents."""

    store: RunStore
    worker: RunWorker
    streamer: RunStreamer
    early: EarlyReads
    models: ModelCatalog
    clock: Clock
    ids: IdSource
    processors: Processors
    cancellations: RunCancellations
    planner: GroupPlanner

    async def send(
        self,
        caller: Principal,
        key: RequestKey | None,
        request: RunRequest,
    ) -> AsyncGenerator[Sequence[RunEvent], None]:
        """Stores a run and streams its events until it ends. A repeat under the same key or otid streams the first run.

        Raises:
            NotFound: The agent or the group does not exist, or the agent does not have the conversation.
            GroupUnusable: The group has no members, or its manager was deleted.
            Unimplemented: The group is a swarm.
            ConversationBusy: Another run holds the conversation, and the config rejects waiting.
            PendingApproval: The conversation waits for an approval.
            ModelUnknown: No provider serves the model of the config.
            InputRefused, ProcessorFailed: A processor of the operator refuses the input or fails. Nothing is stored.
            Unavailable, DeadlineExceeded: Recall or blocks has not answered for seconds. Nothing is stored.
        """
        run = await self._requested(caller, key, request, background=False)
        await self._require_services(key, run)
        _, stream = await self.open(caller, key, run)
        async with aclosing(stream):
            async for events in stream:
                yield events

    async def _require_services(self, key: RequestKey | None, run: Run) -> None:
        """Refuses a run whose caller waits, while recall or blocks is away. An accepted run waits for them."""
        try:
            if run.group_id is None:
                await self.early.require(run)
            elif run.plan is not None:  # else it repeats an earlier run
                await self.early.require_services(run.plan.members[0].agent_id)
        except TEMPORARY:
            if await self.store.find_repeated(key, run) is None:
                raise

    async def open(
        self,
        caller: Principal,
        key: RequestKey | None,
        run: Run,
        answer: ApprovalAnswer | None = None,
    ) -> tuple[Run, AsyncGenerator[Sequence[RunEvent], None]]:
        """Stores a run. Returns it, or the run that it repeats, and the events until it ends.

        The config and the input of the run are valid. Raises the other errors of `send`.
        """
        # The subscription starts before the run. A repeated run has another id, and its events are read from the store.
        subscription = self.streamer.subscribe(run.id)
        try:
            started = await self._start(key, run, answer)
            await asyncio.sleep(0)  # the run itself begins before its acceptance is sent
        except BaseException:
            subscription.close()
            self.early.discard(run.id)
            raise
        keepalive = started.run.config.keepalive_seconds
        if started.replayed:
            subscription.close()
            stream = self.follow(
                caller, started.run.id, 0, keepalive, replayed=True, deltas=started.run.config.stream_tokens
            )
            return started.run, stream
        return started.run, self.streamer.follow(started.run, subscription, fresh=True, keepalive_seconds=keepalive)

    async def start(
        self,
        caller: Principal,
        key: RequestKey | None,
        request: RunRequest,
    ) -> Run:
        """Stores a run that is executed in the background, and returns it. Raises the errors of `send`."""
        return (await self._start(key, await self._requested(caller, key, request, background=True))).run

    async def _requested(
        self, caller: Principal, key: RequestKey | None, request: RunRequest, *, background: bool
    ) -> Run:
        messages, config = require_valid_inputs(request.messages, min_messages=1), valid_config(request.config)
        run = self.new_run(caller, replace(request, messages=messages, config=config), background=background)
        return run if request.group_id is None else await self._of_group(key, run, request.group_id)

    def new_run(
        self,
        caller: Principal,
        request: RunRequest,
        *,
        background: bool,
    ) -> Run:
        """Returns a new run, which is not stored."""
        messages, config, now = request.messages, request.config, self.clock.now()
        shown = sum(message.role in SHOWN_ROLES for message in messages)
        return Run(
            id=self.ids.new("run"),
            organization_id=caller.organization_id,
            subject_id=caller.subject_id,
            agent_id=request.agent_id,
            conversation_id=request.conversation_id or default_conversation_id(request.agent_id),
            created_at=now,
            updated_at=now,
            input=tuple(messages),
            config=config,
            background=background,
            last_sequence=shown,
            shown_inputs=shown,
            sent=() if config.otids_repeat else sent_messages(messages),
        )

    async def _of_group(self, key: RequestKey | None, run: Run, group_id: str) -> Run:
        """Returns a run as one of a group. The repeat of an earlier run needs no usable group."""
        try:
            return await self.planner.plan(run, group_id)
        except (NotFound, GroupUnusable, Unimplemented):
            repeat = replace(run, agent_id="", conversation_id=group_conversation_id(group_id), group_id=group_id)
            if await self.store.find_repeated(key, repeat) is None:
                raise
            return repeat

    async def _start(self, key: RequestKey | None, run: Run, answer: ApprovalAnswer | None = None) -> StartedRun:
        await self._require_model(run)
        # The input of a retried run and of a repeated request was processed when it was first sent.
        is_processed = bool(run.retried_run_ids) or not self.processors.has_input_processors
        if not is_processed and await self.store.find_repeated(key, run) is None:
            run = replace(run, input=await self.processors.process_input(run))
        reject_busy = run.config.on_busy is OnBusy.REJECT
        return await self.worker.start(key, run, reject_busy=reject_busy, answer=answer)

    async def prepare(self, run: Run) -> Run:
        """Returns a new run with its input processed. Raises ModelUnknown, InputRefused, ProcessorFailed."""
        await self._require_model(run)
        if self.processors.has_input_processors:
            return replace(run, input=await self.processors.process_input(run))
        return run

    async def _require_model(self, run: Run) -> None:
        handle, settings = run.config.override_model, run.config.model_settings
        if handle is None and settings is None:
            return
        models = await self.models.of(run.organization_id)
        model = None if handle is None else require_served(models, handle, "config.override_model")
        require_usable_settings(models, model, settings, "config.model_settings")

    async def follow(
        self,
        caller: Principal,
        run_id: str,
        after: int,
        keepalive_seconds: int,
        *,
        replayed: bool = False,
        deltas: bool = False,
    ) -> AsyncGenerator[Sequence[RunEvent], None]:
        """Streams the events of `attach`."""
        _, stream = await self.attach(caller, run_id, after, keepalive_seconds, replayed=replayed, deltas=deltas)
        async with aclosing(stream):
            async for events in stream:
                yield events

    async def attach(
        self,
        caller: Principal,
        run_id: str,
        after: int,
        keepalive_seconds: int,
        *,
        replayed: bool = False,
        deltas: bool = False,
    ) -> tuple[Run, AsyncGenerator[Sequence[RunEvent], None]]:
        """Returns a run and its events until it ends.

        Args:
            after: The sequence number after which the events start.
            keepalive_seconds: The longest silence of the stream.
            replayed: True marks the first event of the stream as a replay.
            deltas: True includes the stored deltas.

        Raises:
            InvalidArgument: `after` is negative, or `keepalive_seconds` is not positive.
        """
        if after < 0:
            raise InvalidArgument("starting_after must not be negative.", field="starting_after")
        require_keepalive(keepalive_seconds, "keepalive_seconds")
        subscription = self.streamer.subscribe(run_id)
        try:
            run = await self.store.get(caller.organization_id, run_id)
        except BaseException:
            subscription.close()
            raise
        stream = self.streamer.follow(
            run, subscription, after=after, replayed=replayed, deltas=deltas, keepalive_seconds=keepalive_seconds
        )
        return run, stream

    async def get(self, caller: Principal, run_id: str) -> Run:
        """Returns a run. Raises NotFound."""
        return await self.store.get(caller.organization_id, run_id)

    async def list(self, caller: Principal, filter_: RunFilter, page: PageQuery) -> Page[Run]:
        """Returns a page of runs ordered by creation."""
        return await self.store.list(caller.organization_id, filter_, page)

    async def retry(self, caller: Principal, key: RequestKey | None, run_id: str) -> Run:
        """Starts a new run in the background with the input of a failed or cancelled one, and returns it.

        The input keeps its message ids, so the record and the window show it once. Calls that were approved and not
        executed are executed. Of a run that was retried before, the newest retry counts. The turns of a group run
        that completed are not repeated.

        Raises NotFound, RunEnded if it completed, RunUnderWay if it has not ended.
        """
        if (repeated := await self.store.find_repeated(key, await self.get(caller, run_id))) is not None:
            return repeated
        before = await self.store.newest_attempt(caller.organization_id, run_id)
        if not before.status.ended:
            raise RunUnderWay("The run has not ended. Cancel it first, or wait for its end.", resource_id=before.id)
        if before.status is RunStatus.COMPLETED:
            raise RunEnded("The run completed. Only failed and cancelled runs can be retried.", resource_id=before.id)
        retry = replace(
            self.new_run(
                caller,
                RunRequest(before.agent_id, before.conversation_id, before.input, before.config),
                background=True,
            ),
            retried_run_ids=(before.id, *before.retried_run_ids),
            resumes=before.resumes,
            group_id=before.group_id,
            transcript=before.transcript,  # makes the input of a sleeptime run that has none yet
            sent=(),  # a client that sends the otids again gets the first run
        )
        if before.plan is not None:
            retry = replace(retry, plan=retried_plan(before.plan, await self.store.journal(before.id)))
        return (await self._start(key, retry)).run

    async def cancel(self, caller: Principal, filter_: RunFilter, run_ids: Sequence[str]) -> dict[str, CancelOutcome]:
        """Cancels runs by id, or without ids all unfinished runs of a filter. Returns the outcomes by run."""
        return await self.cancellations.cancel(caller, filter_, run_ids)

    async def delete(self, caller: Principal, run_id: str) -> None:
        """Deletes the record of an ended run. Recall keeps its messages. Raises NotFound, RunUnderWay."""
        await self.store.delete(caller.organization_id, run_id)


class StepService:
    """The steps of an organization's runs."""

    def __init__(self, store: StepStore) -> None:
        self._store = store

    async def get(self, caller: Principal, step_id: str) -> Step:
        """Returns a step. Raises NotFound."""
        return await self._store.get(caller.organization_id, step_id)

    async def list(self, caller: Principal, filter_: StepFilter, page: PageQuery) -> Page[Step]:
        """Returns a page of steps ordered by creation. Raises InvalidArgument if the filter breaks a rule."""
        return await self._store.list(caller.organization_id, require_valid_step_filter(filter_), page)

    async def trace(self, caller: Principal, step_id: str) -> StepTrace:
        """Returns the request to the model at a step and its response."""
        return await self._store.trace(caller.organization_id, step_id)

    async def set_feedback(
        self, caller: Principal, key: RequestKey | None, step_id: str, feedback: str | None, tags: Sequence[str]
    ) -> Step:
        """Replaces the feedback and the tags of a step, and returns the step."""
        require_feedback(feedback)
        return await self._store.set_feedback(key, caller.organization_id, step_id, feedback, valid_step_tags(tags))
