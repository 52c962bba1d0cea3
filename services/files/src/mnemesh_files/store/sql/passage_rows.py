"""The rows of passages: which passages of the archive belong to which lines of a text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa

from mnemesh_files.model.ingestion import FilePassage
from mnemesh_files.store.sql.tables import file_passages

_IN_ONE: Final = 500
_p = file_passages.c


def passage_values(
    organization_id: str, file_id: str, text_id: str, passages: Sequence[FilePassage]
) -> list[dict[str, Any]]:
    """Returns the rows of the passages of a text."""
    return [
        {
            "organization_id": organization_id,
            "file_id": file_id,
            "text_id": text_id,
            "position": passage.position,
            "passage_id": passage.passage_id,
            "text_hash": passage.text_hash,
            "embedded": passage.embedded,
            "start_line": passage.start_line,
            "end_line": passage.end_line,
        }
        for passage in passages
    ]


def by_text(conn: sa.Connection, organization_id: str, file_id: str) -> Mapping[str, Sequence[FilePassage]]:
    """Returns the passages of all texts of a file, by text, in order."""
    query = (
        sa.select(*(_p.text_id, _p.position, _p.passage_id, _p.text_hash, _p.start_line, _p.end_line, _p.embedded))
        .where(is_of_file(organization_id, file_id))
        .order_by(_p.text_id, _p.position)
    )
    found: dict[str, list[FilePassage]] = {}
    for row in conn.execute(query):
        found.setdefault(row.text_id, []).append(FilePassage(*row[1:]))
    return found


def mark_embedded(
    conn: sa.Connection, organization_id: str, file_id: str, text_id: str, positions: Sequence[int]
) -> None:
    """Notes that the archive has these passages of a text."""
    mine = sa.and_(is_of_file(organization_id, file_id), _p.text_id == text_id)
    for start in range(0, len(positions), _IN_ONE):
        some = positions[start : start + _IN_ONE]
        conn.execute(file_passages.update().where(mine, _p.position.in_(some)).values(embedded=True))


def keep_text(conn: sa.Connection, organization_id: str, file_id: str, text_id: str) -> tuple[list[str], bool]:
    """Deletes the passages of other texts.

    Returns:
        The ids of those that the kept text does not have, and whether the archive may receive one of them yet.
    """
    texts = by_text(conn, organization_id, file_id)
    kept = {passage.passage_id for passage in texts.get(text_id, ())}
    others = [passage for id_, passages in texts.items() if id_ != text_id for passage in passages]
    stale = dict.fromkeys(passage.passage_id for passage in others if passage.passage_id not in kept)
    conn.execute(file_passages.delete().where(is_of_file(organization_id, file_id), _p.text_id != text_id))
    return list(stale), any(not passage.embedded for passage in others)


def is_of_file(organization_id: str, file_id: str) -> sa.ColumnElement[bool]:
    """Returns the condition that selects the passages of a file."""
    return sa.and_(_p.organization_id == organization_id, _p.file_id == file_id)
