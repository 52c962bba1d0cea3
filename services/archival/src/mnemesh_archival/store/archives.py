"""The stores of archives and of changes of their embedders."""

from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa
from mnemesh_kit.idempotency import Ledger, RequestKey
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.sql import Database
from mnemesh_kit.sql.pages import paginate
from mnemesh_kit.sql.prepared import Prepared
from mnemesh_kit.time import Clock
from mnemesh_retrieval.indexing.outbox import Claim
from mnemesh_types.archival import ArchivalSummary, Archive, ArchiveFilter

from mnemesh_archival.errors import ArchiveNotFound
from mnemesh_archival.model.archives import SUMMARY_TAGS, Erasure
from mnemesh_archival.store import archive_rows as rows
from mnemesh_archival.store import index_changes
from mnemesh_archival.store.archive_rows import is_archive
from mnemesh_archival.store.passage_rows import LIVE
from mnemesh_archival.store.passages import bury
from mnemesh_archival.store.tables import (
    ArchiveRef,
    CopyBatch,
    ErasedAgent,
    ReembeddingJob,
    agents,
    archive_agents,
    archive_tags,
    archives,
    left_collections,
    passages,
    reembeddings,
    request_ledger,
)


class ArchiveStore:
    """Archives and the agents that they are attached to.

    A mutation with an idempotency key that took effect before returns the first result and changes nothing.
    Mutations raise RequestIdReused for a key with other content, and all methods ArchiveNotFound for an archive that
    does not exist.

    Example:
        >>> archive_id = await store.create_archive("org-1", archive, ["agent-1"], key)
        >>> await store.detach("org-1", "agent-1", archive_id, None)
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._requests = Ledger(database, request_ledger, clock)

    async def create_archive(
        self, organization_id: str, archive: Archive, agent_ids: Sequence[str], key: RequestKey | None
    ) -> str:
        """Creates an archive and attaches it to the agents, atomically. Returns its id. Raises AgentErased."""

        def effect(conn: sa.Connection) -> list[str]:
            if conn.execute(sa.select(archives.c.id).where(rows.is_archive(organization_id, archive.id))).first():
                rows.require(conn, organization_id, archive.id)
            else:
                rows.insert(conn, organization_id, archive)
            for agent_id in agent_ids:
                rows.attach(conn, organization_id, agent_id, archive.id, archive.created_at)
            return [archive.id]

        return (await self._requests.write_once(key, effect))[0][0]

    async def get_archive(self, organization_id: str, archive_id: str) -> Archive:
        """Returns an archive, with the progress of a change of its embedder."""

        def read(conn: sa.Connection) -> Archive:
            row = rows.require(conn, organization_id, archive_id)
            progress = index_changes.progress(conn, organization_id, [archive_id])
            return rows.ARCHIVE.from_row(row, reembedding=progress.get(archive_id))

        return await self._database.read(read)

    async def list_archives(
        self, organization_id: str, filter_: ArchiveFilter, page: PageQuery, by_name: bool
    ) -> Page[Archive]:
        """Returns a page of archives by creation time or by name; ties by id."""
        key = archives.c.name if by_name else archives.c.created_at

        def read(conn: sa.Connection) -> Page[Archive]:
            query = sa.select(archives).where(_matches(organization_id, filter_))
            found = paginate(conn, query, page, key=key, id=archives.c.id, scope=rows.live(organization_id))
            reembedding = index_changes.progress(conn, organization_id, [row.id for row in found.items])
            return found.map(lambda row: rows.ARCHIVE.from_row(row, reembedding=reembedding.get(row.id)))

        return await self._database.read(read)

    async def count_archives(self, organization_id: str, filter_: ArchiveFilter) -> int:
        """Returns the number of archives."""
        query = sa.select(sa.func.count()).select_from(archives).where(_matches(organization_id, filter_))
        return await self._database.read(lambda conn: int(conn.execute(query).scalar_one()))

    async def update_archive(
        self, organization_id: str, archive: Archive, fields: frozenset[str], key: RequestKey | None
    ) -> None:
        """Sets the named fields to the values of `archive`.

        A new embedder is set at once if the archive has no passages. Otherwise a change starts (see ReembeddingStore)
        and replaces an unfinished one. Setting the current embedder cancels an unfinished change.
        """

        def effect(conn: sa.Connection) -> list[str]:
            current = rows.require(conn, organization_id, archive.id)
            values: dict[str, Any] = {name: getattr(archive, name) for name in fields}
            if "name" in values:
                values["name_folded"] = archive.name.casefold()
            values["updated_at"] = now = self._clock.now()
            if "embedder" in values:
                values.update(index_changes.change_embedder(conn, organization_id, current, archive, now))
            values["last_updated_by_id"] = archive.provenance.last_updated_by_id
            conn.execute(archives.update().where(rows.is_archive(organization_id, archive.id)).values(**values))
            return [archive.id]

        await self._requests.write_once(key, effect)

    async def delete_archive(self, organization_id: str, archive_id: str, key: RequestKey | None) -> None:
        """Deletes an archive and its passages, and detaches it. Deleting it again is not an error."""

        def effect(conn: sa.Connection) -> list[str]:
            row = conn.execute(sa.select(archives).where(rows.is_archive(organization_id, archive_id))).first()
            if row is None:
                raise ArchiveNotFound(archive_id)
            if row.deleted_at is None:
                rows.delete(conn, organization_id, row, self._clock.now())
            return [archive_id]

        await self._requests.write_once(key, effect)

    async def attach(self, organization_id: str, agent_id: str, archive_id: str, key: RequestKey | None) -> None:
        """Attaches an archive to an agent; a second time has no effect. Raises AgentErased."""

        def effect(conn: sa.Connection) -> list[str]:
            rows.require(conn, organization_id, archive_id)
            rows.attach(conn, organization_id, agent_id, archive_id, self._clock.now())
            return []

        await self._requests.write_once(key, effect)

    async def detach(self, organization_id: str, agent_id: str, archive_id: str, key: RequestKey | None) -> None:
        """Detaches an archive. Raises ArchiveNotFound if it is not attached to the agent."""

        def effect(conn: sa.Connection) -> list[str]:
            rows.require(conn, organization_id, archive_id)
            if not rows.detach(conn, organization_id, agent_id, archive_id, self._clock.now()):
                raise ArchiveNotFound(archive_id, agent_id)
            return []

        await self._requests.write_once(key, effect)

    async def list_agents(self, organization_id: str, archive_id: str, page: PageQuery) -> Page[str]:
        """Returns a page of the agents that an archive is attached to, by id."""
        attached = sa.and_(
            archive_agents.c.organization_id == organization_id, archive_agents.c.archive_id == archive_id
        )

        def read(conn: sa.Connection) -> Page[str]:
            rows.require(conn, organization_id, archive_id)
            agent_id = archive_agents.c.agent_id
            found = paginate(conn, sa.select(agent_id).where(attached), page, key=agent_id, id=agent_id, scope=attached)
            return found.map(lambda row: str(row.agent_id))

        return await self._database.read(read)

    async def scope(
        self, organization_id: str, agent_id: str | None, archive_id: str | None, archive_ids: Sequence[str] = ()
    ) -> list[ArchiveRef]:
        """Returns the archives that a filter covers.

        They are those of the agent, the one archive, or all of the organization if both are None. With `archive_ids`,
        they are those of them that are among these.

        Raises:
            ArchiveNotFound: an archive does not exist or is not attached to the agent.
        """

        def read(conn: sa.Connection) -> list[ArchiveRef]:
            found = rows.refs(conn, organization_id, agent_id, archive_id)
            if archive_id is not None and not found:
                raise ArchiveNotFound(archive_id, agent_id)
            refs = [ArchiveRef(*row) for row in found]
            if not archive_ids:
                return refs
            known = {ref.id for ref in refs}
            for each in archive_ids:
                if each not in known:
                    raise ArchiveNotFound(each, agent_id)
            return [ref for ref in refs if ref.id in archive_ids]

        return await self._database.read(read)

    async def summary(self, organization_id: str, agent_id: str, if_revision: int | None) -> ArchivalSummary:
        """Returns the counters of an agent's archives without counting rows. Unknown agents have empty ones."""

        def read(conn: sa.Connection) -> ArchivalSummary:
            found = rows.ask_agent(conn, organization_id, agent_id)
            archives_of_agent = rows.ask_attached(conn, organization_id, agent_id)
            agent = found.first()
            if agent is None:
                return ArchivalSummary(revision=0, not_modified=if_revision == 0)
            attached = archives_of_agent.all()
            revision = agent.base_revision + sum(row.revision for row in attached)
            if revision == if_revision:
                return ArchivalSummary(revision=revision, not_modified=True)
            changes = [agent.changed_at, *(row.changed_at for row in attached if row.changed_at is not None)]
            return ArchivalSummary(
                revision=revision,
                passage_count=sum(row.passage_count for row in attached),
                tags=_tags(conn, organization_id, [row.id for row in attached]),
                updated_at=max(changes),
            )

        return await self._database.read(read)

    async def erase_agent(
        self, organization_id: str, agent_id: str, erasure: Erasure, key: RequestKey | None
    ) -> ErasedAgent:
        """Writes a tombstone of the agent, detaches its archives and deletes what `erasure` says.

        An archive that another agent holds is never deleted. Erasing an agent again is not an error.
        """

        def effect(conn: sa.Connection) -> list[str]:
            now = self._clock.now()
            rows.raise_revision(conn, organization_id, agent_id, 1, now)
            mine = sa.and_(agents.c.organization_id == organization_id, agents.c.id == agent_id)
            conn.execute(agents.update().where(mine, agents.c.erased_at.is_(None)).values(erased_at=now))
            deleted_passages = deleted_archives = 0
            for row in rows.attached(conn, organization_id, agent_id):
                rows.detach(conn, organization_id, agent_id, row.id, now)
                if rows.agents_of(conn, organization_id, row.id):
                    continue
                if erasure.deletes(rows.ARCHIVE.from_row(row), agent_id):
                    deleted_passages += row.passage_count
                    deleted_archives += 1
                    rows.delete(conn, organization_id, row, now)
            if erasure.shared_passages:
                deleted_passages += _delete_written_by(conn, organization_id, agent_id, now)
            return [str(deleted_passages), str(deleted_archives)]

        return await self._requests.write_and_read(
            key, effect, lambda _, counts: ErasedAgent(int(counts[0]), int(counts[1]))
        )


def _delete_written_by(conn: sa.Connection, organization_id: str, agent_id: str, now: datetime) -> int:
    columns = (passages.c.id, passages.c.archive_id, passages.c.point_id, passages.c.tags)
    mine = sa.and_(passages.c.organization_id == organization_id, passages.c.agent_id == agent_id, LIVE)
    by_archive: dict[str, list[sa.Row[*tuple[Any, ...]]]] = defaultdict(list)
    for row in conn.execute(sa.select(*columns).where(mine)).all():
        by_archive[row.archive_id].append(row)
    for written in by_archive.values():
        bury(conn, organization_id, written, None, now)
    return sum(map(len, by_archive.values()))


def _matches(organization_id: str, filter_: ArchiveFilter) -> sa.ColumnElement[bool]:
    conditions = [rows.live(organization_id)]
    if filter_.agent_id is not None:
        attached = sa.select(archive_agents.c.archive_id).where(
            archive_agents.c.organization_id == organization_id, archive_agents.c.agent_id == filter_.agent_id
        )
        conditions.append(archives.c.id.in_(attached))
    if filter_.name is not None:
        conditions.append(archives.c.name == filter_.name)
    if filter_.archive_ids:
        conditions.append(archives.c.id.in_(filter_.archive_ids))
    if filter_.name_search:
        conditions.append(archives.c.name_folded.contains(filter_.name_search.casefold(), autoescape=True))
    return sa.and_(*conditions)


def _tags(conn: sa.Connection, organization_id: str, archive_ids: Sequence[str]) -> tuple[str, ...]:
    query = sa.select(archive_tags.c.tag).where(
        archive_tags.c.organization_id == organization_id, archive_tags.c.archive_id.in_(archive_ids)
    )
    return tuple(sorted(set(conn.execute(query).scalars()))[:SUMMARY_TAGS])


CLAIM = timedelta(seconds=60)
"""How long a claim lasts before another replica may claim the change; longer than copying a batch takes."""


_REEMBEDDING: Final = Prepared(sa.select(reembeddings.c.archive_id).limit(1))
_LEFT: Final = Prepared(
    sa.select(left_collections.c.archive_id).where(left_collections.c.remove_after <= sa.bindparam("until")).limit(1)
)


class ReembeddingStore:
    """Changes of embedders, and the collections that archives have left.

    A change ends early if its archive is deleted or gets yet another embedder; `next_batch` and `switch` then report
    that it is over.

    Example:
        >>> for job in await store.claim(everything=False):
        ...     batch = await store.next_batch(job, None, 64, None)
        ...     while batch is not None and batch.changes:
        ...         await indexer.apply(batch.changes)
        ...         batch = await store.next_batch(job, batch, 64, None)
        ...     await store.switch(job)
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def claim(self, *, everything: bool) -> list[ReembeddingJob]:
        """Claims changes whose claim has expired (or all, with `everything`) for 60 seconds, oldest first."""

        def write(conn: sa.Connection) -> list[ReembeddingJob]:
            now = self._clock.now()
            query = sa.select(reembeddings)
            if not everything:
                query = query.where(reembeddings.c.claimed_until <= now)
            jobs = [
                ReembeddingJob(row.organization_id, row.archive_id, row.generation, row.embedder)
                for row in conn.execute(query.order_by(reembeddings.c.started_at, reembeddings.c.archive_id))
            ]
            for job in jobs:
                conn.execute(reembeddings.update().where(_by_job(job)).values(claimed_until=now + CLAIM))
            return jobs

        if await self._database.read(lambda conn: _REEMBEDDING.first(conn, {}), snapshot=False) is None:
            return []
        return await self._database.write(write)

    async def renew(self, job: ReembeddingJob) -> bool:
        """Renews the claim. Returns False if the change is over."""
        return await self._database.write(lambda conn: self._renew(conn, job))

    async def begin_batch(
        self, job: ReembeddingJob, copied: CopyBatch | None, limit: int, claim: Claim | None
    ) -> CopyBatch | None:
        """Records that a batch was copied, adds the changes of the next one, and renews the claim of the job.

        `claim` reserves the changes for the caller. None if the change is over.
        """

        def write(conn: sa.Connection) -> CopyBatch | None:
            progress = {}
            if copied is not None and copied.changes:
                progress = {"position": copied.position, "done": reembeddings.c.done + len(copied.changes)}
            if not self._renew(conn, job, **progress):
                return None
            row = conn.execute(sa.select(reembeddings).where(_by_job(job))).one()
            mine = sa.and_(
                passages.c.organization_id == job.organization_id,
                passages.c.archive_id == job.archive_id,
                passages.c.position > row.position,
                passages.c.position <= row.last_position,
                LIVE,
            )
            query = sa.select(passages.c.point_id, passages.c.position).where(mine)
            found = conn.execute(query.order_by(passages.c.position).limit(limit)).all()
            points = [UUID(each.point_id) for each in found]
            changes = index_changes.add(conn, [job.target], points, claim, self._clock.now())
            return CopyBatch(changes, found[-1].position if found else row.position)

        return await self._database.write(write, name="reembeddings.next_batch")

    async def switch(self, job: ReembeddingJob) -> None:
        """Switches the archive to the new embedder. Its points in the old collection are deleted some time later."""
        organization_id, archive_id = job.organization_id, job.archive_id

        def write(conn: sa.Connection) -> None:
            row = conn.execute(sa.select(reembeddings).where(_by_job(job))).first()
            if row is None:
                return
            now, mine = self._clock.now(), is_archive(organization_id, archive_id)
            source = conn.execute(sa.select(archives.c.embedder).where(mine)).scalar_one()
            switched = {"embedder": row.embedder, "dimension": row.dimension, "updated_at": now}
            conn.execute(archives.update().where(mine).values(**switched))
            index_changes.end(conn, organization_id, archive_id)
            index_changes.leave(conn, organization_id, archive_id, source, now)

        await self._database.write(write, name="reembeddings.switch")

    async def remove_left(self, limit: int, *, everything: bool) -> bool:
        """Adds the changes that delete points in a collection that an archive has left.

        Args:
            limit: the largest number of changes.
            everything: also in collections that searches which began earlier may still read.

        Returns:
            Whether there were any; there may be more.
        """
        now = self._clock.now()
        due = sa.select(left_collections).limit(1)
        if not everything:
            due = due.where(left_collections.c.remove_after <= now)

        def write(conn: sa.Connection) -> bool:
            row = conn.execute(due).first()
            if row is None:
                return False
            mine = sa.and_(
                passages.c.organization_id == row.organization_id,
                passages.c.archive_id == row.archive_id,
                passages.c.position > row.position,
                LIVE,
            )
            query = sa.select(passages.c.point_id, passages.c.position).where(mine)
            found = conn.execute(query.order_by(passages.c.position).limit(limit)).all()
            index_changes.add(conn, [row.embedder], [UUID(each.point_id) for each in found], None, now)
            left = sa.and_(
                left_collections.c.organization_id == row.organization_id,
                left_collections.c.archive_id == row.archive_id,
                left_collections.c.embedder == row.embedder,
            )
            if len(found) < limit:
                conn.execute(left_collections.delete().where(left))
            else:
                conn.execute(left_collections.update().where(left).values(position=found[-1].position))
            return True

        until = datetime.max.replace(tzinfo=UTC) if everything else now
        if await self._database.read(lambda conn: _LEFT.first(conn, {"until": until}), snapshot=False) is None:
            return False
        return await self._database.write(write, name="reembeddings.remove_left")

    def _renew(self, conn: sa.Connection, job: ReembeddingJob, **values: Any) -> bool:
        renewed = reembeddings.update().where(_by_job(job)).values(claimed_until=self._clock.now() + CLAIM, **values)
        return bool(conn.execute(renewed).rowcount)


def _by_job(job: ReembeddingJob) -> sa.ColumnElement[bool]:
    return sa.and_(index_changes.of(job.organization_id, job.archive_id), reembeddings.c.generation == job.generation)
