"""The descendants of a process, from /proc."""

from __future__ import annotations

from pathlib import Path


def descendants(pid: int) -> set[int]:
    """Returns all descendants of `pid`, without zombies."""
    parents = _parents()
    found: set[int] = set()
    while more := {child for child, parent in parents.items() if parent in {pid, *found}} - found:
        found |= more
    return found


def alive(pids: set[int]) -> set[int]:
    """Returns the processes that still run."""
    return pids & set(_parents())


def _parents() -> dict[int, int]:
    parents: dict[int, int] = {}
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                state, parent = (process / "stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:
                continue  # it has ended since
            if state != "Z":
                parents[int(process.name)] = int(parent)
    return parents
