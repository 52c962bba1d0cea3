"""Time as a dependency: the system's clock, and one that tests advance."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """A source of the current time.

    Example:
        >>> clock = FrozenClock()
        >>> clock.advance(60)
        >>> clock.now().isoformat()
        '2026-01-01T00:01:00+00:00'
    """

    def now(self) -> datetime:
        """Returns the current instant as an aware datetime in UTC."""
        ...

    def monotonic(self) -> float:
        """Returns seconds that never decrease. Only differences have a meaning."""
        ...


class SystemClock:
    """The clock of the system."""

    def now(self) -> datetime:
        """Returns the current instant in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Returns the monotonic clock in seconds."""
        return time.monotonic()


class FrozenClock:
    """A clock for tests that changes only when a test advances it."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._start = start.astimezone(UTC)
        self._elapsed = 0.0

    def now(self) -> datetime:
        """Returns the start plus the advanced time."""
        return self._start + timedelta(seconds=self._elapsed)

    def monotonic(self) -> float:
        """Returns the seconds advanced since the start."""
        return self._elapsed

    def advance(self, seconds: float) -> None:
        """Moves the clock forward by `seconds`."""
        self._elapsed += seconds
