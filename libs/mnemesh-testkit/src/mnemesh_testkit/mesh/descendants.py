"""The processes that come from a process, as /proc tells it."""

from __future__ import annotations

from pathlib import Path


def descendants(pid: int) -> set[int]:
    """Every process below `pid`, however deep; zombies left out."""
    parents = _parents()
    found: set[int] = set()
    while more := {child for child, parent in parents.items() if parent in {pid, *found}} - found:
        found |= more
    return found


def alive(pids: set[int]) -> set[int]:
    """Those of the processes that still run."""
    return pids & set(_parents())


def _parents() -> dict[int, int]:
    parents: dict[int, int] = {}
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                state, parent = (process / "stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:
                continue  # it ended meanwhile
            if state != "Z":
                parents[int(process.name)] = int(parent)
    return parents
