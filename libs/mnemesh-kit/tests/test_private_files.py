"""Only their owner has access to the files of a mesh, with any umask of the shell that started it."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from mnemesh_kit.config import StartupError
from mnemesh_kit.private_files import make_new_files_private, private_directory, warn_of_readable_key


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_new_directory_and_its_parents_are_private(tmp_path: Path) -> None:
    directory = tmp_path / "of" / "mine"
    assert private_directory(directory) is False
    assert [mode(directory), mode(directory.parent)] == [0o700, 0o700]
    assert os.umask(0o022) == 0o022


def test_new_files_are_private(tmp_path: Path) -> None:
    make_new_files_private()
    (tmp_path / "new").touch()
    assert mode(tmp_path / "new") == 0o600


def test_open_directory_is_closed_once_and_reported(tmp_path: Path) -> None:
    directory, elsewhere = tmp_path / "data", tmp_path / "elsewhere.db"
    (directory / "logs").mkdir(parents=True)
    for name in ("blocks.db", "blocks.db-wal", "secrets.key", "notes.txt"):
        (directory / name).touch()
    elsewhere.touch()
    (directory / "linked.db").symlink_to(elsewhere)
    directory.chmod(0o755)
    with structlog.testing.capture_logs() as logs:
        assert private_directory(directory) is True
        assert private_directory(directory) is False
    assert [(entry["event"], entry["mode_before"]) for entry in logs] == [("data_directory_access_restricted", "0755")]
    assert [mode(directory), mode(directory / "logs")] == [0o700, 0o700]
    assert {mode(directory / name) for name in ("blocks.db", "blocks.db-wal", "secrets.key")} == {0o600}
    assert {mode(directory / "notes.txt"), mode(elsewhere)} == {0o644}, "only what a mesh stores is changed"


def test_directory_that_cannot_be_created_is_a_startup_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StartupError, match="MNEMESH_DATA_DIR"):
        private_directory(tmp_path / "file")


def test_key_file_that_every_user_can_read_is_reported(tmp_path: Path) -> None:
    key = tmp_path / "key"
    with structlog.testing.capture_logs() as logs:
        for bits in (0o600, 0o640, 0o644):
            key.touch()
            key.chmod(bits)
            warn_of_readable_key(str(key))
    assert [entry["mode"] for entry in logs] == ["0644"]
