"""Following a run: its stored events behind a number, then what happens live, to its end."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass

from engram_kit.clock import Clock

from engram_orchestrator.loop.hub import EventHub, Subscription
from engram_orchestrator.model.events import Accepted, Keepalive, RunEvent, UsageReported
from engram_orchestrator.model.runs import Run
from engram_orchestrator.store.base import RunStore

_BATCH = 200


class Follower:
    """Streams of run events."""

    def __init__(self, store: RunStore, hub: EventHub, clock: Clock) -> None:
        self._store = store
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
        keepalive_seconds: int = 30,
    ) -> AsyncGenerator[RunEvent, None]:
        """The events of a run behind `after`, each once and in order, up to its usage.

        Args:
            run: as it was read after subscribing.
            subscription: made before the run was read; closed here.
            fresh: it was even made before the run could begin, so that nothing of it is stored that was not heard.
            after: the newest number that the caller has.
            replayed: the run had been started before.
            keepalive_seconds: after so long without an event comes a sign of life.
        """
        place, subscription.is_stored = _Place(after), True
        try:
            accepted = Accepted(run.agent_id, run.conversation_id, replayed, run.last_sequence)
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
        if live.sequence is None:
            yield live
            return
        if live.sequence > place.sequence + 1:
            async for event in self._stored(live.run_id, place, live.sequence):
                yield event
        if live.sequence > place.sequence:
            place.reach(live)
            yield live
        place.is_last |= isinstance(live.body, UsageReported)

    async def _stored(self, run_id: str, place: "_Place", before: int | None = None) -> AsyncGenerator[RunEvent, None]:
        while batch := await self._store.events(run_id, place.sequence, _BATCH):
            for event in batch:
                if before is not None and (event.sequence or 0) >= before:
                    return
                place.reach(event)
                yield event


@dataclass(slots=True)
class _Place:
    """How far a follower has come."""

    sequence: int
    is_last: bool = False

    def reach(self, event: RunEvent) -> None:
        self.sequence = event.sequence or self.sequence
        self.is_last |= isinstance(event.body, UsageReported)
