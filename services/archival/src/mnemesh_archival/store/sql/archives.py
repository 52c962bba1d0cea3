"""The store of archives in SQL."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from mnemesh_kit.clock import Clock
from mnemesh_kit.idempotency import Ledger, RequestKey
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.sql import Database
from mnemesh_kit.sql.pages import paginate

from mnemesh_archival.errors import ArchiveNotFound
from mnemesh_archival.model.archives import (
    SUMMARY_TAGS,
    Archive,
    ArchiveFilter,
    Erasure,
    Summary,
)
from mnemesh_archival.store.base.archives import ArchiveRef, ErasedAgent
from mnemesh_archival.store.sql import archive_rows as rows
from mnemesh_archival.store.sql import reembedding_rows
from mnemesh_archival.store.sql.passage_rows import LIVE
from mnemesh_archival.store.sql.passages import bury
from mnemesh_archival.store.sql.tables import agents, archive_agents, archive_tags, archives, passages, request_ledger


class SqlArchiveStore:
    """See ArchiveStore."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._requests = Ledger(request_ledger, clock)

    async def create_archive(
        self, organization_id: str, archive: Archive, agent_ids: Sequence[str], key: RequestKey | None
    ) -> str:
        """See ArchiveStore.create_archive."""

        def write(conn: sa.Connection) -> str:
            def effect() -> list[str]:
                if conn.execute(sa.select(archives.c.id).where(rows.is_archive(organization_id, archive.id))).first():
                    rows.require(conn, organization_id, archive.id)
                else:
                    rows.insert(conn, organization_id, archive)
                for agent_id in agent_ids:
                    rows.attach(conn, organization_id, agent_id, archive.id, archive.created_at)
                return [archive.id]

            return self._requests.once(conn, key, effect)[0][0]

        return await self._database.write(write)

    async def get_archive(self, organization_id: str, archive_id: str) -> Archive:
        """See ArchiveStore.get_archive."""

        def read(conn: sa.Connection) -> Archive:
            row = rows.require(conn, organization_id, archive_id)
            return rows.archive_from_row(
                row, reembedding_rows.progress(conn, organization_id, [archive_id]).get(archive_id)
            )

        return await self._database.read(read)

    async def list_archives(
        self, organization_id: str, filter_: ArchiveFilter, page: PageQuery, by_name: bool
    ) -> Page[Archive]:
        """See ArchiveStore.list_archives."""
        key = archives.c.name if by_name else archives.c.created_at

        def read(conn: sa.Connection) -> Page[Archive]:
            query = sa.select(archives).where(_matches(organization_id, filter_))
            found = paginate(conn, query, page, key=key, id=archives.c.id, scope=rows.live(organization_id))
            reembedding = reembedding_rows.progress(conn, organization_id, [row.id for row in found.items])
            return found.map(lambda row: rows.archive_from_row(row, reembedding.get(row.id)))

        return await self._database.read(read)

    async def count_archives(self, organization_id: str, filter_: ArchiveFilter) -> int:
        """See ArchiveStore.count_archives."""
        query = sa.select(sa.func.count()).select_from(archives).where(_matches(organization_id, filter_))
        return await self._database.read(lambda conn: int(conn.execute(query).scalar_one()))

    async def update_archive(
        self, organization_id: str, archive: Archive, fields: frozenset[str], key: RequestKey | None
    ) -> None:
        """See ArchiveStore.update_archive."""

        def write(conn: sa.Connection) -> None:
            def effect() -> list[str]:
                current = rows.require(conn, organization_id, archive.id)
                values: dict[str, Any] = {name: getattr(archive, name) for name in fields}
                if "name" in values:
                    values["name_folded"] = archive.name.casefold()
                values["updated_at"] = now = self._clock.now()
                if "embedder" in values:
                    values.update(reembedding_rows.change_embedder(conn, organization_id, current, archive, now))
                values["last_updated_by_id"] = archive.provenance.last_updated_by_id
                conn.execute(archives.update().where(rows.is_archive(organization_id, archive.id)).values(**values))
                return [archive.id]

            self._requests.once(conn, key, effect)

        await self._database.write(write)

    async def delete_archive(self, organization_id: str, archive_id: str, key: RequestKey | None) -> None:
        """See ArchiveStore.delete_archive."""

        def write(conn: sa.Connection) -> None:
            def effect() -> list[str]:
                row = conn.execute(sa.select(archives).where(rows.is_archive(organization_id, archive_id))).first()
                if row is None:
                    raise ArchiveNotFound(archive_id)
                if row.deleted_at is None:
                    rows.delete(conn, organization_id, row, self._clock.now())
                return [archive_id]

            self._requests.once(conn, key, effect)

        await self._database.write(write)

    async def attach(self, organization_id: str, agent_id: str, archive_id: str, key: RequestKey | None) -> None:
        """See ArchiveStore.attach."""

        def write(conn: sa.Connection) -> None:
            def effect() -> list[str]:
                rows.require(conn, organization_id, archive_id)
                rows.attach(conn, organization_id, agent_id, archive_id, self._clock.now())
                return []

            self._requests.once(conn, key, effect)

        await self._database.write(write)

    async def detach(self, organization_id: str, agent_id: str, archive_id: str, key: RequestKey | None) -> None:
        """See ArchiveStore.detach."""

        def write(conn: sa.Connection) -> None:
            def effect() -> list[str]:
                rows.require(conn, organization_id, archive_id)
                if not rows.detach(conn, organization_id, agent_id, archive_id, self._clock.now()):
                    raise ArchiveNotFound(archive_id, agent_id)
                return []

            self._requests.once(conn, key, effect)

        await self._database.write(write)

    async def list_agents(self, organization_id: str, archive_id: str, page: PageQuery) -> Page[str]:
        """See ArchiveStore.list_agents."""
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
        """See ArchiveStore.scope."""

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

    async def summary(self, organization_id: str, agent_id: str, if_revision: int | None) -> Summary:
        """See ArchiveStore.summary."""

        def read(conn: sa.Connection) -> Summary:
            agent = conn.execute(
                sa.select(agents).where(agents.c.organization_id == organization_id, agents.c.id == agent_id)
            ).first()
            if agent is None:
                return Summary(revision=0, not_modified=if_revision == 0)
            attached = rows.attached(conn, organization_id, agent_id)
            revision = agent.base_revision + sum(row.revision for row in attached)
            if revision == if_revision:
                return Summary(revision=revision, not_modified=True)
            changes = [agent.changed_at, *(row.changed_at for row in attached if row.changed_at is not None)]
            return Summary(
                revision=revision,
                passage_count=sum(row.passage_count for row in attached),
                tags=_tags(conn, organization_id, [row.id for row in attached]),
                updated_at=max(changes),
            )

        return await self._database.read(read)

    async def erase_agent(
        self, organization_id: str, agent_id: str, erasure: Erasure, key: RequestKey | None
    ) -> ErasedAgent:
        """See ArchiveStore.erase_agent."""

        def write(conn: sa.Connection) -> ErasedAgent:
            def effect() -> list[str]:
                now = self._clock.now()
                rows.raise_revision(conn, organization_id, agent_id, 1, now)
                mine = sa.and_(agents.c.organization_id == organization_id, agents.c.id == agent_id)
                conn.execute(agents.update().where(mine, agents.c.erased_at.is_(None)).values(erased_at=now))
                deleted_passages = deleted_archives = 0
                for row in rows.attached(conn, organization_id, agent_id):
                    rows.detach(conn, organization_id, agent_id, row.id, now)
                    if rows.agents_of(conn, organization_id, row.id):
                        continue
                    if erasure.deletes(rows.archive_from_row(row), agent_id):
                        deleted_passages += row.passage_count
                        deleted_archives += 1
                        rows.delete(conn, organization_id, row, now)
                if erasure.shared_passages:
                    deleted_passages += _delete_written_by(conn, organization_id, agent_id, now)
                return [str(deleted_passages), str(deleted_archives)]

            counts, _ = self._requests.once(conn, key, effect)
            return ErasedAgent(int(counts[0]), int(counts[1]))

        return await self._database.write(write)


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
