"""The engine's failures as errors of the library, and protection from files that end the process."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from mnemesh_retrieval.errors import IndexDamaged, IndexFull, VectorIndexError

_FULL: Final = re.compile(r"os error (28|122)\b|No space left")
# Permissions, too many open files, too little memory, a read-only or failing disk.
_SURROUNDINGS: Final = re.compile(r"os error (1|5|12|13|23|24|30)\b")
_DAMAGE: Final = re.compile(
    r"out of bounds|[Ff]ailed to (decode|decompress|deserialize)|[Cc]orrupt|Requested pages|invalid utf-8"
)


def engine_error(error: BaseException, *, opening: bool) -> VectorIndexError:
    """Returns the library's error for a failure of the engine, which raises bare Exceptions and panics.

    Args:
        error: the engine's exception.
        opening: whether a stored collection was being opened; then every failure that the surroundings do not explain
            is damage.
    """
    text = (str(error).splitlines() or [type(error).__name__])[0]
    if _FULL.search(text):
        return IndexFull(f"the disk of the vector index is full: {text}")
    if _SURROUNDINGS.search(text):
        return VectorIndexError(f"the vector index failed: {text}")
    if opening or _DAMAGE.search(text):
        return IndexDamaged(f"the vector index is damaged: {text}")
    return VectorIndexError(f"the vector index failed: {text}")


def is_panic(error: BaseException) -> bool:
    """Returns whether the engine panicked. The exception's class is not importable, and derives from BaseException."""
    return type(error).__name__ == "PanicException"


@contextmanager
def surviving(marker: Path, attempts: int, action: str) -> Iterator[None]:
    """Notes in a file that the process is doing something that a damaged file may end it with.

    Raises:
        IndexDamaged: the process has ended `attempts` times in a row while doing it.
    """
    ended = int(marker.read_text() or 0) if marker.exists() else 0
    if ended >= attempts:
        marker.unlink()
        raise IndexDamaged(f"the process ended {ended} times while it {action} the vector index")
    with suppress(OSError):  # a full disk: the files are used without the note
        marker.write_text(str(ended + 1))
    try:
        yield
    finally:
        marker.unlink(missing_ok=True)
