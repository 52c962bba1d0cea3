"""The limits of tools, and the removal of all that they leave behind."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from mnemesh_tools.sandbox import OutcomeStatus

from .support import MARK, Run, children_running, processes_with, source_of, value_of


async def test_timeout_kills_the_tool_and_its_daemons(run: Run) -> None:
    """A double-forked daemon in its own session is killed, too."""
    body = """
    import os, subprocess, time
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            subprocess.Popen(['/bin/sh', '-c', f': {mark}; while :; do sleep 1; done'])
            os.execv('/bin/sh', ['/bin/sh', '-c', f': {mark}; while :; do sleep 1; done'])
        os._exit(0)
    print('up', flush=True)
    time.sleep(600)
    """
    mark = f"{MARK}_{time.monotonic_ns()}"
    running = asyncio.create_task(run(source_of(body, "mark"), seconds=1.5, mark=mark))
    while not processes_with(f": {mark}"):
        assert not running.done(), running.result()
        await asyncio.sleep(0)
    outcome = await running
    assert outcome.status is OutcomeStatus.TIMED_OUT
    assert outcome.text == "Error executing function tool: TimeoutError: it ran longer than 1.5 seconds and was stopped"
    assert outcome.stdout == "up\n"
    assert 1.5 <= outcome.duration < 5
    assert processes_with(f": {mark}") == []


async def test_daemons_are_killed_when_the_function_returns(run: Run) -> None:
    body = """
    import subprocess
    subprocess.Popen(['/bin/sh', '-c', f': {mark}; while :; do sleep 1; done'], start_new_session=True)
    return 1
    """
    mark = f"{MARK}_{time.monotonic_ns()}"
    assert value_of(await run(source_of(body, "mark"), mark=mark)) == 1
    assert processes_with(f": {mark}") == []


async def test_cancellation_kills_the_tool(run: Run) -> None:
    mark = f"{MARK}_{time.monotonic_ns()}"
    body = "import os; os.execv('/bin/sh', ['/bin/sh', '-c', f': {mark}; while :; do sleep 1; done'])"
    running = asyncio.create_task(run(source_of(body, "mark"), mark=mark))
    while not processes_with(f": {mark}"):
        assert not running.done(), running.result()
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert processes_with(f": {mark}") == []


async def test_second_cancellation_does_not_leave_the_process(run: Run) -> None:
    """A server that stops cancels a call that its client has cancelled already."""
    mark = f"{MARK}_{time.monotonic_ns()}"
    body = "import os; os.execv('/bin/sh', ['/bin/sh', '-c', f': {mark}; while :; do sleep 1; done'])"
    running = asyncio.create_task(run(source_of(body, "mark"), mark=mark))
    while not processes_with(f": {mark}"):
        assert not running.done(), running.result()
        await asyncio.sleep(0)
    while not running.done():
        running.cancel()
        await asyncio.sleep(0)
    assert running.cancelled()
    assert children_running("inside/start.py") == []


async def test_fork_bomb_reaches_its_limit_and_is_cleaned_up(run: Run) -> None:
    body = """
    import os, time
    while True:
        try:
            os.fork()
        except OSError:
            time.sleep(0.01)
    """
    outcome = await run(source_of(body), seconds=2)
    assert outcome.status in (OutcomeStatus.TIMED_OUT, OutcomeStatus.KILLED)
    assert outcome.duration < 10
    assert (await run(source_of("return 'fine'"))).text == "fine"
    assert children_running("inside/start.py") == []


async def test_memory_is_limited(run: Run) -> None:
    outcome = await run(source_of("held = []\nwhile True: held.append(bytearray(10_000_000))"))
    assert (outcome.status, outcome.text) == (
        OutcomeStatus.KILLED,
        "Error executing function tool: MemoryError: it needed more than 256 MB of memory",
    )


async def test_processor_time_is_limited(run: Run) -> None:
    outcome = await run(source_of("while True: pass"))
    assert (outcome.status, outcome.text) == (
        OutcomeStatus.KILLED,
        "Error executing function tool: ResourceError: it used more than 2 seconds of processor time and was stopped",
    )


async def test_size_of_a_file_is_limited(run: Run) -> None:
    outcome = await run(source_of("open('big', 'wb').write(b'x' * 20_000_000)"))
    assert outcome.status is OutcomeStatus.ERROR
    assert "OSError" in outcome.text


async def test_working_directory_is_removed(directories: Path, run: Run) -> None:
    """Also if the tool has revoked permissions on it."""
    body = """
    import os
    os.makedirs('a/b')
    open('a/b/c', 'w').write('x')
    os.chmod('a/b', 0)
    os.chmod('a', 0)
    """
    outcome = await run(source_of(body))
    assert outcome.status is OutcomeStatus.SUCCESS
    assert list(directories.iterdir()) == []
    assert (await run(source_of("import os; return sorted(os.listdir('.'))"))).text == "[]"
