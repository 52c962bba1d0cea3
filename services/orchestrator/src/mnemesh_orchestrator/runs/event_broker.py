"""Delivers the events of runs to their followers in this process."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from mnemesh_orchestrator.model.events import RunEvent


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
        if not self._queue.empty():
            return self._queue.get_nowait()
        async with asyncio.timeout(timeout_seconds):
            return await self._queue.get()

    def close(self) -> None:
        """Ends the subscription."""
        self._broker.remove(self._run_id, self)


class EventBroker:
    """The followers of each run, and the events that they receive. Implements `loop.journal.EventPublisher`."""

    def __init__(self) -> None:
        self._followers: dict[str, list[Subscription]] = {}

    def subscribe(self, run_id: str) -> Subscription:
        """Returns a subscription to the events of a run from now on, whether or not the run has begun."""
        subscription = Subscription(self, run_id)
        self._followers.setdefault(run_id, []).append(subscription)
        return subscription

    def publish(self, events: Iterable[RunEvent]) -> None:
        """Delivers events to the followers. Durable events are stored before they are published."""
        for event in events:
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
        for follower in self._followers.pop(run_id, ()):
            follower.put(None)

    def remove(self, run_id: str, subscription: Subscription) -> None:
        """Removes a follower."""
        followers = self._followers.get(run_id, [])
        if subscription in followers:
            followers.remove(subscription)
        if not followers:
            self._followers.pop(run_id, None)
