"""The messages of a dialogue before and after others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa

from mnemesh_recall.model.search import Surroundings
from mnemesh_recall.store.sql import message_rows
from mnemesh_recall.store.sql.tables import DIALOGUE

MAX_BYTES: Final = 4 << 20
"""The size of the messages around one message, as they are stored."""
MAX_TOTAL_BYTES: Final = 8 << 20
"""The size of the messages around earlier ones from which on a read returns nothing around a message.

A page of a search ends at 3 MB, and so before that message. What a page has is smaller than what is stored by a third
for images, and by less for texts."""

# A conversation of NULL needs a condition of its own, so that the index serves both.
_SIDES: Final = " UNION ALL ".join(
    f"""SELECT * FROM (
        SELECT {{columns}} FROM messages
        WHERE agent_id = hit.agent_id AND conversation_id {same} AND sequence_id {side} hit.sequence_id AND {DIALOGUE}
        ORDER BY sequence_id {order} LIMIT :{limit}) AS one_side"""  # noqa: S608
    for side, order, limit in (("<", "DESC", "most_before"), (">", "ASC", "most_after"))
    for same in ("= hit.conversation_id", "IS NULL AND hit.conversation_id IS NULL")
)
_SELECT: Final = """
    SELECT hit.id AS hit_id, near.id AS id, near.sequence_id > hit.sequence_id AS is_after,
        coalesce(length(near.content), 0) + coalesce(length(near.tool_calls), 0) AS size
    FROM messages AS hit CROSS JOIN {near}
    WHERE hit.id IN :ids AND hit.organization_id || '' = :organization {condition}
    ORDER BY near.sequence_id
"""
_COLUMNS: Final = "id, sequence_id, content, tool_calls"
# SQLite has no LATERAL, and PostgreSQL would read all rows for an IN that depends on another row.
_STATEMENTS: Final = {
    "sqlite": _SELECT.format(
        near="messages AS near", condition=f"AND near.row_id IN ({_SIDES.format(columns='row_id')})"
    ),
    "postgresql": _SELECT.format(near=f"LATERAL ({_SIDES.format(columns=_COLUMNS)}) AS near", condition=""),
}
_AROUND: Final = {
    dialect: sa.text(statement).bindparams(sa.bindparam("ids", expanding=True))
    for dialect, statement in _STATEMENTS.items()
}


def read_around(
    conn: sa.Connection, organization_id: str, ids: Sequence[str], before: int, after: int
) -> Mapping[str, Surroundings]:
    """See MessageStore.read_around."""
    if not ids or not before + after:
        return {}
    parameters = {"ids": list(ids), "organization": organization_id, "most_before": before, "most_after": after}
    sides: dict[str, tuple[list[Any], list[Any]]] = {id_: ([], []) for id_ in ids}
    for row in conn.execute(_AROUND[conn.dialect.name], parameters):
        sides[row.hit_id][bool(row.is_after)].append(row)
    kept = dict(_within_size(sides))
    wanted = dict.fromkeys(id_ for side in kept.values() for ids_of_side in side for id_ in ids_of_side)
    found = {message.id: message for message in message_rows.read(conn, organization_id, list(wanted))}
    return {
        hit_id: Surroundings(*(tuple(found[id_] for id_ in side if id_ in found) for side in both))
        for hit_id, both in kept.items()
    }


def _within_size(
    sides: Mapping[str, tuple[list[Any], list[Any]]],
) -> Iterator[tuple[str, tuple[list[str], list[str]]]]:
    """Yields the ids of the messages on both sides of each one, the nearest ones that fit into the sizes."""
    total = 0
    for id_, (before, after) in sides.items():
        if total > MAX_TOTAL_BYTES:
            return
        kept: tuple[list[str], list[str]] = ([], [])
        size = 0
        for side, rows in zip(kept, (reversed(before), after), strict=True):
            for row in rows:
                if size + row.size > MAX_BYTES:
                    break
                side.append(row.id)
                size += row.size
        kept[0].reverse()
        total += size
        yield id_, kept
