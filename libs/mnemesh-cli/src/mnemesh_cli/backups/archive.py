"""The format of backups: rows of tables as lines of JSON, compressed, and a manifest that is written last.

    backups/<id>/manifest.json             what the backup has: a backup without it is none
    backups/<id>/<service>.<table>.gz      a line for each row: its values, in the order of `columns` in the manifest
    backups/<id>/contents.gz               a line for each content of a file: its id, size and SHA-256
    contents/<two digits>/<content id>     the contents, which all backups share

The id of a backup is the time of its watermark.
"""

import gzip
import hashlib
import io
import re
import zlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final, cast

import msgspec
import sqlalchemy as sa
from mnemesh_cli.backups.places import BackupError, Place
from mnemesh_kit.sql import UtcDateTime

FORMAT: Final = 1
BACKUPS: Final = "backups/"
CONTENTS: Final = "contents/"
MANIFEST: Final = "manifest.json"
_LEVEL: Final = 3
_ROWS: Final = 1000
"""The rows that are read from a database at a time."""
_PIECE: Final = 1 << 20
_SUM_BYTES: Final = 16
_CONTENT_ID: Final = re.compile(r"[0-9A-Za-z_-]{1,100}")


@dataclass(frozen=True)
class Part:
    """A file of rows."""

    columns: tuple[str, ...]
    rows: int
    sum: str
    """The sum of the hashes of the lines, which does not depend on their order."""
    bytes: int
    """The size of the file."""


@dataclass(frozen=True)
class ServicePart:
    """The tables of one service."""

    revision: str
    """Of the schema."""
    tables: dict[str, Part]


@dataclass(frozen=True)
class Manifest:
    """The manifest of a backup: its files, with their counts and checksums."""

    id: str
    taken_at: datetime
    """The watermark: the backup has everything that was stored before, and nothing that was stored later."""
    version: str
    """Of mnemesh."""
    services: dict[str, ServicePart]
    contents: Part
    content_bytes: int
    key_marks: tuple[str, ...] = ()
    """A fingerprint of each key that encrypted secrets of the mesh."""
    keys: dict[str, str] | None = field(default=None, repr=False)
    """The keys, encrypted; see keys.py."""
    format: int = FORMAT

    @property
    def rows(self) -> int:
        """The number of rows of all tables."""
        return sum(part.rows for service in self.services.values() for part in service.tables.values())


class Sum:
    """Counts lines and adds up their hashes: equal for equal lines in any order."""

    def __init__(self) -> None:
        self.rows = 0
        self._sum = 0

    def add(self, line: bytes) -> None:
        """Adds a line, without its end."""
        self.rows += 1
        self._sum += int.from_bytes(hashlib.blake2b(line, digest_size=_SUM_BYTES).digest())

    def counted(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        """Yields lines, and adds each."""
        for line in lines:
            self.add(line)
            yield line

    def __str__(self) -> str:
        """Returns the sum in hexadecimal digits."""
        return f"{self._sum % (1 << 8 * _SUM_BYTES):0{2 * _SUM_BYTES}x}"


def lines_of(connection: sa.Connection, table: sa.Table) -> Iterator[bytes]:
    """Yields the rows of a table as lines, without their ends, in bounded memory. Each engine yields equal lines."""
    encode = msgspec.json.Encoder().encode
    streamed = connection.execution_options(stream_results=True, yield_per=_ROWS)
    with streamed.execute(sa.select(table)) as rows:
        for row in rows:
            yield encode(tuple(row))


def row_decoder(table: sa.Table) -> Callable[[bytes], tuple[Any, ...]]:
    """Returns what decodes a line of a table to the values of its columns, and raises BackupError if it cannot."""
    kinds = tuple(_kind(column) for column in table.columns)
    return _decoding(msgspec.json.Decoder(tuple[kinds]), table.name)  # type: ignore[valid-type]


def _decoding(decoder: msgspec.json.Decoder[tuple[Any, ...]], name: str) -> Callable[[bytes], tuple[Any, ...]]:
    def decode(line: bytes) -> tuple[Any, ...]:
        try:
            return decoder.decode(line)
        except (msgspec.DecodeError, UnicodeError) as error:
            raise BackupError(f"{name} has a line that is damaged: {error}") from error

    return decode


def _kind(column: sa.Column[Any]) -> Any:
    if isinstance(column.type, sa.LargeBinary):
        return bytes | None
    return datetime | None if isinstance(column.type, UtcDateTime) else Any


def write_part(place: Place, name: str, columns: Iterable[str], lines: Iterable[bytes]) -> Part:
    """Writes lines to a file, in bounded memory. Without lines, it does not create the file."""
    total, size = Sum(), 0
    with place.draft() as draft:
        with gzip.open(draft, "wb", _LEVEL) as packed, io.BufferedWriter(cast("Any", packed), _PIECE) as out:
            for line in total.counted(lines):
                out.write(line + b"\n")
        if total.rows:
            size = draft.stat().st_size
            place.put(draft, name)
    return Part(tuple(map(str, columns)), total.rows, str(total), size)


def read_part(place: Place, name: str, part: Part) -> Iterator[bytes]:
    """Yields the lines of a file, in bounded memory.

    Raises:
        BackupError: the file is missing, or has other lines than the backup wrote. It is raised at the end, at the
            latest.
    """
    if not part.rows:
        return
    total = Sum()
    with place.open(name) as file:
        try:
            with gzip.open(file) as packed, io.BufferedReader(cast("Any", packed), _PIECE) as lines:
                yield from total.counted(line.rstrip(b"\n") for line in lines)
        except (OSError, EOFError, zlib.error) as error:
            raise BackupError(f"{name} is damaged: {error}") from error
    if (total.rows, str(total)) != (part.rows, part.sum):
        raise BackupError(f"{name} is damaged: its rows are not those that the backup wrote.")


_decode_content: Final = _decoding(msgspec.json.Decoder(tuple[str, int, str]), "contents.gz")


def listed_contents(place: Place, manifest: "Manifest") -> Iterator[tuple[str, int, str]]:
    """Yields id, size and SHA-256 of the contents of a backup.

    Raises:
        BackupError: the list is damaged, or has an id that is not one: it would be a path to another file.
    """
    for line in read_part(place, contents_name(manifest.id), manifest.contents):
        content_id, size, sha256 = _decode_content(line)
        if not _CONTENT_ID.fullmatch(content_id):
            raise BackupError(f"{contents_name(manifest.id)} is damaged: {content_id!r} is not the id of a content.")
        yield content_id, size, sha256


def part_name(backup_id: str, service: str, table: str) -> str:
    """Returns the name of the file of a table."""
    return f"{BACKUPS}{backup_id}/{service}.{table}.gz"


def contents_name(backup_id: str) -> str:
    """Returns the name of the file with the list of contents."""
    return f"{BACKUPS}{backup_id}/contents.gz"


def content_name(content_id: str) -> str:
    """Returns the name of the file of a content."""
    return f"{CONTENTS}{content_id[-2:]}/{content_id}"


def write_manifest(place: Place, manifest: Manifest) -> None:
    """Writes the manifest, with which the backup begins to exist."""
    with place.draft() as draft:
        draft.write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
        place.put(draft, f"{BACKUPS}{manifest.id}/{MANIFEST}")


def read_manifest(place: Place, backup_id: str) -> Manifest:
    """Returns the manifest of a backup. Raises BackupError."""
    name = f"{BACKUPS}{backup_id}/{MANIFEST}"
    with place.open(name) as file:
        text = file.read()
    try:
        manifest = msgspec.json.decode(text, type=Manifest)
    except (msgspec.DecodeError, ValueError) as error:
        raise BackupError(f"{name} is damaged: {error}.") from error
    if manifest.id != backup_id:
        raise BackupError(f"{name} is damaged: it is the manifest of the backup {manifest.id!r}.")
    if manifest.format != FORMAT:
        raise BackupError(f"The backup {backup_id} has the format {manifest.format}; this version reads {FORMAT}.")
    return manifest


def find_backups(place: Place) -> list[str]:
    """Returns the ids of the backups, the oldest first."""
    names = (name.removeprefix(BACKUPS).split("/") for name in place.names(BACKUPS))
    return sorted(parts[0] for parts in names if parts[1:] == [MANIFEST])


def choose_backup(place: Place, backup_id: str | None) -> Manifest:
    """Returns the manifest of a backup, or of the newest one. Raises BackupError if there is none."""
    known = find_backups(place)
    if backup_id is None and not known:
        raise BackupError("No complete backup was found.")
    if backup_id is not None and backup_id not in known:
        raise BackupError(
            f"The backup {backup_id} does not exist or is not complete. Complete backups: {', '.join(known) or 'none'}."
        )
    return read_manifest(place, backup_id or known[-1])


async def write_content(target: Path, pieces: AsyncIterator[bytes]) -> tuple[int, str]:
    """Writes a content into a file. Returns its size and SHA-256."""
    size, hashed = 0, hashlib.sha256()
    with target.open("wb") as file:
        async for piece in pieces:
            size += len(piece)
            hashed.update(piece)
            file.write(piece)
    return size, hashed.hexdigest()


def read_content(place: Place, content_id: str, size: int, sha256: str) -> Iterator[bytes]:
    """Yields a content in pieces.

    Raises:
        BackupError: it is missing, or not the one that the backup copied. It is raised at the end, at the latest.
    """
    name, hashed, size_read = content_name(content_id), hashlib.sha256(), 0
    with place.open(name) as file:
        try:
            while piece := file.read(_PIECE):
                size_read += len(piece)
                hashed.update(piece)
                yield piece
        except OSError as error:
            raise BackupError(f"{name} cannot be read: {error.strerror}.") from error
    if (size_read, hashed.hexdigest()) != (size, sha256):
        raise BackupError(f"{name} is damaged: it is not the content that the backup copied.")
