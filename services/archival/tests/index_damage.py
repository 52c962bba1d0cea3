"""Damage to the files of a vector index."""

import shutil
from pathlib import Path


def lose(directory: Path) -> None:
    """Deletes the files."""
    shutil.rmtree(directory)


def damage(directory: Path) -> None:
    """Overwrites the beginning of every file of the shards."""
    for file in directory.rglob("*"):
        if file.is_file() and file.name != "index.lock" and file.stat().st_size:
            with file.open("r+b") as opened:
                opened.write(b"\xff" * min(64, file.stat().st_size))
