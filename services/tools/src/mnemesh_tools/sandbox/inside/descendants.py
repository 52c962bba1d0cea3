"""Ends what a tool left behind where no pid namespace does it."""

from __future__ import annotations

import os
import signal


def end_one(child: int) -> None:
    """Kills process 1 of a namespace, and with it all others; returns when none is left."""
    try:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    except (ProcessLookupError, ChildProcessError):
        return


def end_all(uid: int | None) -> None:
    """Kills every process of `uid`, which nobody else uses; without one, every descendant of this process."""
    while True:
        if uid is not None:
            _kill_uid(uid)
        else:
            _kill_descendants()
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _kill_descendants() -> None:
    """Stops all before it kills any, so that none can fork a successor meanwhile."""
    stopped: set[int] = set()
    while new := _descendants() - stopped:
        for pid in new:
            _signal(pid, signal.SIGSTOP)
        stopped |= new
    for pid in stopped:
        _signal(pid, signal.SIGKILL)


def _descendants() -> set[int]:
    """Children, their children and so on; orphans are among them, since this process is their reaper."""
    found: set[int] = set()
    waiting = [os.getpid()]
    while waiting:
        pid = waiting.pop()
        try:
            threads = os.listdir(f"/proc/{pid}/task")
            for thread in threads:
                with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file:
                    new = {int(word) for word in file.read().split()} - found
                found |= new
                waiting.extend(new)
        except OSError:
            continue  # it ended meanwhile
    return found


def count_of_uid(uid: int) -> int:
    """How many threads run under `uid`: the kernel counts them against RLIMIT_NPROC, whoever started them."""
    count = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if os.stat(f"/proc/{name}").st_uid == uid:
                    count += len(os.listdir(f"/proc/{name}/task"))
            except OSError:
                continue
    return count


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _kill_uid(uid: int) -> None:
    """Signals as `uid`: the kernel then reaches all its processes at once, and no other."""
    child = os.fork()
    if child == 0:
        try:
            os.setresuid(uid, uid, uid)
            os.kill(-1, signal.SIGKILL)
        finally:
            os._exit(0)
    try:
        os.waitpid(child, 0)
    except ChildProcessError:
        return
