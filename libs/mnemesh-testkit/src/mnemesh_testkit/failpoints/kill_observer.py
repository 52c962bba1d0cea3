"""The failpoint observer of a mesh's processes: records the failpoints they reach, and kills the process on order.

The fork server installs it in a service's process. It observes calls and the runs that calls start. Work that runs in
the background at times of its own choice is not observed, also if a call does it because the background has not yet.
"""

import os
import signal
import threading
from collections import Counter
from contextvars import ContextVar
from pathlib import Path
from typing import Final

from mnemesh_kit import failpoints

KILLED: Final = "killed"
"""The line after the last failpoint of a process that killed itself."""

BACKGROUND_WORK: Final = (":words.index_some", ":words.select_again")
"""The ends of the names of failpoints that a call reaches only if the background has not."""
_IN_CALL: ContextVar[bool] = ContextVar("testkit_in_call", default=False)


class KillObserver:
    """Appends each failpoint to `<directory>/<name>.failpoints`, and kills the process at the one that is ordered.

    An order is the file `<directory>/<name>.kill`: an id, how many times the failpoint must be reached, and its name.
    """

    def __init__(self, directory: Path, name: str) -> None:
        self._trail = os.open(directory / f"{name}.failpoints", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._order = directory / f"{name}.kill"
        self._order_id = ""
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __call__(self, failpoint: str) -> None:
        """Records a failpoint, and kills the process if it is the ordered one."""
        if failpoint.startswith("rpc.received:"):
            _IN_CALL.set(True)
        if not _IN_CALL.get() or failpoint.endswith(BACKGROUND_WORK):
            return
        with self._lock:
            os.write(self._trail, f"{failpoint}\n".encode())
            try:
                order_id, occurrence, ordered = self._order.read_text().split("\n")
            except FileNotFoundError:
                return
            if order_id != self._order_id:
                self._order_id, self._counts = order_id, Counter()
            self._counts[failpoint] += 1
            if (failpoint, self._counts[failpoint]) == (ordered, int(occurrence)):
                self._order.unlink()
                os.write(self._trail, KILLED.encode() + b"\n")
                os.kill(os.getpid(), signal.SIGKILL)


def observe(directory: str, name: str) -> None:
    """Installs the observer in this process, before its service starts."""
    failpoints.install(KillObserver(Path(directory), name))
