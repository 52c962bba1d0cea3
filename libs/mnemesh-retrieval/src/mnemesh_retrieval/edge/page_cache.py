"""Spares the process what the engine's mapped files would cost it: resident memory, and standing still for the disk.

Opening a shard reads every preallocated file of it into the process: some 80 MB for an empty one. Searches bring in a
kilobyte for each vector that they look at. Pages of shared file mappings can be let go at any time; what is used again
comes back from the page cache.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import sys
from pathlib import Path
from typing import Final

MOST_MAPPED_BYTES: Final = 256 * 1024 * 1024
"""So much of all mapped files of the process may be resident before what belongs to the engine is let go."""
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) \S+ \S+ \S+\s+(/.*)")


def unmap_untouched(directory: Path) -> None:
    """Let go of the resident pages of all files under `directory`. Does nothing but on Linux."""
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    inside = f"{directory.resolve()}/"
    for line in Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines():
        mapping = _MAPPING.fullmatch(line)
        if mapping is None or not mapping[4].startswith(inside) or not mapping[3].endswith("s"):
            continue  # private mappings may hold changes of their own
        start, end = int(mapping[1], 16), int(mapping[2], 16)
        libc.madvise(start, end - start, mmap.MADV_DONTNEED)


def mapped_bytes() -> int:
    """What is resident of files that this process maps, libraries included; 0 where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[2]) * mmap.PAGESIZE
    except OSError:
        return 0


def write_back(directory: Path) -> None:
    """Bring what was written to the files under `directory` to the disk.

    The engine's own flush does it again and holds the interpreter all the while; behind this it finds little to do.
    """
    for file in directory.rglob("*"):
        if file.is_file():
            descriptor = os.open(file, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
