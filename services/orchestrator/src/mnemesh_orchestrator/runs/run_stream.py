"""Streams of the events of a run: the stored ones after a sequence number, then the live ones, to the end."""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from mnemesh_kit.time import Clock

from mnemesh_orchestrator.loop.step_messages import DeltaLog, input_events
from mnemesh_orchestrator.model.events import Keepalive, RunAccepted, RunEvent, UsageEvent
from mnemesh_orchestrator.model.runs import Run
from mnemesh_orchestrator.store.deltas import DeltaStore
from mnemesh_orchestrator.store.runs import RunStore

_BATCH: Final = 200


@dataclass(frozen=True, slots=True)
class StoredEvents:
    """Another process has stored events of the run."""

    ended: bool
    """The run has ended; no more events follow."""


StreamItem = RunEvent | StoredEvents | None
"""An item that a follower receives; None at the end."""


class Subscription:
    """A follower's queue. It is unbounded, so a slow follower delays nothing."""

    def __init__(self, broker: "EventBroker", run_id: str) -> None:
        self._broker = broker
        self._run_id = run_id
        self._queue: asyncio.Queue[StreamItem] = asyncio.Queue()
        self.is_stored = False
        """The run is known to be in the store. If it is missing there later, it was deleted."""

    def put(self, item: StreamItem) -> None:
        """Adds an item to the queue."""
        self._queue.put_nowait(item)

    async def next(self, timeout_seconds: float) -> StreamItem:
        """Returns the next item, or None at the end.

        Raises:
            TimeoutError: no item arrived within the time.
        """
        if self.has_item:
            return self._queue.get_nowait()
        async with asyncio.timeout(timeout_seconds):
            return await self._queue.get()

    @property
    def has_item(self) -> bool:
        """The next item is there, so `next` does not wait."""
        return not self._queue.empty()

    def close(self) -> None:
        """Ends the subscription."""
        self._broker.remove(self._run_id, self)


class EventBroker:
    """The followers of each run, and the events that they receive."""

    def __init__(self) -> None:
        self._followers: dict[str, list[Subscription]] = {}
        # Durable events that the next write of their run stores. Who subscribes until then finds them nowhere else.
        self._unstored: dict[str, list[RunEvent]] = {}

    def subscribe(self, run_id: str) -> Subscription:
        """Returns a subscription to the events of a run from now on, and to those that are not stored yet.

        The run need not have begun.
        """
        subscription = Subscription(self, run_id)
        self._followers.setdefault(run_id, []).append(subscription)
        for event in self._unstored.get(run_id, ()):
            subscription.put(event)
        return subscription

    def publish(self, events: Iterable[RunEvent], *, is_stored: bool = True) -> None:
        """Delivers events to the followers.

        Args:
            events: the events, in order.
            is_stored: whether the durable ones are stored, and with them all that were published before.
        """
        for event in events:
            if event.sequence is not None:
                if is_stored:
                    self._unstored.pop(event.run_id, None)
                else:
                    self._unstored.setdefault(event.run_id, []).append(event)
            for follower in self._followers.get(event.run_id, ()):
                follower.put(event)

    @property
    def followed(self) -> tuple[str, ...]:
        """The ids of stored runs that have a follower."""
        return tuple(
            run_id for run_id, followers in self._followers.items() if any(follower.is_stored for follower in followers)
        )

    def notify(self, run_id: str, stored: StoredEvents) -> None:
        """Tells the followers of a run to read the store."""
        for follower in self._followers.get(run_id, ()):
            follower.put(stored)

    def end(self, run_id: str) -> None:
        """Ends the streams of a run's followers."""
        self._unstored.pop(run_id, None)
        for follower in self._followers.pop(run_id, ()):
            follower.put(None)

    def remove(self, run_id: str, subscription: Subscription) -> None:
        """Removes a follower."""
        followers = self._followers.get(run_id, [])
        if subscription in followers:
            followers.remove(subscription)
        if not followers:
            self._followers.pop(run_id, None)


@dataclass(frozen=True, eq=False)
class RunStreamer:
    """Streams of run events."""

    store: RunStore
    deltas: DeltaStore
    log: DeltaLog
    broker: EventBroker
    clock: Clock

    def subscribe(self, run_id: str) -> Subscription:
        """Returns a subscription. It is made before the run starts, so that no event is missed."""
        return self.broker.subscribe(run_id)

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
    ) -> AsyncGenerator[Sequence[RunEvent], None]:
        """Yields the events of a run after a sequence number, each once and in order, up to its usage.

        Events that are ready at the same time come together.

        Args:
            run: the run, read after the subscription was made.
            subscription: a subscription to the run. It is closed here.
            fresh: the subscription was made before the run could start, so every stored event was also received.
            after: the last sequence number that the caller has.
            replayed: the run had been started before.
            deltas: also replay the stored live events, which a background run with token streaming has.
            keepalive_seconds: the time without an event after which a keepalive is sent.
        """
        replays_live = deltas and run.background and run.config.stream_tokens
        position, subscription.is_stored = _Position(after, after, (0, 0) if replays_live else None), True
        try:
            accepted = RunAccepted(run.agent_id, run.conversation_id, replayed, run.last_sequence)
            ready = [RunEvent(run.id, run.created_at, accepted), *filter(position.advance, input_events(run))]
            if not fresh:
                yield ready
                ready = []
                if replays_live:
                    # Those that wait were published before the subscription: nothing else would bring them.
                    await self.log.flush(run.id)
                async for events in self._read_stored(run.id, position):
                    yield events
                if position.is_last or run.status.ended:
                    return
            async for events in self._live(run.id, subscription, position, ready, keepalive_seconds):
                yield events
        finally:
            subscription.close()

    async def _live(
        self,
        run_id: str,
        subscription: Subscription,
        position: "_Position",
        ready: list[RunEvent],
        keepalive_seconds: int,
    ) -> AsyncGenerator[Sequence[RunEvent], None]:
        """Yields `ready`, and the events that this process or another publishes, up to the last one."""
        while not position.is_last:
            if ready and not subscription.has_item:
                yield ready
                ready = []
            try:
                item = await subscription.next(keepalive_seconds)
            except TimeoutError:
                yield [RunEvent(run_id, self.clock.now(), Keepalive())]
                continue
            if isinstance(item, RunEvent) and position.is_next(item):
                if position.advance(item):
                    ready.append(item)
                continue
            if ready:
                yield ready
                ready = []
            if isinstance(item, RunEvent):
                async for events in self._read_missed(item, position):
                    yield events
                if position.advance(item):
                    yield [item]
                continue
            # Another process has stored events, or the holder released the run after it stored its last one.
            async for events in self._read_stored(run_id, position):
                yield events
            if item is None or item.ended:
                return
        if ready:
            yield ready

    async def _read_missed(self, live: RunEvent, position: "_Position") -> AsyncGenerator[Sequence[RunEvent], None]:
        """Yields the stored events before a live one: published before the subscription, stored after the read."""
        if live.position is not None:
            await self.log.flush(live.run_id)
        async for events in self._read_stored(live.run_id, position, live.sequence):
            yield events

    async def _read_stored(
        self, run_id: str, position: "_Position", before: int | None = None
    ) -> AsyncGenerator[Sequence[RunEvent], None]:
        while batch := await self._batch(run_id, position):
            if position.live is None and before is not None:
                older = [event for event in batch if (event.sequence or 0) < before]
                yield list(filter(position.advance, older))
                if len(older) < len(batch):
                    return
            else:
                yield list(filter(position.advance, batch))

    async def _batch(self, run_id: str, position: "_Position") -> tuple[RunEvent, ...]:
        if position.live is None:
            return await self.store.events(run_id, position.sequence, _BATCH)
        return await self.deltas.replay(run_id, position.sequence, position.since, position.live)


@dataclass(slots=True)
class _Position:
    """The position of a follower in a run's events."""

    since: int
    """The sequence number that the stream began after."""
    sequence: int
    live: tuple[int, int] | None
    """The position among the stored live events; None if live events are not replayed."""
    is_last: bool = False

    def is_next(self, event: RunEvent) -> bool:
        """Returns whether no event can be missing before this one."""
        if event.sequence is not None:
            return event.sequence <= self.sequence + 1
        if event.position is None or self.live is None:
            return True
        epoch, number = event.position
        return event.position <= self.live or (number == 1 + (self.live[1] if epoch == self.live[0] else 0))

    def advance(self, event: RunEvent) -> bool:
        """Moves to an event. Returns False if the follower has seen it before."""
        self.is_last |= isinstance(event.body, UsageEvent)
        if event.sequence is not None:
            is_new = event.sequence > self.sequence
            self.sequence = max(self.sequence, event.sequence)
            return is_new
        if event.position is None or self.live is None:
            return True
        is_new = event.position > self.live
        self.live = max(self.live, event.position)
        return is_new
