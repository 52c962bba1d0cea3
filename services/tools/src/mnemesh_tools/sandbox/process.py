"""The server's side of one sandbox process: starts it, reads its output within limits, and kills all of it."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mnemesh_tools.sandbox.inside.plan import Plan

_ENTRY: Final = Path(__file__).parent / "inside" / "start.py"
_CHUNK: Final = 65_536
_REPORT_BYTES: Final = 65_536
_GRACE_SECONDS: Final = 5.0
_REPORT: Final = 1


@dataclass(frozen=True, slots=True)
class Captured:
    """The beginning of what a pipe carried, and the number of bytes after it."""

    data: bytes
    dropped: int


@dataclass(frozen=True, slots=True)
class EndedProcess:
    """A process that has ended, together with all of its descendants."""

    result: Captured
    stdout: Captured
    stderr: Captured
    status: int | None
    """The wait status of the runner. None if the server stopped it."""
    refused: tuple[str, str] | None
    """The layer that the host refused, and the reason."""
    exceeded: str | None
    """The limit of all processes together that the tool exceeded, of `inside.watch`."""
    timed_out: bool
    duration: float


def python_directories() -> list[str]:
    """Returns the directories of this interpreter and its standard library."""
    paths = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    paths |= {prefix for prefix in (sys.base_prefix, sys.base_exec_prefix) if prefix != "/"}
    return sorted(paths)


async def run(
    plan_for: Callable[[int, int], Plan], task: bytes, *, seconds: float, stream_bytes: int, result_bytes: int
) -> EndedProcess:
    """Runs one process until it ends, its time is over, or the caller is cancelled. No descendant survives the call.

    Args:
        plan_for: Returns the plan for the descriptors of the result pipe and the report pipe.
        task: The task, which the runner reads from its stdin.
        seconds: The time after which the process is killed.
        stream_bytes: The number of bytes of stdout, and of stderr, to keep.
        result_bytes: The number of bytes of the result pipe to keep.
    """
    started = time.monotonic()
    process, pipes = _start(plan_for, task)
    limits = (result_bytes, _REPORT_BYTES, stream_bytes, stream_bytes)
    reading = [asyncio.create_task(_collect(pipe, limit)) for pipe, limit in zip(pipes, limits, strict=True)]
    # Only the outer process and the init process hold the report pipe, so it closes when both have ended.
    ended = reading[_REPORT]
    timed_out = False
    try:
        async with asyncio.timeout(seconds):
            await asyncio.shield(ended)
    except TimeoutError:
        timed_out = True
    finally:
        await _to_its_end(_end(process, ended, reading))
    result, report, stdout, stderr = await asyncio.gather(*reading)
    status, refused, exceeded = _read_report(report.data)
    return EndedProcess(result, stdout, stderr, status, refused, exceeded, timed_out, time.monotonic() - started)


def _start(plan_for: Callable[[int, int], Plan], task: bytes) -> tuple[subprocess.Popen[bytes], list[int]]:
    """Starts the outer process; returns it with the ends to read of its result, report, stdout and stderr pipes.

    The event loop cannot start it: the loop forks the whole process, which gRPC's threads do not survive. Another
    thread cannot start it either: the process would receive its parent-death signal when that thread ends.
    """
    interpreter = getattr(sys, "_base_executable", None) or sys.executable
    with ExitStack() as ours, ExitStack() as theirs:
        ends = [os.pipe() for _ in range(4)]
        for read, write in ends:
            ours.callback(os.close, read)
            theirs.callback(os.close, write)
        stdin = _sealed_file(task)
        theirs.callback(os.close, stdin)
        plan = plan_for(ends[0][1], ends[_REPORT][1])
        process = subprocess.Popen(  # noqa: S603
            [interpreter, "-I", "-S", "-X", "utf8", str(_ENTRY), plan.to_json()],
            stdin=stdin,
            stdout=ends[2][1],
            stderr=ends[3][1],
            env={},
            cwd="/",
            pass_fds=[fd for fd in (plan.result_fd, plan.report_fd, plan.claim_fd) if fd is not None],
            start_new_session=True,
            umask=0o022,  # the uid of the tool must reach the directories of its root; the service's own umask is 077
        )
        ours.pop_all()
        return process, [read for read, _ in ends]


def _sealed_file(data: bytes) -> int:
    """Returns the descriptor of a read-only file in memory that contains `data`."""
    file = os.memfd_create("task", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with os.fdopen(file, "wb", closefd=False) as stream:
        stream.write(data)
    os.lseek(file, 0, os.SEEK_SET)
    fcntl.fcntl(
        file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
    )
    return file


async def _to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Awaits `work` also if this task is cancelled meanwhile, more than once, as a server that stops does."""
    task = asyncio.create_task(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    task.result()
    if cancelled is not None:
        raise cancelled


async def _end(
    process: subprocess.Popen[bytes], ended: asyncio.Task[Captured], reading: list[asyncio.Task[Captured]]
) -> None:
    """Makes the outer process kill the tool. The tool cannot reach the outer process, so this always succeeds."""
    try:
        if not ended.done():
            process.terminate()
            await asyncio.wait([ended], timeout=_GRACE_SECONDS)
        if not ended.done():
            process.kill()
        await asyncio.wait(reading)
    finally:
        _wait(process)


def _wait(process: subprocess.Popen[bytes]) -> None:
    """Waits for the outer process, which has ended unless the event loop is being closed."""
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


async def _collect(fd: int, limit: int) -> Captured:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    pipe = os.fdopen(fd, "rb", buffering=0)
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    kept, dropped = bytearray(), 0
    try:
        while chunk := await reader.read(_CHUNK):
            part = chunk[: limit - len(kept)]
            kept += part
            dropped += len(chunk) - len(part)
    finally:
        transport.close()
    return Captured(bytes(kept), dropped)


def _read_report(data: bytes) -> tuple[int | None, tuple[str, str] | None, str | None]:
    """Returns the wait status, the refused layer with its reason, and the exceeded limit."""
    status: int | None = None
    refused: tuple[str, str] | None = None
    exceeded: str | None = None
    for line in data.splitlines():
        fact: dict[str, Any] = json.loads(line)
        if "layer" in fact:
            refused = (fact["layer"], fact["reason"])
        elif "exceeded" in fact:
            exceeded = fact["exceeded"]
        elif refused is None:
            status = fact["status"]
    return status, refused, exceeded
