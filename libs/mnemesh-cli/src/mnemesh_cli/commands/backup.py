"""`mnemesh backup`, `restore` and `verify`: a whole mesh, from its databases and the contents of its files."""

from pathlib import Path
from typing import Annotated, Any

import typer
from mnemesh_cli.display.records import print_done
from mnemesh_cli.display.terminal import is_json, notice
from mnemesh_cli.options import DataDirOption
from mnemesh_cli.supervisor.config import DataDirectoryLock, mesh_config
from mnemesh_kit.config import StartupError

PlaceArgument = Annotated[str, typer.Argument(metavar="DIR|s3://…", help="Directory or bucket of the backups.")]
BackupOption = Annotated[str | None, typer.Option("--backup", help="Id of a backup.", show_default="the newest")]
PassphraseOption = Annotated[
    Path | None, typer.Option(help="File with the passphrase of the keys.", show_default="ask for it")
]


def backup(
    place: PlaceArgument,
    with_key: Annotated[
        bool, typer.Option("--with-key", help="Include the keys of secrets, encrypted with a passphrase.")
    ] = False,
    passphrase_file: PassphraseOption = None,
    keep: Annotated[int | None, typer.Option(min=1, help="Delete all backups but so many after this one.")] = None,
    data_dir: DataDirOption = None,
) -> None:
    """Back up all services at one instant, with the contents of files. The mesh may run.

    Settings are those of the services: databases, bucket, data directory.
    """
    from mnemesh_cli.backups.backup import keep_newest, make_backup  # noqa: PLC0415  (SQLAlchemy, for who uses it)
    from mnemesh_cli.backups.places import open_place  # noqa: PLC0415
    from mnemesh_cli.backups.stores import MeshStores  # noqa: PLC0415

    passphrase = _passphrase(passphrase_file, confirm=True) if with_key else None
    stores, kept = MeshStores.of(mesh_config(data_dir)), open_place(place, create=True)
    made = make_backup(stores, kept, _report, passphrase=passphrase)
    deleted = keep_newest(kept, keep) if keep is not None else []
    print_done(
        f"backup {made.id}: {made.rows:,} rows, {made.contents.rows:,} contents of files",
        {**_record(made), "deleted": deleted},
    )


def restore(
    place: PlaceArgument,
    backup_id: BackupOption = None,
    with_key: Annotated[
        bool, typer.Option("--with-key", help="Add the keys of the backup to those of the mesh.")
    ] = False,
    passphrase_file: PassphraseOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Restore a backup into an empty, stopped mesh, on SQLite or PostgreSQL.

    Settings are those of the services. Search indexes are rebuilt after the start.
    """
    from mnemesh_cli.backups.archive import choose_backup  # noqa: PLC0415
    from mnemesh_cli.backups.places import open_place  # noqa: PLC0415
    from mnemesh_cli.backups.restore import restore_backup  # noqa: PLC0415
    from mnemesh_cli.backups.stores import MeshStores  # noqa: PLC0415

    kept = open_place(place)
    manifest = choose_backup(kept, backup_id)
    passphrase = _passphrase(passphrase_file, confirm=False) if with_key else None
    config = mesh_config(data_dir)
    lock = DataDirectoryLock.acquire(config.data_path)
    try:
        restore_backup(MeshStores.of(config), kept, manifest, _report, passphrase=passphrase)
    finally:
        lock.release()
    print_done(f"backup {manifest.id} restored: start the mesh with `mnemesh up`", _record(manifest))


def verify(
    place: Annotated[
        str | None,
        typer.Argument(metavar="[DIR|s3://…]", help="Directory or bucket of the backups.", show_default="the mesh"),
    ] = None,
    backup_id: BackupOption = None,
    mesh: Annotated[
        bool, typer.Option("--mesh", help="Verify the mesh, and compare it with the backup, row by row.")
    ] = False,
    data_dir: DataDirOption = None,
) -> None:
    """Verify a backup, or all stores of the mesh: checksums, and what services refer to. The mesh may run.

    Each finding is a line; the exit code is then 1.
    """
    from mnemesh_cli.backups.archive import choose_backup  # noqa: PLC0415
    from mnemesh_cli.backups.places import open_place  # noqa: PLC0415
    from mnemesh_cli.backups.restore import require_fitting  # noqa: PLC0415
    from mnemesh_cli.backups.stores import MeshStores  # noqa: PLC0415
    from mnemesh_cli.backups.verify import verify_backup, verify_mesh  # noqa: PLC0415

    if place is None and (mesh or backup_id is not None):
        raise typer.BadParameter("name the place of the backup, too")
    stores = MeshStores.of(mesh_config(data_dir))
    if place is None:
        findings, subject = verify_mesh(stores), "the mesh"
    else:
        kept = open_place(place)
        manifest = choose_backup(kept, backup_id)
        require_fitting(stores, manifest)
        subject = f"{'the mesh and ' if mesh else ''}backup {manifest.id}"
        findings = verify_mesh(stores, manifest) if mesh else verify_backup(stores, kept, manifest)
    print_done("\n".join(findings) or f"no findings: {subject}", {"findings": findings})
    raise typer.Exit(1 if findings else 0)


def _passphrase(file: Path | None, *, confirm: bool) -> str:
    if file is None:
        return str(typer.prompt("Passphrase of the keys", hide_input=True, confirmation_prompt=confirm, err=True))
    try:
        passphrase = file.expanduser().read_text().strip()
    except OSError as error:
        raise StartupError(f"The file {file} of the passphrase cannot be read: {error.strerror}.") from error
    if not passphrase:
        raise StartupError(f"The file {file} of the passphrase is empty.")
    return passphrase


def _record(manifest: Any) -> dict[str, Any]:
    return {
        "id": manifest.id,
        "rows": manifest.rows,
        "contents": manifest.contents.rows,
        "content_bytes": manifest.content_bytes,
        "version": manifest.version,
    }


def _report(line: str) -> None:
    if not is_json.get():
        notice(line)
