"""The uids and the working directories of tools."""

import fcntl
import os
import stat
import subprocess
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mnemesh_sandbox import Level, Sandbox, SandboxSettings, isolation
from mnemesh_sandbox.inside import plan as layer
from mnemesh_sandbox.inside import watch
from mnemesh_sandbox.inside.watch import open_directory
from mnemesh_sandbox.isolation import NoUidLeft, UidPool
from mnemesh_sandbox.work_directory import remove_leftovers, remove_tree, work_directory


def test_claimed_uids_differ_between_servers_until_the_last_process_ends(tmp_path: Path) -> None:
    first, second = (UidPool(61_000, 2, (str(tmp_path),)) for _ in range(2))
    with first.claim() as (one, claim):
        with second.claim() as (two, _):
            assert {one, two} == {61_000, 61_001}
            with pytest.raises(NoUidLeft):
                first.claim().__enter__()
        kept = subprocess.Popen(["/bin/sleep", "60"], pass_fds=[claim])
    try:
        for _ in range(3):
            with second.claim() as (other, _):
                assert other != one
    finally:
        kept.kill()
        kept.wait()
    with UidPool(one, 1, (str(tmp_path),)).claim() as (again, _):
        assert again == one


def test_claims_are_in_a_private_directory(tmp_path: Path) -> None:
    """A directory that another user prepared is not used."""
    prepared, free = tmp_path / "prepared", tmp_path / "free"
    for directory in (prepared, free):
        directory.mkdir()
    (prepared / "mnemesh-tools-uids").mkdir(mode=0o755)
    with UidPool(61_000, 1, (str(prepared), str(free))).claim():
        assert stat.S_IMODE((free / "mnemesh-tools-uids").stat().st_mode) == 0o700
    with pytest.raises(NoUidLeft):
        UidPool(61_000, 1, (str(prepared),)).claim().__enter__()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root claims uids")
async def test_host_without_a_directory_for_claims_runs_no_tools(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(isolation, "PARENTS", ())
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    sandbox = await Sandbox.open(SandboxSettings())
    assert sandbox.isolation.level is Level.NONE
    assert "can hold mnemesh-tools-uids" in sandbox.isolation.missing[layer.OWN_UID]


async def test_directory_without_permissions_is_opened_and_a_link_is_not(tmp_path: Path) -> None:
    closed, link = tmp_path / "closed", tmp_path / "link"
    closed.mkdir(mode=0)
    link.symlink_to(closed)
    os.close(open_directory(str(closed)))
    with pytest.raises(OSError, match="link"):
        open_directory(str(link))


def test_tree_of_any_depth_is_removed(tmp_path: Path) -> None:
    top = os.open(tmp_path, os.O_RDONLY)
    (tmp_path / "tree").mkdir()
    here = os.open("tree", os.O_RDONLY, dir_fd=top)
    for number in range(3_000):
        os.mkdir("d", dir_fd=here)
        os.symlink("/", "link", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        if number % 500 == 0:
            os.fchmod(below, 0)
            os.fchmod(below, 0o500 if os.geteuid() else 0o700)
        os.close(here)
        here = below
    os.close(here)
    remove_tree(str(tmp_path / "tree"))
    assert os.listdir(top) == []  # noqa: PTH208 - a descriptor
    os.close(top)


async def test_lock_of_a_directory_is_released_if_the_directory_cannot_be_removed(
    directories: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: str) -> None:
        raise PermissionError

    monkeypatch.setattr("mnemesh_sandbox.work_directory.remove_tree", fail)
    with pytest.raises(PermissionError):
        async with work_directory(None, {layer.LANDLOCK}):
            pass
    monkeypatch.undo()
    (left,) = directories.iterdir()
    lock = os.open(left, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(lock)


async def test_directories_of_killed_servers_are_removed(directories: Path) -> None:
    """Directories that are in use, belong to another user or have another name are kept."""
    left, other = directories / "mnemesh-sandbox-0123abc_", directories / "mnemesh-sandbox-0123abcd"
    named = directories / "mnemesh-sandbox-notes"
    async with work_directory(None, {layer.LANDLOCK}) as used:
        assert used is not None
        for directory in (left, other, named):
            (directory / "d").mkdir(parents=True)
        if os.geteuid() == 0:
            os.chown(other, 1234, 1234)
        remove_leftovers(range(61_000, 61_001))
        assert Path(used).exists()
    assert not left.exists()
    assert named.exists()
    assert other.exists() == (os.geteuid() == 0)


@pytest.mark.parametrize(("status", "found"), [({b"VmRSS": 8}, watch.UNREADABLE), ({}, None)], ids=["runs", "ends"])
def test_process_that_cannot_be_read_is_ended_unless_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: dict[bytes, int], found: str | None
) -> None:
    """A process on a loaded machine can take long to end. It has no memory then, and its files cannot be read."""
    limits = SimpleNamespace(memory_bytes=2**30, disk_bytes=2**30, files=100)
    plan: Any = SimpleNamespace(
        limits=limits, layers=(), uid=1, work_directory=str(tmp_path), proxy_fd=None, measure_seconds=watch.INTERVAL
    )
    monkeypatch.setattr(watch.descendants, "descendants", lambda: [1])
    monkeypatch.setattr(watch, "_fields", lambda _: {b"FDSize": 64, b"Threads": 1, **status})
    monkeypatch.setattr(watch, "_open_files", lambda pids: watch._Files(unreadable=set(pids)))
    measured = watch.Watch(plan)
    assert [measured._measure() for _ in range(9)][-1] == found
