"""Following a run: its stored events behind a number, then what happens live, to its end."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass

from mnemesh_kit.clock import Clock

from mnemesh_orchestrator.loop.delta_log import DeltaLog
from mnemesh_orchestrator.model.events import Keepalive, RunAccepted, RunEvent, UsageEvent
from mnemesh_orchestrator.model.runs import Run
from mnemesh_orchestrator.runs.event_broker import EventBroker, Subscription
from mnemesh_orchestrator.store.base import RunStore
from mnemesh_orchestrator.store.base.leases import DeltaStore

_BATCH = 200


class RunStreamer:
    """Streams of run events."""

    def __init__(self, store: RunStore, deltas: DeltaStore, log: DeltaLog, hub: EventBroker, clock: Clock) -> None:
        self._store = store
        self._deltas = deltas
        self._log = log
        self._hub = hub
        self._clock = clock

    def subscribe(self, run_id: str) -> Subscription:
        """Begins to listen; before the run is begun, so that nothing is missed."""
        return self._hub.subscribe(run_id)

    async def follow(
        self,
        run: Run,
        subscription: Subscription,
        *,
        fresh: bool = False,
        after: int = 0,
        replayed: bool = False,
        deltas: bool = False,
        keepalive_seconds: int = 30,
    ) -> AsyncGenerator[RunEvent, None]:
        """The events of a run behind `after`, each once and in order, up to its usage.

        Args:
            run: as it was read after subscribing.
            subscription: made before the run was read; closed here.
            fresh: it was even made before the run could begin, so that nothing of it is stored that was not heard.
            after: the newest number that the caller has.
            replayed: the run had been started before.
            deltas: also replays the live events that are stored, those of a background run that streams.
            keepalive_seconds: after so long without an event comes a sign of life.
        """
        is_told_again = deltas and run.background and run.config.stream_tokens
        place, subscription.is_stored = _Place(after, after, (0, 0) if is_told_again else None), True
        try:
            accepted = RunAccepted(run.agent_id, run.conversation_id, replayed, run.last_sequence)
            yield RunEvent(run.id, self._clock.now(), accepted)
            if not fresh:
                async for event in self._stored(run.id, place):
                    yield event
                if place.is_last or run.status.ended:
                    return
            async for event in self._happening(run.id, subscription, place, keepalive_seconds):
                yield event
        finally:
            subscription.close()

    async def _happening(
        self, run_id: str, subscription: Subscription, place: "_Place", keepalive_seconds: int
    ) -> AsyncGenerator[RunEvent, None]:
        """What this process or another tells of the run, until its last event."""
        while not place.is_last:
            try:
                heard = await subscription.next(keepalive_seconds)
            except TimeoutError:
                yield RunEvent(run_id, self._clock.now(), Keepalive())
                continue
            if isinstance(heard, RunEvent):
                async for event in self._unseen(heard, place):
                    yield event
                continue
            # Another process has stored more; or the holder let go, and what it stored last is all there is for now.
            async for event in self._stored(run_id, place):
                yield event
            if heard is None or heard.ended:
                return

    async def _unseen(self, live: RunEvent, place: "_Place") -> AsyncGenerator[RunEvent, None]:
        """A live event unless it was seen, behind those that it presumes.

        What is missing was told before the follower came, and stored after it had looked.
        """
        if live.sequence is None and (live.place is None or place.live is None):
            yield live
            return
        if not place.is_next(live):
            if live.place is not None:
                await self._log.flush(live.run_id)
            async for event in self._stored(live.run_id, place, live.sequence):
                yield event
        if place.reach(live):
            yield live

    async def _stored(self, run_id: str, place: "_Place", before: int | None = None) -> AsyncGenerator[RunEvent, None]:
        while batch := await self._batch(run_id, place):
            for event in batch:
                if place.live is None and before is not None and (event.sequence or 0) >= before:
                    return
                if place.reach(event):
                    yield event

    async def _batch(self, run_id: str, place: "_Place") -> tuple[RunEvent, ...]:
        if place.live is None:
            return await self._store.events(run_id, place.sequence, _BATCH)
        return await self._deltas.replay(run_id, place.sequence, place.since, place.live)


@dataclass(slots=True)
class _Place:
    """How far a follower has come; `live` is None where live events are told as they come or not at all."""

    since: int
    sequence: int
    live: tuple[int, int] | None
    is_last: bool = False

    def is_next(self, event: RunEvent) -> bool:
        """Whether nothing can be missing before an event."""
        if event.sequence is not None:
            return event.sequence <= self.sequence + 1
        if event.place is None or self.live is None:
            return True
        epoch, number = event.place
        return event.place <= self.live or (number == 1 + (self.live[1] if epoch == self.live[0] else 0))

    def reach(self, event: RunEvent) -> bool:
        """Goes on to an event; False where it was seen before."""
        self.is_last |= isinstance(event.body, UsageEvent)
        if event.sequence is not None:
            is_new = event.sequence > self.sequence
            self.sequence = max(self.sequence, event.sequence)
            return is_new
        if event.place is None or self.live is None:
            return True
        is_new = event.place > self.live
        self.live = max(self.live, event.place)
        return is_new
