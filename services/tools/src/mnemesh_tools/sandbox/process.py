"""One sandbox process seen from the server: started, fed, read within bounds, and ended with all it started."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
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
    """What a pipe carried, up to its bound."""

    data: bytes
    dropped: int


@dataclass(frozen=True, slots=True)
class Ended:
    """A process that is gone, and everything it started with it."""

    result: Captured
    stdout: Captured
    stderr: Captured
    status: int | None
    """The wait status of the runner; None if it was stopped from outside."""
    refused: tuple[str, str] | None
    """The layer that the host refused, and why."""
    timed_out: bool
    duration: float


def python_directories() -> list[str]:
    """Where this interpreter's own files and standard library are."""
    places = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    places |= {prefix for prefix in (sys.base_prefix, sys.base_exec_prefix) if prefix != "/"}
    return sorted(places)


async def run(
    plan_for: Callable[[int, int], Plan], task: bytes, *, seconds: float, stream_bytes: int, result_bytes: int
) -> Ended:
    """Runs one process to its end, the end of its time or the caller's cancellation; nothing of it is left in any case.

    Args:
        plan_for: the plan, given the descriptors of the result and the report pipe.
        task: what the runner reads on its stdin.
        seconds: how long until it is killed.
        stream_bytes: how much of stdout, and of stderr, is kept.
        result_bytes: how much of the result pipe is kept.
    """
    started = time.monotonic()
    process, pipes = _start(plan_for, task)
    limits = (result_bytes, _REPORT_BYTES, stream_bytes, stream_bytes)
    reading = [asyncio.create_task(_collect(pipe, limit)) for pipe, limit in zip(pipes, limits, strict=True)]
    # Nobody but the outer process and the warden holds the report pipe, so its end is theirs.
    gone = reading[_REPORT]
    timed_out = False
    try:
        async with asyncio.timeout(seconds):
            await asyncio.shield(gone)
    except TimeoutError:
        timed_out = True
    finally:
        await asyncio.shield(_end(process, gone, reading))
    result, report, stdout, stderr = await asyncio.gather(*reading)
    status, refused = _read_report(report.data)
    return Ended(result, stdout, stderr, status, refused, timed_out, time.monotonic() - started)


def _start(plan_for: Callable[[int, int], Plan], task: bytes) -> tuple[subprocess.Popen[bytes], list[int]]:
    """Starts the outer process; gives it and what to read of its result, report, stdout and stderr.

    It is started here and not by the event loop: the loop's own way forks all of this process, whose gRPC threads do
    not bear that, and a process started from another thread would take that thread's end for the server's.
    """
    interpreter = getattr(sys, "_base_executable", None) or sys.executable
    with ExitStack() as ours, ExitStack() as theirs:
        ends = [os.pipe() for _ in range(4)]
        for read, write in ends:
            ours.callback(os.close, read)
            theirs.callback(os.close, write)
        stdin = _sealed(task)
        theirs.callback(os.close, stdin)
        plan = plan_for(ends[0][1], ends[_REPORT][1])
        process = subprocess.Popen(  # noqa: S603
            [interpreter, "-I", "-S", "-X", "utf8", str(_ENTRY), plan.to_json()],
            stdin=stdin,
            stdout=ends[2][1],
            stderr=ends[3][1],
            env={},
            cwd="/",
            pass_fds=(plan.result_fd, plan.report_fd),
            start_new_session=True,
        )
        ours.pop_all()
        return process, [read for read, _ in ends]


def _sealed(data: bytes) -> int:
    """A file in memory that holds `data`, stands at its beginning and cannot be changed."""
    file = os.memfd_create("task", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with os.fdopen(file, "wb", closefd=False) as stream:
        stream.write(data)
    os.lseek(file, 0, os.SEEK_SET)
    fcntl.fcntl(
        file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
    )
    return file


async def _end(
    process: subprocess.Popen[bytes], gone: asyncio.Task[Captured], reading: list[asyncio.Task[Captured]]
) -> None:
    """Tells the outer process to end all; it is in nobody's reach but ours, so it does."""
    if not gone.done():
        process.terminate()
        await asyncio.wait([gone], timeout=_GRACE_SECONDS)
    if not gone.done():
        process.kill()
    await asyncio.wait(reading)
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


def _read_report(data: bytes) -> tuple[int | None, tuple[str, str] | None]:
    status: int | None = None
    refused: tuple[str, str] | None = None
    for line in data.splitlines():
        fact: dict[str, Any] = json.loads(line)
        if "layer" in fact:
            refused = (fact["layer"], fact["why"])
        elif refused is None:
            status = fact["status"]
    return status, refused
