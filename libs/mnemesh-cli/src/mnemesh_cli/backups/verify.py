"""Verifies a mesh or a backup: what rows of services refer to exists, contents are whole, and counts are equal."""

import asyncio
import hashlib
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa
from mnemesh_cli.backups.archive import (
    Manifest,
    Sum,
    lines_of,
    listed_contents,
    part_name,
    read_content,
    read_part,
    row_decoder,
)
from mnemesh_cli.backups.backup import Content, contents_of
from mnemesh_cli.backups.places import BackupError, Place
from mnemesh_cli.backups.stores import MeshStores, ServiceStore
from mnemesh_kit.sql.snapshots import connect, snapshots

LAG: Final = timedelta(minutes=10)
"""The age of the oldest change that an index lacks, from which on that is a finding."""
_SHOWN: Final = 3
_CONTENTS: Final = "contents"
_COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "orchestrator.agents": ("id", "state"),
    "orchestrator.conversations": ("id", "agent_id", "state"),
    "orchestrator.approvals": ("id", "run_id", "state"),
    "orchestrator.runs": ("id",),
    "recall.agents": ("agent_id",),
    "recall.contexts": ("conversation_id", "agent_id", "system_message_id"),
    "recall.context_entries": ("conversation_id", "message_id"),
    "recall.messages": ("id", "agent_id"),
    "blocks.blocks": ("id",),
    "blocks.holdings": ("agent_id", "block_id"),
    "blocks.core_memories": ("agent_id",),
    "archival.archives": ("id",),
    "archival.archive_agents": ("archive_id",),
    "archival.passages": ("archive_id", "deleted_at"),
    "files.folders": ("id",),
    "files.files": ("id", "folder_id", "blob_id", "deleted_at"),
    "files.agent_folders": ("folder_id",),
    "files.upload_parts": ("blob_id",),
    "files.blobs": ("id",),
}
"""The columns that the checks read, by service and table."""
CHECKS: Final[Mapping[str, str]] = {
    "the active agent {} is unknown to recall": """
        SELECT id FROM "orchestrator.agents" WHERE state = 'active'
        AND id NOT IN (SELECT agent_id FROM "recall.agents")""",
    "the conversation {} has no context window": """
        SELECT id FROM "orchestrator.conversations" WHERE state = 'active'
        AND agent_id IN (SELECT id FROM "orchestrator.agents" WHERE state = 'active')
        AND id NOT IN (SELECT conversation_id FROM "recall.contexts")""",
    "the pending approval {} has no run": """
        SELECT id FROM "orchestrator.approvals" WHERE state = 'pending'
        AND run_id NOT IN (SELECT id FROM "orchestrator.runs")""",
    "the context window of {} has no system message": """
        SELECT conversation_id FROM "recall.contexts"
        WHERE system_message_id NOT IN (SELECT id FROM "recall.messages")""",
    "the context window of {} is of an unknown agent": """
        SELECT conversation_id FROM "recall.contexts" WHERE agent_id NOT IN (SELECT agent_id FROM "recall.agents")""",
    "the message {} of a context window does not exist": """
        SELECT message_id FROM "recall.context_entries" WHERE message_id NOT IN (SELECT id FROM "recall.messages")""",
    "messages are in the context window of {}, which does not exist": """
        SELECT DISTINCT conversation_id FROM "recall.context_entries"
        WHERE conversation_id NOT IN (SELECT conversation_id FROM "recall.contexts")""",
    "the message {} is of an unknown agent": """
        SELECT id FROM "recall.messages" WHERE agent_id NOT IN (SELECT agent_id FROM "recall.agents")""",
    "the block {} of an agent does not exist": """
        SELECT DISTINCT block_id FROM "blocks.holdings" WHERE block_id NOT IN (SELECT id FROM "blocks.blocks")""",
    "{} holds blocks and has no core memory": """
        SELECT DISTINCT agent_id FROM "blocks.holdings"
        WHERE agent_id NOT IN (SELECT agent_id FROM "blocks.core_memories")""",
    "the archive {} of an agent does not exist": """
        SELECT DISTINCT archive_id FROM "archival.archive_agents"
        WHERE archive_id NOT IN (SELECT id FROM "archival.archives")""",
    "passages are in the archive {}, which does not exist": """
        SELECT DISTINCT archive_id FROM "archival.passages" WHERE deleted_at IS NULL
        AND archive_id NOT IN (SELECT id FROM "archival.archives")""",
    "files are in the folder {}, which does not exist": """
        SELECT DISTINCT folder_id FROM "files.files" WHERE deleted_at IS NULL
        AND folder_id NOT IN (SELECT id FROM "files.folders")""",
    "the folder {} of an agent does not exist": """
        SELECT DISTINCT folder_id FROM "files.agent_folders" WHERE folder_id NOT IN (SELECT id FROM "files.folders")""",
    "the content of the file {} does not exist": """
        SELECT id FROM "files.files" WHERE deleted_at IS NULL AND blob_id IS NOT NULL
        AND (blob_id NOT IN (SELECT id FROM "files.blobs") OR blob_id NOT IN (SELECT id FROM contents))""",
    "the content {} of an upload does not exist": """
        SELECT blob_id FROM "files.upload_parts" WHERE blob_id NOT IN (SELECT id FROM contents)""",
}
"""For each kind of finding, the query for those that it concerns."""


class _Checked:
    """The columns of a mesh or a backup, in a temporary database on the disk, and what is wrong with them."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        connection.execute(f"CREATE TABLE {_CONTENTS} (id)")
        for name, columns in _COLUMNS.items():
            connection.execute(f'CREATE TABLE "{name}" ({", ".join(columns)})')
        self.findings: list[str] = []

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Makes a finding of what is damaged in a backup."""
        try:
            yield
        except BackupError as error:
            self.findings.append(str(error))

    def add_content(self, content_id: str) -> None:
        """Adds a content that exists and is whole."""
        self._connection.execute(f"INSERT INTO {_CONTENTS} VALUES (?)", (content_id,))  # noqa: S608  (our names)

    def read(self, store: ServiceStore, table: sa.Table, lines: Iterable[bytes]) -> None:
        """Reads the rows of a table as lines, to their end."""
        name = f"{store.name}.{table.name}"
        columns = [table.columns.keys().index(column) for column in _COLUMNS.get(name, ())]
        rows = (tuple(_plain(values[at]) for at in columns) for values in map(row_decoder(table), lines))
        if columns:
            places = ", ".join("?" * len(columns))
            self._connection.executemany(f'INSERT INTO "{name}" VALUES ({places})', rows)  # noqa: S608
        else:
            for _ in rows:  # every line can be decoded
                pass

    def check(self) -> None:
        """Adds a finding for each kind and subject, and the number of those that are not shown."""
        for text, query in CHECKS.items():
            found = [str(value) for (value,) in self._connection.execute(query)]
            self.findings += [text.format(value) for value in found[:_SHOWN]]
            if len(found) > _SHOWN:
                self.findings.append(f"{text.format('…')}: {len(found) - _SHOWN:,} more")


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, datetime) else value


def verify_backup(stores: MeshStores, place: Place, manifest: Manifest) -> list[str]:
    """Reads a whole backup of a mesh with the tables of `stores`. Returns a line for each finding."""
    with closing(sqlite3.connect("")) as connection:
        checked = _Checked(connection)
        with checked.noting():
            for content_id, size, sha256 in listed_contents(place, manifest):
                with checked.noting():
                    for _ in read_content(place, content_id, size, sha256):
                        pass
                    checked.add_content(content_id)
        for name, store in stores.services.items():
            for table in store.tables:
                part = manifest.services[name].tables[table.name]
                with checked.noting():
                    checked.read(store, table, read_part(place, part_name(manifest.id, name, table.name), part))
        checked.check()
        return checked.findings


def verify_mesh(stores: MeshStores, backup: Manifest | None = None) -> list[str]:
    """Reads a whole mesh at one instant; it may run. Returns a line for each finding.

    Args:
        stores: the mesh.
        backup: a backup whose rows the mesh should have. Rows that were stored since are findings.
    """
    held = {name: [table.name for table in store.tables] for name, store in stores.services.items()}
    with snapshots(stores.urls, held) as connections, closing(sqlite3.connect("")) as connection:
        checked = _Checked(connection)
        asyncio.run(_read_contents(stores, contents_of(stores, connections["files"]), checked))
        for name, store in stores.services.items():
            for table in store.tables:
                total = Sum()
                checked.read(store, table, total.counted(lines_of(connections[name], table)))
                part = None if backup is None else backup.services[name].tables[table.name]
                if part is not None and (part.rows, part.sum) != (total.rows, str(total)):
                    checked.findings.append(
                        f"{name}.{table.name} differs from the backup: {total.rows:,} rows, and {part.rows:,} there"
                    )
            checked.findings += _lag(store, connections[name])
        checked.check()
        return checked.findings


async def _read_contents(stores: MeshStores, contents: Iterable[Content], checked: _Checked) -> None:
    missing = set[str]()
    async with stores.contents() as source:
        for content in contents:
            hashed = hashlib.sha256()
            try:
                async for piece in source.read(content.id):
                    hashed.update(piece)
            except stores.content_missing:
                missing.add(content.id)
                continue
            if content.sha256 in ("", hashed.hexdigest()):
                checked.add_content(content.id)
            else:
                checked.findings.append(f"the content {content.id} is damaged")
    if missing:  # a file may have been deleted since the watermark: its content is not a finding
        with connect(stores.urls["files"]) as connection:
            for content_id in missing - {content.id for content in contents_of(stores, connection)}:
                checked.add_content(content_id)


def _lag(store: ServiceStore, connection: sa.Connection) -> list[str]:
    table = store.metadata.tables.get("index_outbox")
    if table is None:
        return []
    count, oldest = connection.execute(sa.select(sa.func.count(), sa.func.min(table.c.created_at))).one()
    if not count or datetime.now(UTC) - oldest < LAG:
        return []
    return [
        f"{count:,} changes wait for the index of {store.name}, the oldest since {oldest.isoformat(' ', 'seconds')}"
    ]
