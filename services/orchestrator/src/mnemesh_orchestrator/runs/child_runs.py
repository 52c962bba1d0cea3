"""Runs that runs start: stored once under derived ids, followed to their end, and cancelled with the run that waits."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec
import structlog
from mnemesh_kit.call_context import Principal
from mnemesh_kit.errors import NotFound
from mnemesh_kit.ids import derive_id
from mnemesh_kit.server import run_to_end
from mnemesh_kit.time import Clock
from mnemesh_types.messages import TextPart, ToolCall, ToolStatus

from mnemesh_orchestrator.builtin.call import ChildOutcome, ChildRequest, ShowApproval
from mnemesh_orchestrator.errors import MessageCycle, MessageDepthExceeded
from mnemesh_orchestrator.model.conversations import default_conversation_id
from mnemesh_orchestrator.model.events import MemberEvent, MessageEvent, RunEvent, UsageEvent
from mnemesh_orchestrator.model.inputs import SHOWN_ROLES, RunConfig
from mnemesh_orchestrator.model.runs import (
    Ancestor,
    CancelOutcome,
    ChildRun,
    Lineage,
    Run,
    RunFilter,
    RunOrigin,
    RunStatus,
    StopReason,
)
from mnemesh_orchestrator.processors import Processors
from mnemesh_orchestrator.runs.run_stream import EventBroker, StoredEvents, Subscription
from mnemesh_orchestrator.runs.worker import RunWorker
from mnemesh_orchestrator.store.run_relations import RunRelationStore
from mnemesh_orchestrator.store.runs import RunStore

_log = structlog.get_logger("mnemesh.runs")

MAX_DEPTH: Final = 8
"""The largest number of runs that can lead to a message from one agent to another."""
QUEUED_SECONDS: Final = 1.0
"""The time between two looks at a run that has not begun, or whose approval is not answered yet."""
RUNNING_SECONDS: Final = 30.0
"""The longest time between two reads of a run that has begun. Its events wake the waiting run earlier."""
_EVENTS: Final = 200


class SpokenWords:
    """The texts of one or more runs for the user, in order.

    They are the assistant messages and, for runs that show the calls of the speaking tool as calls, the texts of the
    calls that succeeded.
    """

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._calls: dict[str, str] = {}

    def read(self, config: RunConfig, event: RunEvent) -> None:
        """Adds the texts of the next event of a run with this config."""
        body = event.body
        if not isinstance(body, MessageEvent):
            return
        if body.kind == "assistant":
            self._add("".join(part.text for part in body.content if isinstance(part, TextPart)))
        for call in body.tool_calls:
            if call.name == config.assistant_tool_name:
                self._calls[call.id] = _text(config, call)
        for returned in body.tool_returns:
            if returned.status is ToolStatus.SUCCESS:
                self._add(self._calls.get(returned.tool_call_id, ""))

    def _add(self, text: str) -> None:
        if text.strip():
            self.texts.append(text)


def _text(config: RunConfig, call: ToolCall) -> str:
    arguments: Any = None
    with suppress(msgspec.DecodeError):
        arguments = msgspec.json.decode(call.arguments)
    text = arguments.get(config.assistant_tool_argument) if isinstance(arguments, dict) else None
    return text if isinstance(text, str) else ""


@dataclass(frozen=True, slots=True)
class RunStarter:
    """The part that starts and cancels runs. It is connected last, because it executes runs itself.

    `cancel` cancels runs and withdraws the approvals that they wait for; `cancel_unbegun` cancels a run that has not
    begun, and returns False if it has.
    """

    worker: RunWorker
    cancel: Callable[[Principal, RunFilter, Sequence[str]], Awaitable[dict[str, CancelOutcome]]]
    cancel_unbegun: Callable[[Run], Awaitable[bool]]


class ChildRuns:
    """Implements ChildRunsPort."""

    def __init__(
        self,
        store: RunStore,
        relations: RunRelationStore,
        broker: EventBroker,
        processors: Processors,
        clock: Clock,
    ) -> None:
        """Creates the starter of child runs. `connect` completes it.

        Args:
            relations: the relations between them.
            broker: the events of runs, which wake those that wait.
            processors: the operator's processors of inputs.
            clock: the clock of new runs.
        """
        self._store = store
        self._relations = relations
        self._broker = broker
        self._processors = processors
        self._clock = clock
        self._starter: RunStarter | None = None

    def connect(self, starter: RunStarter) -> None:
        """Sets what starts and cancels runs."""
        self._starter = starter

    @property
    def _runs(self) -> RunStarter:
        if self._starter is None:
            raise RuntimeError("connect was not called")
        return self._starter

    async def start(self, parent: Run, request: ChildRequest) -> Run:
        await self._require_free(parent, request)
        run = self._new_run(parent, request)
        if request.origin is RunOrigin.AGENT:
            self._require_depth(run)
            run = await self._process(run)
        # A cancellation takes effect once the run is stored, so that it is found and cancelled too.
        started = await run_to_end(self._runs.worker.start(None, run, reject_busy=False))
        return started.run

    async def _require_free(self, parent: Run, request: ChildRequest) -> None:
        """Raises MessageCycle if the agent is the caller, or holds a run that waits for it."""
        if request.agent_id == parent.agent_id:
            raise MessageCycle("An agent cannot send a message to itself.", agent_id=request.agent_id)
        for ancestor in parent.lineage.ancestors:
            if ancestor.agent_id == request.agent_id and await self._is_unfinished(parent, ancestor.run_id):
                raise MessageCycle(
                    f"Agent {request.agent_id} waits for this agent's answer, so it cannot answer a message now. "
                    "Answer it instead.",
                    agent_id=request.agent_id,
                    run_id=ancestor.run_id,
                )

    async def _is_unfinished(self, parent: Run, run_id: str) -> bool:
        """Returns whether a run has not ended. A run that gave up waiting may have."""
        try:
            return not (await self._store.get(parent.organization_id, run_id)).status.ended
        except NotFound:
            return False

    def _require_depth(self, run: Run) -> None:
        if run.lineage.depth > MAX_DEPTH:
            raise MessageDepthExceeded(
                f"The message was not sent: {run.lineage.depth} runs led to it, each started by the one before, and "
                f"{MAX_DEPTH} are allowed. Continue without another agent.",
                depth=str(run.lineage.depth),
            )

    def _new_run(self, parent: Run, request: ChildRequest) -> Run:
        now, conversation_id = self._clock.now(), default_conversation_id(request.agent_id)
        shown = sum(message.role in SHOWN_ROLES for message in request.messages)
        before = request.retries
        waiting = Ancestor(parent.id, parent.conversation_id, parent.agent_id)
        return Run(
            id=self.run_id(parent, request.effect_id),
            organization_id=parent.organization_id,
            subject_id=parent.subject_id,
            agent_id=request.agent_id,
            conversation_id=conversation_id,
            created_at=now,
            updated_at=now,
            input=request.messages,
            config=request.config,
            background=True,
            last_sequence=shown,
            shown_inputs=shown,
            retried_run_ids=() if before is None else (before.id, *before.retried_run_ids),
            resumes=None if before is None else before.resumes,
            group_id=request.group_id,
            lineage=Lineage(
                parent_run_id=parent.id,
                origin=request.origin,
                ancestors=(*parent.lineage.ancestors, waiting) if request.is_awaited else (),
                depth=parent.lineage.depth + 1,
                supervised_agent_ids=request.supervised_agent_ids,
            ),
        )

    async def _process(self, run: Run) -> Run:
        """Returns a run whose input the operator's processors have changed, unless the run was stored before."""
        if not self._processors.has_input_processors:
            return run
        with suppress(NotFound):
            return await self._store.get(run.organization_id, run.id)
        return replace(run, input=await self._processors.process_input(run))

    async def outcome(self, parent: Run, run_id: str, show_approval: ShowApproval) -> ChildOutcome:
        words = SpokenWords()
        while True:
            run = await self._wait_for_end(parent, run_id, show_approval)
            await self._read_words(run, words)
            if run.stop_reason is not StopReason.REQUIRES_APPROVAL:
                return ChildOutcome(run, tuple(words.texts))
            await self._show_approvals(parent, show_approval)
            answering = await self.wait_for_answering_run(run)
            if answering is None:
                return ChildOutcome(run, tuple(words.texts))
            run_id = answering

    async def _wait_for_end(self, parent: Run, run_id: str, show_approval: ShowApproval) -> Run:
        """Waits until a run has ended, and returns it. Raises the errors of `outcome`."""
        while True:
            subscription = self._broker.subscribe(run_id)
            try:
                run = await self._store.get(parent.organization_id, run_id)
                if run.status.ended:
                    return run
                subscription.is_stored = True
                await self._show_approvals(parent, show_approval)
                if run.status is RunStatus.CREATED:
                    await self._require_progress(parent, run)
                    await _wait(subscription, QUEUED_SECONDS, any_event=True)
                else:
                    await _wait(subscription, RUNNING_SECONDS)
            finally:
                subscription.close()

    async def _show_approvals(self, parent: Run, show_approval: ShowApproval) -> None:
        """Shows the requests for the approvals that a run waits for."""
        for approval in await self._relations.list_awaited_approvals(parent.id):
            last = 0
            while batch := await self._store.events(approval.run_id, last, _EVENTS):
                for event in batch:
                    body = event.body
                    if isinstance(body, MessageEvent) and body.message_id == approval.approval_id:
                        await show_approval(MemberEvent(approval.agent_id, approval.run_id, body, event.sequence or 0))
                last = batch[-1].sequence or 0

    async def _require_progress(self, parent: Run, run: Run) -> None:
        """Raises MessageCycle if the parent has to give up waiting for a run in a queue."""
        if await self._relations.must_give_up(parent, run.id) and await self._runs.cancel_unbegun(run):
            _log.warning("message_cycle", run_id=run.id, parent_run_id=parent.id)
            raise MessageCycle(
                f"Agent {run.agent_id} works on a run that waits for this agent, so both would wait for each other. "
                "The message was withdrawn. Send it again later, or continue without an answer.",
                agent_id=run.agent_id,
                run_id=run.id,
            )

    async def wait_for_answering_run(self, asking: Run) -> str | None:
        while True:
            subscription = self._broker.subscribe(asking.id)
            try:
                continuation = await self._relations.continuation(asking)
                if not continuation.is_pending:
                    return continuation.run_id
                await _wait(subscription, QUEUED_SECONDS, any_event=True)
            finally:
                subscription.close()

    async def _read_words(self, run: Run, words: SpokenWords) -> None:
        """Adds the words of a run that has ended, from its stored events."""
        last = 0
        while batch := await self._store.events(run.id, last, _EVENTS):
            for event in batch:
                words.read(run.config, event)
            last = batch[-1].sequence or 0

    async def withdraw(self, parent: Run, run_id: str) -> bool:
        run = await self._store.get(parent.organization_id, run_id)
        return run.status is RunStatus.CREATED and await self._runs.cancel_unbegun(run)

    async def cancel(self, parent: Run) -> None:
        children = await self.list_children(parent)
        open_ = [child.id for child in children if child.is_awaited and _may_continue(child)]
        if open_:
            caller = Principal(parent.organization_id, parent.subject_id)
            await self._runs.cancel(caller, RunFilter(), open_)

    async def list_children(self, parent: Run) -> tuple[ChildRun, ...]:
        return await self._relations.list_children(parent.organization_id, parent.id)

    def run_id(self, parent: Run, effect_id: str) -> str:
        return derive_id("run", parent.first_run_id, effect_id)


def _may_continue(child: ChildRun) -> bool:
    return not child.status.ended or child.stop_reason is StopReason.REQUIRES_APPROVAL


async def _wait(subscription: Subscription, seconds: float, *, any_event: bool = False) -> None:
    """Waits for the end of a run, or for an approval that it waits for; with `any_event` for any event.

    Waits at most for a time after the last event.
    """
    with suppress(TimeoutError):
        while (item := await subscription.next(seconds)) is not None:
            if any_event or isinstance(item, StoredEvents) or isinstance(item.body, UsageEvent | MemberEvent):
                return
