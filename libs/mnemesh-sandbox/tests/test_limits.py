"""The limits of tools, and the removal of all that they leave behind."""

import asyncio
import os
import re
import time
from pathlib import Path

import pytest
from mnemesh_sandbox import OutcomeStatus, Sandbox, Task
from mnemesh_testkit.timeouts import growing, scaled

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
    for seconds in growing(1.5):
        mark, seen = f"{MARK}_{time.monotonic_ns()}", False
        running = asyncio.create_task(run(source_of(body, "mark"), seconds=seconds, mark=mark))
        while not running.done():
            seen = seen or bool(processes_with(f": {mark}"))
            await asyncio.sleep(0.01)
        outcome = await running
        assert outcome.status is OutcomeStatus.TIMED_OUT
        assert f"TimeoutError: it ran longer than {seconds:g} seconds and was stopped" in outcome.text
        assert outcome.duration >= seconds
        assert processes_with(f": {mark}") == []
        if seen and outcome.stdout == "up\n":
            return


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
        await asyncio.sleep(0.01)
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
        await asyncio.sleep(0.01)
    while not running.done():
        running.cancel()
        await asyncio.sleep(0)
    assert running.cancelled()
    assert children_running("inside/start.py") == []


async def test_fork_bomb_reaches_its_limit_and_is_cleaned_up(run: Run, sandbox: Sandbox) -> None:
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
    assert (await run(source_of("return 'fine'"))).text == "fine"
    await sandbox.close()
    assert children_running("inside/start.py") == []


async def test_memory_is_limited(run: Run) -> None:
    outcome = await run(source_of("held = []\nwhile True: held.append(bytearray(10_000_000))"))
    assert (outcome.status, outcome.text) == (
        OutcomeStatus.KILLED,
        "Error executing function tool: MemoryError: it needed more than 256 MB of memory",
    )


async def test_processor_time_is_limited(run: Run) -> None:
    outcome = await run(source_of("while True: pass"), seconds=scaled(120))
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


async def test_descriptors_of_the_service_do_not_count_as_memory_of_a_tool(run: Run) -> None:
    """A service with many connections gives its tools pipes with high numbers."""
    held = [os.open("/dev/null", os.O_RDONLY) for _ in range(600)]
    try:
        outcome = await run(source_of("import time\ntime.sleep(0.5)\nreturn 'ran'"))
        assert outcome.text == "ran", outcome
    finally:
        for number in held:
            os.close(number)


async def test_endless_output_is_read_at_a_bounded_rate(sandbox: Sandbox) -> None:
    """So that it does not occupy the event loop of the service."""
    source = "import os\ndef tool():\n    while True:\n        os.write(1, b'x' * 65536)\n"
    outcome = await sandbox.run(Task(source, "tool"), 1.0)
    assert outcome.status is OutcomeStatus.TIMED_OUT
    found = re.search(r"it has (\d+) bytes, and 100000 are kept", outcome.stdout)
    assert found is not None
    # At most the buffer of the reader for each pause.
    assert int(found[1]) < 150_000_000 * max(outcome.duration, 1.0)
