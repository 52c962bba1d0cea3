"""Which files have not changed for a time, and are therefore complete."""

from __future__ import annotations

import time
from collections.abc import Callable, Container

from mnemesh_cli.directories.scan import FileState


class Settling:
    """The states in which files were seen, and since when."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._clock = clock
        self._seen: dict[str, tuple[FileState | None, float]] = {}

    def is_settled(self, path: str, state: FileState | None) -> bool:
        """Returns whether a file is in a state long enough; None is the state of an absent file."""
        now = self._clock()
        seen = self._seen.get(path)
        if seen is None or seen[0] != state:
            # A file that changed long before it is seen for the first time is complete.
            is_old = seen is None and state is not None and time.time() - state.changed_ns / 1e9 > self._seconds
            seen = self._seen[path] = (state, now - self._seconds if is_old else now)
        return now - seen[1] >= self._seconds

    def keep(self, paths: Container[str]) -> None:
        """Forgets all other files."""
        self._seen = {path: seen for path, seen in self._seen.items() if path in paths}
