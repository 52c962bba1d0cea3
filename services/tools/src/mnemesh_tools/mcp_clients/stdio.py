"""The transport over the standard streams of a program: one JSON-RPC message per line."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import anyio
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter
from mnemesh_sandbox.redaction import Redactor
from mnemesh_sandbox.streams import Talk

from mnemesh_tools.mcp_clients.contracts import MAX_EVENT_BYTES, McpContactFailed
from mnemesh_tools.mcp_clients.tasks import end_task

RunProgram = Callable[[Talk], Coroutine[Any, Any, str]]
"""Runs the program until the talk with it ends, and returns why it ended."""
_CHUNK: Final = 65_536
_STDERR_BYTES: Final = 8_192
_MAX_FOREIGN_LINES: Final = 1_000
_LAST_WORDS_SECONDS: Final = 0.5
"""The time between the end of the standard input or output of a program, and its own end."""
_BURST: Final = 100
_BURST_SECONDS: Final = 0.05
"""A program that writes more messages waits: others need the processor, too."""


class ProgramEnded(Exception):
    """The program ended by itself. The message says why, with the end of its standard error."""


class ProgramOutput:
    """The end of what a program wrote beside its messages, without secrets."""

    def __init__(self, redactor: Redactor) -> None:
        """Creates an empty output, whose text has none of the values that the redactor knows."""
        self._redactor = redactor
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self._is_cut = False

    def add(self, piece: bytes) -> None:
        """Keeps a piece, and forgets the oldest ones."""
        self._pieces.append(piece[-_STDERR_BYTES:])
        self._size += len(self._pieces[-1])
        self._is_cut = self._is_cut or self._size > _STDERR_BYTES or len(piece) > _STDERR_BYTES
        while self._size - len(self._pieces[0]) >= _STDERR_BYTES:
            self._size -= len(self._pieces.popleft())

    @property
    def text(self) -> str:
        """The text, without control characters."""
        text = b"".join(self._pieces)[-_STDERR_BYTES:].decode("utf-8", "replace")
        text = self._redactor.redacted(text, is_cut=True, begins_late=self._is_cut)
        return "".join(character for character in text if character in "\n\t" or character.isprintable()).strip()


@asynccontextmanager
async def program_streams(run: RunProgram, output: ProgramOutput) -> AsyncIterator[Any]:
    """Yields the streams of messages of a program, and ends it afterwards.

    Raises:
        McpContactFailed: The program cannot be started.
        ProgramEnded: It ended by itself, or wrote what is no message.
    """
    ended_first = False
    to_session, messages = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, from_session = anyio.create_memory_object_stream[SessionMessage](0)
    failures: list[str] = []

    async def talk(stdout: asyncio.StreamReader, stdin: asyncio.StreamWriter, stderr: asyncio.StreamReader) -> None:
        reading = asyncio.create_task(_read(stdout, to_session, output, failures))
        noise = asyncio.create_task(_keep(stderr, output))
        writing = asyncio.create_task(_write(from_session, stdin))
        nonlocal ended_first
        try:
            await asyncio.wait({reading, writing}, return_when=asyncio.FIRST_COMPLETED)
            ended_first = not writing.done()
            stdin.close()  # the sign for the program to end
            _, open_streams = await asyncio.wait({reading, noise}, timeout=_LAST_WORDS_SECONDS)
            if ended_first and open_streams and not failures:
                failures.append("The program closed its standard output.")
        finally:
            for task in (reading, noise, writing):
                task.cancel()
            await asyncio.gather(reading, noise, writing, return_exceptions=True)

    running = asyncio.create_task(run(talk))
    running.add_done_callback(lambda _: to_session.close())
    try:
        yield messages, outgoing
    finally:
        messages.close()
        outgoing.close()
        try:
            await asyncio.wait({running})
        except asyncio.CancelledError:
            await end_task(running)
            raise
        finally:
            to_session.close()
            from_session.close()
        error = running.exception()
        if error is not None:
            raise error
        if ended_first:
            raise ProgramEnded(_ended(failures[0] if failures else f"The program ended: {running.result()}.", output))


async def _read(
    stdout: asyncio.StreamReader,
    to_session: Any,
    output: ProgramOutput,
    failures: list[str],
) -> None:
    """Passes the messages of a program on. Lines that are no messages are kept as those of its standard error."""
    buffer, foreign, count, since = bytearray(), 0, 0, time.monotonic()
    async with to_session:
        while chunk := await stdout.read(_CHUNK):
            buffer += chunk
            *lines, rest = buffer.split(b"\n")
            buffer = bytearray(rest)
            if len(buffer) > MAX_EVENT_BYTES or any(len(line) > MAX_EVENT_BYTES for line in lines):
                failures.append(f"The program wrote a message of more than {MAX_EVENT_BYTES >> 20} MB.")
                return
            for line in lines:
                if not line.strip():
                    continue
                try:
                    message = jsonrpc_message_adapter.validate_json(bytes(line), by_name=False)
                except ValueError:
                    output.add(bytes(line[:_CHUNK]) + b"\n")
                    foreign += 1
                    if foreign > _MAX_FOREIGN_LINES:
                        failures.append(
                            f"The program wrote more than {_MAX_FOREIGN_LINES:,} lines that are no messages to its "
                            "standard output."
                        )
                        return
                    continue
                try:
                    await to_session.send(SessionMessage(message))
                except (anyio.ClosedResourceError, anyio.BrokenResourceError):
                    return  # the session is closed
                count += 1
                if count % _BURST == 0:
                    await asyncio.sleep(max(0.0, since + _BURST_SECONDS - time.monotonic()))
                    since = time.monotonic()


async def _write(from_session: Any, stdin: asyncio.StreamWriter) -> None:
    with suppress(OSError):  # the program closed its standard input: its end says why
        async for item in from_session:
            text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
            stdin.write(text.encode() + b"\n")
            await stdin.drain()


async def _keep(stderr: asyncio.StreamReader, output: ProgramOutput) -> None:
    while chunk := await stderr.read(_CHUNK):
        output.add(chunk)
        await asyncio.sleep(0)


def _ended(reason: str, output: ProgramOutput) -> str:
    words = " ".join(output.text.split())
    return f"{reason} Its last output: …{words[-300:]}" if words else reason


def with_output(error: McpContactFailed, output: ProgramOutput) -> McpContactFailed:
    """Returns the error with the end of the program's output."""
    return McpContactFailed(_ended(str(error), output))
