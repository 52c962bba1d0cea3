"""Processes that wait for their task."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio
from mnemesh_sandbox import Access, Level, OutcomeStatus, Sandbox, SandboxSettings, SandboxUnavailable, Task
from mnemesh_sandbox.sandbox import WarmPool
from mnemesh_testkit.timeouts import scaled

from .conftest import new_sandbox
from .support import children_running, source_of, value_of

SETTINGS = SandboxSettings(minimum=Level.MINIMAL, cpu_seconds=2, memory_mb=256, processes=24, disk_mb=8)
PID = Task(source_of("import os\nopen('left', 'w').close()\nreturn [os.listdir('.'), sorted(os.environ)]"), "tool")


@pytest_asyncio.fixture
async def warm() -> AsyncIterator[Sandbox]:
    """A sandbox that keeps one process waiting."""
    sandbox = (await new_sandbox(SETTINGS)).warmed(1)
    if sandbox.isolation.level is Level.NONE:
        pytest.skip(f"this host supports no isolation: {dict(sandbox.isolation.missing)}")
    yield sandbox
    await sandbox.close()
    assert children_running("start.py") == []


async def _waiting(sandbox: Sandbox, key: tuple[str, ...] = ("",)) -> int:
    """Waits until the pool has a process of the key, and returns the pid of its outer process."""
    pool = sandbox._pool
    assert isinstance(pool, WarmPool)
    async with asyncio.timeout(scaled(60)):
        while not pool._waiting.get(key):
            await asyncio.sleep(0.01)
    return pool._waiting[key][0].process._process.pid


async def test_each_process_executes_one_task(warm: Sandbox) -> None:
    """What a task leaves in its files, its environment and its memory is not there for the next one."""
    pids = []
    for name in ("one", "two"):
        task = Task(PID.source, PID.function, environment={name: "x"})
        assert value_of(await warm.run(task, scaled(60))) == [["left"], ["HOME", name]]
        pids.append(await _waiting(warm))
    assert pids[0] != pids[1]


async def test_task_is_the_first_that_a_waiting_process_shows(warm: Sandbox) -> None:
    """A process that waits has prepared itself. Nothing of that reaches the task."""
    await warm.run(PID, scaled(60))
    await _waiting(warm)
    body = """
    import os, sys
    own = sys.modules["tool"].__dict__ is globals()
    return [own, sorted(name for name in globals() if name in ("number", "text")), os.listdir("."), list(os.environ)]
    """
    outcome = await warm.run(Task(source_of(body), "tool"), scaled(60))
    assert (value_of(outcome), outcome.stdout, outcome.stderr) == ([True, [], [], ["HOME"]], "", "")


async def test_waiting_process_executes_a_tool_with_await(warm: Sandbox) -> None:
    source = "import asyncio\nasync def tool():\n    await asyncio.sleep(0)\n    return 'awaited'\n"
    await warm.run(PID, scaled(60))
    await _waiting(warm)
    assert (await warm.run(Task(source, "tool"), scaled(60))).text == "awaited"


async def test_what_a_task_holds_is_released_when_its_last_process_has_ended(warm: Sandbox) -> None:
    await warm.run(PID, scaled(60))
    outer, released = await _waiting(warm), asyncio.Event()
    states = []

    def release() -> None:
        states.append(Path("/proc", str(outer)).exists())
        released.set()

    async with AsyncExitStack() as held:
        held.callback(release)
        await warm.run(PID, scaled(60), held=held)
        async with asyncio.timeout(scaled(60)):
            await released.wait()
    assert states == [False]


async def test_what_a_task_holds_stays_held_if_no_process_was_started() -> None:
    sandbox = await Sandbox.open(SandboxSettings(minimum=Level.FULL), layers=set())
    async with AsyncExitStack() as held:
        released: list[str] = []
        held.callback(released.append, "released")
        with pytest.raises(SandboxUnavailable):
            await sandbox.run(PID, scaled(60), held=held)
        assert released == []
    assert released == ["released"]


async def test_limits_begin_with_the_task(warm: Sandbox) -> None:
    await warm.run(PID, scaled(60))
    await _waiting(warm)
    outcome = await warm.run(Task(source_of("while True: pass"), "tool"), 0.3)
    assert outcome.status is OutcomeStatus.TIMED_OUT
    await _waiting(warm)
    outcome = await warm.run(Task(source_of("return len(bytearray(2 ** 30))"), "tool"), scaled(60))
    assert outcome.status is OutcomeStatus.KILLED


async def test_large_tasks_reach_a_waiting_process(warm: Sandbox) -> None:
    await warm.run(PID, scaled(60))
    await _waiting(warm)
    text = "x" * 900_000
    assert value_of(await warm.run(Task(source_of("return len(a)", "a"), "tool", {"a": text}), scaled(60))) == len(text)


async def test_process_that_was_killed_while_it_waited_is_replaced(warm: Sandbox) -> None:
    await warm.run(PID, scaled(60))
    os.kill(await _waiting(warm), signal.SIGKILL)
    while not warm._pool._waiting[("",)][0].process.has_ended:  # type: ignore[union-attr]
        await asyncio.sleep(0.01)
    assert value_of(await warm.run(PID, scaled(60))) == [["left"], ["HOME"]]


async def test_directory_of_packages_that_was_replaced_is_seen(warm: Sandbox, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    packages = tmp_path / "packages"
    task = Task(source_of("import greeting\nreturn greeting.TEXT"), "tool")
    for text in ("hello", "good day"):
        if packages.exists():
            packages.rename(tmp_path / "removed")
        packages.mkdir(mode=0o755)
        (packages / "greeting.py").write_text(f"TEXT = {text!r}\n")
        for _ in range(2):
            assert (await warm.run(task, scaled(60), Access(packages=(str(packages),)))).text == text
            await _waiting(warm, ("", str(packages)))


async def test_cancelled_call_leaves_no_process(warm: Sandbox) -> None:
    await warm.run(PID, scaled(60))
    await _waiting(warm)
    call = asyncio.create_task(warm.run(Task(source_of("import time; time.sleep(60)"), "tool"), 50.0))
    await asyncio.sleep(0.1)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


@pytest.mark.parametrize(("held", "status"), [("os.close(held)", 1), ("pass", 0)], ids=["ended", "alive"])
def test_process_whose_outer_process_has_ended_before_it_asked_for_the_signal_ends(held: str, status: int) -> None:
    code = (
        "import os; from mnemesh_sandbox.inside import launch; "
        f"alive, held = os.pipe(); {held}; launch._end_with_outer_process(alive)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == status
