"""Cgroups of executions. The directories replace those of the kernel, which are special files."""

import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from mnemesh_sandbox import Outcome, OutcomeStatus, Sandbox, SandboxSettings, Task
from mnemesh_sandbox.isolation import Cgroups, NoCgroup, limits_of
from mnemesh_testkit.timeouts import scaled

from .support import source_of

MakeHome = Callable[..., Path]


@pytest.fixture
def home(tmp_path: Path) -> MakeHome:
    """Makes a directory with the files of a cgroup that the operator prepared."""

    def make(controllers: str = "cpu memory pids", enabled: str = "") -> Path:
        (tmp_path / "cgroup.controllers").write_text(controllers)
        (tmp_path / "cgroup.subtree_control").write_text(enabled)
        return tmp_path

    return make


@pytest.fixture
def removable(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, str]]:
    """Lets a directory be removed with its files, as the kernel does; returns the files of those that were."""
    removed: dict[str, dict[str, str]] = {}
    rmdir = Path.rmdir

    def remove(path: Path) -> None:
        if path.name.startswith("mnemesh-run-"):
            removed[path.name] = {file.name: file.read_text() for file in path.iterdir() if file.is_file()}
            for file in path.iterdir():
                file.unlink() if file.is_file() else rmdir(file)
        rmdir(path)

    monkeypatch.setattr(Path, "rmdir", remove)
    return removed


async def test_cgroup_has_the_limits_and_is_removed(home: MakeHome, removable: dict[str, dict[str, str]]) -> None:
    directory = home()
    cgroups = Cgroups.open(str(directory))
    assert (directory / "cgroup.subtree_control").read_text() == "+memory +pids"
    async with cgroups.create(limits_of(1000, 3)) as created:
        assert (created / "memory.max").read_text() == "1000"
        assert (created / "pids.max").read_text() == "3"
        assert (created / "memory.swap.max").read_text() == "0"
    assert not created.exists()


@pytest.mark.parametrize("controllers", ["cpu pids", ""])
def test_directory_without_the_controllers_is_refused(home: MakeHome, controllers: str) -> None:
    with pytest.raises(NoCgroup, match="does not have the controllers memory and pids"):
        Cgroups.open(str(home(controllers)))


def test_directory_that_is_not_a_cgroup_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoCgroup, match="cannot be used: No such file or directory"):
        Cgroups.open(str(tmp_path))


def test_cgroups_of_killed_servers_are_removed(home: MakeHome, removable: dict[str, dict[str, str]]) -> None:
    directory = home(enabled="memory pids")
    ended = subprocess.Popen(["/bin/true"])
    ended.wait()
    for name in (f"mnemesh-run-{ended.pid}-1", "mnemesh-run-1-1"):
        (directory / name).mkdir()
    Cgroups.open(str(directory))
    assert [found.name for found in directory.glob("mnemesh-run-*")] == ["mnemesh-run-1-1"]


async def test_tool_joins_its_cgroup(home: MakeHome, removable: dict[str, dict[str, str]]) -> None:
    """And its level and its layers are the same as without one."""
    without = await Sandbox.open(SandboxSettings())
    assert "cgroup" in without.isolation.missing
    sandbox = await Sandbox.open(SandboxSettings(cgroup=str(home())))
    assert sandbox.isolation.bounds["memory"] == "cgroup"
    assert replace(sandbox.isolation, missing={}, has_cgroup=False) == replace(without.isolation, missing={})
    outcome = await sandbox.run(Task(source_of("return 1"), "tool"), scaled(60))
    assert outcome.text == "1"
    joined = [files["cgroup.procs"] for files in removable.values()]
    assert joined == ["0"] * len(joined)
    assert len(joined) >= 2


async def test_out_of_memory_kill_is_reported(home: MakeHome, removable: dict[str, dict[str, str]]) -> None:
    directory = home()
    sandbox = await Sandbox.open(SandboxSettings(cgroup=str(directory)))

    async def run() -> Outcome:
        return await sandbox.run(Task(source_of("import os; os.kill(os.getpid(), 9)"), "tool"), scaled(60))

    assert "killed by SIGKILL" in (await run()).text
    mkdir = Path.mkdir

    def make(path: Path, *arguments: int, **options: bool) -> None:
        mkdir(path, *arguments, **options)
        if path.name.startswith("mnemesh-run-"):
            (path / "memory.events").write_text("low 0\noom 1\noom_kill 3\n")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "mkdir", make)
        outcome = await run()
    assert outcome.status is OutcomeStatus.KILLED
    assert "MemoryError: its processes needed more than 512 MB of memory together" in outcome.text


async def test_cgroup_that_cannot_be_joined_is_not_used(
    home: MakeHome, removable: dict[str, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    mkdir = Path.mkdir

    def make(path: Path, *arguments: int, **options: bool) -> None:
        mkdir(path, *arguments, **options)
        if path.name.startswith("mnemesh-run-"):
            mkdir(path / "cgroup.procs")

    monkeypatch.setattr(Path, "mkdir", make)
    sandbox = await Sandbox.open(SandboxSettings(cgroup=str(home())))
    assert "Is a directory" in sandbox.isolation.missing["cgroup"]
    assert (await sandbox.run(Task(source_of("return 1"), "tool"), scaled(60))).text == "1"
