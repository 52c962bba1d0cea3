"""Writing what happens in a run: its events numbered without a gap, and told only once they are stored."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from mnemesh_kit.clock import Clock

from mnemesh_orchestrator.llm.port import LlmAnswer
from mnemesh_orchestrator.loop.delta_log import DeltaLog
from mnemesh_orchestrator.loop.state import Turn
from mnemesh_orchestrator.model.events import Delta, DurableBody, StepStarted
from mnemesh_orchestrator.model.journal import JournalEntry
from mnemesh_orchestrator.model.steps import Step, StepTrace
from mnemesh_orchestrator.runs.event_broker import EventBroker
from mnemesh_orchestrator.store.base import RunStore

T = TypeVar("T")


class JournalWriter:
    """Journal entries and events of runs, each with the steps and traces since the last write."""

    def __init__(
        self, store: RunStore, deltas: DeltaLog, hub: EventBroker, clock: Clock, *, keeps_traces: bool = True
    ) -> None:
        self._store = store
        self._deltas = deltas
        self._hub = hub
        self._clock = clock
        self._keeps_traces = keeps_traces

    def trace(self, turn: Turn, step: Step, answer: LlmAnswer) -> None:
        """Keeps what went to the model and came back, where the server does that; the next write takes it along."""
        if self._keeps_traces:
            trace = StepTrace(step.id, answer.request_body, answer.response_body, step.model_ms or 0, self._clock.now())
            # A step that was asked again is shown by its last answer.
            turn.progress.traces = [known for known in turn.progress.traces if known.step_id != step.id]
            turn.progress.traces.append(trace)

    def live(self, turn: Turn, step_id: str, body: StepStarted | Delta) -> None:
        """Tells the followers what is just happening; of a background run that streams it is stored as well."""
        progress, event = turn.progress, turn.progress.live(self._clock.now(), step_id, body)
        if turn.run.background and turn.run.config.stream_tokens:
            event = self._deltas.take(turn.lease, progress.sequence, event)
        self._hub.publish([event])

    async def record(self, turn: Turn, step_id: str, entry: JournalEntry, bodies: Sequence[DurableBody] = ()) -> None:
        """Stores an entry and what clients are told of it, in one transaction. A cancellation waits for it to end.

        Raises:
            LeaseLost: somebody else carries the run out now.
        """
        await settled(self._record(turn, step_id, entry, bodies))

    async def _record(self, turn: Turn, step_id: str, entry: JournalEntry, bodies: Sequence[DurableBody]) -> None:
        progress = turn.progress
        # Calls that run beside each other write one after the other: events are numbered in the order of writing.
        async with progress.writing:
            await self._deltas.flush(turn.run.id)
            events = progress.durable(self._clock.now(), step_id, *bodies)
            steps, traces = tuple(progress.steps), tuple(progress.traces)
            await self._store.write(turn.lease, entries=[entry], events=events, steps=steps, traces=traces)
            progress.recorded(events, steps, traces)
            self._hub.publish(events)


async def settled(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is done to its end before a cancellation is heard: then its effect is known."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # whoever was cancelled does not hear of it
        raise
