"""Unified diffs, applied by context. Line numbers in hunk headers are ignored, because models often get them wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mnemesh_blocks.errors import BlockPatchFailed

_QUOTED_LINES: Final = 4


@dataclass(frozen=True, slots=True)
class _Hunk:
    before: tuple[str, ...]
    after: tuple[str, ...]


def apply_patch(value: str, patch: str, label: str) -> str:
    """Returns `value` with all hunks applied, one after the other.

    The context and the removed lines of a hunk must occur in the value exactly once. A hunk that only adds lines is
    appended.

    Args:
        value: The current value of the block.
        patch: The unified diff, with or without file headers.
        label: The label of the block, for error metadata.

    Raises:
        BlockPatchFailed: There is no hunk, a line is not part of a diff, or a hunk matches no position or several.
    """
    hunks = _parse(patch, label)
    if not hunks:
        raise BlockPatchFailed("The patch contains no hunks.", label=label)
    lines = value.split("\n") if value else []
    for hunk in hunks:
        index = _find_index(lines, hunk, label)
        lines[index : index + len(hunk.before)] = hunk.after
    return "\n".join(lines)


def _parse(patch: str, label: str) -> list[_Hunk]:
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
        # File headers precede the first hunk. Within a hunk, "--- x" removes the line "-- x".
        if line.startswith(("*** ", "\\ ")) or (not inside and line.startswith(("--- ", "+++ ", "diff ", "index "))):
            continue
        if line.startswith("@@"):
            close()
            inside = True
            continue
        mark, text = line[:1], line[1:]
        if mark not in ("", " ", "+", "-"):
            raise BlockPatchFailed(f"The patch has a line that starts with none of ' ', '+', '-': {line}", label=label)
        if not inside and not line:
            continue
        inside = True
        if mark != "+":
            before.append(text)
        if mark != "-":
            after.append(text)
    close()
    return hunks


def _find_index(lines: list[str], hunk: _Hunk, label: str) -> int:
    if not hunk.before:
        return len(lines)
    size = len(hunk.before)
    found = [i for i in range(len(lines) - size + 1) if tuple(lines[i : i + size]) == hunk.before]
    if len(found) == 1:
        return found[0]
    quoted = "\n".join(hunk.before[:_QUOTED_LINES])
    problem = "matched multiple places" if found else "expected hunk context not found"
    raise BlockPatchFailed(f"The patch was not applied, {problem}:\n{quoted}", label=label)
