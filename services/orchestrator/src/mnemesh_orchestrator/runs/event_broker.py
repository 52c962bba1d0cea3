"""Hands the events of runs in this process to whoever follows them."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from mnemesh_orchestrator.model.events import RunEvent

_END = None


@dataclass(frozen=True, slots=True)
class StoredEvents:
    """Another process has stored more of the run; `ended` where it was the last."""

    ended: bool


StreamItem = RunEvent | StoredEvents | None
"""What a follower hears; None at the end."""


class Subscription:
    """A follower's queue, from the moment of subscribing. Unbounded: a slow reader holds nobody up."""

    def __init__(self, hub: "EventBroker", run_id: str) -> None:
        self._hub = hub
        self._run_id = run_id
        self._queue: asyncio.Queue[StreamItem] = asyncio.Queue()
        self.is_stored = False
        """The run is known to be in the store: what is not there any more has been deleted."""

    def put(self, heard: StreamItem) -> None:
        """Hands over an event, news of stored ones, or the end."""
        self._queue.put_nowait(heard)

    async def next(self, patience_seconds: float) -> StreamItem:
        """The next event or news, or None at the end.

        Raises:
            TimeoutError: nothing happened for that long.
        """
        if not self._queue.empty():
            return self._queue.get_nowait()
        async with asyncio.timeout(patience_seconds):
            return await self._queue.get()

    def close(self) -> None:
        """Stops following."""
        self._hub.drop(self._run_id, self)


class EventBroker:
    """Live events by run."""

    def __init__(self) -> None:
        self._followers: dict[str, list[Subscription]] = {}

    def subscribe(self, run_id: str) -> Subscription:
        """Follows a run from now on, whether it has begun or not."""
        subscription = Subscription(self, run_id)
        self._followers.setdefault(run_id, []).append(subscription)
        return subscription

    def publish(self, events: Iterable[RunEvent]) -> None:
        """Tells the followers; durable events only after they are stored."""
        for event in events:
            for follower in self._followers.get(event.run_id, ()):
                follower.put(event)

    @property
    def followed(self) -> tuple[str, ...]:
        """The runs that somebody follows and that were stored."""
        found = self._followers.items()
        return tuple(run_id for run_id, followers in found if any(follower.is_stored for follower in followers))

    def notify(self, run_id: str, news: StoredEvents) -> None:
        """Tells the followers to look into the store."""
        for follower in self._followers.get(run_id, ()):
            follower.put(news)

    def end(self, run_id: str) -> None:
        """Tells the followers that no further event will come."""
        for follower in self._followers.pop(run_id, ()):
            follower.put(_END)

    def drop(self, run_id: str, subscription: Subscription) -> None:
        """Forgets a follower."""
        followers = self._followers.get(run_id, [])
        if subscription in followers:
            followers.remove(subscription)
        if not followers:
            self._followers.pop(run_id, None)
