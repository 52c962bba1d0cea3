"""Attempts of tools to reach the host or to exceed limits, at each isolation level."""

import asyncio
import os
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
from mnemesh_sandbox import Access, Level, OutcomeStatus, Sandbox, Task
from mnemesh_sandbox.inside import plan as layer
from mnemesh_testkit.timeouts import scaled

from . import attempts
from .support import Run, value_of


async def test_kernel_and_service_are_out_of_reach(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "datagrams"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(path))
        for directory in (path, *path.parents[:3]):
            directory.chmod(0o777)
        done = value_of(await run(attempts.KERNEL, numbers=attempts.numbers(), server=os.getpid(), path=str(path)))
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.recv(1)
    assert done == []


async def test_attributes_of_files_of_others_stay(sandbox: Sandbox, directories: Path) -> None:
    directory, packages = directories / "service", directories / "packages"
    for path in (directory / "file", packages / "package.py"):
        path.parent.mkdir(mode=0o755)
        path.touch(mode=0o644)
    arguments = {"path": str(directory / "file"), "package": str(packages / "package.py")}
    task = Task(attempts.ATTRIBUTES, "tool", arguments)
    assert value_of(await sandbox.run(task, scaled(60), Access(packages=(str(packages),)))) == []


async def test_disk_is_bounded_in_bytes(directories: Path, run: Run) -> None:
    """Also by files that are deleted and still open."""
    outcome = await run(attempts.MANY_BYTES)
    assert outcome.status is not OutcomeStatus.SUCCESS
    assert "ResourceError: its files needed more than 8 MB" in outcome.text or "No space left" in outcome.text
    assert list(directories.iterdir()) == []


async def test_disk_is_bounded_in_files(directories: Path, run: Run) -> None:
    outcome = await run(attempts.MANY_FILES)
    assert outcome.status is not OutcomeStatus.SUCCESS
    assert "or were more than 2,000" in outcome.text or "No space left" in outcome.text
    assert list(directories.iterdir()) == []


async def test_deep_tree_is_removed(directories: Path, run: Run) -> None:
    await run(attempts.DEEP_TREE)
    assert list(directories.iterdir()) == []


@pytest.mark.parametrize(
    "source",
    [attempts.MEMORY_OF_PROCESSES, attempts.MEMORY_OF_SOCKETS, attempts.MEMORY_OF_LOCKS],
    ids=["memory", "sockets", "locks"],
)
async def test_memory_of_all_processes_is_bounded_together(run: Run, source: str) -> None:
    outcome = await run(source)
    assert outcome.status is OutcomeStatus.KILLED
    assert "MemoryError: its processes needed more than 256 MB of memory together" in outcome.text


async def test_buffers_of_a_connection_are_small(sandbox: Sandbox) -> None:
    if sandbox.isolation.level is not Level.FULL or not os.access("/proc/sys/net/ipv4/tcp_wmem", os.W_OK):
        pytest.skip("no network access, or a host that keeps namespaces from setting these limits")
    may_end = asyncio.Event()

    async def accept(listener: socket.socket) -> None:
        connection, _ = await asyncio.get_running_loop().sock_accept(listener)
        with connection:
            await may_end.wait()

    outcome = await sandbox.run(Task(attempts.BUFFERS_OF_A_CONNECTION, "tool"), scaled(30), Access(serve=accept))
    assert 0 < value_of(outcome) < 1_000_000


async def test_tool_ends_with_the_process_that_watches_it(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host may kill that process when it runs out of memory."""
    if layer.OWN_UID not in sandbox.isolation.layers:
        pytest.skip("the processes of a tool are found by their uid")
    begun: list[subprocess.Popen[bytes]] = []

    class Started(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            begun.append(self)

    monkeypatch.setattr(subprocess, "Popen", Started)
    running = asyncio.create_task(sandbox.run(Task(attempts.SURVIVOR, "tool"), scaled(60)))
    async with asyncio.timeout(scaled(30)):
        while not begun or len(_processes_of_tools(begun[0].pid)) < 2:
            await asyncio.sleep(0.01)
    pids = _processes_of_tools(begun[0].pid)
    begun[0].kill()
    outcome = await running
    assert outcome.status is OutcomeStatus.ERROR
    assert "its process ended before the function returned" in outcome.text
    async with asyncio.timeout(scaled(30)):
        while any(map(_is_running, pids)):  # a process closes its pipes a moment before it ends
            await asyncio.sleep(0.01)


def _processes_of_tools(outer: int) -> list[int]:
    """Returns the descendants of an outer process that have a uid of tools."""
    found, waiting = [], [outer]
    while waiting:
        for path in Path("/proc", str(waiting.pop()), "task").glob("*/children"):
            waiting += (children := [int(word) for word in path.read_text().split()])
            found += [pid for pid in children if Path("/proc", str(pid)).stat().st_uid >= 61_000]
    return found


def _is_running(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path("/proc", str(pid), "status").read_text()
    except OSError:
        return False


async def test_tool_without_a_confined_directory_creates_no_file(unconfined: Sandbox) -> None:
    """Such a host has the lowest level only, which must be enabled."""
    assert unconfined.isolation.level is Level.MINIMAL
    assert unconfined.isolation.bounds["disk"] == "tools cannot create files"
    outcome = await unconfined.run(Task(attempts.WRITE_ANYWHERE, "tool"), scaled(60))
    assert (value_of(outcome), outcome.stderr) == ([], "")
    arguments = {"numbers": attempts.numbers(), "server": os.getpid(), "path": "/gone"}
    # The device is not hidden there, and neither are the files of the tool's own process.
    done = value_of(await unconfined.run(Task(attempts.KERNEL, "tool", arguments), scaled(60)))
    assert done == ["/dev/zero", "preference of the kernel"]
