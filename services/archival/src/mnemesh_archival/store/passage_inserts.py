"""Stores a batch of passages: decides which are new, which are turns of a dialogue, and their archive and positions."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import msgspec
import sqlalchemy as sa
from mnemesh_kit.ids import derive_id
from mnemesh_retrieval.indexing.outbox import Change, Claim
from mnemesh_types.archival import Archive, EmbedderIdentity
from mnemesh_types.provenance import Provenance

from mnemesh_archival.errors import PassageExists
from mnemesh_archival.model.inserts import InsertTarget, plan_inserts
from mnemesh_archival.model.passages import (
    WINDOW,
    Asking,
    Continuity,
    Passage,
    Turn,
    content_hash,
    cues_of,
    dialogue_positions,
    point_of,
    strand_of,
)
from mnemesh_archival.store import archive_rows, index_changes
from mnemesh_archival.store import passage_rows as rows
from mnemesh_archival.store.tables import DefaultArchive, InsertBatch, archives, passages

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


def decide_continuity(
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


DEFAULT_ARCHIVE_NAME = "Archival memory"
_INSERT = passages.insert()
_POINT = sa.select(passages.c.id).where(passages.c.point_id == sa.bindparam("point"))


def store(
    conn: sa.Connection, organization_id: str, batch: InsertBatch, claim: Claim | None, now: datetime
) -> tuple[list[str], tuple[Passage, ...], tuple[Change, ...]]:
    """Stores a batch.

    Returns:
        The entries as the request ledger stores them, the new passages, and the changes for the index.
    """
    row = _resolve(conn, organization_id, batch, now)
    for agent_id in {passage.agent_id for passage in batch.passages if passage and passage.agent_id}:
        archive_rows.require_agent(conn, organization_id, agent_id)
    valid = [passage for passage in batch.passages if passage is not None]
    known = rows.known_ids(conn, organization_id, [passage.id for passage in valid])
    duplicates = None
    if row.deduplicate:
        hashes = [content_hash(passage.text) for passage in valid]
        duplicates = rows.duplicates(conn, organization_id, row.id, hashes)
    own = rows.ids_in_archive(conn, organization_id, row.id, sorted(known)) if batch.restores else ()
    if row.deduplicate and batch.restores:
        duplicates = None  # an export has each text as often as the archive had it
    identities = _identities(conn, row) if any(passage.given_vector for passage in valid) else ()
    plan = plan_inserts(batch.passages, row.id, known, batch.caller_ids, duplicates, own, identities)
    if not any(entry.passage_id for entry in plan.entries):
        raise PassageExists(next(passage.id for passage in valid))
    entries = [msgspec.json.encode(entry).decode() for entry in plan.entries]
    if not plan.new:
        return entries, (), ()
    points = _insert(conn, organization_id, batch, plan.new)
    tags = Counter(tag for passage in plan.new for tag in passage.tags)
    archive_rows.count_passages(conn, organization_id, row.id, len(plan.new), tags, now)
    collections = index_changes.collections_of(conn, organization_id, row.id, row.embedder)
    return entries, plan.new, index_changes.add(conn, collections, points, claim, now)


def _identities(conn: sa.Connection, row: sa.Row[Any]) -> list[EmbedderIdentity]:
    """Returns the identities of an archive's embedder, and of the one that it is changing to."""
    serving = EmbedderIdentity(row.embedder, row.dimension)
    target = index_changes.target_identity(conn, row.organization_id, row.id)
    return [serving] if target is None else [serving, target]


def target_row(conn: sa.Connection, organization_id: str, target: InsertTarget) -> sa.Row[Any] | None:
    """Returns the archive of a target; None for an agent without archives."""
    if target.archive_id is not None:
        return archive_rows.require(conn, organization_id, target.archive_id)
    assert target.agent_id is not None  # noqa: S101 - a target is either
    archive_rows.require_agent(conn, organization_id, target.agent_id)
    attached = archive_rows.attached(conn, organization_id, target.agent_id)
    return attached[0] if attached else None


def _resolve(conn: sa.Connection, organization_id: str, batch: InsertBatch, now: datetime) -> sa.Row[Any]:
    """Returns the archive of the batch; creates the default archive of an agent that has none."""
    row = target_row(conn, organization_id, batch.target)
    if row is None:
        assert batch.target.agent_id is not None  # noqa: S101 - an archive target raises if it does not exist
        row = _create_default(conn, organization_id, batch.target.agent_id, batch.default, now)
    return row


def _create_default(
    conn: sa.Connection, organization_id: str, agent_id: str, default: DefaultArchive, now: datetime
) -> sa.Row[Any]:
    """Creates the default archive of an agent. Its id derives from the agent's id and the first unused number."""
    number = 0
    while True:
        archive_id = derive_id("archive", organization_id, agent_id, str(number))
        if (
            conn.execute(sa.select(archives.c.id).where(archive_rows.is_archive(organization_id, archive_id))).first()
            is None
        ):
            break
        number += 1
    archive = Archive(
        id=archive_id,
        name=DEFAULT_ARCHIVE_NAME,
        description=None,
        embedder=default.embedder,
        dimension=default.dimension,
        metadata=None,
        deduplicate=False,
        created_at=now,
        updated_at=now,
        provenance=Provenance(created_by_id=default.subject_id, last_updated_by_id=default.subject_id),
        created_for_agent_id=agent_id,
    )
    archive_rows.insert(conn, organization_id, archive)
    archive_rows.attach(conn, organization_id, agent_id, archive_id, now)
    return archive_rows.require(conn, organization_id, archive_id)


def _insert(conn: sa.Connection, organization_id: str, batch: InsertBatch, new: Sequence[Passage]) -> list[UUID]:
    points = [_free_point(conn, organization_id, passage.id, passage.id in batch.caller_ids) for passage in new]
    first = rows.next_position(conn, organization_id, new[0].archive_id)
    decided = decide_continuity(conn, organization_id, new, first, batch.continuity)
    conn.execute(
        _INSERT,
        [
            rows.new_row(organization_id, passage, point, position, continuity)
            for position, (passage, point, continuity) in enumerate(zip(new, points, decided, strict=True), start=first)
        ],
    )
    return points


def _free_point(conn: sa.Connection, organization_id: str, passage_id: str, from_caller: bool) -> UUID:
    """Returns the UUID of the passage, or another if a different organization imported the same passage id."""
    point = point_of(passage_id)
    if from_caller and conn.execute(_POINT, {"point": str(point)}).first() is not None:
        return point_of(derive_id("passage", organization_id, passage_id))
    return point
