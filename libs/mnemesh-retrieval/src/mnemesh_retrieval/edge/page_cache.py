"""Limits the resident memory of the engine's mapped files, and writes them to disk without blocking the interpreter.

Opening a shard reads all its preallocated files into the process: about 80 MB for an empty shard. Searches read a
kilobyte for each vector that they compare. Pages of shared file mappings can be released at any time; pages that are
used again are read from the page cache.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

MAX_MAPPED_BYTES: Final = 256 * 1024 * 1024
"""The resident size of all mapped files of the process above which the engine's pages are released."""
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) \S+ \S+ \S+\s+(/.*)")


def release_pages(directory: Path) -> None:
    """Releases the resident pages of all files under `directory`. Works on Linux only; elsewhere it does nothing."""
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    inside = f"{directory.resolve()}/"
    for line in Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines():
        mapping = _MAPPING.fullmatch(line)
        if mapping is None or not mapping[4].startswith(inside) or not mapping[3].endswith("s"):
            continue  # private mappings may have changes that are not in the file
        start, end = int(mapping[1], 16), int(mapping[2], 16)
        libc.madvise(start, end - start, mmap.MADV_DONTNEED)


def mapped_bytes() -> int:
    """Returns the resident size of the files that this process maps, libraries included; 0 if it is unknown."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[2]) * mmap.PAGESIZE
    except OSError:
        return 0


def write_back(directory: Path) -> None:
    """Flushes the files and folders under `directory` to disk. Files that disappear meanwhile are passed over.

    The engine's own flush does the same but holds the interpreter lock; after this it has little to do. A shard has
    hundreds of files, so Linux flushes the file system in one call.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "syncfs"):
        for path in (*directory.rglob("*"), directory):
            with suppress(FileNotFoundError):
                flush_path(path)
        return
    with suppress(FileNotFoundError):
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            if libc.syncfs(descriptor):
                raise OSError(ctypes.get_errno(), "the file system could not be flushed", str(directory))
        finally:
            os.close(descriptor)


def flush_path(path: Path) -> None:
    """Flushes a file, or the entries of a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
