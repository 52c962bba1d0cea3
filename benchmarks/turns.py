"""Timed turns of one agent or of many concurrent agents, over gRPC and over Letta's REST API."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from mnemesh.agents.v1 import agents_pb2, runs_pb2
from mnemesh.agents.v1 import runs_service_pb2 as runs
from mnemesh.types.v1 import message_pb2

from benchmarks.agents import Connection, MeasuredAgent


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


TEXT: Final = "Tell me what you found out, and remember it."


@dataclass(frozen=True, slots=True)
class Timed:
    """Milliseconds from a request to its first words, and to its end."""

    first_ms: float
    whole_ms: float


async def turn(connection: Connection, agent: MeasuredAgent, *, streamed: bool = False) -> Timed:
    """Runs one turn over gRPC.

    Raises:
        RuntimeError: the turn failed; a benchmark of failures would measure nothing.
    """
    text = message_pb2.ContentPart(text=message_pb2.TextPart(text=TEXT))
    request = runs.SendMessageRequest(
        agent_id=agent.id,
        messages=[runs_pb2.InputMessage(content=[text])],
        config=runs_pb2.RunConfig(stream_tokens=streamed),
        batch_events=True,
    )
    started, first = time.perf_counter(), 0.0
    stop = agents_pb2.STOP_REASON_UNSPECIFIED
    async for response in connection.runs.SendMessage(request):
        for event in (response.event, *response.further_events):
            kind = event.WhichOneof("event")
            if kind == "message":
                _require_success(event.message)
            if not first and kind in ("delta", "message"):
                first = time.perf_counter()
            elif kind == "error":
                raise RuntimeError(f"a turn failed: {event.error.error.message}")
            elif kind == "stop":
                stop = event.stop.reason
    ended = time.perf_counter()
    if stop not in (agents_pb2.STOP_REASON_END_TURN, agents_pb2.STOP_REASON_TOOL_RULE) or not first:
        raise RuntimeError(f"a turn ended with {agents_pb2.StopReason.Name(stop)}")
    return Timed((first - started) * 1e3, (ended - started) * 1e3)


async def turn_over_rest(client: HttpClient, agent: MeasuredAgent, *, streamed: bool = False) -> Timed:
    """Runs one turn over Letta's REST API.

    Raises:
        RuntimeError: the turn failed.
    """
    started, first, answer = time.perf_counter(), 0.0, b""
    async for piece in client.post(message_path(agent.id, streamed=streamed), message_body(TEXT, streamed=streamed)):
        answer += piece
        if not first and (b"assistant_message" in answer or b"send_message" in answer):
            first = time.perf_counter()
    ended = time.perf_counter()
    if not any(reason in answer for reason in (b'"end_turn"', b'"tool_rule"')) or b'"status":"error"' in answer:
        raise RuntimeError(f"a turn failed: {answer.decode()[-500:]}")
    return Timed((first - started) * 1e3, (ended - started) * 1e3)


def _require_success(message: runs_pb2.MessageEvent) -> None:
    for returned in message.tool_return.tool_returns:
        if returned.status != message_pb2.TOOL_RETURN_STATUS_SUCCESS:
            raise RuntimeError(f"{returned.name} failed: {returned.content[0].text.text}")


async def wave(
    connection: Connection,
    agents: Sequence[MeasuredAgent],
    each: int,
    *,
    streamed: bool = False,
    clients: Sequence[HttpClient] = (),
) -> list[Timed]:
    """Runs `each` turns of every agent: sequentially per agent, concurrently across agents; over `clients` if given."""

    async def run_turns(number: int, agent: MeasuredAgent) -> list[Timed]:
        if clients:
            return [await turn_over_rest(clients[number], agent, streamed=streamed) for _ in range(each)]
        return [await turn(connection, agent, streamed=streamed) for _ in range(each)]

    lanes = await asyncio.gather(*(run_turns(number, agent) for number, agent in enumerate(agents)))
    return [timed for lane in lanes for timed in lane]
