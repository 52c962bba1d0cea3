"""The rows of archives, of the agents that they are attached to, and of their counters."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from mnemesh_kit.sql.prepared import Answer, Prepared
from mnemesh_kit.sql.rows import Rows
from mnemesh_types.archival import Archive

from mnemesh_archival.errors import AgentErased, ArchiveNotFound
from mnemesh_archival.store import index_changes
from mnemesh_archival.store.tables import agents, archive_agents, archive_tags, archives, passages

CHUNK = 500
"""The number of values in one statement."""
ARCHIVE = Rows(archives, Archive, inline=("provenance",))

# Built once: building a statement costs more than running it, and every write or search runs these.
_LIVE = Prepared(
    sa.select(archives).where(
        archives.c.organization_id == sa.bindparam("org"),
        archives.c.id == sa.bindparam("archive"),
        archives.c.deleted_at.is_(None),
    )
)
_AGENT = Prepared(
    sa.select(agents).where(agents.c.organization_id == sa.bindparam("org"), agents.c.id == sa.bindparam("agent"))
)
_OF_AGENT = Prepared(
    sa.select(archives)
    .join(
        archive_agents,
        sa.and_(
            archive_agents.c.organization_id == archives.c.organization_id,
            archive_agents.c.archive_id == archives.c.id,
        ),
    )
    .where(
        archives.c.organization_id == sa.bindparam("org"),
        archives.c.deleted_at.is_(None),
        archive_agents.c.agent_id == sa.bindparam("agent"),
    )
    .order_by(archive_agents.c.attached_at, archives.c.id)
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
# Both engines support this statement, which needs no query for the existing tags.
_ADD_USES = sa.text(
    "INSERT INTO archive_tags (organization_id, archive_id, tag, uses) VALUES (:org, :archive, :which, :by)"
    " ON CONFLICT (organization_id, archive_id, tag) DO UPDATE SET uses = archive_tags.uses + excluded.uses"
)
_SET_USES = archive_tags.update().where(_ONE_TAG).values(uses=sa.bindparam("count"))
_DROP_TAG = archive_tags.delete().where(_ONE_TAG)
_ATTACHED = sa.and_(
    archive_agents.c.organization_id == archives.c.organization_id,
    archive_agents.c.archive_id == archives.c.id,
    archive_agents.c.agent_id == sa.bindparam("agent"),
)
_EVERY_REF = sa.select(archives.c.id, archives.c.embedder, archives.c.passage_count, archives.c.dimension).where(
    archives.c.organization_id == sa.bindparam("org"), archives.c.deleted_at.is_(None)
)
_ONE_REF = _EVERY_REF.where(archives.c.id == sa.bindparam("archive"))
_ATTACHED_REFS = _EVERY_REF.join(archive_agents, _ATTACHED)
_ATTACHED_REF = _ONE_REF.join(archive_agents, _ATTACHED)


def is_archive(organization_id: str, archive_id: str) -> sa.ColumnElement[bool]:
    """Returns the condition that selects an archive, deleted or not."""
    return sa.and_(archives.c.organization_id == organization_id, archives.c.id == archive_id)


def live(organization_id: str) -> sa.ColumnElement[bool]:
    """Returns the condition that selects the archives of an organization that are not deleted."""
    return sa.and_(archives.c.organization_id == organization_id, archives.c.deleted_at.is_(None))


def insert(conn: sa.Connection, organization_id: str, archive: Archive) -> None:
    """Inserts a new, empty archive."""
    folded = archive.name.casefold()
    values = ARCHIVE.to_row(archive, organization_id=organization_id, name_folded=folded, passage_count=0, revision=0)
    conn.execute(archives.insert().values(values))


def require(conn: sa.Connection, organization_id: str, archive_id: str) -> sa.Row[Any]:
    """Returns the row of an archive. Raises ArchiveNotFound if it does not exist or is deleted."""
    row: sa.Row[Any] | None = _LIVE.first(conn, {"org": organization_id, "archive": archive_id})
    if row is None:
        raise ArchiveNotFound(archive_id)
    return row


def ask_agent(conn: sa.Connection, organization_id: str, agent_id: str) -> Answer:
    """Asks for the row of an agent: for None if it never had an archive."""
    return _AGENT.send(conn, {"org": organization_id, "agent": agent_id})


def require_agent(conn: sa.Connection, organization_id: str, agent_id: str) -> None:
    """Raises AgentErased if the agent has a tombstone. Unknown agents are allowed."""
    row = ask_agent(conn, organization_id, agent_id).first()
    if row is not None and row.erased_at is not None:
        raise AgentErased(agent_id)


def attached(conn: sa.Connection, organization_id: str, agent_id: str) -> Sequence[Any]:
    """Returns the archives of an agent in the order in which they were attached."""
    return ask_attached(conn, organization_id, agent_id).all()


def ask_attached(conn: sa.Connection, organization_id: str, agent_id: str) -> Answer:
    """Asks for the rows that `attached` returns."""
    return _OF_AGENT.send(conn, {"org": organization_id, "agent": agent_id})


def refs(
    conn: sa.Connection, organization_id: str, agent_id: str | None, archive_id: str | None
) -> Sequence[sa.Row[*tuple[Any, ...]]]:
    """Returns the id, embedder and size of archives: of the agent's, of one, of one if it is the agent's, or of all."""
    query = _EVERY_REF if archive_id is None else _ONE_REF
    if agent_id is not None:
        query = _ATTACHED_REFS if archive_id is None else _ATTACHED_REF
    return conn.execute(query, {"org": organization_id, "agent": agent_id, "archive": archive_id}).all()


def agents_of(conn: sa.Connection, organization_id: str, archive_id: str) -> list[str]:
    """Returns the agents that an archive is attached to."""
    query = sa.select(archive_agents.c.agent_id).where(
        archive_agents.c.organization_id == organization_id, archive_agents.c.archive_id == archive_id
    )
    return list(conn.execute(query).scalars())


def attach(conn: sa.Connection, organization_id: str, agent_id: str, archive_id: str, now: datetime) -> None:
    """Attaches an archive to an agent unless it is attached."""
    require_agent(conn, organization_id, agent_id)
    if agent_id not in agents_of(conn, organization_id, archive_id):
        conn.execute(
            archive_agents.insert().values(
                organization_id=organization_id, agent_id=agent_id, archive_id=archive_id, attached_at=now
            )
        )
        raise_revision(conn, organization_id, agent_id, 1, now)


def detach(conn: sa.Connection, organization_id: str, agent_id: str, archive_id: str, now: datetime) -> bool:
    """Detaches an archive and raises the revision of the agent's summary. Returns whether it was attached."""
    deleted = conn.execute(
        archive_agents.delete().where(
            archive_agents.c.organization_id == organization_id,
            archive_agents.c.agent_id == agent_id,
            archive_agents.c.archive_id == archive_id,
        )
    )
    if not deleted.rowcount:
        return False
    revision = conn.execute(sa.select(archives.c.revision).where(is_archive(organization_id, archive_id))).scalar_one()
    raise_revision(conn, organization_id, agent_id, revision + 1, now)
    return True


def raise_revision(conn: sa.Connection, organization_id: str, agent_id: str, by: int, now: datetime) -> None:
    """Raises the agent's own part of the revision of its summary."""
    mine = sa.and_(agents.c.organization_id == organization_id, agents.c.id == agent_id)
    raised = conn.execute(agents.update().where(mine).values(base_revision=agents.c.base_revision + by, changed_at=now))
    if not raised.rowcount:
        conn.execute(
            agents.insert().values(organization_id=organization_id, id=agent_id, base_revision=by, changed_at=now)
        )


def count_passages(
    conn: sa.Connection, organization_id: str, archive_id: str, passages_by: int, tags: Counter[str], now: datetime
) -> None:
    """Adds to the counters of an archive. Counts may be negative."""
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
        unused = [{**of, "which": tag} for tag, count in sorted(left.items()) if count <= 0]
        if used:
            conn.execute(_SET_USES, used)
        if unused:
            conn.execute(_DROP_TAG, unused)


def delete(conn: sa.Connection, organization_id: str, row: sa.Row[Any], now: datetime) -> None:
    """Replaces an archive by a tombstone, and adds the changes that delete its points."""
    collections = index_changes.collections_with_points(conn, organization_id, row.id, row.embedder)
    index_changes.add_archive_deletion(conn, collections, row.id, now)
    index_changes.end(conn, organization_id, row.id)
    index_changes.forget_left(conn, organization_id, row.id)
    for agent_id in agents_of(conn, organization_id, row.id):
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
