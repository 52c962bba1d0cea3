"""The effects of changes of folders and files on the agents that hold them, within the transaction of the change."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa

from mnemesh_files.store.sql.agent_rows import AgentRow
from mnemesh_files.store.sql.tables import agent_files, agent_folders, folders


def forget_files(conn: sa.Connection, organization_id: str, file_ids: list[str]) -> None:
    """Forgets the windows of all agents into files that are deleted."""
    conn.execute(
        agent_files.delete().where(
            agent_files.c.organization_id == organization_id, agent_files.c.file_id.in_(file_ids)
        )
    )


def restart_windows(conn: sa.Connection, organization_id: str, file_id: str, now: datetime) -> None:
    """Moves the windows of all agents into a file to its beginning, because its content was replaced."""
    conn.execute(
        agent_files.update()
        .where(
            agent_files.c.organization_id == organization_id,
            agent_files.c.file_id == file_id,
            agent_files.c.has_window,
        )
        .values(start_line=None, end_line=None, updated_at=now)
    )


def detach_from_all(conn: sa.Connection, organization_id: str, folder_id: str, now: datetime) -> None:
    """Detaches a folder from all agents. It is called before the folder is marked as deleted."""
    held = sa.and_(agent_folders.c.organization_id == organization_id, agent_folders.c.folder_id == folder_id)
    for agent_id in list(conn.execute(sa.select(agent_folders.c.agent_id).where(held)).scalars()):
        detach(AgentRow(conn, organization_id, agent_id), folder_id, now)


def detach(agent: AgentRow, folder_id: str, now: datetime) -> None:
    """Detaches a folder from an agent that holds it. The revision of its directories increases by one."""
    where = sa.and_(folders.c.organization_id == agent.organization_id, folders.c.id == folder_id)
    revision = agent.conn.execute(sa.select(folders.c.revision).where(where)).scalar_one()
    agent.forget_folder(folder_id)
    agent.change(now, by=revision + 1)
    agent.announce(now)


def holds_folder(organization_id: str, agent_id: str) -> sa.Select[tuple[str]]:
    """Returns the ids of the folders that an agent holds, for the conditions of lists."""
    return sa.select(agent_folders.c.folder_id).where(
        agent_folders.c.organization_id == organization_id, agent_folders.c.agent_id == agent_id
    )
