"""The store of what the orchestrator is to be told about agents, in SQL."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa
from mnemesh_kit.clock import Clock
from mnemesh_kit.sql import Database

from mnemesh_files.model.agent_files import Announcement
from mnemesh_files.store.sql.agent_rows import AgentRow
from mnemesh_files.store.sql.tables import agents


class SqlAnnouncementStore:
    """See AnnouncementStore."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def due_announcements(self, limit: int) -> list[Announcement]:
        """See AnnouncementStore.due_announcements."""
        due = sa.select(agents.c.organization_id, agents.c.id).where(agents.c.announce_at <= self._clock.now())

        def read(conn: sa.Connection) -> list[Announcement]:
            found = conn.execute(due.order_by(agents.c.announce_at).limit(limit)).all()
            return [_announcement(conn, row.organization_id, row.id) for row in found]

        return await self._database.read(read)

    async def announcement(self, organization_id: str, agent_id: str) -> Announcement | None:
        """See AnnouncementStore.announcement."""

        def read(conn: sa.Connection) -> Announcement | None:
            agent = AgentRow(conn, organization_id, agent_id)
            if agent.row is None or agent.row.announce_at is None:
                return None
            return _announcement(conn, organization_id, agent_id)

        return await self._database.read(read)

    async def announced(self, announcement: Announcement, *, at: datetime | None) -> None:
        """See AnnouncementStore.announced."""

        def write(conn: sa.Connection) -> None:
            agent = AgentRow(conn, announcement.organization_id, announcement.agent_id)
            if agent.row is None:
                return
            mine = sa.and_(agents.c.organization_id == agent.organization_id, agents.c.id == agent.id)
            if at is None:
                conn.execute(agents.update().where(mine).values(announced=announcement.holds_folders))
                agent.announce(self._clock.now())
            else:
                conn.execute(agents.update().where(mine, agents.c.announce_at.is_not(None)).values(announce_at=at))

        await self._database.write(write)


def _announcement(conn: sa.Connection, organization_id: str, agent_id: str) -> Announcement:
    revision, count, _ = AgentRow(conn, organization_id, agent_id).revision()
    return Announcement(organization_id, agent_id, revision, count > 0)
