"""Gives memory back that the engine maps in without need.

Opening a shard reads every preallocated file of it into the process: some 80 MB for an empty one. Pages of shared file
mappings can be let go at any time; what is used again comes back from the page cache.
"""

from __future__ import annotations

import ctypes
import mmap
import re
import sys
from pathlib import Path

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
