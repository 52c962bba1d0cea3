"""Makes a backup of a mesh, which may run: all services at one watermark, and the contents of files."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from mnemesh_cli.backups.archive import (
    BACKUPS,
    CONTENTS,
    MANIFEST,
    Manifest,
    Part,
    ServicePart,
    content_name,
    contents_name,
    find_backups,
    lines_of,
    listed_contents,
    part_name,
    read_manifest,
    write_content,
    write_manifest,
    write_part,
)
from mnemesh_cli.backups.keys import key_marks, sealed_keys
from mnemesh_cli.backups.places import BackupError, Place
from mnemesh_cli.backups.stores import MeshStores, ServiceStore, revision_of
from mnemesh_kit.failpoints import failpoint
from mnemesh_kit.sql.snapshots import connect, snapshots

ATTEMPTS: Final = 5
"""How many watermarks are tried, if contents are removed between the watermark and their copy."""
Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Content:
    """A content of a file."""

    id: str
    size: int
    sha256: str
    """Empty for a part of an upload that is not complete."""


def make_backup(stores: MeshStores, place: Place, report: Report, *, passphrase: str | None = None) -> Manifest:
    """Makes a backup. It exists once its manifest is written, which is the last step.

    Args:
        stores: the mesh.
        place: where backups are kept. Contents that it has are not copied again.
        report: receives lines about the progress.
        passphrase: encrypts the keys of secrets, which are then in the backup. None leaves them out.

    Raises:
        BackupError: the schema of a database is of another version, or a file cannot be written.
        StartupError: a database cannot be read.
    """
    keys = None if passphrase is None else sealed_keys(stores, passphrase)
    with place.locked():
        copier = _ContentCopier(stores, place)
        # Contents are copied before the watermark as well, so that few are left, and hardly one is removed meanwhile.
        with connect(stores.urls["files"]) as connection:
            _require_newest(stores.services["files"], connection)
            copier.copy(contents_of(stores, connection))
        manifest = _write_at_watermark(stores, place, copier, keys, report)
        _require_complete(place, manifest)
        write_manifest(place, manifest)
        _delete_unfinished(place)
    return manifest


def _write_at_watermark(
    stores: MeshStores, place: Place, copier: "_ContentCopier", keys: dict[str, str] | None, report: Report
) -> Manifest:
    held = {name: [table.name for table in store.tables] for name, store in stores.services.items()}
    lost: set[str] = set()
    for _ in range(ATTEMPTS):
        with snapshots(stores.urls, held) as connections:
            taken_at = datetime.now(UTC)
            report(f"watermark {taken_at.isoformat(' ', 'seconds')}")
            contents = list(contents_of(stores, connections["files"]))
            copied = copier.copy(contents)
            gone = {content.id for content in contents if content.id not in copied}
            if gone <= lost:
                for content_id in sorted(gone):
                    report(f"the content {content_id} of a file is lost or damaged; see `mnemesh verify`")
                listed = [(content, copied[content.id]) for content in contents if content.id in copied]
                return _write_parts(stores, place, taken_at, connections, listed, keys, report)
        # Those of files that were deleted meanwhile are unknown at the next watermark; the others are lost or damaged.
        lost |= gone
    raise BackupError("Files are deleted too fast for their contents to be copied. Run the backup again.")


def _write_parts(
    stores: MeshStores,
    place: Place,
    taken_at: datetime,
    connections: Mapping[str, sa.Connection],
    contents: Sequence[tuple[Content, str]],
    keys: dict[str, str] | None,
    report: Report,
) -> Manifest:
    backup_id = f"{taken_at:%Y%m%dT%H%M%S}.{taken_at.microsecond // 1000:03}Z"
    lines = (msgspec.json.encode([content.id, content.size, sha256]) for content, sha256 in contents)
    listed = write_part(place, contents_name(backup_id), ("id", "size", "sha256"), lines)
    services = {
        name: _write_service(place, backup_id, store, connections[name], report)
        for name, store in stores.services.items()
    }
    size = sum(content.size for content, _ in contents)
    return Manifest(backup_id, taken_at, version("mnemesh-cli"), services, listed, size, key_marks(stores), keys)


def _write_service(
    place: Place, backup_id: str, store: ServiceStore, connection: sa.Connection, report: Report
) -> ServicePart:
    _require_newest(store, connection)
    parts: dict[str, Part] = {}
    for table in store.tables:
        name = part_name(backup_id, store.name, table.name)
        parts[str(table.name)] = write_part(place, name, table.columns.keys(), lines_of(connection, table))
    rows, size = sum(part.rows for part in parts.values()), sum(part.bytes for part in parts.values())
    report(f"{store.name}: {rows:,} rows, {size / 1e6:.1f} MB")
    return ServicePart(store.newest_revision, parts)


def _require_newest(store: ServiceStore, connection: sa.Connection) -> None:
    revision = revision_of(connection)
    if revision != store.newest_revision:
        raise BackupError(
            f"The database of {store.name} has the schema {revision}, and this version of mnemesh has "
            f"{store.newest_revision}. Use the version that the mesh runs, and start it once."
        )


def contents_of(stores: MeshStores, connection: sa.Connection) -> Iterator[Content]:
    """Yields the contents that files and unfinished uploads have."""
    tables = stores.services["files"].metadata.tables
    blobs, parts = tables["blobs"].c, tables["upload_parts"].c
    whole = sa.select(blobs.id, blobs.size_bytes, blobs.sha256).where(blobs.stored, blobs.removing_at.is_(None))
    part = sa.select(parts.blob_id, parts.size_bytes, sa.literal(""))
    seen: set[str] = set()
    for row in connection.execute(sa.union_all(whole, part)):
        if row[0] not in seen:
            seen.add(row[0])
            yield Content(*row)


class _ContentCopier:
    """Copies contents that the place does not have."""

    def __init__(self, stores: MeshStores, place: Place) -> None:
        self._stores = stores
        self._place = place
        self._present = place.names(CONTENTS)
        self._hashes: dict[str, str] = {}

    def copy(self, contents: Iterable[Content]) -> Mapping[str, str]:
        """Copies contents that are whole. Returns the SHA-256 of each that the place has by id."""

        async def copy() -> None:
            async with self._stores.contents() as source:
                for content in contents:
                    if content.id not in self._hashes:
                        await self._copy_one(source, content)

        asyncio.run(copy())
        return self._hashes

    async def _copy_one(self, source: Any, content: Content) -> None:
        name = content_name(content.id)
        if content.sha256 and self._present.get(name) == content.size:
            self._hashes[content.id] = content.sha256
            return
        failpoint("backup.before_content", content.id)
        try:
            with self._place.draft() as draft:
                size, sha256 = await write_content(draft, source.read(content.id))
                if size == content.size and content.sha256 in ("", sha256):
                    self._place.put(draft, name)
                    self._hashes[content.id] = sha256
        except self._stores.content_missing:
            return


def _require_complete(place: Place, manifest: Manifest) -> None:
    """Compares the files of a backup with what was written. Raises BackupError."""
    wanted = {
        part_name(manifest.id, name, table): part
        for name, service in manifest.services.items()
        for table, part in service.tables.items()
    }
    wanted[contents_name(manifest.id)] = manifest.contents
    sizes = {name: part.bytes for name, part in wanted.items() if part.rows}
    sizes |= {content_name(content_id): size for content_id, size, _ in listed_contents(place, manifest)}
    stored = place.names("")
    wrong = next((name for name, size in sizes.items() if stored.get(name) != size), None)
    if wrong is not None:
        raise BackupError(f"{wrong} is missing or incomplete: something else changes the place of the backups.")


def _delete_unfinished(place: Place) -> None:
    """Deletes the files of backups that were interrupted."""
    complete = set(find_backups(place))
    place.delete([name for name in place.names(BACKUPS) if name.split("/")[1] not in complete])


def keep_newest(place: Place, count: int) -> list[str]:
    """Deletes all backups but the newest ones, then the contents that none of these has. Returns the deleted ids."""
    with place.locked():
        known = find_backups(place)
        kept, old = known[-count:], known[:-count]
        place.delete([f"{BACKUPS}{backup_id}/{MANIFEST}" for backup_id in old])  # from now on they are none
        _delete_unfinished(place)
        used: set[str] = set()
        for backup_id in kept:
            listed = listed_contents(place, read_manifest(place, backup_id))
            used.update(content_name(content_id) for content_id, _, _ in listed)
        place.delete([name for name in place.names(CONTENTS) if name not in used])
    return old
