"""A client of HTTP APIs that costs next to nothing, so that the server's share is measured; turns over Letta's REST."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, Self


class HttpClient:
    """A connection of HTTP/1.1 that sends one request after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, address: str) -> Self:
        """Connects to `host:port`."""
        host, _, port = address.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def post(self, path: str, body: dict[str, Any], session: str | None = None) -> AsyncIterator[bytes]:
        """Sends a request and yields the answer as it arrives.

        Raises:
            RuntimeError: the answer is an error.
        """
        content = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        head += f"Content-Length: {len(content)}\r\n" + (f"X-Session-Id: {session}\r\n" if session else "") + "\r\n"
        self._writer.write(head.encode() + content)
        answered = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        if b" 200 " not in answered:
            raise RuntimeError(answered.decode())
        if b"content-length:" in answered:
            length = int(answered.partition(b"content-length:")[2].split()[0])
            yield await self._reader.readexactly(length)
            return
        while size := int(await self._reader.readline(), 16):
            yield (await self._reader.readexactly(size + 2))[:-2]
        await self._reader.readline()

    def close(self) -> None:
        """Closes the connection."""
        self._writer.close()


def message_path(agent_id: str, *, streamed: bool) -> str:
    """Returns the path of Letta's API that takes a message."""
    return f"/v1/agents/{agent_id}/messages" + ("/stream" if streamed else "")


def message_body(text: str, *, streamed: bool) -> dict[str, Any]:
    """Returns the request of a turn."""
    body: dict[str, Any] = {"messages": [{"role": "user", "content": text}]}
    return body | {"stream_tokens": True} if streamed else body


def agent_body(model: str) -> dict[str, Any]:
    """Returns the request that creates an agent with two blocks, like `agents.new_agent`."""
    return {
        "agent_type": "letta_v1_agent",
        "model": f"openai/{model}",
        "embedding": "mnemesh/wordllama-256",
        "memory_blocks": [
            {"label": "human", "value": "Ada Marlow, a gardener in Lisbon."},
            {"label": "persona", "value": "A patient companion that remembers what it was told."},
        ],
    }
