"""The store of what the orchestrator is to be told about agents, in SQL."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from mnemesh_kit.errors import ResourceExhausted
from mnemesh_kit.idempotency import Ledger, RequestKey
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.sql import Database
from mnemesh_kit.sql.pages import paginate
from mnemesh_kit.sql.prepared import Prepared
from mnemesh_kit.time import Clock
from mnemesh_types.files import FileLimits, Folder

from mnemesh_files.errors import FolderNotHeld
from mnemesh_files.model.agent_files import (
    MAX_AGENT_FOLDERS,
    MAX_LISTED_FILES,
    AgentFileFilter,
    AgentFileOrder,
    Announcement,
    Attachment,
    Directories,
    FileReference,
    FileRequest,
    HeldFile,
    HeldFolder,
    Opening,
)
from mnemesh_files.store import agent_rows
from mnemesh_files.store import agent_rows as rows
from mnemesh_files.store.agent_rows import AgentRow, open_folder, open_windows
from mnemesh_files.store.folder_rows import ROWS as FOLDER_ROWS
from mnemesh_files.store.folder_rows import require as require_folder
from mnemesh_files.store.tables import agent_folders, agents, files, folders, request_ledger

_ORDERS = {AgentFileOrder.ATTACHED: "held_at", AgentFileOrder.USED: "used_at", AgentFileOrder.NAME: "held_name"}
_DUE: Final = Prepared(
    sa.select(agents.c.organization_id, agents.c.id)
    .where(agents.c.announce_at <= sa.bindparam("p_now", type_=agents.c.announce_at.type))
    .order_by(agents.c.announce_at)
    .limit(sa.bindparam("p_limit", type_=sa.Integer))
)
"""Prepared, as it is executed every two seconds."""


class AnnouncementStore:
    """What the orchestrator is to be told about agents: that they hold folders now, or hold none any more."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def due_announcements(self, limit: int) -> list[Announcement]:
        """Returns what the orchestrator is to be told now, oldest first."""
        parameters = {"p_now": self._clock.now(), "p_limit": limit}

        def read(conn: sa.Connection) -> list[Announcement]:
            found = _DUE.all(conn, parameters)
            return [_announcement(conn, row.organization_id, row.id) for row in found]

        return await self._database.read(read)

    async def announcement(self, organization_id: str, agent_id: str) -> Announcement | None:
        """Returns what the orchestrator is to be told about an agent; None if it knows."""

        def read(conn: sa.Connection) -> Announcement | None:
            agent = AgentRow(conn, organization_id, agent_id)
            if agent.row is None or agent.row.announce_at is None:
                return None
            return _announcement(conn, organization_id, agent_id)

        return await self._database.read(read)

    async def record_announcement(self, announcement: Announcement, *, at: datetime | None) -> None:
        """Records that the orchestrator was told, with `at` None, or that it is to be told again then."""

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


class AgentFileStore:
    """The folders of agents and the windows into their files.

    An agent holds every file of its folders, present and future. The revision of its directories increases with every
    change that they show: of the agent, of its folders and of their files. Mutations are atomic, and take effect once
    per key; a repeat returns the first result. Mutations of an agent that was erased raise AgentErased.
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._requests = Ledger(database, request_ledger, clock)

    async def attach(
        self, organization_id: str, agent_id: str, folder_id: str, key: RequestKey | None, *, opens_files: bool
    ) -> Attachment:
        """Attaches a folder, unless it is attached.

        With `opens_files`, its ready files are opened, and from now on each other file in the transaction that makes it
        ready. A file into which the agent has a window is not opened.

        Raises:
            FolderNotFound: the folder does not exist.
            ResourceExhausted: the agent holds as many folders as it can.
        """

        def write(conn: sa.Connection) -> Attachment:
            def effect() -> list[str]:
                now = self._clock.now()
                agent = AgentRow.for_change(conn, organization_id, agent_id, now)
                require_folder(conn, organization_id, folder_id)
                values = {"organization_id": organization_id, "agent_id": agent_id, "folder_id": folder_id}
                if not _is_held(conn, values):
                    _, count, _ = agent.revision()
                    if count >= MAX_AGENT_FOLDERS:
                        raise ResourceExhausted(
                            f"The agent holds {count} folders, which is the limit. Detach one.",
                            limit=str(MAX_AGENT_FOLDERS),
                        )
                    conn.execute(agent_folders.insert().values(**values, attached_at=now))
                    agent.change(now)
                    agent.announce(now)
                if opens_files:
                    open_folder(agent, folder_id, now)
                revision, count, _ = agent.revision()
                return [str(count), str(revision)]

            (count, revision), _ = self._requests.once(conn, key, effect)
            folder = FOLDER_ROWS.from_row(require_folder(conn, organization_id, folder_id))
            return Attachment(folder, int(count), int(revision))

        return await self._database.write(write)

    async def detach(self, organization_id: str, agent_id: str, folder_id: str, key: RequestKey | None) -> Attachment:
        """Detaches a folder, and forgets the windows into its files. Raises FolderNotHeld."""

        def write(conn: sa.Connection) -> Attachment:
            def effect() -> list[str]:
                now = self._clock.now()
                agent = AgentRow.for_change(conn, organization_id, agent_id, now)
                values = {"organization_id": organization_id, "agent_id": agent_id, "folder_id": folder_id}
                if not _is_held(conn, values):
                    raise FolderNotHeld(folder_id, agent_id)
                agent_rows.detach(agent, folder_id, now)
                revision, count, _ = agent.revision()
                return [str(count), str(revision)]

            (count, revision), _ = self._requests.once(conn, key, effect)
            return Attachment(None, int(count), int(revision))

        return await self._database.write(write)

    async def list_folders(
        self, organization_id: str, agent_id: str, page: PageQuery, *, by_name: bool
    ) -> Page[Folder]:
        """Returns a page of the folders of an agent, by time of attachment or by name."""
        held = rows.FOLDERS.params(org=organization_id, agent=agent_id).subquery()
        key = held.c.name if by_name else held.c.attached_at

        def read(conn: sa.Connection) -> Page[Folder]:
            found = paginate(conn, sa.select(held), page, key=key, id=held.c.id, scope=sa.true())
            return found.map(FOLDER_ROWS.from_row)

        return await self._database.read(read)

    async def list_files(
        self, organization_id: str, agent_id: str, filter_: AgentFileFilter, page: PageQuery, order: AgentFileOrder
    ) -> Page[HeldFile]:
        """Returns a page of the files of an agent. Files that were never used come last in the order of use."""
        held = rows.HELD.params(org=organization_id, agent=agent_id).subquery()
        query = sa.select(held)
        if filter_.folder_id is not None:
            query = query.where(held.c.folder_id == filter_.folder_id)
        if filter_.is_open is not None:
            query = query.where(held.c.is_open if filter_.is_open else ~sa.func.coalesce(held.c.is_open, sa.false()))

        def read(conn: sa.Connection) -> Page[HeldFile]:
            key = held.c[_ORDERS[order]]
            return paginate(conn, query, page, key=key, id=held.c.id, scope=sa.true()).map(rows.held_file)

        return await self._database.read(read)

    async def list_all(self, organization_id: str, agent_id: str) -> list[HeldFile]:
        """Returns all files of an agent, by name."""
        return await self._database.read(lambda conn: AgentRow(conn, organization_id, agent_id).all_files())

    async def find_held(self, organization_id: str, agent_id: str, file_ids: Sequence[str]) -> dict[str, HeldFile]:
        """Returns those of the files that the agent holds, by id."""
        return await self._database.read(lambda conn: AgentRow(conn, organization_id, agent_id).held(file_ids))

    async def archives(self, organization_id: str, agent_id: str, folder_ids: Collection[str]) -> list[str]:
        """Returns the ids of the archives of those of the folders that the agent holds."""

        def read(conn: sa.Connection) -> list[str]:
            held = _attached(AgentRow(conn, organization_id, agent_id))
            return [row.archive_id for row in held if row.id in folder_ids]

        return await self._database.read(read)

    async def open_files(
        self,
        organization_id: str,
        agent_id: str,
        requests: Sequence[FileRequest],
        key: RequestKey | None,
        *,
        close_others: bool,
    ) -> Opening:
        """Opens windows, all or none, and closes other files: all, or the least recently used beyond the limit.

        Raises:
            InvalidArgument: there are no requests, more than the limit, two for one file, or an invalid window.
            FileNotHeld: the agent does not hold a file, or several have the name.
            FileNotParsed: a file cannot be opened yet.
        """

        def effect(conn: sa.Connection) -> list[str]:
            now = self._clock.now()
            agent = AgentRow.for_change(conn, organization_id, agent_id, now)
            return [msgspec.json.encode(open_windows(agent, requests, now, close_others=close_others)).decode()]

        return await self._requests.write_and_read(
            key, effect, lambda _, ids: msgspec.json.decode(ids[0], type=Opening)
        )

    async def close_files(
        self, organization_id: str, agent_id: str, files: Sequence[FileReference] | None, key: RequestKey | None
    ) -> tuple[tuple[str, ...], int]:
        """Closes files; None closes all. Returns the names of those that were open, and the revision.

        Raises:
            FileNotHeld: the agent does not hold a file, or several have the name.
        """

        def write(conn: sa.Connection) -> tuple[tuple[str, ...], int]:
            def effect() -> list[str]:
                now = self._clock.now()
                agent = AgentRow.for_change(conn, organization_id, agent_id, now)
                held = agent.open_files() if files is None else agent.find(files, "files")
                closed = list({file.file_id: file for file in held if file.is_open}.values())
                if closed:
                    agent.close(closed, now)
                    agent.change(now)
                return [str(agent.revision()[0]), *(file.name for file in closed)]

            (revision, *names), _ = self._requests.once(conn, key, effect)
            return tuple(names), int(revision)

        return await self._database.write(write)

    async def use(self, organization_id: str, agent_id: str, file_ids: Sequence[str]) -> None:
        """Records that files were used, the last one most recently. Files that the agent does not hold are ignored."""

        def write(conn: sa.Connection) -> None:
            agent = AgentRow(conn, organization_id, agent_id)
            if agent.row is not None and agent.row.erased_at is None:
                held = agent.held(file_ids)
                agent.use([held[file_id] for file_id in file_ids if file_id in held], self._clock.now())

        await self._database.write(write)

    async def set_limits(
        self, organization_id: str, agent_id: str, limits: FileLimits | None, key: RequestKey | None
    ) -> tuple[FileLimits, tuple[str, ...], int]:
        """Sets or removes the limits of an agent.

        Returns the limits in effect, the names of the files that were closed, and the revision.
        """

        def write(conn: sa.Connection) -> tuple[FileLimits, tuple[str, ...], int]:
            def effect() -> list[str]:
                now = self._clock.now()
                agent = AgentRow.for_change(conn, organization_id, agent_id, now)
                agent.change(
                    now,
                    max_files_open=limits.max_files_open if limits else None,
                    view_char_limit=limits.per_file_view_window_char_limit if limits else None,
                )
                changed = AgentRow(conn, organization_id, agent_id)
                evicted = changed.evict(changed.limits.max_files_open, now)
                shown = (changed.limits.max_files_open, changed.limits.per_file_view_window_char_limit)
                return [*map(str, (*shown, changed.revision()[0])), *evicted]

            (most, characters, revision, *evicted), _ = self._requests.once(conn, key, effect)
            return FileLimits(int(most), int(characters)), tuple(evicted), int(revision)

        return await self._database.write(write)

    async def limits(self, organization_id: str, agent_id: str) -> FileLimits:
        """Returns the limits in effect."""
        return await self._database.read(lambda conn: AgentRow(conn, organization_id, agent_id).limits)

    async def directories(
        self, organization_id: str, agent_id: str, if_revision: int | None = None
    ) -> Directories | None:
        """Returns the folders and files of an agent as one consistent read; None at `if_revision`."""

        def read(conn: sa.Connection) -> Directories | None:
            if if_revision is not None and rows.revision_of(conn, organization_id, agent_id) == if_revision:
                return None
            agent = AgentRow(conn, organization_id, agent_id)
            revision, _, changed_at = agent.revision()
            opened = agent.open_files()
            return Directories(
                agent_id,
                revision,
                tuple(_held_folder(agent, row, opened) for row in _attached(agent)),
                agent.limits,
                len(opened),
                changed_at,
            )

        return await self._database.read(read)

    async def holders(self, organization_id: str, folder_id: str, page: PageQuery) -> Page[str]:
        """Returns a page of the ids of the agents that hold a folder. Raises FolderNotFound."""
        held = sa.and_(agent_folders.c.organization_id == organization_id, agent_folders.c.folder_id == folder_id)

        def read(conn: sa.Connection) -> Page[str]:
            require_folder(conn, organization_id, folder_id)
            agent_id = agent_folders.c.agent_id
            found = paginate(conn, sa.select(agent_id).where(held), page, key=agent_id, id=agent_id, scope=held)
            return found.map(lambda row: str(row.agent_id))

        return await self._database.read(read)

    async def erase(self, organization_id: str, agent_id: str, key: RequestKey | None) -> tuple[int, int]:
        """Writes a tombstone, and detaches all folders. Returns the numbers of folders and files."""

        def write(conn: sa.Connection) -> tuple[int, int]:
            def effect() -> list[str]:
                now = self._clock.now()
                agent = AgentRow.created(conn, organization_id, agent_id, now)
                held = _attached(agent)
                for row in held:
                    agent_rows.detach(agent, row.id, now)
                mine = sa.and_(agents.c.organization_id == organization_id, agents.c.id == agent_id)
                conn.execute(agents.update().where(mine).values(announce_at=None))
                conn.execute(agents.update().where(mine, agents.c.erased_at.is_(None)).values(erased_at=now))
                return [str(len(held)), str(sum(row.file_count for row in held))]

            (held, held_files), _ = self._requests.once(conn, key, effect)
            return int(held), int(held_files)

        return await self._database.write(write)


def _attached(agent: AgentRow) -> Sequence[sa.Row[Any]]:
    query = rows.FOLDERS.order_by(agent_folders.c.attached_at, folders.c.id)
    return agent.conn.execute(query, agent.parameters).all()


def _held_folder(agent: AgentRow, row: sa.Row[Any], opened: Sequence[HeldFile]) -> HeldFolder:
    query = rows.HELD.where(files.c.folder_id == row.id).order_by(files.c.name).limit(MAX_LISTED_FILES)
    listed = {each.id: rows.held_file(each) for each in agent.conn.execute(query, agent.parameters)}
    listed |= {file.file_id: file for file in opened if file.folder_id == row.id}
    return HeldFolder(FOLDER_ROWS.from_row(row), tuple(sorted(listed.values(), key=lambda file: file.name)))


def _is_held(conn: sa.Connection, values: dict[str, str]) -> bool:
    condition = sa.and_(*(agent_folders.c[name] == value for name, value in values.items()))
    return conn.execute(sa.select(sa.literal(1)).select_from(agent_folders).where(condition)).first() is not None
