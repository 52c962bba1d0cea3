"""Unified diffs applied by context: line numbers in hunk headers are ignored, because agents get them wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mnemesh_blocks.errors import BlockPatchFailed

_SHOWN_LINES: Final = 4


@dataclass(frozen=True, slots=True)
class _Hunk:
    before: tuple[str, ...]
    after: tuple[str, ...]


def apply_patch(value: str, patch: str, label: str) -> str:
    """The value with all hunks applied, one after the other.

    A hunk's context and removed lines must stand in the value exactly once; a hunk that only adds goes to the end.

    Raises:
        BlockPatchFailed: there is no hunk, a line is not part of a diff, or a hunk fits nowhere or in several places.
    """
    hunks = _parsed(patch, label)
    if not hunks:
        raise BlockPatchFailed("The patch contains no hunks.", label=label)
    lines = value.split("\n") if value else []
    for hunk in hunks:
        at = _position(lines, hunk, label)
        lines[at : at + len(hunk.before)] = hunk.after
    return "\n".join(lines)


def _parsed(patch: str, label: str) -> list[_Hunk]:
    hunks: list[_Hunk] = []
    before: list[str] = []
    after: list[str] = []
    inside = False

    def close() -> None:
        if before != after:
            hunks.append(_Hunk(tuple(before), tuple(after)))
        before.clear()
        after.clear()

    for line in patch.removesuffix("\n").split("\n"):
        # File headers come before the first hunk; inside of one, "--- x" is the removal of "-- x".
        if line.startswith(("*** ", "\\ ")) or (not inside and line.startswith(("--- ", "+++ ", "diff ", "index "))):
            continue
        if line.startswith("@@"):
            close()
            inside = True
            continue
        mark, text = line[:1], line[1:]
        if mark not in ("", " ", "+", "-"):
            raise BlockPatchFailed(f"Not a line of a patch (it begins with none of ' ', '+', '-'): {line}", label=label)
        if not inside and not line:
            continue
        inside = True
        if mark != "+":
            before.append(text)
        if mark != "-":
            after.append(text)
    close()
    return hunks


def _position(lines: list[str], hunk: _Hunk, label: str) -> int:
    if not hunk.before:
        return len(lines)
    size = len(hunk.before)
    found = [at for at in range(len(lines) - size + 1) if tuple(lines[at : at + size]) == hunk.before]
    if len(found) == 1:
        return found[0]
    shown = "\n".join(hunk.before[:_SHOWN_LINES])
    problem = "matched multiple places" if found else "expected hunk context not found"
    raise BlockPatchFailed(f"The patch was not applied, {problem}:\n{shown}", label=label)
