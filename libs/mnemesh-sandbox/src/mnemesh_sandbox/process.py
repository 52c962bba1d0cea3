"""The server's side of one sandbox process: starts it, reads its output within limits, and kills all of it."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from mnemesh_sandbox.calls import Answer, CallPipes
from mnemesh_sandbox.inside.plan import OWN_UID, PID_NAMESPACE, PRIVATE_ROOT, Plan

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter, asyncio.StreamReader], Coroutine[Any, Any, None]]
"""Reads the standard output of a program, writes to its standard input, and reads its standard error.

It returns when it needs the program no more, or when the streams have ended; then the standard input is closed.
"""
_BUFFER_BYTES: Final = 65_536
_DROPPED_SECONDS: Final = 0.002
"""The pause after a part that is dropped, so that endless output does not occupy the event loop."""
_ENTRY: Final = Path(__file__).parent / "inside" / "start.py"
_CHUNK: Final = 65_536
_REPORT_BYTES: Final = 65_536
_GRACE_SECONDS: Final = 5.0
_REPORT: Final = 1
_PIPE_BYTES: Final = 32_768
_TALK_SECONDS: Final = 1.0
"""The longest time in which a process and the talk with it both end, after one of them did."""
Serve = Callable[[socket.socket], Coroutine[Any, Any, None]]
"""Accepts the connections of a tool on a listener until it is cancelled."""


@dataclass(frozen=True, slots=True)
class Captured:
    """The beginning of what a pipe carried, and the number of bytes after it."""

    data: bytes
    dropped: int


async def collect(fd: int, limit: int, seen: Callable[[bytes], None] | None = None) -> Captured:
    """Returns the beginning of what a pipe carries until its end. Closes the descriptor.

    Args:
        fd: The descriptor.
        limit: The number of bytes to keep.
        seen: Receives each part when it arrives.
    """
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    pipe = os.fdopen(fd, "rb", buffering=0)
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    kept, dropped = bytearray(), 0
    try:
        while chunk := await reader.read(_BUFFER_BYTES):
            if seen is not None:
                seen(chunk)
            part = chunk[: limit - len(kept)]
            kept += part
            dropped += len(chunk) - len(part)
            if not part:
                await asyncio.sleep(_DROPPED_SECONDS)
    finally:
        transport.close()
    return Captured(bytes(kept), dropped)


async def talk_with(stdin: int, stdout: int, stderr: int, talk: Talk) -> None:
    """Runs `talk` on the descriptors of a program's streams, and closes them."""
    loop = asyncio.get_running_loop()
    reading: list[tuple[asyncio.StreamReader, asyncio.ReadTransport]] = []
    left = [stdin, stdout, stderr]
    transport: asyncio.WriteTransport | None = None
    try:
        for descriptor in (stdout, stderr):
            left.remove(descriptor)
            reader = asyncio.StreamReader(limit=_BUFFER_BYTES)
            pipe = os.fdopen(descriptor, "rb", buffering=0)
            opened, _ = await loop.connect_read_pipe(partial(asyncio.StreamReaderProtocol, reader), pipe)
            reading.append((reader, opened))
        left.remove(stdin)
        protocol = _Writing()
        transport, _ = await loop.connect_write_pipe(lambda: protocol, os.fdopen(stdin, "wb", buffering=0))
        writer = asyncio.StreamWriter(transport, protocol, None, loop)
        await talk(reading[0][0], writer, reading[1][0])
    finally:
        for number in left:
            os.close(number)
        for _, opened in reading:
            opened.close()
        if transport is not None:
            transport.abort()


class _Writing(asyncio.streams.FlowControlMixin):
    """The protocol of a pipe that is only written to."""

    def __init__(self) -> None:
        super().__init__()
        self._closed = asyncio.get_running_loop().create_future()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if not self._closed.done():
            self._closed.set_result(None)

    def _get_close_waiter(self, stream: asyncio.StreamWriter) -> asyncio.Future[None]:  # noqa: ARG002
        return self._closed


@dataclass(frozen=True, slots=True)
class EndedProcess:
    """A task whose processes have all ended."""

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


@dataclass(frozen=True, slots=True)
class Descriptors:
    """The descriptors of a new process: the ends to write of the result pipe and the report pipe, and optional ones."""

    result: int
    report: int
    proxy: int | None = None
    """The socket on which the server expects a listener."""
    calls: int | None = None
    """The pipe for calls of tools."""
    replies: int | None = None
    """The pipe with the answers to these calls."""
    input: int | None = None
    """The standard input of a task that is talked with."""


class SandboxProcess:
    """One process, which waits for its task. No process of the task survives `execute` or `discard`.

    The outer process and the init process may end a moment after `execute`: when the kernel has removed the namespaces.
    `close` awaits that.
    """

    def __init__(
        self,
        plan_for: Callable[[Descriptors], Plan],
        *,
        stream_bytes: int,
        result_bytes: int,
        serve: Serve | None = None,
        answer: Answer | None = None,
        talk: Talk | None = None,
    ) -> None:
        """Starts the process, in the thread of the event loop.

        Args:
            plan_for: Returns the plan for the descriptors of the process.
            stream_bytes: The number of bytes of stdout, and of stderr, to keep.
            result_bytes: The number of bytes of the result pipe to keep.
            serve: Serves the network of a tool that has access.
            answer: Answers the calls of tools that a program makes.
            talk: Uses the standard streams of the task, of which nothing is kept then.
        """
        self._serving: list[asyncio.Task[None]] = []
        self._talking: asyncio.Task[None] | None = None
        with ExitStack() as stack:
            ours, theirs = socket.socketpair() if serve is not None else (None, None)
            calls = CallPipes() if answer is not None else None
            if theirs is not None:
                stack.enter_context(theirs)
            if calls is not None:
                stack.callback(calls.close_theirs)
            read, write = os.pipe() if talk is not None else (None, -1)
            if read is not None:
                stack.callback(os.close, read)
            self._process, self._stdin, pipes, plan = _start(
                plan_for, None if theirs is None else theirs.fileno(), calls, read
            )
        # Without a pid namespace, the processes of the tool outlive an outer process that the host kills.
        self._uid = plan.uid if OWN_UID in plan.layers and PID_NAMESPACE not in plan.layers else None
        if serve is not None and ours is not None:
            self._serving.append(asyncio.create_task(_serve_network(ours, serve)))
        if answer is not None and calls is not None:
            self._serving.append(asyncio.create_task(calls.serve(answer)))
        if talk is not None:
            self._talking = asyncio.create_task(talk_with(write, pipes[2], pipes[3], talk))
            pipes = pipes[:2]
        limits = (result_bytes, _REPORT_BYTES, stream_bytes, stream_bytes)
        seen = (None, self._report_arrived, None, None)
        parts = zip(pipes, limits, seen, strict=False)
        self._reading = [asyncio.create_task(collect(pipe, limit, observe)) for pipe, limit, observe in parts]
        self._report = bytearray()
        self._task_ended = asyncio.Event()
        self._reading[_REPORT].add_done_callback(lambda _: self._task_ended.set())
        # Without a private root, the directory of the task must be removed before the answer.
        self._answers_early = {PID_NAMESPACE, PRIVATE_ROOT} <= set(plan.layers) and talk is None

    @property
    def has_ended(self) -> bool:
        # Only the outer process and the init process hold the report pipe, so it closes when both have ended.
        return self._reading[_REPORT].done()

    async def execute(self, task: bytes, seconds: float | None, content: Path | None = None) -> EndedProcess:
        """Gives the process its task, and waits until it ends, its time is over, or the caller is cancelled.

        A process that is talked with also ends when the talk has ended; then it has a moment to end by itself.

        Args:
            task: The task, which the runner reads from its stdin.
            seconds: The time after which the process is killed; None for no limit.
            content: A file whose bytes follow the task.

        Raises:
            OSError: The content cannot be read.
        """
        started = time.monotonic()
        stdin, self._stdin = self._stdin, -1
        writing = asyncio.create_task(_write(stdin, task, content))
        timed_out, end = False, self._end
        try:
            async with asyncio.timeout(seconds):
                if self._answers_early:
                    await self._task_ended.wait()
                    end = self._end_serving
                elif self._talking is None:
                    await asyncio.shield(self._reading[_REPORT])
                else:
                    both = {self._talking, self._reading[_REPORT]}
                    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                    await asyncio.wait(both, timeout=_TALK_SECONDS)
        except TimeoutError:
            timed_out = True
        finally:
            await _to_its_end(end())
            await _to_its_end(_wait_until_ended(writing))
        writing.result()
        result, *streams = await asyncio.gather(*self._reading[:_REPORT], *self._reading[_REPORT + 1 :])
        stdout, stderr = streams or (Captured(b"", 0), Captured(b"", 0))
        status, refused, exceeded = _read_report(bytes(self._report))
        return EndedProcess(result, stdout, stderr, status, refused, exceeded, timed_out, time.monotonic() - started)

    async def close(self) -> None:
        """Awaits the end of the outer process and the init process."""
        await _to_its_end(self._end())

    async def discard(self) -> None:
        """Ends a process that gets no task."""
        if self._stdin >= 0:
            stdin, self._stdin = self._stdin, -1
            os.close(stdin)
        await _to_its_end(self._end())

    def _report_arrived(self, data: bytes) -> None:
        self._report += data
        if b'"status"' in self._report:  # the line after which no process of the task is left
            self._task_ended.set()

    async def _end(self) -> None:
        beside = self._cancelled()
        await _end(self._process, self._reading[_REPORT], self._reading, self._uid)
        await asyncio.gather(*beside, return_exceptions=True)

    async def _end_serving(self) -> None:
        await asyncio.gather(*self._cancelled(), return_exceptions=True)

    def _cancelled(self) -> list[asyncio.Task[None]]:
        beside = [*self._serving, *([] if self._talking is None else [self._talking])]
        for task in beside:
            task.cancel()
        return beside


async def _write(stdin: int, task: bytes, content: Path | None) -> None:
    """Writes the task and closes the pipe, which is the sign that the task is complete."""
    try:
        if content is not None:
            await asyncio.to_thread(_write_with_content, stdin, task, content)
        elif len(task) <= _PIPE_BYTES:
            os.write(stdin, task)  # into an empty pipe, so it does not wait
        else:
            await asyncio.to_thread(_write_all, stdin, task)
    except BrokenPipeError:
        pass  # the process has ended; its report says why
    finally:
        os.close(stdin)


def _write_all(stdin: int, task: bytes) -> None:
    left = memoryview(task)
    while left:
        left = left[os.write(stdin, left) :]


def _write_with_content(stdin: int, task: bytes, content: Path) -> None:
    with content.open("rb") as file:
        _write_all(stdin, task)
        while chunk := file.read(_CHUNK):
            _write_all(stdin, chunk)


async def _wait_until_ended(task: asyncio.Task[None]) -> None:
    await asyncio.wait([task])


async def _serve_network(connection: socket.socket, serve: Serve) -> None:
    """Receives the listener from the sandbox and serves it. Nothing arrives if the sandbox cannot be set up."""
    with connection:
        connection.setblocking(False)
        readable = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(connection, readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(connection)
        _, descriptors, _, _ = socket.recv_fds(connection, 1, 1)
    for descriptor in descriptors:
        with socket.socket(fileno=descriptor) as listener:
            listener.setblocking(False)
            await serve(listener)


def _start(
    plan_for: Callable[[Descriptors], Plan], proxy_fd: int | None, calls: CallPipes | None, input_fd: int | None
) -> tuple[subprocess.Popen[bytes], int, list[int], Plan]:
    """Starts the outer process.

    Returns:
        The process, the end to write of its stdin, the ends to read of its result, report, stdout and stderr pipes, and
        its plan.

    The event loop cannot start it: the loop forks the whole process, which gRPC's threads do not survive. Another
    thread cannot start it either: the process would receive its parent-death signal when that thread ends.
    """
    interpreter = getattr(sys, "_base_executable", None) or sys.executable
    with ExitStack() as ours, ExitStack() as theirs:
        ends = [os.pipe() for _ in range(4)]
        for read, write in ends:
            ours.callback(os.close, read)
            theirs.callback(os.close, write)
        stdin, task = os.pipe()
        theirs.callback(os.close, stdin)
        ours.callback(os.close, task)
        pipes = (None, None) if calls is None else (calls.calls, calls.replies)
        plan = plan_for(Descriptors(ends[0][1], ends[_REPORT][1], proxy_fd, pipes[0], pipes[1], input_fd))
        passed = (plan.result_fd, plan.report_fd, plan.claim_fd, proxy_fd, *pipes, input_fd)
        process = subprocess.Popen(  # noqa: S603
            [interpreter, "-I", "-S", "-X", "utf8", str(_ENTRY), plan.to_json()],
            stdin=stdin,
            stdout=ends[2][1],
            stderr=ends[3][1],
            env={},
            cwd="/",
            pass_fds=[fd for fd in passed if fd is not None],
            start_new_session=True,
            umask=0o022,  # the uid of the tool must reach the directories of its root; the service's own umask is 077
        )
        ours.pop_all()
        return process, task, [read for read, _ in ends], plan


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
    process: subprocess.Popen[bytes],
    ended: asyncio.Task[Captured],
    reading: list[asyncio.Task[Captured]],
    uid: int | None,
) -> None:
    """Makes the outer process kill the tool, which cannot reach it.

    If the host killed the outer process, this process kills those of `uid`, which belongs to the tool alone.
    """
    try:
        if not ended.done():
            process.terminate()
            await asyncio.wait([ended], timeout=_GRACE_SECONDS)
        if not ended.done():
            process.kill()
        if uid is not None and await asyncio.to_thread(process.wait) < 0:
            await asyncio.to_thread(_kill_all, uid)
        await asyncio.wait(reading)
    finally:
        _wait(process)


def _kill_all(uid: int) -> None:
    # The uid may not be able to execute the interpreter, so that process takes the uid itself.
    code = f"import os; os.setgroups([]); os.setresgid(*[{uid}] * 3); os.setresuid(*[{uid}] * 3); os.kill(-1, 9)"
    interpreter = getattr(sys, "_base_executable", None) or sys.executable
    subprocess.run([interpreter, "-I", "-S", "-c", code], env={}, cwd="/", stderr=subprocess.DEVNULL, check=False)  # noqa: S603


def _wait(process: subprocess.Popen[bytes]) -> None:
    """Waits for the outer process, which has ended unless the event loop is being closed."""
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


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
