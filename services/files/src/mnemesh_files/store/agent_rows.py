"""The rows of agents' files: which agents hold a file, which files are open, and their windows."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from mnemesh_types.files import FileLimits, FileStatus

from mnemesh_files.errors import AgentErased, FileNotHeld, FileNotParsed
from mnemesh_files.model.agent_files import (
    DEFAULT_LIMITS,
    FileReference,
    FileRequest,
    HeldFile,
    OpenedFile,
    Opening,
    Window,
    least_recent,
    require_distinct,
    require_in_file,
    require_requests,
    without_folder,
)
from mnemesh_files.store.tables import agent_files, agent_folders, agents, files, folders

_f, _d, _a, _w = files.c, folders.c, agent_folders.c, agent_files.c

NAME: Final = (_d.name + "/" + _f.name).label("held_name")
ATTACHED_AT: Final = sa.case((_f.created_at > _a.attached_at, _f.created_at), else_=_a.attached_at).label("held_at")
# An expression, because the column has NULL in the outer join although it has none in its table.
USED_AT: Final = sa.case((_w.used > 0, _w.used_at)).label("used_at")
_CHUNK: Final = 500
"""The number of values in one statement."""
_HOLDS: Final = sa.and_(_a.organization_id == _d.organization_id, _a.folder_id == _d.id, _d.deleted_at.is_(None))
_WINDOW: Final = sa.and_(_w.organization_id == _f.organization_id, _w.agent_id == _a.agent_id, _w.file_id == _f.id)
_COLUMNS: Final = (
    *(_f.id, _f.folder_id, NAME, _f.status, _f.media_type, _f.text_id, _f.kind, _f.total_lines, _f.total_chars),
    *(_f.size_bytes, _f.searchable, _f.page_starts, ATTACHED_AT, _a.agent_id),
    *(_w.is_open, _w.has_window, _w.start_line, _w.end_line, _w.used, USED_AT, _w.updated_at),
)
_TABLES: Final = (
    agent_folders.join(folders, _HOLDS)
    .join(
        files,
        sa.and_(_f.organization_id == _d.organization_id, _f.folder_id == _d.id, _f.deleted_at.is_(None)),
    )
    .outerjoin(agent_files, _WINDOW)
)
_MINE: Final = sa.and_(_a.organization_id == sa.bindparam("org"), _a.agent_id == sa.bindparam("agent"))
# Without this condition SQLite reads the files of the whole organization first.
_HELD_FOLDERS: Final = (
    sa.select(_a.folder_id)
    .where(_a.organization_id == sa.bindparam("org"), _a.agent_id == sa.bindparam("agent"))
    .correlate(None)
)
HELD: Final = sa.select(*_COLUMNS).select_from(_TABLES).where(_MINE, _f.folder_id.in_(_HELD_FOLDERS))
"""The files of an agent; parameters `org` and `agent`."""
FOLDERS: Final = sa.select(folders, _a.attached_at).select_from(agent_folders.join(folders, _HOLDS)).where(_MINE)
"""The folders of an agent; parameters `org` and `agent`."""
_OPEN: Final = HELD.where(_w.is_open)
_AGENT: Final = sa.select(agents).where(
    agents.c.organization_id == sa.bindparam("org"), agents.c.id == sa.bindparam("agent")
)
_FOLDER_SUMS: Final = (
    sa.select(
        sa.func.coalesce(sa.func.sum(_d.revision), 0).label("revision"),
        sa.func.count().label("folders"),
        sa.func.max(_d.changed_at).label("changed_at"),
    )
    .select_from(agent_folders.join(folders, _HOLDS))
    .where(_MINE)
)
# Most reads find the revision that the caller knows: they need this statement alone.
_REVISION: Final = sa.select(
    agents.c.base_revision
    + sa.select(sa.func.coalesce(sa.func.sum(_d.revision), 0))
    .select_from(agent_folders.join(folders, _HOLDS))
    .where(_MINE)
    .scalar_subquery()
).where(agents.c.organization_id == sa.bindparam("org"), agents.c.id == sa.bindparam("agent"))
_NEW_AGENT: Final = sa.text(
    "INSERT INTO agents (organization_id, id, base_revision, changed_at, uses, announced)"
    " VALUES (:org, :agent, 0, :now, 0, :announced) ON CONFLICT (organization_id, id) DO NOTHING"
).bindparams(sa.bindparam("now", type_=agents.c.changed_at.type), sa.bindparam("announced", type_=sa.Boolean))


def revision_of(conn: sa.Connection, organization_id: str, agent_id: str) -> int:
    """Returns the revision of an agent's directories; 0 for an agent that never held a folder."""
    return int(conn.execute(_REVISION, {"org": organization_id, "agent": agent_id}).scalar() or 0)


class AgentRow:
    """The row of an agent within a transaction, with what its folders add to it."""

    def __init__(self, conn: sa.Connection, organization_id: str, agent_id: str) -> None:
        """Reads the row. `row` is None for an agent that never held a folder."""
        self.conn = conn
        self.organization_id = organization_id
        self.id = agent_id
        self.parameters = {"org": organization_id, "agent": agent_id}
        self._is_mine = sa.and_(agents.c.organization_id == organization_id, agents.c.id == agent_id)
        self.row = conn.execute(_AGENT, self.parameters).first()

    @classmethod
    def for_change(cls, conn: sa.Connection, organization_id: str, agent_id: str, now: datetime) -> "AgentRow":
        """Returns the row of an agent that is about to change, and creates it if needed. Raises AgentErased."""
        agent = cls.created(conn, organization_id, agent_id, now)
        if agent.row is not None and agent.row.erased_at is not None:
            raise AgentErased(agent_id)
        return agent

    @classmethod
    def created(cls, conn: sa.Connection, organization_id: str, agent_id: str, now: datetime) -> "AgentRow":
        """Returns the row of an agent, which is created if needed. The agent may be erased."""
        conn.execute(_NEW_AGENT, {"org": organization_id, "agent": agent_id, "now": now, "announced": False})
        return cls(conn, organization_id, agent_id)

    @property
    def limits(self) -> FileLimits:
        """The limits in effect."""
        if self.row is None or self.row.max_files_open is None:
            return DEFAULT_LIMITS
        return FileLimits(self.row.max_files_open, self.row.view_char_limit)

    def revision(self) -> tuple[int, int, datetime | None]:
        """Returns the revision of the directories, the number of folders, and the time of the last change."""
        if self.row is None:
            return 0, 0, None
        sums = self.conn.execute(_FOLDER_SUMS, self.parameters).one()
        row = self.conn.execute(_AGENT, self.parameters).one()
        changed_at = row.changed_at if sums.changed_at is None else max(row.changed_at, sums.changed_at)
        return row.base_revision + int(sums.revision), int(sums.folders), changed_at

    def change(self, now: datetime, by: int = 1, **values: Any) -> None:
        """Raises the agent's own part of the revision, and writes values of its row."""
        raised = {"base_revision": agents.c.base_revision + by, "changed_at": now, **values}
        self.conn.execute(agents.update().where(self._is_mine).values(raised))

    def announce(self, now: datetime) -> None:
        """Decides whether the orchestrator is to be told that the agent holds folders, or that it holds none."""
        _, count, _ = self.revision()
        row = self.conn.execute(_AGENT, self.parameters).one()
        due = now if (count > 0) != row.announced else None
        values = {"announce_at": due}
        self.conn.execute(agents.update().where(self._is_mine).values(values))

    def all_files(self) -> list[HeldFile]:
        """Returns all files of the agent, by name."""
        query = HELD.order_by(_d.name, _f.name)
        return [held_file(row) for row in self.conn.execute(query, self.parameters)]

    def held(self, file_ids: Sequence[str]) -> dict[str, HeldFile]:
        """Returns those of the files that the agent holds, by id."""
        found: dict[str, HeldFile] = {}
        for start in range(0, len(file_ids), _CHUNK):
            query = HELD.where(_f.id.in_(file_ids[start : start + _CHUNK]))
            found |= {row.id: held_file(row) for row in self.conn.execute(query, self.parameters)}
        return found

    def open_files(self) -> list[HeldFile]:
        return [held_file(row) for row in self.conn.execute(_OPEN, self.parameters)]

    def unopened(self, folder_id: str, limit: int) -> list[HeldFile]:
        """Returns the first ready files of a folder, by name, into which the agent has no window."""
        is_ready = sa.or_(_f.text_id.is_not(None), _f.status == FileStatus.COMPLETED)
        has_window = sa.func.coalesce(_w.has_window, sa.false())
        query = HELD.where(_f.folder_id == folder_id, is_ready, ~has_window).order_by(_f.name).limit(limit)
        found = [held_file(row) for row in self.conn.execute(query, self.parameters)]
        return [file for file in found if file.is_ready]

    def find(self, references: Sequence[FileReference], field: str) -> list[HeldFile]:
        """Returns the files of references. Raises FileNotHeld."""
        return [self._find(reference, f"{field}[{index}]") for index, reference in enumerate(references)]

    def _find(self, reference: FileReference, field: str) -> HeldFile:
        if reference.file_id is not None:
            query = HELD.where(_f.id == reference.file_id)
        else:
            name = reference.name or ""
            folder, _, rest = name.partition("/")
            named = sa.and_(_d.name == folder, _f.name == rest) if rest else _f.name == name
            query = HELD.where(named)
        found = self.conn.execute(query.limit(2), self.parameters).all()
        if len(found) == 1:
            return held_file(found[0])
        names = [file.name for file in self.all_files()]
        if found:
            names = [name for name in names if without_folder(name) == reference.name]
        raise FileNotHeld(reference.shown, field, names)

    def use(self, held: Sequence[HeldFile], now: datetime) -> None:
        """Records that files were used, the last one most recently."""
        first = self.conn.execute(_AGENT, self.parameters).one().uses
        self.conn.execute(agents.update().where(self._is_mine).values(uses=first + len(held)))
        for number, file in enumerate(held, first + 1):
            self.write_window(file, now, used=number, used_at=now)

    def close(self, held: Sequence[HeldFile], now: datetime) -> None:
        for file in held:
            self.write_window(file, now, is_open=False)

    def evict(self, keep: int, now: datetime, besides: Sequence[str] = ()) -> tuple[str, ...]:
        """Closes the least recently used of the open files so that `keep` stay open. Returns their names.

        Files of `besides` are neither counted nor closed.
        """
        closed = least_recent([file for file in self.open_files() if file.file_id not in besides], keep)
        self.close(closed, now)
        return tuple(file.name for file in closed)

    def write_window(self, file: HeldFile, now: datetime, **values: Any) -> None:
        """Writes values of the row of a file that the agent holds, and creates it if needed."""
        mine = sa.and_(_w.organization_id == self.organization_id, _w.agent_id == self.id, _w.file_id == file.file_id)
        changed = self.conn.execute(agent_files.update().where(mine).values(updated_at=now, **values))
        if changed.rowcount:
            return
        new = {"is_open": False, "has_window": False, "used": 0, "used_at": now, "updated_at": now, **values}
        self.conn.execute(
            agent_files.insert().values(
                organization_id=self.organization_id,
                agent_id=self.id,
                file_id=file.file_id,
                folder_id=file.folder_id,
                **new,
            )
        )

    def forget_folder(self, folder_id: str) -> None:
        """Detaches a folder and forgets the windows into its files."""
        for table in (agent_folders, agent_files):
            column = table.c
            self.conn.execute(
                table.delete().where(
                    column.organization_id == self.organization_id,
                    column.agent_id == self.id,
                    column.folder_id == folder_id,
                )
            )


def held_file(row: Any) -> HeldFile:
    """Returns the file of a row of `HELD`."""
    return HeldFile(
        agent_id=row.agent_id,
        file_id=row.id,
        folder_id=row.folder_id,
        name=row.held_name,
        status=FileStatus(row.status),
        media_type=row.media_type,
        text_id=row.text_id,
        kind=row.kind,
        total_lines=row.total_lines or 0,
        total_chars=row.total_chars or 0,
        size_bytes=row.size_bytes,
        is_searchable=row.searchable,
        page_starts=msgspec.json.decode(row.page_starts, type=tuple[int, ...]) if row.page_starts else (),
        attached_at=row.held_at,
        is_open=bool(row.is_open),
        window=Window(row.start_line, row.end_line) if row.has_window else None,
        used=row.used or 0,
        used_at=row.used_at if row.used else None,
        updated_at=row.updated_at,
    )


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
