"""The state of a turn: its journal, which survives a crash, its facts, and the states of the turn and of its step."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Final, TypeVar

import structlog
from mnemesh_kit.errors import TEMPORARY, Internal
from mnemesh_kit.server import run_to_end
from mnemesh_kit.time import Clock
from mnemesh_kit.tracing import current_trace_id
from mnemesh_types.agents import ModelSettings, RunError
from mnemesh_types.messages import ApprovalDecision, Message
from mnemesh_types.usage import Usage

from mnemesh_orchestrator.errors import LeaseLost
from mnemesh_orchestrator.llm.port import LlmClient
from mnemesh_orchestrator.loop.rules import LoopPolicy, RulesSolver, Toolbox
from mnemesh_orchestrator.loop.services import RetryPolicy
from mnemesh_orchestrator.loop.step_messages import DeltaLog
from mnemesh_orchestrator.model.agents import Agent, AgentTypeSpec, Correction
from mnemesh_orchestrator.model.budgets import Payer
from mnemesh_orchestrator.model.conversations import Approval, ContextWindow, Conversation, PlannedCall
from mnemesh_orchestrator.model.core_memory import CoreMemory, SeenRevisions
from mnemesh_orchestrator.model.events import (
    DurableBody,
    EntryKind,
    FinishedRun,
    JournalEntry,
    JournalledAnswer,
    Lease,
    LiveBody,
    MemberEvent,
    RunEnd,
    RunEvent,
    naming_children,
)
from mnemesh_orchestrator.model.models import ModelInfo, ResponseFormat
from mnemesh_orchestrator.model.rules import CustomTool
from mnemesh_orchestrator.model.runs import Run, Step, StepStatus, StepTrace, StopReason, shared_request
from mnemesh_orchestrator.store.runs import RunStore

T = TypeVar("T")

_log = structlog.get_logger("mnemesh.runs")

_BATCH: Final = 200

EntryKey = tuple[str, EntryKind, int]
StampedBody = tuple[str | None, DurableBody]
"""The content of a durable event, with the step that it belongs to."""


@dataclass(frozen=True, eq=False)
class Journals:
    """Opens the journals of the runs that this process executes.

    `publish` delivers events to the followers of runs, and `publish_unstored` those that the next write stores.
    """

    store: RunStore
    deltas: DeltaLog
    publish: Callable[[Iterable[RunEvent]], None]
    publish_unstored: Callable[[Iterable[RunEvent]], None]
    clock: Clock
    retry: RetryPolicy
    keeps_traces: bool = True

    def open(self, run: Run, lease: Lease, payer: Payer | None = None) -> "JournalWriter":
        """Returns the journal of a run, for whose steps a payer may pay. It knows no entries of earlier holders yet."""
        return JournalWriter(self, run, lease, payer)


class JournalWriter:
    """The journal of one run: reads the entries of earlier holders, writes entries, events, steps, and traces.

    Steps and traces are stored with the next write. The writer is the only one that numbers the run's events.
    """

    def __init__(self, journals: Journals, run: Run, lease: Lease, payer: Payer | None) -> None:
        self._journals = journals
        self._run_id = run.id
        self._lease = lease
        self.payer = payer
        self._is_background = run.background
        self._stores_deltas = run.background and run.config.stream_tokens
        self._entries: dict[EntryKey, JournalEntry] = {}
        self._sequence = run.last_sequence
        self._steps: list[Step] = []
        self._traces: list[StepTrace] = []
        self._whole_trace: StepTrace | None = None
        # What the commit of a step holds: it is stored with the next write.
        self._held: list[JournalEntry] = []
        self._held_bodies: list[StampedBody] = []
        self._unstored: list[RunEvent] = []
        self._writing = asyncio.Lock()
        self._showing = asyncio.Lock()
        self._shown: set[tuple[str, int]] | None = None

    @property
    def entries(self) -> Mapping[EntryKey, JournalEntry]:
        """The entries that earlier holders of the run wrote, as far as they were loaded."""
        return self._entries

    def entry(self, step_id: str, kind: EntryKind, ordinal: int = 0) -> JournalEntry | None:
        """Returns the entry of an earlier holder, or None."""
        return self._entries.get((step_id, kind, ordinal))

    def add_entries(self, entries: Iterable[JournalEntry]) -> None:
        """Adds entries. A later entry of the same key replaces an earlier one."""
        self._entries.update(((entry.step_id, entry.kind, entry.ordinal), entry) for entry in entries)

    def add_earlier_entries(self, entries: Iterable[JournalEntry]) -> None:
        """Adds entries of earlier runs. Entries of this run take precedence over them."""
        known = self._entries
        self._entries = {}
        self.add_entries(entries)
        self._entries.update(known)

    async def reload(self) -> None:
        """Reads every entry of the run from the store, including those that this process wrote."""
        self.add_entries(await self._journals.store.journal(self._run_id))

    def add_step(self, step: Step) -> None:
        """Stores a concluded step with the next write."""
        self._steps.append(step)

    def add_trace(self, step_id: str, request: str, response: str, model_ms: int, *, is_shared: bool = True) -> None:
        """Stores the request and the answer of a step with the next write, if traces are kept.

        A later trace of the same step replaces an earlier one. With `is_shared`, the request is stored as its
        difference from an earlier one, or later ones as their difference from it.
        """
        if self._journals.keeps_traces:
            whole, shared = self._whole_trace, None
            if is_shared and whole is not None and whole.step_id != step_id:
                shared = shared_request(whole, request)
            trace = StepTrace(step_id, request, response, model_ms, self._journals.clock.now(), shared)
            if is_shared and shared is None:
                self._whole_trace = trace
            self._traces = [known for known in self._traces if known.step_id != step_id]
            self._traces.append(trace)

    def publish_live(self, step_id: str | None, body: LiveBody) -> None:
        """Publishes a live event. Those of a background run that streams tokens are stored as well."""
        event = RunEvent(self._run_id, self._journals.clock.now(), body, None, step_id)
        if self._stores_deltas:
            event = self._journals.deltas.take(self._lease, self._sequence, event)
        self._journals.publish([event])

    @property
    def holds_results(self) -> bool:
        """Whether `hold` may be used. The followers of a background run may be on other replicas and read the store."""
        return not self._is_background

    def hold(self, entry: JournalEntry, bodies: Sequence[DurableBody]) -> None:
        """Stores an entry with the next write. Until then, the commit of its step replaces it.

        Its events are published by `publish_held` once the step is committed, or with that write.
        """
        self._held.append(entry)
        self._held_bodies += [(entry.step_id, body) for body in bodies]

    def publish_held(self) -> None:
        """Publishes the events of held entries. Their step is committed."""
        bodies, self._held_bodies = self._held_bodies, []
        self.publish_derived(bodies)

    async def store_held(self) -> None:
        """Stores held entries now, because their step may not be committed. Raises LeaseLost."""
        if self._held:
            await run_to_end(self._record((), ()))

    def publish_committed(self, step_id: str, bodies: Sequence[DurableBody]) -> None:
        """Publishes events of a committed step before they are stored. The next write stores them."""
        self.publish_derived([(step_id, body) for body in bodies])

    def publish_derived(self, bodies: Sequence[StampedBody]) -> None:
        """Publishes events that a resumed run would derive again. The next write stores them."""
        events = self._numbered(bodies)
        self._sequence += len(events)
        self._unstored.extend(events)
        self._journals.publish_unstored(events)

    async def record(self, entry: JournalEntry, bodies: Sequence[DurableBody] = ()) -> None:
        """Stores an entry with its events in one transaction, then publishes the events.

        A cancellation of the caller takes effect after the write.
        """
        await run_to_end(self._record([entry], [(entry.step_id, body) for body in bodies]))

    async def record_events(self, bodies: Sequence[StampedBody], entries: Sequence[JournalEntry] = ()) -> None:
        """Stores events of several steps, and entries, in one transaction, then publishes the events.

        A cancellation of the caller takes effect after the write.
        """
        await run_to_end(self._record(entries, bodies))

    async def show_member(self, step_id: str, event: MemberEvent) -> None:
        """Stores and publishes a durable event of another agent's run, unless the run has it from before a crash."""
        async with self._showing:
            if self._shown is None:
                self._shown, last = set(), 0
                while batch := await self._journals.store.events(self._run_id, last, _BATCH):
                    bodies = [known.body for known in batch if isinstance(known.body, MemberEvent)]
                    self._shown |= {(body.run_id, body.sequence) for body in bodies}
                    last = batch[-1].sequence or 0
            if (event.run_id, event.sequence) not in self._shown:
                await self.record_events([(step_id, event)])
                self._shown.add((event.run_id, event.sequence))

    async def _record(self, entries: Sequence[JournalEntry], bodies: Sequence[StampedBody]) -> None:
        # Parallel calls write one after another: events are numbered in the order of the writes.
        async with self._writing:
            if self._stores_deltas:
                await self._journals.deltas.flush(self._run_id)
            entries, unstored = (*self._held, *entries), tuple(self._unstored)
            events = self._numbered([*self._held_bodies, *bodies])
            steps, traces = tuple(self._steps), tuple(self._traces)
            write = partial(
                self._journals.store.write,
                self._lease,
                entries=entries,
                events=(*unstored, *events),
                steps=steps,
                traces=traces,
                payer=self.payer,
            )
            await self._store(lambda is_repeat: write(is_repeat=is_repeat))
            self._held, self._held_bodies, self._unstored = [], [], []
            self._sequence += len(events)
            del self._steps[: len(steps)]
            self._traces = self._traces[len(traces) :]
            self._journals.publish(events)

    async def store_steps(self) -> None:
        """Stores the steps and traces that no write has stored. Raises LeaseLost."""
        async with self._writing:
            steps, traces = tuple(self._steps), tuple(self._traces)
            if steps or traces:
                await self._journals.store.write(self._lease, steps=steps, traces=traces, payer=self.payer)
            self._steps, self._traces = [], []

    async def finish(self, end: RunEnd, *, keeps_lease: bool = False) -> FinishedRun:
        """Stores the end of the run with its last events, steps and traces, and publishes the events.

        With `keeps_lease`, the lease stays for the compaction that follows the run. If the store refuses the end with
        everything that belongs to it, the end is stored in smaller forms; see RunEnd.

        Returns:
            The run as it was stored, and the runs that can begin now.

        Raises:
            Unavailable, StorageFull: the end could not be stored for the retry policy's whole time.
        """
        self.publish_held()
        end = replace(end, unstored=tuple(self._unstored), steps=self._steps, traces=self._traces)
        for form in end.forms:
            try:
                return await self._finish(form, keeps_lease=keeps_lease)
            except (LeaseLost, *TEMPORARY):
                raise
            except Exception:
                _log.exception("run_end_refused", run_id=end.run.id, status=form.run.status.value)
        raise Internal("The end of the run could not be stored.")

    async def _finish(self, end: RunEnd, *, keeps_lease: bool) -> FinishedRun:
        events = self._numbered([(None, body) for body in end.bodies])
        end = replace(end, run=replace(end.run, last_sequence=self._sequence + len(events)))

        async def store(is_repeat: bool) -> FinishedRun:
            if self._stores_deltas:
                await self._journals.deltas.flush(self._run_id)
            return await self._journals.store.finish(
                self._lease,
                end,
                (*end.unstored, *events),
                payer=self.payer,
                keeps_lease=keeps_lease,
                is_repeat=is_repeat,
            )

        finished = await self._store(store)
        if self._stores_deltas:
            self._journals.deltas.drop(self._run_id)
        self._steps, self._traces, self._unstored = [], [], []
        self._journals.publish(naming_children(events, finished.run.child_run_ids))
        return finished

    async def store_transcript(
        self, run: Run, bodies: Sequence[DurableBody], rest: Run | None, last_message_id: str | None
    ) -> Run:
        """Stores the input of a sleeptime run that has begun with its first events, and publishes them.

        Returns the run as it is stored. For the arguments and the errors, see RunStore.store_transcript.
        """
        events = self._numbered([(None, body) for body in bodies])
        write = partial(self._journals.store.store_transcript, self._lease, run, events, rest, last_message_id)
        stored = await run_to_end(self._store(lambda _: write()))
        self._sequence += len(events)
        self._journals.publish(events)
        return stored

    async def _store(self, write: Callable[[bool], Awaitable[T]]) -> T:
        """Returns the result of a write. Repeats it while the store is unavailable or full.

        `write` gets whether it is a repeat: the attempt before may have been stored.
        """
        attempts = 0

        async def attempt() -> T:
            nonlocal attempts
            attempts += 1
            return await write(attempts > 1)

        return await self._journals.retry.call(attempt)

    def _numbered(self, bodies: Sequence[StampedBody]) -> list[RunEvent]:
        now = self._journals.clock.now()
        return [
            RunEvent(self._run_id, now, body, number, step_id)
            for number, (step_id, body) in enumerate(bodies, self._sequence + 1)
        ]


def prompt_limit(settings: ModelSettings, default_window: int) -> int:
    """Returns the tokens that a request may take: the window without the answer and a margin of two percent."""
    return _without_answer(settings, settings.context_window or default_window, most_for_answer=2)


def longest_prompt(settings: ModelSettings, default_window: int) -> int:
    """Returns the tokens that a request may take if nothing of it can be taken away: the answer is shorter then."""
    return _without_answer(settings, settings.context_window or default_window, most_for_answer=8)


def _without_answer(settings: ModelSettings, window: int, most_for_answer: int) -> int:
    """Returns the window without the margin and the answer, which has at most one n-th of it."""
    return window - min(settings.max_output_tokens or 0, window // most_for_answer) - window // 50


@dataclass(frozen=True, slots=True)
class CalledModel:
    """A model of a turn: its description, its effective settings, and the client that calls it."""

    info: ModelInfo
    settings: ModelSettings
    client: LlmClient
    fallback: "CalledModel | None" = None
    """Replaces this model for the rest of the turn if its provider is unavailable."""
    prompt_limit: int = field(init=False)
    """See the function `prompt_limit`."""
    longest_prompt: int = field(init=False)
    """See the function `longest_prompt`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompt_limit", prompt_limit(self.settings, self.info.context_window))
        object.__setattr__(self, "longest_prompt", longest_prompt(self.settings, self.info.context_window))


@dataclass(frozen=True, slots=True)
class TurnContext:
    """The facts of a turn. They do not change while it runs."""

    run: Run
    agent: Agent
    conversation: Conversation
    lease: Lease
    spec: AgentTypeSpec
    policy: LoopPolicy
    toolbox: Toolbox
    journal: JournalWriter
    response_format: ResponseFormat | None
    """The format of the words that end the turn: the run's, or the agent's."""
    claims: int = 0
    """The number of earlier claims of the run."""
    started: float = 0.0
    """The monotonic time in seconds at which this process began the turn."""

    def takes_heartbeat(self, tool_name: str) -> bool:
        """Returns whether calls of a tool have the argument request_heartbeat."""
        return self.policy.injects_heartbeat and not RulesSolver(self.agent.tool_rules).is_terminal(tool_name)

    def decision(self, call_id: str) -> ApprovalDecision | None:
        """Returns the decision about a call that waited for one, or None."""
        if self.run.resumes is None:
            return None
        return next((item for item in self.run.resumes.decisions if item.tool_call_id == call_id), None)


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """The sizes of a turn's requests in tokens, as far as they are known."""

    ceiling: int | None = None
    """The corrected tokens that requests stay below because the provider refused a longer one."""
    estimate: int = 0
    """The uncorrected tokens of the request that was measured last."""
    reported: int | None = None
    """The tokens of the request that was answered last, as the provider counted them."""
    corrections: tuple[Correction, ...] = ()
    """The corrections of estimates that the run learned, with those known before. Stored when the run ends."""


@dataclass(frozen=True, slots=True)
class OpenCommit:
    """A commit of which the outcome is not known yet."""

    step: "StepState"
    messages: tuple[Message, ...]


@dataclass(slots=True)
class TurnState:
    """The state of a turn that one step leaves for the next."""

    model: CalledModel
    window: ContextWindow
    core: CoreMemory
    solver: RulesSolver
    pending: tuple[Message, ...]
    """Messages that enter the window with the next step: the run's input."""
    edited: CoreMemory | None = None
    """Core memory after the edit that was the last call of the step; None if it has to be read."""
    directories: str = ""
    """The section of the system message about files."""
    has_opened_files: bool = False
    """A call of the last step may have changed that section."""
    notes: tuple[str, ...] = ()
    """Notes for the model that only this turn's requests contain, such as unavailable services."""
    step_number: int = 0
    step_count: int = 0
    """The number of concluded steps."""
    usage: Usage = Usage()
    context_tokens: int | None = None
    """The tokens of the request and the answer of the last step; None if the provider did not report them."""
    first_token_ms: int | None = None
    tokens: TokenCounts = TokenCounts()
    approval: Approval | None = None
    """The approval that the turn stops for. Stored when the run ends."""
    open_commit: OpenCommit | None = None
    open_step: "StepState | None" = None
    """The step that runs and is not concluded."""
    compacts_after_run: bool = False
    """The window is to be compacted once the end of the run is stored."""
    starts_runs: bool = False
    """A call of the turn has started other runs, or may have."""
    summary_calls: int = 0
    """The number of calls of summary models."""

    @property
    def last_user_text(self) -> str:
        """The user's last words, in this turn or before it."""
        for message in reversed((*self.window.messages, *self.pending)):
            if message.is_from_user:
                return message.text
        return ""

    def use_fallback(self, handle: str | None) -> None:
        """Switches to the fallback model for the rest of the turn if it has this handle."""
        fallback = self.model.fallback
        if fallback is not None and fallback.info.handle == handle:
            self.model = fallback

    def mark_first_token(self, seconds: float) -> None:
        """Records the time from the start of the turn to the model's first event."""
        if self.first_token_ms is None:
            self.first_token_ms = round(seconds * 1e3)

    def count_summary_call(self, usage: Usage) -> None:
        """Counts a call of a summary model."""
        self.usage += usage
        self.summary_calls += 1

    def conclude(self, step_id: str, usage: Usage) -> None:
        """Counts a step that is over."""
        self.usage += usage
        self.step_count += 1
        if usage.prompt_tokens is not None:
            self.context_tokens = usage.prompt_tokens + (usage.completion_tokens or 0)
        if self.open_step is not None and self.open_step.id == step_id:
            self.open_step = None


@dataclass(slots=True)
class StepState:
    """The state of one step, from its first model call to its commit."""

    record: Step
    attempts: int = 0
    """The number of times that the model was called for this step."""
    spent: Usage = Usage()
    """The tokens of all these calls that the provider reported, those of unusable answers among them."""
    notes: tuple[str, ...] = ()
    """Notes for the model about its earlier answers to this step."""
    answer: JournalledAnswer | None = None
    planned: tuple[PlannedCall, ...] = ()
    is_journalled: bool = False
    """The journal holds the answer."""
    seen: SeenRevisions | None = None
    """The block revisions that the agent has seen while its calls run."""

    @property
    def id(self) -> str:
        """The step's id."""
        return self.record.id

    @property
    def given(self) -> JournalledAnswer:
        if self.answer is None:
            raise Internal("the step has no answer yet")
        return self.answer

    @property
    def has_gated_calls(self) -> bool:
        """True if a call waits for a decision."""
        return any(item.gated for item in self.planned)

    def start_attempt(self) -> int:
        """Counts a call of the model, and returns its number from 1."""
        self.attempts += 1
        return self.attempts

    def spend(self, usage: Usage) -> None:
        """Counts the tokens of a call of the model."""
        self.spent += usage

    def accept(self, answer: JournalledAnswer, planned: tuple[PlannedCall, ...], *, is_journalled: bool) -> None:
        """Takes the answer that the step continues with."""
        self.answer, self.planned, self.is_journalled = answer, planned, is_journalled
        self.seen = SeenRevisions(answer.seen) if answer.seen is not None else None


@dataclass(slots=True)
class Turn:
    """A turn that runs: its facts and its state."""

    context: TurnContext
    state: TurnState

    def complete_tools(self, custom: tuple[CustomTool, ...], note: str) -> None:
        """Adds the stored tools that could not be read when the turn began, and removes the note that says so."""
        if self.context.toolbox.completed is not None:
            self.context = replace(self.context, toolbox=self.context.toolbox.completed(custom))
            self.state.notes = tuple(known for known in self.state.notes if known != note)


def new_step(context: TurnContext, state: TurnState, step_id: str, now: datetime) -> Step:
    """Returns the record of a step that begins now."""
    model = state.model
    return Step(
        id=step_id,
        run_id=context.run.id,
        agent_id=context.agent.id,
        conversation_id=context.run.conversation_id,
        number=state.step_number,
        model=model.info.handle,
        provider=model.info.provider,
        endpoint=model.info.endpoint,
        context_window=model.settings.context_window or model.info.context_window,
        created_at=now,
        trace_id=current_trace_id(),
    )


def concluded(
    step: Step,
    usage: Usage,
    stop: StopReason | None,
    now: datetime,
    status: StepStatus,
    error: RunError | None = None,
) -> Step:
    """Returns the record of a step that is over."""
    return replace(
        step,
        status=status,
        stop_reason=stop,
        usage=usage,
        error=error,
        total_ms=round((now - step.created_at).total_seconds() * 1e3),
        completed_at=now,
    )


def required_format(run: Run, agent: Agent) -> ResponseFormat | None:
    """Returns the response format of a run: its own, or its agent's."""
    return run.config.response_format or agent.response_format
