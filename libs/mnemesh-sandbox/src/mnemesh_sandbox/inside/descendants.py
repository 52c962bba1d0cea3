"""Kills the processes that a tool leaves behind."""

import contextlib
import os
import signal


def kill_init(child: int) -> None:
    """Kills process 1 of a pid namespace, and with it all others. Returns when none is left."""
    try:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    except (ProcessLookupError, ChildProcessError):
        return


def kill_namespace() -> None:
    """Kills every other process of the pid namespace whose process 1 calls it. Returns when none is left."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)  # at once: a fork that is under way fails
    try:
        while True:
            os.waitpid(-1, 0)  # orphans become children of process 1 before their parent can be waited for
    except ChildProcessError:
        return


def kill_all(uid: int | None) -> None:
    """Kills every process of `uid`, or every descendant of this process if `uid` is None. Returns when none is left.

    The uid must belong to this tool alone.
    """
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
    """Stops all processes before it kills any, so that none can fork another one."""
    stopped: set[int] = set()
    while new := descendants() - stopped:
        for pid in new:
            _signal(pid, signal.SIGSTOP)
        stopped |= new
    for pid in stopped:
        _signal(pid, signal.SIGKILL)


def supported() -> bool:
    """Returns whether the kernel lists the children of a process."""
    return os.path.exists(f"/proc/self/task/{os.getpid()}/children")


def descendants() -> set[int]:
    """Returns all descendants of this process. They include orphans, because this process is their subreaper."""
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
            continue  # the process has ended
    return found


def count_threads(uid: int) -> int:
    """Returns the number of threads of `uid`, which the kernel counts against RLIMIT_NPROC."""
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
    """Kills all processes of `uid` at once: a process with this uid signals every process that it may signal."""
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
