"""The passages around others in their dialogues and documents."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import sqlalchemy as sa

from mnemesh_archival.model.passages import PassagePosition
from mnemesh_archival.store.base.passages import Surroundings
from mnemesh_archival.store.sql import passage_rows as rows
from mnemesh_archival.store.sql import position_rows


def read(
    conn: sa.Connection, organization_id: str, passage_ids: Sequence[str], before: int, after: int
) -> dict[str, Surroundings]:
    """Returns the passages around each of these; see PassageStore.around."""
    points = {UUID(row.point_id): row.id for row in rows.live_rows(conn, organization_id, passage_ids)}
    positions = position_rows.neighbours(conn, organization_id, list(points), max(before, after))
    at = {(each.archive_id, each.position): each for each in positions}
    near = {each.point_id: (_follow(at, each, -1, before)[::-1], _follow(at, each, 1, after)) for each in positions}
    wanted = list(dict.fromkeys(other.point_id for point in points for side in near.get(point, ()) for other in side))
    stored = {
        UUID(row.point_id): rows.passage_from_row(row)
        for row in rows.rows_of_points(conn, organization_id, wanted, with_text=True)
    }
    return {
        id_: Surroundings(*(tuple(stored[other.point_id] for other in side) for side in near[point]))
        for point, id_ in points.items()
        if point in near
    }


def _follow(
    at: dict[tuple[str, int], PassagePosition], start: PassagePosition, step: int, count: int
) -> list[PassagePosition]:
    """Returns up to `count` passages that continue one in a direction, the nearest first."""
    found: list[PassagePosition] = []
    last = start
    while len(found) < count:
        following = at.get((start.archive_id, last.position + step))
        if following is None or not following.continues(last):
            break
        found.append(following)
        last = following
    return found
