"""Orders for processes to kill themselves at a failpoint, and the failpoints that they have reached."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final
from uuid import uuid4

from mnemesh_testkit.failpoints.kill_observer import KILLED
from mnemesh_testkit.fuzzing.contract import methods, reads

EVENT: Final = "run.before_event:"
LEAVING: Final = ("rpc.before_response:", EVENT)
"""How the names of the failpoints begin after which something leaves the process."""


@dataclass(frozen=True, slots=True)
class Failpoint:
    """One time at which a service reached a failpoint."""

    service: str
    number: int
    """Its position among all failpoints that the service reached, from 1."""
    name: str
    occurrence: int
    """How many times the service had then reached the failpoint of this name."""

    def __str__(self) -> str:
        """The failpoint as failed tests show it."""
        return f"{self.service} {self.number}: {self.name} ({self.occurrence})"


def distinct(failpoints: Sequence[Failpoint], *, is_whole: bool = False) -> list[Failpoint]:
    """Returns the failpoints of a process at which a kill leaves something different behind: the last of each kind.

    Between others the process has read, computed, or has a transaction that is open: after a kill, they are the same.
    Something is different after a commit, a call that writes, a write of an index, a run of a tool, the start of a
    model's response, and all that leaves the process.

    Args:
        failpoints: what one turn reached, in order.
        is_whole: whether the process is the whole mesh, so that calls between services do not leave it.
    """
    read = {method.name for method in methods() if is_whole or reads(method)}
    leaving = EVENT if is_whole else LEAVING

    def differs(earlier: Failpoint, later: Failpoint) -> bool:
        kind, _, what = later.name.partition(":")
        is_done = kind == "model.response_started" or ("after" in kind and (kind != "call.after" or what not in read))
        return is_done or earlier.name.startswith(leaving)

    return [earlier for earlier, later in pairwise(failpoints) if differs(earlier, later)] + [*failpoints[-1:]]


class KillOrders:
    """Tells a mesh's processes where to kill themselves, and reads the failpoints that they recorded.

    See `mnemesh_testkit.failpoints.kill_observer` for the files.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._starts: Counter[str] = Counter()

    def forget(self, *services: str) -> None:
        """Ignores the failpoints that the services have reached so far."""
        for service in services:
            path = self._trail(service)
            self._starts[service] = path.stat().st_size if path.exists() else 0

    def reached(self, service: str) -> list[str]:
        """Returns the failpoints that the service has reached, in all its processes, with `KILLED` after a kill."""
        path = self._trail(service)
        if not path.exists():
            return []
        with path.open("rb") as trail:
            trail.seek(self._starts[service])
            return trail.read().decode().splitlines()

    def failpoints(self, service: str) -> list[Failpoint]:
        """Returns the same as failpoints that an order can name."""
        counts: Counter[str] = Counter()
        found = []
        for number, name in enumerate(self.reached(service), 1):
            counts[name] += 1
            found.append(Failpoint(service, number, name, counts[name]))
        return found

    def order(self, failpoint: Failpoint) -> None:
        """Orders the service to kill itself at the failpoint; its occurrences are counted from now on."""
        order = self._order(failpoint.service)
        written = order.with_suffix(".new")
        written.write_text(f"{uuid4()}\n{failpoint.occurrence}\n{failpoint.name}")
        written.replace(order)

    def executed(self, failpoint: Failpoint) -> Sequence[str]:
        """Returns what the service had reached when it executed the order, with the failpoint itself at the end.

        Raises:
            AssertionError: it never reached the failpoint.
        """
        reached = self.reached(failpoint.service)
        if KILLED not in reached:
            self._order(failpoint.service).unlink(missing_ok=True)
            raise AssertionError(f"{failpoint} was never reached")
        return reached[: reached.index(KILLED)]

    def _trail(self, service: str) -> Path:
        return self.directory / f"{service}.failpoints"

    def _order(self, service: str) -> Path:
        return self.directory / f"{service}.kill"
