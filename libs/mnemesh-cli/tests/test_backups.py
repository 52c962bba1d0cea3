"""Backups: every row and content, on either engine; damage, interruptions, keys, and what is kept."""

import asyncio
import hashlib
import json
import resource
import shutil
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import pytest_asyncio
import sqlalchemy as sa
from mnemesh_cli.backups import verify
from mnemesh_cli.backups.archive import (
    Manifest,
    choose_backup,
    contents_name,
    find_backups,
    part_name,
    write_manifest,
    write_part,
)
from mnemesh_cli.backups.backup import keep_newest, make_backup
from mnemesh_cli.backups.places import BackupError, DirectoryPlace, Place, open_place
from mnemesh_cli.backups.restore import restore_backup
from mnemesh_cli.backups.stores import MeshStores
from mnemesh_cli.backups.verify import CHECKS, verify_backup, verify_mesh
from mnemesh_kit.config import StartupError
from mnemesh_kit.failpoints import observed_by
from mnemesh_kit.services import STORE_NAMES
from mnemesh_kit.sql import Database
from mnemesh_kit.sql.database import VERSIONS
from mnemesh_kit.sql.snapshots import connect, transaction
from mnemesh_testkit.databases.postgres import PostgresServer
from mnemesh_testkit.mesh.command_line import run_command

from .filled_stores import ROWS, content_of, content_path, fill, rows_of, store_content, stores_of

PASSPHRASE: Final = "correct horse"


def ignore(_line: str) -> None:
    """Receives a report that no one reads."""


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> MeshStores:
    """A filled mesh on SQLite, which does not run. Tests do not change it."""
    stores = stores_of(tmp_path_factory.mktemp("filled"))
    fill(stores)
    return stores


@pytest.fixture
def source(filled: MeshStores, tmp_path: Path) -> MeshStores:
    """A filled mesh of this test."""
    return stores_of(shutil.copytree(filled.data_path, tmp_path / "source"))


@pytest.fixture(scope="module")
def backed_up(filled: MeshStores, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a backup of the filled mesh. Tests do not change it."""
    directory = tmp_path_factory.mktemp("backed-up")
    make_backup(filled, open_place(str(directory)), ignore)
    return directory


@pytest.fixture
def kept(backed_up: Path, tmp_path: Path) -> Path:
    """A directory of this test with a backup of the filled mesh."""
    return shutil.copytree(backed_up, tmp_path / "kept")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """An empty place, unless `kept` fills it."""
    return open_place(str(tmp_path / "kept"), create=True)


@pytest.fixture
def target(tmp_path: Path) -> MeshStores:
    """An empty mesh on SQLite, without databases."""
    return stores_of(tmp_path / "target")


@asynccontextmanager
async def mesh_on(server: PostgresServer, directory: Path) -> AsyncIterator[MeshStores]:
    """Creates an empty mesh on PostgreSQL."""
    names = {service: await server.create_database() for service in STORE_NAMES}
    yield stores_of(directory, {service: server.url(name) for service, name in names.items()})
    for name in names.values():
        await server.drop_database(name)


@pytest_asyncio.fixture
async def on_postgresql(postgres_server: PostgresServer, tmp_path: Path) -> AsyncIterator[MeshStores]:
    """An empty mesh on PostgreSQL."""
    async with mesh_on(postgres_server, tmp_path / "postgresql") as stores:
        yield stores


def restored(target: MeshStores, place: Place, backup_id: str | None = None) -> None:
    restore_backup(target, place, choose_backup(place, backup_id), ignore)


def test_every_row_moves_to_postgresql_and_back(
    filled: MeshStores, backed_up: Path, on_postgresql: MeshStores, target: MeshStores, tmp_path: Path
) -> None:
    place = open_place(str(backed_up))
    manifest = choose_backup(place, None)
    before = rows_of(filled)
    assert manifest.rows == sum(map(len, before.values())) == ROWS * len(before)
    restored(on_postgresql, place)
    assert rows_of(on_postgresql) == before
    back = open_place(str(tmp_path / "back"), create=True)
    again = make_backup(on_postgresql, back, ignore)
    assert sums(again) == sums(manifest)
    restored(target, back)
    assert rows_of(target) == before
    for number in range(ROWS):
        assert content_path(target, f"blob-{number:02}").read_bytes() == content_of(number)
    # New rows get numbers above the restored ones.
    messages = on_postgresql.services["recall"].metadata.tables["messages"]
    with connect(on_postgresql.services["recall"].url) as connection, transaction(connection):
        columns = [column for column in messages.columns if column.name not in ("row_id", "id", "sequence_id")]
        like = sa.select(sa.literal("message-new"), sa.literal(99), *columns).limit(1)
        insert = messages.insert().from_select(["id", "sequence_id", *(column.name for column in columns)], like)
        assert connection.execute(insert.returning(messages.c.row_id)).scalar_one() == ROWS + 1


def sums(manifest: Manifest) -> dict[tuple[str, str], str]:
    """What a backup says of its rows: equal for equal rows of any engine."""
    return {(name, table): part.sum for name, each in manifest.services.items() for table, part in each.tables.items()}


def test_target_with_data_is_refused_and_not_changed(source: MeshStores, backed_up: Path) -> None:
    other, place = source, open_place(str(backed_up))
    with connect(other.urls["blocks"]) as connection, transaction(connection):
        connection.execute(sa.text("UPDATE blocks SET value = 'mine'"))
    before = rows_of(other)
    with pytest.raises(BackupError, match=r"The database of blocks is not empty: it has rows in .*blocks"):
        restored(other, place)
    assert rows_of(other) == before
    for store in other.services.values():
        store.migrate()  # the mesh starts as before


def test_backup_of_another_schema_is_refused(source: MeshStores, place: Place, target: MeshStores) -> None:
    with connect(source.urls["recall"]) as connection, transaction(connection):
        connection.execute(sa.update(VERSIONS).values(version_num="0099"))
    with pytest.raises(BackupError, match="recall has the schema 0099, and this version of mnemesh has 0100"):
        make_backup(source, place, ignore)
    assert find_backups(place) == []
    with pytest.raises(BackupError, match="No complete backup"):
        restored(target, place)


def test_damaged_backup_leaves_a_target_that_does_not_start(
    filled: MeshStores, kept: Path, place: Place, target: MeshStores
) -> None:
    (part,) = kept.glob("backups/*/blocks.blocks.gz")
    good = part.read_bytes()
    damaged = bytearray(good)
    damaged[len(damaged) // 2] ^= 1
    part.write_bytes(damaged)
    with pytest.raises(BackupError, match=r"blocks\.blocks\.gz is damaged"):
        restored(target, place)
    for store in target.services.values():
        with pytest.raises(StartupError, match="restore of a backup into the database is not complete"):
            store.migrate()
    part.write_bytes(good)
    restored(target, place)
    assert rows_of(target) == rows_of(filled)


@contextmanager
def files_at_most(size: int) -> Iterator[None]:
    """Makes writes fail beyond a size of a file, as those on a full disk do."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_backup_that_cannot_be_written_leaves_the_earlier_one(
    source: MeshStores, kept: Path, place: Place, tmp_path: Path
) -> None:
    earlier = find_backups(place)
    store_content(source, "blob-99", bytes(100_000))
    with connect(source.urls["files"]) as connection, transaction(connection):
        connection.execute(
            sa.text("UPDATE blobs SET id = 'blob-99', size_bytes = 100000, sha256 = '' WHERE id = 'blob-00'")
        )
    with files_at_most(65_536), pytest.raises(BackupError, match=rf"{kept} cannot be used: File too large\."):
        make_backup(source, place, ignore)
    assert find_backups(place) == earlier
    assert not place.names("unfinished")
    file = tmp_path / "file"
    file.touch()
    code, _, error = run_command("backup", str(file / "kept"), "--data-dir", str(source.data_path))
    assert (code, error) == (2, f"mnemesh: The directory {file}/kept cannot be used: Not a directory.\n")


def test_restore_onto_a_full_disk_can_be_repeated(filled: MeshStores, backed_up: Path, target: MeshStores) -> None:
    place = open_place(str(backed_up))
    for store in target.services.values():
        store.migrate()
    with files_at_most(64), pytest.raises(StartupError, match=r"The database .*\.db cannot be used: disk I/O error"):
        restored(target, place)
    restored(target, place)
    assert rows_of(target) == rows_of(filled)


def test_database_that_is_locked_is_named(source: MeshStores, place: Place) -> None:
    with closing(sqlite3.connect(source.data_path / "files.db", isolation_level=None)) as connection:
        connection.execute("PRAGMA locking_mode=EXCLUSIVE")
        connection.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StartupError, match=r"The database .*files\.db cannot be used: database is locked"):
            make_backup(source, place, ignore)
    assert find_backups(place) == []


async def test_restore_into_a_mesh_that_runs_on_postgresql_is_refused(
    request: pytest.FixtureRequest, backed_up: Path, tmp_path: Path
) -> None:
    direct: PostgresServer = request.getfixturevalue("_direct_postgres")  # a pooler hides the services
    async with mesh_on(direct, tmp_path / "postgresql") as target:
        store = target.services["recall"]
        database = Database.open(store.url)
        await database.migrate(store.package)
        with pytest.raises(BackupError, match=r"The database of recall is in use. Stop all services"):
            await asyncio.to_thread(restored, target, open_place(str(backed_up)))
        await database.migrate(store.package)  # it can start as before
        await database.close()


def test_contents_are_copied_once_and_old_backups_are_deleted(source: MeshStores, place: Place, tmp_path: Path) -> None:
    copied: list[str] = []

    def observe(name: str) -> None:
        if name.startswith("backup.before_content:"):
            copied.append(name)

    with observed_by(observe):
        first = make_backup(source, place, ignore)
        with connect(source.urls["files"]) as connection, transaction(connection):
            connection.execute(sa.text("DELETE FROM blobs WHERE id = 'blob-00'"))
            connection.execute(sa.text("DELETE FROM upload_parts WHERE blob_id = 'blob-00'"))
        content_path(source, "blob-00").unlink()
        second = make_backup(source, place, ignore)
    assert len(copied) == ROWS
    assert (first.contents.rows, second.contents.rows) == (ROWS, ROWS - 1)
    unfinished = tmp_path / "kept" / "backups" / "20200101T000000.000Z" / "blocks.blocks.gz"
    unfinished.parent.mkdir()
    unfinished.touch()
    assert keep_newest(place, 1) == [first.id]
    assert find_backups(place) == [second.id]
    assert not unfinished.exists()
    assert len(place.names("contents/")) == ROWS - 1


def test_content_of_a_file_that_is_deleted_meanwhile(source: MeshStores, place: Place) -> None:
    """Its content is gone at the copy, and its rows before the next watermark."""
    tries = 0

    def observe(name: str) -> None:
        nonlocal tries
        if name != "backup.before_content:blob-01":
            return
        tries += 1
        content_path(source, "blob-01").unlink(missing_ok=True)
        if tries == 2:
            with connect(source.urls["files"]) as connection, transaction(connection):
                connection.execute(sa.text("DELETE FROM blobs WHERE id = 'blob-01'"))
                connection.execute(sa.text("DELETE FROM upload_parts WHERE blob_id = 'blob-01'"))

    with observed_by(observe):
        manifest = make_backup(source, place, ignore)
    assert (tries, manifest.contents.rows) == (2, ROWS - 1)
    assert manifest.services["files"].tables["blobs"].rows == ROWS - 1


def test_lost_and_damaged_contents_do_not_prevent_backups(source: MeshStores, place: Place) -> None:
    content_path(source, "blob-01").unlink()
    store_content(source, "blob-02", b"other")
    lines: list[str] = []
    manifest = make_backup(source, place, lines.append)
    assert manifest.contents.rows == ROWS - 2
    assert sorted(line for line in lines if "lost" in line) == [
        f"the content blob-0{number} of a file is lost or damaged; see `mnemesh verify`" for number in (1, 2)
    ]
    findings = verify_backup(source, place, manifest)
    assert [finding for finding in findings if "of an upload" in finding] == [
        f"the content blob-0{number} of an upload does not exist" for number in (1, 2)
    ]


def test_keys_of_secrets_are_in_a_backup_if_asked(tmp_path: Path, source: MeshStores) -> None:
    key = "k" * 64
    (source.data_path / "secrets.key").write_text(f"{key}\n")
    (tmp_path / "passphrase").write_text(f"{PASSPHRASE}\n")
    (tmp_path / "wrong").write_text("another\n")
    kept, new = str(tmp_path / "kept"), str(tmp_path / "new")
    with_key = ("--with-key", "--passphrase-file")
    data = ("--data-dir", str(source.data_path))
    code, output, error = run_command("--json", "backup", kept, *with_key, str(tmp_path / "passphrase"), *data)
    assert code == 0, error
    assert json.loads(output)["contents"] == ROWS
    assert all(key.encode() not in file.read_bytes() for file in Path(kept).rglob("*") if file.is_file())
    code, _, error = run_command("restore", kept, *with_key, str(tmp_path / "wrong"), "--data-dir", new)
    assert (code, "does not decrypt" in error) == (2, True)
    assert not list(Path(new).glob("*.db"))
    data = ("--data-dir", new)
    code, restored_output, error = run_command(
        "--json", "restore", kept, *with_key, str(tmp_path / "passphrase"), *data
    )
    assert (code, "secrets of the backup" in error) == (0, False)
    assert json.loads(restored_output)["id"] == json.loads(output)["id"]
    assert (Path(new) / "secrets.key").read_text() == f"{key}\n"
    assert (Path(new) / "secrets.key").stat().st_mode & 0o777 == 0o600
    other = str(tmp_path / "other")
    code, _, error = run_command("restore", kept, "--data-dir", other)
    assert (code, "secrets of the backup cannot be read with the keys of this mesh" in error) == (0, True)


def test_rows_that_refer_to_nothing_are_findings(source: MeshStores) -> None:
    """The rows of these stores agree within a table only, so nearly every check finds something."""
    content_path(source, "blob-02").unlink()
    store_content(source, "blob-01", b"other")
    findings = verify_mesh(source)
    impossible = {"the block {} of an agent does not exist"}  # a foreign key
    for kind in CHECKS:
        before, after = kind.split("{}")
        found = any(finding.startswith(before) and finding.endswith(after) for finding in findings)
        assert found == (kind not in impossible), kind
    assert "the content blob-01 is damaged" in findings
    assert "the content blob-02 of an upload does not exist" in findings


def test_file_that_is_deleted_during_the_verification_is_not_a_finding(
    source: MeshStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    content_path(source, "blob-01").unlink()
    finding = "the content blob-01 of an upload does not exist"
    assert finding in verify_mesh(source)

    def connect_after_deletion(url: str) -> sa.Connection:
        with connect(url) as connection, transaction(connection):
            connection.execute(sa.text("DELETE FROM blobs WHERE id = 'blob-01'"))
            connection.execute(sa.text("DELETE FROM upload_parts WHERE blob_id = 'blob-01'"))
        return connect(url)

    monkeypatch.setattr(verify, "connect", connect_after_deletion)
    assert finding not in verify_mesh(source)


def test_damage_of_a_backup_and_differences_of_a_mesh_are_findings(
    source: MeshStores, kept: Path, place: Place
) -> None:
    manifest, data = choose_backup(place, None), ("--data-dir", str(source.data_path))
    before = set(verify_backup(source, place, manifest))
    assert not [finding for finding in before if "damaged" in finding]
    content_path(source, "blob-00").unlink()
    for name in ("contents/01/blob-01", f"backups/{manifest.id}/tools.tools.gz"):
        path = kept / name
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    new = set(verify_backup(source, place, manifest)) - before
    assert {finding.split(" ")[0] for finding in new if "damaged" in finding} == {
        "contents/01/blob-01",
        f"backups/{manifest.id}/tools.tools.gz",
    }
    with connect(source.urls["blocks"]) as connection, transaction(connection):
        connection.execute(sa.text("UPDATE blocks SET read_only = NOT read_only"))
    code, output, _ = run_command("--json", "verify", str(kept), "--mesh", *data)
    assert code == 1
    differing = [finding for finding in json.loads(output)["findings"] if "differs" in finding]
    assert differing == [f"blocks.blocks differs from the backup: {ROWS} rows, and {ROWS} there"]


def test_backup_of_a_stranger_reaches_no_other_files(
    filled: MeshStores, kept: Path, place: Place, target: MeshStores, tmp_path: Path
) -> None:
    outside, path = tmp_path / "outside" / "victim", f"/../../../../{tmp_path.name}/outside/victim"
    outside.parent.mkdir()
    outside.write_bytes(content_of(0))
    made = choose_backup(place, None)
    lines = (msgspec.json.encode([f"..{path}", len(content_of(0)), hashlib.sha256(content_of(0)).hexdigest()]),)
    listed = write_part(place, contents_name(made.id), ("id", "size", "sha256"), lines)
    write_manifest(place, replace(made, contents=listed))
    with pytest.raises(BackupError, match="is not the id of a content"):
        restored(target, place)
    assert outside.read_bytes() == content_of(0)
    assert any("is not the id of a content" in finding for finding in verify_backup(filled, place, read(place, made)))
    manifest = kept / "backups" / made.id / "manifest.json"
    manifest.write_bytes(msgspec.json.encode(replace(made, id="../../elsewhere")))
    with pytest.raises(BackupError, match=r"is the manifest of the backup '../../elsewhere'"):
        choose_backup(place, made.id)


@pytest.mark.usefixtures("kept")
def test_line_that_is_not_a_row_is_a_finding(filled: MeshStores, place: Place) -> None:
    made = choose_backup(place, None)
    name, services = part_name(made.id, "tools", "tools"), dict(made.services)
    part = write_part(place, name, made.services["tools"].tables["tools"].columns, [b'["half of a'])
    services["tools"] = replace(services["tools"], tables={**services["tools"].tables, "tools": part})
    write_manifest(place, replace(made, services=services))
    found = [finding.partition(":")[0] for finding in verify_backup(filled, place, read(place, made))]
    assert [finding for finding in found if "damaged" in finding] == ["tools has a line that is damaged"]


def read(place: Place, made: Manifest) -> Manifest:
    """Returns a backup as it is in its place."""
    return choose_backup(place, made.id)


def test_empty_mesh_has_no_findings(target: MeshStores) -> None:
    for store in target.services.values():
        store.migrate()
    code, output, _ = run_command("verify", "--data-dir", str(target.data_path))
    assert (code, output) == (0, "no findings: the mesh\n")


@contextmanager
def refusing(server: Any, after: int) -> Iterator[None]:
    """Makes a bucket refuse objects after some."""
    stored, app = 0, server._server.app

    def store_or_refuse(environ: dict[str, Any], start_response: Any) -> Any:
        nonlocal stored
        stored += environ["REQUEST_METHOD"] == "PUT"
        if stored <= after:
            return app(environ, start_response)
        start_response("403 FORBIDDEN", [])
        return []

    server._server.app = store_or_refuse
    try:
        yield
    finally:
        server._server.app = app


@pytest.mark.full
def test_backups_in_a_bucket(source: MeshStores, target: MeshStores, monkeypatch: pytest.MonkeyPatch) -> None:
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    variables = {"ACCESS_KEY_ID": "key", "SECRET_ACCESS_KEY": "secret", "DEFAULT_REGION": "us-east-1"}
    for name, value in (*variables.items(), ("ENDPOINT_URL_S3", f"http://{host}:{port}")):
        monkeypatch.setenv(f"AWS_{name}", value)
    try:
        client = boto3.client("s3")
        client.create_bucket(Bucket="kept")
        place = open_place("s3://kept/mesh/")
        first, second = make_backup(source, place, ignore), make_backup(source, place, ignore)
        assert find_backups(place) == [first.id, second.id]
        assert keep_newest(place, 1) == [first.id]
        restored(target, place)
        assert rows_of(target) == rows_of(source)
        keys = [item["Key"] for item in client.list_objects_v2(Bucket="kept")["Contents"]]
        assert all(key.startswith((f"mesh/backups/{second.id}/", "mesh/contents/")) for key in keys)
        with pytest.raises(BackupError, match=r"s3://absent/mesh.*NoSuchBucket"):
            make_backup(source, open_place("s3://absent/mesh"), ignore)
        with refusing(server, after=20), pytest.raises(BackupError, match=r"s3://kept/mesh/backups/.*\(403\)"):
            make_backup(source, place, ignore)
        assert find_backups(place) == [second.id]
        assert not [finding for finding in verify_backup(source, place, second) if "damaged" in finding]
        client.close()
    finally:
        server.stop()


def test_two_backups_into_one_directory_do_not_mix(place: DirectoryPlace, source: MeshStores) -> None:
    with place.locked(), pytest.raises(BackupError, match=r"Another backup into .* is running"):
        make_backup(source, place, ignore)
