"""The calls of tools that a program in the sandbox makes: one line of JSON for each, answered by one line."""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from mnemesh_sandbox.task import clean

MAX_CALL_BYTES: Final = 4 * 1024 * 1024
"""The longest line: a character of the arguments, at most 1,048,576, has up to four bytes."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that a program makes. Its name and its arguments come from the program, so nothing is certain of them."""

    id: int
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    ok: bool
    text: str
    """The result, or the error."""


Answer = Callable[[ToolCall], Awaitable[ToolAnswer]]
"""Answers a call. The calls of a program are answered one after another."""


class CallPipes:
    """The server's ends of the two pipes."""

    def __init__(self) -> None:
        """Creates the pipes."""
        self._calls, self.calls = os.pipe()
        self.replies, self._replies = os.pipe()

    def close_theirs(self) -> None:
        """Closes the ends of the process, which has them now."""
        os.close(self.calls)
        os.close(self.replies)

    async def serve(self, answer: Answer) -> None:
        """Answers calls until the process ends, writes a line that is not a call, or this task is cancelled."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=MAX_CALL_BYTES)
        protocol = asyncio.StreamReaderProtocol(reader)
        incoming, _ = await loop.connect_read_pipe(lambda: protocol, os.fdopen(self._calls, "rb", buffering=0))
        try:
            outgoing, flow = await loop.connect_write_pipe(
                lambda: asyncio.streams.FlowControlMixin(loop), os.fdopen(self._replies, "wb", buffering=0)
            )
            writer = asyncio.StreamWriter(outgoing, flow, None, loop)
            try:
                await _serve(reader, writer, answer)
            finally:
                outgoing.abort()
        finally:
            incoming.close()


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: Answer) -> None:
    while True:
        try:
            call = _call(await reader.readuntil(b"\n"))
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return
        if call is None:
            return
        result = await answer(call)
        reply = {"id": call.id, "ok": result.ok, "value": clean(result.text)}
        try:
            writer.write(json.dumps(reply).encode() + b"\n")
            await writer.drain()
        except (BrokenPipeError, ConnectionResetError):
            return


def _call(line: bytes) -> ToolCall | None:
    """Returns the call of a line; None if it is none. The program can write to the pipe, too."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict):
        return None
    number, name, arguments = fields.get("id"), fields.get("name"), fields.get("arguments")
    if type(number) is not int or not isinstance(name, str) or not isinstance(arguments, dict):
        return None
    return ToolCall(number, clean(name), arguments)
