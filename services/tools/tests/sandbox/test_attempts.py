"""Attempts of tools to reach the host or to exceed limits, at each isolation level."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from mnemesh_tools.sandbox import Level, OutcomeStatus, Sandbox, Task

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


async def test_memory_of_all_processes_is_bounded_together(run: Run) -> None:
    outcome = await run(attempts.MEMORY_OF_PROCESSES)
    assert outcome.status is OutcomeStatus.KILLED
    assert "MemoryError: its processes needed more than 256 MB of memory together" in outcome.text


async def test_tool_without_a_confined_directory_creates_no_file(unconfined: Sandbox) -> None:
    """Such a host has the lowest level only, which must be enabled."""
    assert unconfined.isolation.level is Level.MINIMAL
    assert unconfined.isolation.bounds["disk"] == "tools cannot create files"
    outcome = await unconfined.run(Task(attempts.WRITE_ANYWHERE, "tool"), 20)
    assert (value_of(outcome), outcome.stderr) == ([], "")
    arguments = {"numbers": attempts.numbers(), "server": os.getpid(), "path": "/gone"}
    # The device is not hidden there.
    assert value_of(await unconfined.run(Task(attempts.KERNEL, "tool", arguments), 20)) == ["/dev/zero"]
