"""Orders for processes to kill themselves at a point, and the points that they have passed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from mnemesh_testkit.failpoints.observer import DIED


@dataclass(frozen=True, slots=True)
class Point:
    """The `times`-th time that a room is at a place; `number` is its place among all, from 1."""

    room: str
    number: int
    name: str
    times: int

    def __str__(self) -> str:
        """For whoever reads why a test failed."""
        return f"{self.room} {self.number}: {self.name} ({self.times})"


class Deaths:
    """What a mesh's processes are told, and tell, of their points; see `mnemesh_testkit.failpoints.observer`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._begins: Counter[str] = Counter()

    def begin(self, *rooms: str) -> None:
        """Forgets what the rooms have passed so far."""
        for room in rooms:
            path = self._trail(room)
            self._begins[room] = path.stat().st_size if path.exists() else 0

    def passed(self, room: str) -> list[str]:
        """The points that the room has passed since then, in all its lives; behind the last of each `DIED`."""
        path = self._trail(room)
        if not path.exists():
            return []
        with path.open("rb") as trail:
            trail.seek(self._begins[room])
            return trail.read().decode().splitlines()

    def points(self, room: str) -> list[Point]:
        """The same as points to die at."""
        counts: Counter[str] = Counter()
        points = []
        for number, name in enumerate(self.passed(room), 1):
            counts[name] += 1
            points.append(Point(room, number, name, counts[name]))
        return points

    def order(self, point: Point) -> None:
        """The room is to kill itself at the point, counted from now on."""
        order = self._order(point.room)
        written = order.with_suffix(".new")
        written.write_text(f"{uuid4()}\n{point.times}\n{point.name}")
        written.replace(order)

    def met(self, point: Point) -> Sequence[str]:
        """What the room had passed when it killed itself as it was ordered to, the point itself at the end.

        Raises:
            AssertionError: it has not.
        """
        passed = self.passed(point.room)
        if DIED not in passed:
            self._order(point.room).unlink(missing_ok=True)
            raise AssertionError(f"{point} was never reached")
        return passed[: passed.index(DIED)]

    def _trail(self, room: str) -> Path:
        return self.directory / f"{room}.points"

    def _order(self, room: str) -> Path:
        return self.directory / f"{room}.death"
