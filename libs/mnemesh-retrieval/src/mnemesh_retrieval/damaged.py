"""Damaged files of an embedded index: they are moved aside, and the newest of them are kept for inspection."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

FOLDER: Final = "damaged"
KEPT: Final = 2
"""The number of moves whose files are kept. They take as much disk space as the index."""


def discard(directory: Path) -> None:
    """Deletes the files of an index that were moved aside; they may have data that was deleted since."""
    shutil.rmtree(directory / FOLDER, ignore_errors=True)


def move_aside(directory: Path, paths: Sequence[Path]) -> Path | None:
    """Moves files of an index into a new folder below `damaged`, and deletes the oldest such folders.

    Returns:
        The folder; None if none of the paths exists.
    """
    present = [path for path in paths if path.exists()]
    if not present:
        return None
    parent = directory / FOLDER
    folder = parent / datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    folder.mkdir(parents=True)
    for path in present:
        path.rename(folder / path.name)
    for old in sorted(parent.iterdir())[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)
    return folder
