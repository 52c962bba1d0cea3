"""Archives, their holders and their counters as rows: what both SQL stores do inside their transactions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import msgspec
import sqlalchemy as sa

from mnemesh_archival.errors import AgentErased, ArchiveNotFound
from mnemesh_archival.model.archives import Archive, Provenance, Reembedding
from mnemesh_archival.model.operations import DropArchive
from mnemesh_archival.store.sql import operation_rows, reembedding_rows
from mnemesh_archival.store.sql.tables import agents, archive_agents, archive_tags, archives, passages

CHUNK = 500
"""So many values go into one statement."""
PROVENANCE = (
    "created_by_id",
    "last_updated_by_id",
    "project_id",
    "template_id",
    "base_template_id",
    "deployment_id",
    "entity_id",
)

# Made once: making a statement costs more than running it, and these are run by every write or every search.
_LIVE = sa.select(archives).where(
    archives.c.organization_id == sa.bindparam("org"),
    archives.c.id == sa.bindparam("archive"),
    archives.c.deleted_at.is_(None),
)
_ERASED = sa.select(agents.c.erased_at).where(
    agents.c.organization_id == sa.bindparam("org"), agents.c.id == sa.bindparam("agent")
)
_COUNT = (
    archives.update()
    .where(archives.c.organization_id == sa.bindparam("org"), archives.c.id == sa.bindparam("archive"))
    .values(
        passage_count=archives.c.passage_count + sa.bindparam("by"),
        revision=archives.c.revision + 1,
        changed_at=sa.bindparam("now"),
    )
)
_OF_ARCHIVE = sa.and_(
    archive_tags.c.organization_id == sa.bindparam("org"), archive_tags.c.archive_id == sa.bindparam("archive")
)
_USES = sa.select(archive_tags.c.tag, archive_tags.c.uses).where(
    _OF_ARCHIVE, archive_tags.c.tag.in_(sa.bindparam("tags", expanding=True))
)
_ONE_TAG = sa.and_(_OF_ARCHIVE, archive_tags.c.tag == sa.bindparam("which"))
# Both engines know it, and neither needs to be asked first which tags there are.
_ADD_USES = sa.text(
    "INSERT INTO archive_tags (organization_id, archive_id, tag, uses) VALUES (:organization_id, :archive, :which, :by)"
    " ON CONFLICT (organization_id, archive_id, tag) DO UPDATE SET uses = archive_tags.uses + excluded.uses"
)
_SET_USES = archive_tags.update().where(_ONE_TAG).values(uses=sa.bindparam("count"))
_DROP_TAG = archive_tags.delete().where(_ONE_TAG)
_HELD = sa.and_(
    archive_agents.c.organization_id == archives.c.organization_id,
    archive_agents.c.archive_id == archives.c.id,
    archive_agents.c.agent_id == sa.bindparam("agent"),
)
_EVERY_REF = sa.select(archives.c.id, archives.c.embedder, archives.c.passage_count).where(
    archives.c.organization_id == sa.bindparam("org"), archives.c.deleted_at.is_(None)
)
_ONE_REF = _EVERY_REF.where(archives.c.id == sa.bindparam("archive"))
_HELD_REFS = _EVERY_REF.join(archive_agents, _HELD)
_HELD_REF = _ONE_REF.join(archive_agents, _HELD)


def is_archive(organization_id: str, archive_id: str) -> sa.ColumnElement[bool]:
    """The row of one archive, deleted or not."""
    return sa.and_(archives.c.organization_id == organization_id, archives.c.id == archive_id)


def live(organization_id: str) -> sa.ColumnElement[bool]:
    """All archives of an organization that are not deleted."""
    return sa.and_(archives.c.organization_id == organization_id, archives.c.deleted_at.is_(None))


def insert(conn: sa.Connection, organization_id: str, archive: Archive) -> None:
    """A new, empty archive."""
    provenance = {name: getattr(archive.provenance, name) for name in PROVENANCE}
    conn.execute(
        archives.insert().values(
            organization_id=organization_id,
            id=archive.id,
            name=archive.name,
            name_folded=archive.name.casefold(),
            description=archive.description,
            embedder=archive.embedder,
            dimension=archive.dimension,
            metadata=archive.metadata,
            deduplicate=archive.deduplicate,
            passage_count=0,
            revision=0,
            created_at=archive.created_at,
            updated_at=archive.updated_at,
            **provenance,
        )
    )


def require(conn: sa.Connection, organization_id: str, archive_id: str) -> sa.Row[Any]:
    """The row of an archive that is not deleted, or ArchiveNotFound."""
    row = conn.execute(_LIVE, {"org": organization_id, "archive": archive_id}).first()
    if row is None:
        raise ArchiveNotFound(archive_id)
    return row


def archive(row: sa.Row[Any], moving: Reembedding | None = None) -> Archive:
    """The archive that a row holds."""
    return Archive(
        id=row.id,
        name=row.name,
        description=row.description,
        embedder=row.embedder,
        dimension=row.dimension,
        metadata=row.metadata,
        deduplicate=row.deduplicate,
        created_at=row.created_at,
        updated_at=row.updated_at,
        passage_count=row.passage_count,
        reembedding=moving,
        provenance=Provenance(**{name: getattr(row, name) for name in PROVENANCE}),
    )


def require_agent(conn: sa.Connection, organization_id: str, agent_id: str) -> None:
    """AgentErased if the agent has a tombstone. Agents that were never heard of are fine."""
    if conn.execute(_ERASED, {"org": organization_id, "agent": agent_id}).scalar() is not None:
        raise AgentErased(agent_id)


def held(conn: sa.Connection, organization_id: str, agent_id: str) -> Sequence[sa.Row[Any]]:
    """The archives of an agent, the first attached first."""
    query = (
        sa.select(archives)
        .join(
            archive_agents,
            sa.and_(
                archive_agents.c.organization_id == archives.c.organization_id,
                archive_agents.c.archive_id == archives.c.id,
            ),
        )
        .where(live(organization_id), archive_agents.c.agent_id == agent_id)
        .order_by(archive_agents.c.attached_at, archives.c.id)
    )
    return conn.execute(query).all()


def refs(
    conn: sa.Connection, organization_id: str, agent_id: str | None, archive_id: str | None
) -> Sequence[sa.Row[*tuple[Any, ...]]]:
    """Id, embedder and size of an agent's archives, of one archive if that agent holds it, of one, or of all."""
    query = _EVERY_REF if archive_id is None else _ONE_REF
    if agent_id is not None:
        query = _HELD_REFS if archive_id is None else _HELD_REF
    return conn.execute(query, {"org": organization_id, "agent": agent_id, "archive": archive_id}).all()


def holders(conn: sa.Connection, organization_id: str, archive_id: str) -> list[str]:
    """The agents that hold an archive."""
    query = sa.select(archive_agents.c.agent_id).where(
        archive_agents.c.organization_id == organization_id, archive_agents.c.archive_id == archive_id
    )
    return list(conn.execute(query).scalars())


def attach(conn: sa.Connection, organization_id: str, agent_id: str, archive_id: str, now: datetime) -> None:
    """Give an archive to an agent, if it does not hold it."""
    require_agent(conn, organization_id, agent_id)
    if agent_id not in holders(conn, organization_id, archive_id):
        conn.execute(
            archive_agents.insert().values(
                organization_id=organization_id, agent_id=agent_id, archive_id=archive_id, attached_at=now
            )
        )
        raise_base(conn, organization_id, agent_id, 1, now)


def detach(conn: sa.Connection, organization_id: str, agent_id: str, archive_id: str, now: datetime) -> bool:
    """Take an archive away; whether the agent held it. The summary's revision grows all the same."""
    gone = conn.execute(
        archive_agents.delete().where(
            archive_agents.c.organization_id == organization_id,
            archive_agents.c.agent_id == agent_id,
            archive_agents.c.archive_id == archive_id,
        )
    )
    if not gone.rowcount:
        return False
    revision = conn.execute(sa.select(archives.c.revision).where(is_archive(organization_id, archive_id))).scalar_one()
    raise_base(conn, organization_id, agent_id, revision + 1, now)
    return True


def raise_base(conn: sa.Connection, organization_id: str, agent_id: str, by: int, now: datetime) -> None:
    """Let the agent's own part of its revision grow."""
    mine = sa.and_(agents.c.organization_id == organization_id, agents.c.id == agent_id)
    raised = conn.execute(agents.update().where(mine).values(base_revision=agents.c.base_revision + by, changed_at=now))
    if not raised.rowcount:
        conn.execute(
            agents.insert().values(organization_id=organization_id, id=agent_id, base_revision=by, changed_at=now)
        )


def count_passages(
    conn: sa.Connection, organization_id: str, archive_id: str, passages_by: int, tags: Counter[str], now: datetime
) -> None:
    """Tell the counters of an archive what changed. Tags may count downwards."""
    of = {"org": organization_id, "archive": archive_id}
    conn.execute(_COUNT, {**of, "by": passages_by, "now": now})
    more = [{**of, "which": tag, "by": by} for tag, by in sorted(tags.items()) if by > 0]
    if more:
        conn.execute(_ADD_USES, more)
    fewer = sorted(tag for tag, by in tags.items() if by < 0)
    for start in range(0, len(fewer), CHUNK):
        some = fewer[start : start + CHUNK]
        left = {row.tag: row.uses + tags[row.tag] for row in conn.execute(_USES, {**of, "tags": some})}
        used = [{**of, "which": tag, "count": count} for tag, count in sorted(left.items()) if count > 0]
        gone = [{**of, "which": tag} for tag, count in sorted(left.items()) if count <= 0]
        if used:
            conn.execute(_SET_USES, used)
        if gone:
            conn.execute(_DROP_TAG, gone)


def embedders(conn: sa.Connection, organization_id: str, archive_id: str) -> list[str]:
    """The embedders in whose collections points of the archive may be."""
    serving: str = require(conn, organization_id, archive_id).embedder
    target = reembedding_rows.target(conn, organization_id, archive_id)
    return [serving, target] if target is not None else [serving]


def tag_counter(encoded: Iterable[str]) -> Counter[str]:
    """How often each tag stands in these lists of tags."""
    return Counter(tag for tags in encoded for tag in msgspec.json.decode(tags, type=list[str]))


def delete(conn: sa.Connection, organization_id: str, row: sa.Row[Any], now: datetime) -> DropArchive:
    """Leave a tombstone of an archive and nothing else; the work left in the index."""
    reembedding_rows.leave(conn, organization_id, row.id, now)
    for agent_id in holders(conn, organization_id, row.id):
        detach(conn, organization_id, agent_id, row.id, now)
    conn.execute(
        passages.delete().where(passages.c.organization_id == organization_id, passages.c.archive_id == row.id)
    )
    conn.execute(
        archive_tags.delete().where(
            archive_tags.c.organization_id == organization_id, archive_tags.c.archive_id == row.id
        )
    )
    conn.execute(
        archives.update()
        .where(is_archive(organization_id, row.id))
        .values(deleted_at=now, passage_count=0, name="", name_folded="", description=None, metadata=None)
    )
    # Copies for another embedder go with their own operation, when nobody can be copying any more.
    drop = DropArchive(id=f"drop-{row.id}", organization_id=organization_id, embedder=row.embedder, archive_id=row.id)
    operation_rows.add(conn, drop, now)
    return drop
