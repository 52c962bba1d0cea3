"""A bounded cache whose entries expire. It holds copies of what the mesh stores: losing an entry loses nothing."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

from mnemesh_kit.clock import Clock

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Cache(Generic[K, V]):
    """The entries that were used last, each for a limited time after it was put."""

    def __init__(self, capacity: int, seconds: float, clock: Clock) -> None:
        self._capacity = capacity
        self._seconds = seconds
        self._clock = clock
        self._entries: OrderedDict[K, tuple[float, V]] = OrderedDict()

    def get(self, key: K) -> V | None:
        """Returns an entry that has not expired, and marks it as used."""
        found = self._entries.get(key)
        if found is None:
            return None
        if found[0] <= self._clock.monotonic():
            del self._entries[key]
            return None
        self._entries.move_to_end(key)
        return found[1]

    def put(self, key: K, value: V) -> None:
        """Stores an entry, and removes the one that was not used for the longest time if there are too many."""
        self._entries[key] = (self._clock.monotonic() + self._seconds, value)
        self._entries.move_to_end(key)
        while len(self._entries) > self._capacity:
            self._entries.popitem(last=False)

    def remove(self, key: K) -> None:
        """Removes an entry if it exists."""
        self._entries.pop(key, None)

    def items(self) -> Iterator[tuple[K, V, float]]:
        """Yields the entries that have not expired, with the seconds for which they are still kept."""
        now = self._clock.monotonic()
        yield from ((key, value, end - now) for key, (end, value) in self._entries.items() if end > now)
