"""Opens windows into the files of agents, and closes files beyond their limits."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import sqlalchemy as sa

from mnemesh_files.errors import FileNotParsed
from mnemesh_files.model.agent_files import (
    FileRequest,
    HeldFile,
    OpenedFile,
    Opening,
    require_distinct,
    require_requests,
)
from mnemesh_files.model.windows import require_in_file
from mnemesh_files.store.sql.agent_rows import AgentRow
from mnemesh_files.store.sql.tables import agent_folders


def open_windows(agent: AgentRow, requests: Sequence[FileRequest], now: datetime, *, close_others: bool) -> Opening:
    """Opens windows, all or none, within a transaction. See AgentFileStore.open_files."""
    limit = agent.limits.max_files_open
    windows = require_requests(requests, limit)
    held = agent.find([request.file for request in requests], "files")
    require_distinct([file.file_id for file in held])
    opened = []
    for index, (file, window) in enumerate(zip(held, windows, strict=True)):
        if not file.is_ready:
            raise FileNotParsed(file.name, file.status.name)
        require_in_file(window, file.total_lines, file.name, f"files[{index}]")
        opened.append(OpenedFile(file.file_id, window, file.window if file.is_open else None))
    ids = [file.file_id for file in held]
    others = sorted((file for file in agent.open_files() if file.file_id not in ids), key=lambda file: file.used)
    closed_others: tuple[str, ...] = ()
    if close_others:
        agent.close(others, now)
        closed_others = tuple(file.name for file in others)
    evicted = agent.evict(limit - len(held), now, besides=ids)
    agent.use(held, now)
    for file, each in zip(held, opened, strict=True):
        start, end = each.window.start_line, each.window.end_line
        agent.write_window(file, now, is_open=True, has_window=True, start_line=start, end_line=end)
    agent.change(now)
    return Opening(tuple(opened), closed_others, evicted, agent.revision()[0])


def open_folder(agent: AgentRow, folder_id: str, now: datetime) -> None:
    """Makes the attachment of a folder open files, and opens its ready ones. A repeat changes nothing."""
    attachment = sa.and_(
        agent_folders.c.organization_id == agent.organization_id,
        agent_folders.c.agent_id == agent.id,
        agent_folders.c.folder_id == folder_id,
        ~agent_folders.c.opens_files,
    )
    if agent.conn.execute(agent_folders.update().where(attachment).values(opens_files=True)).rowcount:
        _open_whole(agent, agent.unopened(folder_id, agent.limits.max_files_open), now)


def open_ready_file(conn: sa.Connection, organization_id: str, folder_id: str, file_id: str, now: datetime) -> None:
    """Opens a file for the agents whose attachment opens files. It is called when the file becomes ready.

    An agent that had a window into the file keeps it, open or closed.
    """
    attached = (
        sa.select(agent_folders.c.agent_id)
        .where(
            agent_folders.c.organization_id == organization_id,
            agent_folders.c.folder_id == folder_id,
            agent_folders.c.opens_files,
        )
        .order_by(agent_folders.c.agent_id)
    )
    for agent_id in list(conn.execute(attached).scalars()):
        agent = AgentRow(conn, organization_id, agent_id)
        file = agent.held([file_id])[file_id]
        if file.window is None:
            _open_whole(agent, [file], now)


def _open_whole(agent: AgentRow, files: Sequence[HeldFile], now: datetime) -> None:
    """Opens files that were never opened, at most the limit."""
    if not files:
        return
    agent.evict(agent.limits.max_files_open - len(files), now, besides=[file.file_id for file in files])
    agent.use(files, now)
    for file in files:
        agent.write_window(file, now, is_open=True, has_window=True, start_line=None, end_line=None)
    agent.change(now)
