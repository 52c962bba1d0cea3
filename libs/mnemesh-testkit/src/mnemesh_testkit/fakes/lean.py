"""A fake OpenAI for benchmarks: zero latency and next to no CPU, on a bare asyncio protocol.

It never parses a request: what to answer follows from counting tool messages behind the last user message in its bytes.
A model named after a script follows that script, whatever the server was started with.
"""

import argparse
import asyncio
import itertools
import json
import re
import sys
from collections.abc import Sequence
from typing import Any, Final, cast

import uvloop

_SAID: Final = "Here is what I found: everything is in its place, and nothing was lost on the way."
_LENGTH: Final = re.compile(rb"(?i)\r\ncontent-length:\s*(\d+)")
_TOOL_MESSAGE: Final = re.compile(rb'"role":\s?"tool"')
_LINE: Final = "The lean fake was here."
_SCRIPTS: Final = {"one-step": 0, "five-tools": 5}
# The last takes back what the first did, so that turn follows turn on the same block.
_TOOLS: Final = (
    (b'"memory_insert"', "memory_insert", {"label": "human", "new_str": _LINE}),
    (b'"archival_memory_insert"', "archival_memory_insert", {"content": _LINE}),
    (b'"archival_memory_search"', "archival_memory_search", {"query": "lean fake"}),
    (b'"conversation_search"', "conversation_search", {"query": "what was said"}),
    (b'"memory_replace"', "memory_replace", {"label": "human", "old_str": f"\n{_LINE}", "new_str": ""}),
)
_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n"
    b"content-length: %d\r\n\r\n%b"
)


class LeanProtocol(asyncio.Protocol):
    """HTTP/1.1 with keep-alive, one request after the other, for exactly two kinds of request."""

    def __init__(self, steps: int, counter: "itertools.count[int]") -> None:
        self._steps = steps
        self._counter = counter
        self._pieces: list[bytes] = []
        self._missing = -1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keeps the transport."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by class

    def data_received(self, data: bytes) -> None:
        """Collects a request by its length, then answers it."""
        if self._missing < 0:
            data = b"".join((*self._pieces, data))
            self._pieces.clear()
            end = data.find(b"\r\n\r\n")
            length = _LENGTH.search(data, 0, max(end, 0) + 2)
            if end < 0:
                self._pieces.append(data)
                return
            self._missing = end + 4 + (int(length[1]) if length else 0)
        self._pieces.append(data)
        self._missing -= len(data)
        if self._missing <= 0:
            request = b"".join(self._pieces)
            self._pieces.clear()
            self._missing = -1
            self._transport.write(self._answer(request))

    def _answer(self, request: bytes) -> bytes:
        if request.startswith(b"GET"):
            models = {"object": "list", "data": [{"id": "lean", "object": "model", "created": 0, "owned_by": "fake"}]}
            return _HEAD.replace(b"text/event-stream", b"application/json") % _sized(json.dumps(models).encode())
        done = len(_TOOL_MESSAGE.findall(request, max(0, request.rfind(b"user_message"))))
        tool = self._tool(request, done) if done < self._steps_of(request) else None
        extra: dict[str, Any] = {}
        if b'"thinking"' in request:
            extra["thinking"] = "As the script says."
        if tool is not None:
            heartbeat = {"request_heartbeat": True} if b'"request_heartbeat"' in request else {}
            return _HEAD % _sized(_call(next(self._counter), tool[1], {**extra, **tool[2], **heartbeat}))
        if b'"name":"send_message"' in request or b'"name": "send_message"' in request:
            return _HEAD % _sized(_call(next(self._counter), "send_message", {**extra, "message": _SAID}))
        return _HEAD % _sized(_text(next(self._counter)))

    def _steps_of(self, request: bytes) -> int:
        head = request[: request.find(b'"messages"')]
        return next((steps for name, steps in _SCRIPTS.items() if f'"{name}"'.encode() in head), self._steps)

    @staticmethod
    def _tool(request: bytes, done: int) -> tuple[bytes, str, dict[str, str]] | None:
        offered = [tool for tool in _TOOLS if b'"name":' + tool[0] in request or b'"name": ' + tool[0] in request]
        return offered[done % len(offered)] if offered else None


def _sized(body: bytes) -> tuple[int, bytes]:
    return len(body), body


def _chunk(number: int, choices: str, usage: str = "null") -> str:
    return (
        f'data: {{"id":"chatcmpl-{number}","object":"chat.completion.chunk","created":0,"model":"lean",'
        f'"choices":[{choices}],"usage":{usage}}}\n\n'
    )


def _choice(delta: dict[str, Any], finish: str | None = None) -> str:
    return json.dumps({"index": 0, "delta": delta, "finish_reason": finish})


def _ended(number: int, events: Sequence[str], finish: str) -> bytes:
    usage = '{"prompt_tokens":1000,"completion_tokens":20,"total_tokens":1020}'
    last = (_chunk(number, _choice({}, finish)), _chunk(number, "", usage), "data: [DONE]\n\n")
    return "".join((*events, *last)).encode()


def _text(number: int) -> bytes:
    opening = {"role": "assistant", "content": ""}
    events = [_chunk(number, _choice(delta)) for delta in (opening, {"content": _SAID[:40]}, {"content": _SAID[40:]})]
    return _ended(number, events, "stop")


def _call(number: int, name: str, arguments: dict[str, Any]) -> bytes:
    text = json.dumps(arguments)
    first = {"index": 0, "id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": ""}}
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": None, "tool_calls": [first]}]
    for part in (text[: len(text) // 2], text[len(text) // 2 :]):
        deltas.append({"tool_calls": [{"index": 0, "function": {"arguments": part}}]})
    return _ended(number, [_chunk(number, _choice(delta)) for delta in deltas], "tool_calls")


async def serve(port: int, steps: int) -> None:
    """Serves until cancelled; says on stdout where, as one line of JSON."""
    counter = itertools.count(1)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: LeanProtocol(steps, counter), "127.0.0.1", port)
    bound = server.sockets[0].getsockname()[1]
    sys.stdout.write(json.dumps({"base_url": f"http://127.0.0.1:{bound}/v1"}) + "\n")
    sys.stdout.flush()
    async with server:
        await server.serve_forever()


def main() -> None:
    """Reads the arguments and serves."""
    parser = argparse.ArgumentParser(prog="python -m mnemesh_testkit.fakes.openai", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--script", choices=tuple(_SCRIPTS), default="one-step")
    given = parser.parse_args()
    try:
        uvloop.run(serve(given.port, _SCRIPTS[given.script]))
    except KeyboardInterrupt:
        sys.exit(0)
