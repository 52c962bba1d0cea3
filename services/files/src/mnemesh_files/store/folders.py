"""The store of folders in SQL."""

from datetime import datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa
from mnemesh_kit.idempotency import Ledger, RequestKey
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.sql import Database
from mnemesh_kit.sql.pages import paginate
from mnemesh_kit.time import Clock
from mnemesh_types.files import Folder, FolderFilter

from mnemesh_files.errors import FolderNameTaken, FolderNotFound
from mnemesh_files.model.files import FolderOrder
from mnemesh_files.store import agent_rows, file_rows
from mnemesh_files.store import folder_rows as rows
from mnemesh_files.store.file_rows import RemovalKind
from mnemesh_files.store.tables import files, folders, removals, request_ledger

TOMBSTONE_LIFE: Final = timedelta(days=30)
"""How long the id of a deleted folder or file is known as deleted."""
INTENTION: Final = timedelta(minutes=10)
"""The time in which a folder is created after its archive was. It is longer than any call."""
_ORDERS: Final = {
    FolderOrder.CREATED: folders.c.created_at,
    FolderOrder.UPDATED: folders.c.updated_at,
    FolderOrder.NAME: folders.c.name,
}
_SHOWN: Final = frozenset({"name", "description", "instructions"})
"""The fields that prompts of agents show."""


class FolderStore:
    """Folders. All methods raise FolderNotFound for a folder that does not exist.

    A mutation with an idempotency key that took effect before returns the first result and changes nothing; with other
    content it raises RequestIdReused.
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._requests = Ledger(database, request_ledger, clock)

    async def intend(self, organization_id: str, folder_id: str, draft: Folder, key: RequestKey | None) -> str | None:
        """Records that an archive for a new folder will be created, so that it is removed if the folder never is.

        Returns:
            None; or the id of the folder that an earlier call with the key created.

        Raises:
            FolderNameTaken: another folder has the name.
        """

        def write(conn: sa.Connection) -> str | None:
            created = self._requests.find(conn, key) if key is not None else None
            if created is not None:
                return created[0]
            rows.require_free_name(conn, organization_id, draft.name, folder_id)
            due_at = self._clock.now() + INTENTION
            details = {"name": draft.name, "embedder": draft.embedder}
            file_rows.add(conn, organization_id, RemovalKind.ARCHIVE, folder_id, due_at, **details)
            return None

        return await self._database.write(write)

    async def forget_intention(self, organization_id: str, folder_id: str) -> None:
        """Removes what `intend` recorded: no archive was created."""
        mine = file_rows.is_removal(organization_id, RemovalKind.ARCHIVE, folder_id)
        await self._database.write(lambda conn: conn.execute(removals.delete().where(mine)).rowcount)

    async def create(self, organization_id: str, folder: Folder, key: RequestKey | None) -> str:
        """Creates a folder with its archive. Returns its id. Raises FolderNameTaken.

        If the name is taken, the archive is removed soon.
        """

        def write(conn: sa.Connection) -> str | None:
            now = self._clock.now()

            def effect() -> list[str]:
                mine = file_rows.is_removal(organization_id, RemovalKind.ARCHIVE, folder.id)
                conn.execute(removals.delete().where(mine))
                rows.insert(conn, organization_id, folder)
                return [folder.id]

            known = self._requests.find(conn, key) if key is not None else None
            try:
                if known is None:
                    rows.require_free_name(conn, organization_id, folder.name, folder.id)
            except FolderNameTaken:
                details = {"archive_id": folder.archive_id}
                file_rows.add(conn, organization_id, RemovalKind.ARCHIVE, folder.id, now, **details)
                return None
            return self._requests.once(conn, key, effect)[0][0]

        created = await self._database.write(write)
        if created is None:
            raise FolderNameTaken(folder.name)
        return created

    async def get(self, organization_id: str, folder_id: str) -> Folder:
        return await self._database.read(
            lambda conn: rows.ROWS.from_row(rows.require(conn, organization_id, folder_id))
        )

    async def list_page(
        self, organization_id: str, filter_: FolderFilter, page: PageQuery, order: FolderOrder
    ) -> Page[Folder]:
        """Returns a page of folders; ties by id."""

        def read(conn: sa.Connection) -> Page[Folder]:
            query = sa.select(folders).where(_matches(organization_id, filter_))
            scope = rows.live(organization_id)
            found = paginate(conn, query, page, key=_ORDERS[order], id=folders.c.id, scope=scope)
            return found.map(rows.ROWS.from_row)

        return await self._database.read(read)

    async def count(self, organization_id: str, filter_: FolderFilter) -> int:
        """Returns the number of folders."""
        query = sa.select(sa.func.count()).select_from(folders).where(_matches(organization_id, filter_))
        return await self._database.read(lambda conn: int(conn.execute(query).scalar_one()))

    async def update(
        self,
        organization_id: str,
        folder_id: str,
        values: Folder,
        fields: frozenset[str],
        subject_id: str,
        key: RequestKey | None,
    ) -> None:
        """Sets the named fields to those of `values`. Raises FolderNameTaken."""

        def effect(conn: sa.Connection) -> list[str]:
            rows.require(conn, organization_id, folder_id)
            now = self._clock.now()
            changed: dict[str, Any] = {"updated_at": now, "last_updated_by_id": subject_id}
            for name in fields:
                field = name.removeprefix("provenance.")
                changed[field] = getattr(values if field == name else values.provenance, field)
            if "name" in fields:
                rows.require_free_name(conn, organization_id, values.name, folder_id)
                changed["name_folded"] = values.name.casefold()
            if not _SHOWN.isdisjoint(fields):
                changed |= {"revision": folders.c.revision + 1, "changed_at": now}
            conn.execute(folders.update().where(rows.is_folder(organization_id, folder_id)).values(**changed))
            return [folder_id]

        await self._requests.write_once(key, effect)

    async def delete(self, organization_id: str, folder_id: str, key: RequestKey | None) -> None:
        """Deletes a folder with its files. Deleting it again is not an error.

        One transaction: nothing is visible afterwards. What remains of them elsewhere is recorded as removals.
        """

        def effect(conn: sa.Connection) -> list[str]:
            row = conn.execute(sa.select(folders).where(rows.is_folder(organization_id, folder_id))).first()
            if row is None:
                raise FolderNotFound(folder_id)
            if row.deleted_at is None:
                now = self._clock.now()
                agent_rows.detach_from_all(conn, organization_id, folder_id, now)
                file_rows.bury_all(conn, organization_id, folder_id, now)
                rows.bury(conn, organization_id, folder_id, now)
                details = {"archive_id": row.archive_id}
                file_rows.add(conn, organization_id, RemovalKind.ARCHIVE, folder_id, now, **details)
            return [folder_id]

        await self._requests.write_once(key, effect)

    async def purge_ledger(self) -> int:
        """Deletes expired idempotency keys; returns their number."""
        return await self._database.write(self._requests.purge)

    async def purge_tombstones(self, before: datetime) -> int:
        """Deletes the tombstones of folders and files that were deleted before; returns their number."""

        def write(conn: sa.Connection) -> int:
            # A file whose traces are still being removed is needed for that.
            removed = ~sa.exists().where(
                removals.c.organization_id == files.c.organization_id, removals.c.id == files.c.id
            )
            deleted = conn.execute(files.delete().where(files.c.deleted_at < before, removed)).rowcount
            return deleted + conn.execute(folders.delete().where(folders.c.deleted_at < before)).rowcount

        return await self._database.write(write)


def _matches(organization_id: str, filter_: FolderFilter) -> sa.ColumnElement[bool]:
    conditions = [rows.live(organization_id)]
    if filter_.folder_ids:
        conditions.append(folders.c.id.in_(filter_.folder_ids))
    for name in ("name", "project_id", "template_id"):
        value = getattr(filter_, name)
        if value is not None:
            conditions.append(folders.c[name] == value)
    if filter_.agent_id is not None:
        conditions.append(folders.c.id.in_(agent_rows.holds_folder(organization_id, filter_.agent_id)))
    if filter_.name_search:
        conditions.append(folders.c.name_folded.contains(filter_.name_search.casefold(), autoescape=True))
    return sa.and_(*conditions)
