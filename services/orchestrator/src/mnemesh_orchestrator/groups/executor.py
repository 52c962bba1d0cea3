"""Executes the runs of groups: drives the turns of their agents, and forwards the events of these turns."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from mnemesh_kit.errors import MnemeshError, NotFound
from mnemesh_kit.failpoints import async_failpoint
from mnemesh_kit.time import Clock
from mnemesh_types.agents import RunError
from mnemesh_types.usage import Usage

from mnemesh_orchestrator.builtin.call import ChildRequest, ChildRunsPort
from mnemesh_orchestrator.groups.speakers import LastTurn, NextTurn, ending, next_turn, turn_config, turn_input
from mnemesh_orchestrator.loop.rules import failure
from mnemesh_orchestrator.loop.state import JournalWriter, StampedBody
from mnemesh_orchestrator.model.events import (
    CompactionEvent,
    Delta,
    EndedTurn,
    EntryKind,
    ErrorEvent,
    GroupClaim,
    JournalEntry,
    MemberEvent,
    MemberTurnEnded,
    MemberTurnStarted,
    MessageEvent,
    RunEvent,
    StepStarted,
    StopEvent,
    ToolProgress,
    UsageEvent,
)
from mnemesh_orchestrator.model.groups import GroupPlan, ManagerType, MemberTurn, TurnOutcome
from mnemesh_orchestrator.model.runs import Run, RunOrigin, RunStatus, StopReason, status_of
from mnemesh_orchestrator.runs.child_runs import SpokenWords
from mnemesh_orchestrator.runs.execution import LEFT_ERRORS, WorkResult
from mnemesh_orchestrator.runs.run_stream import RunStreamer, Subscription
from mnemesh_orchestrator.store.run_relations import RunRelationStore
from mnemesh_orchestrator.store.runs import RunStore

_OUTCOMES: Final = {
    RunStatus.COMPLETED: TurnOutcome.COMPLETED,
    RunStatus.FAILED: TurnOutcome.FAILED,
    RunStatus.CANCELLED: TurnOutcome.CANCELLED,
}


class TurnState(StrEnum):
    """What is known of the run that an open turn follows.

        NEW, UNCERTAIN --start--+
                                +--> followed --approval--> waits --answer--> followed --> ended
        STORED ---------read----+

    The run of an answer is STORED, and so is every run whose stream ended early.
    """

    NEW = "new"
    """No process can have started the run. It is followed by what it publishes, without a read."""
    UNCERTAIN = "uncertain"
    """An earlier attempt or a crashed process may have started the run. Starting it again has no effect."""
    STORED = "stored"
    """The run exists, and is not started."""


@dataclass(slots=True)
class OpenTurn:
    """A turn of an agent in a group run.

    `run_id` is the agent's first run of the turn. Runs that answer approvals continue it. `retries` is the run of an
    earlier attempt, whose input is sent again. `unsent` holds the events that are stored with the end of the turn.
    """

    step: NextTurn
    run_id: str
    state: TurnState
    retries: Run | None = None
    words: SpokenWords = field(default_factory=SpokenWords)
    usage: Usage = field(default_factory=Usage)
    step_count: int = 0
    has_received: bool = False
    stop_reason: StopReason = StopReason.CANCELLED
    error: RunError | None = None
    unsent: list[StampedBody] = field(default_factory=list)

    @property
    def asks_for_approval(self) -> bool:
        """True if the newest event that is not stored requests an approval of the speaker."""
        newest = self.unsent[-1][1] if self.unsent else None
        if not isinstance(newest, MemberEvent) or newest.agent_id != self.step.speaker.agent_id:
            return False
        return isinstance(newest.body, MessageEvent) and newest.body.kind == "approval_request"

    def started(self) -> StampedBody:
        """Returns the event that begins the turn."""
        step = self.step
        body = MemberTurnStarted(step.number, step.speaker.name, step.is_selection)
        return None, MemberEvent(step.speaker.agent_id, self.run_id, body)

    def read(self, run: Run, event: RunEvent) -> bool:
        """Reads an event of a run of the turn. Returns whether it is the last one of that run."""
        self.words.read(run.config, event)
        match event.body:
            case ErrorEvent(error):
                self.error = error
            case StopEvent(reason):
                self.stop_reason = reason
            case UsageEvent(usage, step_count):
                self.usage, self.step_count = self.usage + usage, self.step_count + step_count
                return True
        return False

    def forwarded(self, run: Run, event: RunEvent) -> tuple[str | None, MemberEvent] | None:
        """Returns the event of the group run for an event of a run of the turn; None if the group run has none for it.

        The input of the agent, its stop, its usage and its error are in the events of the turn itself.
        """
        if isinstance(event.body, MemberEvent):
            return event.step_id, event.body  # an agent below the speaker asks for an approval
        is_input = event.sequence is not None and event.sequence <= run.shown_inputs
        if is_input or not isinstance(event.body, MessageEvent | CompactionEvent | StepStarted | Delta | ToolProgress):
            return None
        return event.step_id, MemberEvent(run.agent_id, run.id, event.body, event.sequence or 0)

    def ended(self) -> EndedTurn:
        outcome, reason = _OUTCOMES[status_of(self.stop_reason)], self.stop_reason
        if reason is StopReason.REQUIRES_APPROVAL:
            # The approval was withdrawn with the agent's window, so that no one can answer it.
            outcome, reason = TurnOutcome.CANCELLED, StopReason.CANCELLED
        turn = MemberTurn(
            number=self.step.number,
            agent_id=self.step.speaker.agent_id,
            outcome=outcome,
            words=tuple(self.words.texts),
            is_selection=self.step.is_selection,
            has_received=self.has_received or outcome is TurnOutcome.COMPLETED,
        )
        return EndedTurn(turn, reason, self.usage, self.step_count, self.error)

    def end_event(self, ended: EndedTurn) -> StampedBody:
        body = MemberTurnEnded(ended.turn.number, ended.stop_reason, ended.usage, ended.error)
        return None, MemberEvent(ended.turn.agent_id, self.run_id, body)


def effect_id(number: int, attempt: int) -> str:
    """Returns the id by which the run of a turn is derived. Each attempt at a group run has runs of its own."""
    return f"turn/{number}/{attempt}"


async def earlier_run(
    store: RunStore, relations: RunRelationStore, children: ChildRunsPort, run: Run, step: NextTurn
) -> Run | None:
    """Returns the newest run that earlier attempts at a group run, or clients, started for a turn; None if none did.

    A run whose approval was withdrawn is returned as one that asked for nothing.
    """
    for attempt in reversed(range(len(run.retried_run_ids))):
        with suppress(NotFound):
            run_id = children.run_id(run, effect_id(step.number, attempt))
            found = await store.newest_attempt(run.organization_id, run_id)
            if found.agent_id == step.speaker.agent_id:
                return await _follow_answers(store, relations, found)
    return None


async def _follow_answers(store: RunStore, relations: RunRelationStore, run: Run) -> Run:
    """Returns the run that continues a run after its approval, or the run itself."""
    while run.stop_reason is StopReason.REQUIRES_APPROVAL:
        answer = await relations.continuation(run)
        if answer.is_pending:
            return run
        if answer.run_id is None:
            return _unasked(run)
        answering = await store.newest_attempt(run.organization_id, answer.run_id)
        if answering.resumes is not None and answering.resumes.withdrawn:
            return _unasked(run)
        run = answering
    return run


def _unasked(run: Run) -> Run:
    return replace(run, status=RunStatus.CANCELLED, stop_reason=StopReason.CANCELLED, resumes=None)


def is_kept(run: Run) -> bool:
    """Returns whether a run of an earlier attempt is not retried: it completed, or it has not ended."""
    return run.status is RunStatus.COMPLETED or not run.status.ended


BATCH_SECONDS: Final = 0.02
"""The longest time for which a durable event waits for others."""

_BATCH: Final = 200

_REATTACH_SECONDS: Final = 0.2
"""The time until a run is followed again whose stream ended before the run did."""


async def yield_batches(stream: AsyncGenerator[Sequence[RunEvent], None]) -> AsyncGenerator[list[RunEvent], None]:
    """Yields the events of a stream in order: durable ones in batches, a live one alone and at once.

    The stream is closed at the end. A stream that is being read cannot be cancelled without ending it, so a task reads
    it.
    """
    loop = asyncio.get_running_loop()
    reading: asyncio.Task[Sequence[RunEvent] | None] | None = None
    waiting: list[RunEvent] = []
    due = 0.0
    try:
        while True:
            reading = reading or asyncio.ensure_future(_read_next(stream))
            await asyncio.wait([reading], timeout=max(0.0, due - loop.time()) if waiting else None)
            if not reading.done():
                yield waiting
                waiting = []
                continue
            events, reading = reading.result(), None
            for event in events or ():
                if event.sequence is not None:
                    due = due if waiting else loop.time() + BATCH_SECONDS
                    waiting.append(event)
                    continue
                if waiting:
                    yield waiting
                    waiting = []
                yield [event]
            if events is None:
                if waiting:
                    yield waiting
                return
    finally:
        if reading is not None:
            reading.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await reading
        await stream.aclose()


async def _read_next(stream: AsyncGenerator[Sequence[RunEvent], None]) -> Sequence[RunEvent] | None:
    return await anext(stream, None)


@dataclass(slots=True)
class Progress:
    """The stored state of a group run.

    `open_turn` is the number of the turn whose MemberTurnStarted is stored and whose end is not. `forwarded` holds the
    newest sequence number that was forwarded, by run of an agent.
    """

    plan: GroupPlan
    ended: dict[int, EndedTurn] = field(default_factory=dict)
    open_turn: int | None = None
    forwarded: dict[str, int] = field(default_factory=dict)

    @property
    def turns(self) -> list[MemberTurn]:
        """The turns in the order in which they ended: those of earlier attempts first."""
        return [*self.plan.completed, *(item.turn for item in self.ended.values())]

    @property
    def by_number(self) -> list[EndedTurn]:
        """The turns of this run and of earlier attempts in the order of their numbers."""
        earlier = {turn.number: EndedTurn(turn, StopReason.END_TURN) for turn in self.plan.completed}
        return [item for _, item in sorted((earlier | self.ended).items())]

    def next(self) -> NextTurn | LastTurn:
        """Returns the first turn that has not ended, or the last turn if none follows."""
        known: Mapping[int, EndedTurn] = {item.turn.number: item for item in self.by_number}
        turns: list[MemberTurn] = []
        while isinstance(step := next_turn(self.plan, turns), NextTurn) and step.number in known:
            turns.append(known[step.number].turn)
        return step

    @property
    def usage(self) -> Usage:
        """The sum of the turns of this run."""
        return sum((item.usage for item in self.ended.values()), Usage())

    @property
    def step_count(self) -> int:
        """The number of steps of the turns of this run."""
        return sum(item.step_count for item in self.ended.values())


async def read_progress(store: RunStore, journal: JournalWriter, run: Run, plan: GroupPlan) -> Progress:
    await journal.reload()
    entries = [entry.turn for entry in journal.entries.values() if entry.kind is EntryKind.TURN]
    ended = {item.turn.number: item for item in entries if item is not None}
    progress, last = Progress(plan, dict(sorted(ended.items()))), 0
    while batch := await store.events(run.id, last, _BATCH):
        for event in batch:
            last = event.sequence or 0
            if isinstance(event.body, MemberEvent):
                _read(progress, event.body)
    return progress


def _read(progress: Progress, event: MemberEvent) -> None:
    match event.body:
        case MemberTurnStarted(number):
            progress.open_turn = number
        case MemberTurnEnded():
            progress.open_turn = None
        case _:
            progress.forwarded[event.run_id] = event.sequence


@dataclass(frozen=True, slots=True)
class GroupExecutor:
    """Executes the runs of groups."""

    store: RunStore
    relations: RunRelationStore
    children: ChildRunsPort
    streamer: RunStreamer
    clock: Clock

    def open(self, claim: GroupClaim, journal: JournalWriter) -> "GroupWork":
        """Returns the work of a claimed run of a group, which has not begun."""
        return GroupWork(self, claim, journal)


class GroupWork:
    """The turns of one run of a group. Implements `runs.execution.Work`."""

    def __init__(self, parts: GroupExecutor, claim: GroupClaim, journal: JournalWriter) -> None:
        self._parts = parts
        self._claim = claim
        self._run = claim.run
        self._plan = claim.plan
        self._journal = journal
        self._progress = Progress(claim.plan)
        self._began_at = parts.clock.monotonic()
        self._first_token_ms: int | None = None

    async def run(self) -> tuple[StopReason, RunError | None]:
        if self._claim.resumed:
            await self._reload()
        while isinstance(step := self._progress.next(), NextTurn):
            turn = self._open(step, await self._earlier(step))
            await self._announce(turn)
            await async_failpoint("group.before_turn", self._plan.manager.type.value)
            await self._follow(turn)
            await self._end(turn)
        return ending(self._plan, self._progress.by_number, step)

    async def cancel(self, *, keeps_input: bool) -> None:  # noqa: ARG002 -- the runs of the agents keep their inputs
        await self._reload()
        step = self._progress.next()
        if not isinstance(step, NextTurn):
            return
        turn = self._open(step, await self._earlier(step))
        if await self._has_started(turn):
            turn.state = TurnState.STORED
            await self._announce(turn)
            await self._follow(turn)
        if self._progress.open_turn == step.number:
            await self._end(turn, is_cancelled=True)

    async def _has_started(self, turn: OpenTurn) -> bool:
        """Returns whether this run started the run of a turn. Runs of earlier attempts are not cancelled with it."""
        try:
            run = await self._parts.store.get(self._run.organization_id, turn.run_id)
        except NotFound:
            return False
        return run.lineage.parent_run_id == self._run.id

    async def record_input(self) -> bool:
        return True

    async def compact(self) -> None:
        """See Work. A group has no window."""

    @property
    def result(self) -> WorkResult:
        return WorkResult(
            run=self._run,
            usage=self._progress.usage,
            step_count=self._progress.step_count,
            first_token_ms=self._first_token_ms,
            starts_runs=True,
        )

    async def _reload(self) -> None:
        self._progress = await read_progress(self._parts.store, self._journal, self._run, self._plan)

    async def _earlier(self, step: NextTurn) -> Run | None:
        """Returns the run that earlier attempts started for a turn, or None."""
        parts = self._parts
        return await earlier_run(parts.store, parts.relations, parts.children, self._run, step)

    def _open(self, step: NextTurn, earlier: Run | None) -> OpenTurn:
        """Returns a turn that begins with the run of an earlier attempt, if that is not retried, or with its own."""
        if earlier is not None and is_kept(earlier):
            return OpenTurn(step, earlier.id, TurnState.STORED)
        run_id = self._parts.children.run_id(self._run, self._effect_id(step))
        is_new = not self._claim.resumed and not self._run.retried_run_ids
        return OpenTurn(step, run_id, TurnState.NEW if is_new else TurnState.UNCERTAIN, retries=earlier)

    def _effect_id(self, step: NextTurn) -> str:
        return effect_id(step.number, len(self._run.retried_run_ids))

    async def _announce(self, turn: OpenTurn) -> None:
        """Stores the event that begins a turn, unless it is stored."""
        if self._progress.open_turn != turn.step.number:
            await self._journal.record_events([turn.started()])
            self._progress.open_turn = turn.step.number

    def _request(self, turn: OpenTurn) -> ChildRequest:
        step, plan = turn.step, self._plan
        supervised = plan.members if plan.manager.type is ManagerType.SUPERVISOR else ()
        return ChildRequest(
            effect_id=self._effect_id(step),
            agent_id=step.speaker.agent_id,
            messages=turn.retries.input if turn.retries else turn_input(self._run, plan, self._progress.turns, step),
            origin=RunOrigin.GROUP,
            config=turn_config(self._run.config, step),
            group_id=plan.group_id,
            supervised_agent_ids=tuple(member.agent_id for member in supervised),
            retries=turn.retries,
        )

    async def _follow(self, turn: OpenTurn) -> None:
        """Forwards the events of the agent until its turn has ended. Starts its run, unless that exists."""
        try:
            run, subscription = await self._attach(turn, turn.run_id)
            await self._follow_run(turn, run, subscription)
        except LEFT_ERRORS:
            raise
        except NotFound as error:
            turn.stop_reason, turn.error = StopReason.ERROR, _missing(turn, error)
        except MnemeshError as error:
            turn.stop_reason, turn.error = failure(error)

    async def _follow_run(self, turn: OpenTurn, run: Run, subscription: Subscription) -> None:
        """Forwards the events of a run, and of those that answer its approvals."""
        while True:
            await self._forward(turn, run, subscription)
            if turn.stop_reason is not StopReason.REQUIRES_APPROVAL:
                break
            await self._store_unsent(turn)
            answering = await self._parts.children.wait_for_answering_run(run)
            if answering is None:
                break
            turn.state = TurnState.STORED
            run, subscription = await self._attach(turn, answering)
        if turn.stop_reason is StopReason.CANCELLED and not turn.has_received:
            # A run that is cancelled in the queue leaves its input outside the window.
            ended = await self._parts.store.get(run.organization_id, run.id)
            turn.has_received = ended.total_ms is not None

    async def _attach(self, turn: OpenTurn, run_id: str) -> tuple[Run, Subscription]:
        """Subscribes to the events of a run of a turn, and returns the run. Starts it, unless it is stored."""
        subscription = self._parts.streamer.subscribe(run_id)
        try:
            if turn.state is TurnState.STORED:
                return await self._parts.store.get(self._run.organization_id, run_id), subscription
            return await self._parts.children.start(self._run, self._request(turn)), subscription
        except BaseException:
            subscription.close()
            raise

    async def _forward(self, turn: OpenTurn, run: Run, subscription: Subscription) -> None:
        """Forwards the events of one run until its last one, whichever process executes it."""
        last = 0
        while True:
            is_new = turn.state is TurnState.NEW
            stream = self._parts.streamer.follow(run, subscription, fresh=is_new, after=last)
            async with aclosing(yield_batches(stream)) as batches:
                async for batch in batches:
                    last = max(last, batch[-1].sequence or 0)
                    if await self._forward_batch(turn, run, batch):
                        return
            await asyncio.sleep(_REATTACH_SECONDS)
            turn.state = TurnState.STORED
            run, subscription = await self._attach(turn, run.id)

    async def _forward_batch(self, turn: OpenTurn, run: Run, batch: list[RunEvent]) -> bool:
        """Forwards events. Returns whether one is the last of its run: then the durable ones are left unsent."""
        is_over = False
        for event in batch:
            is_over = turn.read(run, event) or is_over
            stamped = turn.forwarded(run, event)
            if stamped is None:
                continue
            step_id, body = stamped
            if isinstance(body.body, StepStarted | Delta | ToolProgress):
                self._journal.publish_live(step_id, body)
                if isinstance(body.body, Delta):
                    self._note_first_token()
                continue
            turn.has_received = True
            if body.sequence > self._progress.forwarded.get(body.run_id, 0):
                self._note_first_token()
                turn.unsent.append(stamped)
        # A request for an approval is shown once its run has ended: earlier, no one can answer it.
        if not is_over and not turn.asks_for_approval:
            await self._store_unsent(turn)
        return is_over

    def _note_first_token(self) -> None:
        if self._first_token_ms is None:
            self._first_token_ms = round((self._parts.clock.monotonic() - self._began_at) * 1e3)

    async def _store_unsent(self, turn: OpenTurn) -> None:
        if turn.unsent:
            await self._journal.record_events(turn.unsent)
            turn.unsent = []

    async def _end(self, turn: OpenTurn, *, is_cancelled: bool = False) -> None:
        """Stores the end of a turn, with the beginning of the next one.

        The last turn of a run that completes is stored with the end of the run: if that is not stored, the turn is
        followed again.
        """
        ended, progress = turn.ended(), self._progress
        progress.ended[ended.turn.number], progress.open_turn = ended, None
        events, following = [*turn.unsent, turn.end_event(ended)], progress.next()
        if isinstance(following, NextTurn) and not is_cancelled and not self._run.retried_run_ids:
            events.append(self._open(following, None).started())
            progress.open_turn = following.number
        elif not isinstance(following, NextTurn) and not is_cancelled:
            reason, _ = ending(self._plan, progress.by_number, following)
            if status_of(reason) is RunStatus.COMPLETED:
                self._journal.publish_derived(events)
                return
        entry = JournalEntry(
            turn.run_id, EntryKind.TURN, self._parts.clock.now(), ordinal=ended.turn.number, turn=ended
        )
        await self._journal.record_events(events, [entry])
        await async_failpoint("group.after_turn", self._plan.manager.type.value)


def _missing(turn: OpenTurn, error: NotFound) -> RunError:
    agent = turn.step.speaker
    text = f"{agent.name} has no turn: the agent or its run was deleted."
    return RunError(error.reason, text, {"resource_id": agent.agent_id})
