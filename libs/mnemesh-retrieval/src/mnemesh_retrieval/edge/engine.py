"""The engine around the calls of a shard: the schema of collections, failures, and the memory of mapped files."""

import ctypes
import json
import mmap
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import qdrant_edge as qe

from mnemesh_retrieval.errors import CollectionMismatch, IndexDamaged, IndexFull, VectorIndexError
from mnemesh_retrieval.index import Collection

DENSE = "dense"
TEXT = "text"


def engine_config(dimension: int) -> qe.EdgeConfig:
    """Returns the configuration with which every shard is created and loaded."""
    return qe.EdgeConfig(
        vectors={DENSE: qe.EdgeVectorParams(size=dimension, distance=qe.Distance.Cosine)},
        sparse_vectors={TEXT: qe.EdgeSparseVectorParams(modifier=qe.Modifier.Idf)},
        max_search_threads=1,
        wal_enabled=True,
    )


def stored_dimension(path: Path) -> int:
    """Returns the vector length of the shard at `path`."""
    config = json.loads((path / "edge_config.json").read_text())
    return int(config["vectors"][DENSE]["size"])


def require_dimension(collection: Collection, stored: int) -> None:
    """Raises CollectionMismatch if the stored dimension differs from that of the collection."""
    if stored != collection.dimension:
        raise CollectionMismatch(
            f"collection {collection.name!r} has vectors of {stored} numbers, not of {collection.dimension}"
        )


def add_missing_indexes(engine: qe.EdgeShard, collection: Collection) -> None:
    """Creates the payload indexes of the collection that the shard does not have."""
    present = engine.info().payload_schema
    for name in collection.keyword_fields:
        if name not in present:
            tenant = name == collection.tenant_field
            engine.update(qe.UpdateOperation.create_field_index(name, qe.KeywordIndexParams(is_tenant=tenant)))
    for name in collection.uuid_fields:
        if name not in present:
            tenant = name == collection.tenant_field
            engine.update(qe.UpdateOperation.create_field_index(name, qe.UuidIndexParams(is_tenant=tenant)))
    for name in collection.datetime_fields:
        if name not in present:
            engine.update(qe.UpdateOperation.create_field_index(name, qe.DatetimeIndexParams()))
    for name in collection.text_fields:
        if name not in present:
            folded = qe.TextIndexParams(tokenizer=qe.TokenizerType.Word, lowercase=True, ascii_folding=True)
            engine.update(qe.UpdateOperation.create_field_index(name, folded))


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
