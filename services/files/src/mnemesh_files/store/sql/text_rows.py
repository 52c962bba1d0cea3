"""The rows of parsed texts: compressed segments of consecutive lines, read by line range."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any, Final

import sqlalchemy as sa

from mnemesh_files.store.sql.tables import segments

SEGMENT_BYTES: Final = 64 * 1024
"""About the size of the text of a segment: what one view decompresses at least."""
_LEVEL: Final = 6
_RANGE = (
    sa.select(segments.c.first_line, segments.c.data)
    .where(
        segments.c.organization_id == sa.bindparam("org"),
        segments.c.file_id == sa.bindparam("file"),
        segments.c.text_id == sa.bindparam("text"),
        segments.c.first_line <= sa.bindparam("last"),
        segments.c.first_line + segments.c.line_count > sa.bindparam("first"),
    )
    .order_by(segments.c.first_line)
)


def segment_rows(organization_id: str, file_id: str, text_id: str, lines: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Yields the rows of a text."""
    start, size = 0, 0
    for end, line in enumerate(lines, start=1):
        size += len(line) + 1
        if size >= SEGMENT_BYTES or end == len(lines):
            yield {
                "organization_id": organization_id,
                "file_id": file_id,
                "text_id": text_id,
                "first_line": start + 1,
                "line_count": end - start,
                "data": zlib.compress("\n".join(lines[start:end]).encode(), _LEVEL),
            }
            start, size = end, 0


def line_ranges(
    conn: sa.Connection, organization_id: str, file_id: str, text_id: str, lines: tuple[int, int]
) -> Iterator[list[str]]:
    """Yields the lines of a range, from 1 and both ends inclusive, segment by segment. Yields nothing without a text.

    A caller that has enough stops, and decompresses no more.
    """
    first, last = lines
    of = {"org": organization_id, "file": file_id, "text": text_id, "first": first, "last": last}
    for row in conn.execute(_RANGE, of):
        some = zlib.decompress(row.data).decode().split("\n")
        yield some[max(0, first - row.first_line) : max(0, last - row.first_line + 1)]


def read_part(
    conn: sa.Connection, organization_id: str, file_id: str, text_id: str, lines: tuple[int, int], max_bytes: int
) -> list[str]:
    """Returns the lines of a range, both ends inclusive, as many as fit into `max_bytes` of UTF-8, at least one."""
    part: list[str] = []
    size = 0
    for some in line_ranges(conn, organization_id, file_id, text_id, lines):
        for line in some:
            size += len(line.encode()) + 1
            if part and size > max_bytes + 1:
                return part
            part.append(line)
    return part


def delete_texts(conn: sa.Connection, organization_id: str, file_id: str, *, except_id: str | None = None) -> int:
    """Deletes the texts of a file, except one; returns the number of segments."""
    mine = sa.and_(segments.c.organization_id == organization_id, segments.c.file_id == file_id)
    if except_id is not None:
        mine = sa.and_(mine, segments.c.text_id != except_id)
    return conn.execute(segments.delete().where(mine)).rowcount
