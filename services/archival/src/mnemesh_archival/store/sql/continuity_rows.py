"""The decision which passages are turns of a dialogue, in the rows of passages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import sqlalchemy as sa

from mnemesh_archival.model.continuity import WINDOW, Asking, Continuity, Turn, cues_of, dialogue_positions
from mnemesh_archival.model.passages import Passage, strand_of
from mnemesh_archival.store.sql.tables import passages

_OF_ARCHIVE = sa.and_(
    passages.c.organization_id == sa.bindparam("org"), passages.c.archive_id == sa.bindparam("archive")
)
_LIVE = passages.c.deleted_at.is_(None)
_BEFORE = (
    sa.select(
        *(passages.c.strand, passages.c.position, passages.c.created_at),
        *(passages.c.speaker, passages.c.asking, passages.c.continuity),
    )
    .where(_OF_ARCHIVE, passages.c.position >= sa.bindparam("first"), passages.c.position < sa.bindparam("end"), _LIVE)
    .order_by(passages.c.position)
)
_MARK: Final = (
    passages.update()
    .where(_OF_ARCHIVE, passages.c.position.in_(sa.bindparam("positions", expanding=True)))
    .values(continuity=Continuity.DIALOGUE.value)
)


def decide(
    conn: sa.Connection, organization_id: str, new: Sequence[Passage], first: int, requested: Continuity
) -> list[Continuity]:
    """Decides the continuity of new passages of one archive, and marks earlier ones that turn out to be their dialogue.

    Args:
        conn: the connection of the transaction.
        organization_id: the organization.
        new: the passages, which are not stored yet.
        first: the position of the first of them; the others follow.
        requested: the value of the request.

    Returns:
        The continuity of each new passage.
    """
    if requested is not Continuity.AUTOMATIC:
        return [requested] * len(new)
    decided = [Continuity.AUTOMATIC if passage.file_id is None else Continuity.DOCUMENT for passage in new]
    if Continuity.AUTOMATIC not in decided:
        return decided
    turns = []
    for position, (passage, continuity) in enumerate(zip(new, decided, strict=True), start=first):
        cues = cues_of(passage.text)
        turn = Turn(position, passage.created_at, cues.speaker, cues.asking, continuity)
        turns.append((strand_of(passage), turn))
    found = _dialogues(conn, {"org": organization_id, "archive": new[0].archive_id}, turns)
    return [
        Continuity.DIALOGUE if position in found else continuity for position, continuity in enumerate(decided, first)
    ]


def _dialogues(conn: sa.Connection, archive: dict[str, str], turns: Sequence[tuple[str, Turn]]) -> set[int]:
    """Returns the positions of dialogues among consecutive passages of an archive, which have their strands.

    Marks the stored passages before them that belong to these dialogues.
    """
    first = turns[0][1].position
    strands: dict[str, list[Turn]] = defaultdict(list)
    for row in conn.execute(_BEFORE, {**archive, "first": first - WINDOW, "end": first}):
        turn = Turn(row.position, row.created_at, row.speaker, Asking(row.asking), Continuity(row.continuity))
        strands[row.strand].append(turn)
    earlier = {turn.position for of_strand in strands.values() for turn in of_strand if not turn.continuity.is_linked}
    for strand, turn in turns:
        strands[strand].append(turn)
    found = {position for of_strand in strands.values() for position in dialogue_positions(of_strand)}
    if changed := sorted(found & earlier):
        conn.execute(_MARK, {**archive, "positions": changed})
    return {position for position in found if position >= first}
