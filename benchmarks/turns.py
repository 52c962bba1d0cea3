"""Timed turns of one agent or of many concurrent agents."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from mnemesh.agents.v1 import agents_pb2, runs_pb2
from mnemesh.agents.v1 import runs_service_pb2 as runs
from mnemesh.types.v1 import message_pb2

from benchmarks.agents import Connection, MeasuredAgent


@dataclass(frozen=True, slots=True)
class TimedTurn:
    """Milliseconds from the request to the first event, to the first event from the model, and to the last event."""

    accepted_ms: float
    model_ms: float
    whole_ms: float


async def turn(connection: Connection, agent: MeasuredAgent, *, streamed: bool = False) -> TimedTurn:
    """Runs one turn to its end.

    Raises:
        RuntimeError: the turn failed; a benchmark of failures would measure nothing.
    """
    text = message_pb2.ContentPart(text=message_pb2.TextPart(text="Tell me what you found out, and remember it."))
    request = runs.SendMessageRequest(
        agent_id=agent.id,
        messages=[runs_pb2.InputMessage(content=[text])],
        config=runs_pb2.RunConfig(stream_tokens=streamed),
    )
    started = time.perf_counter()
    accepted = model = 0.0
    stop = agents_pb2.STOP_REASON_UNSPECIFIED
    async for response in connection.runs.SendMessage(request):
        kind = response.event.WhichOneof("event")
        if kind == "message":
            _require_success(response.event.message)
        if kind == "accepted":
            accepted = time.perf_counter()
        elif not model and kind in ("delta", "message"):
            model = time.perf_counter()
        elif kind == "error":
            raise RuntimeError(f"a turn failed: {response.event.error.error.message}")
        elif kind == "stop":
            stop = response.event.stop.reason
    ended = time.perf_counter()
    if stop not in (agents_pb2.STOP_REASON_END_TURN, agents_pb2.STOP_REASON_TOOL_RULE) or not model:
        raise RuntimeError(f"a turn ended with {agents_pb2.StopReason.Name(stop)}")
    return TimedTurn((accepted - started) * 1e3, (model - started) * 1e3, (ended - started) * 1e3)


def _require_success(message: runs_pb2.MessageEvent) -> None:
    for returned in message.tool_return.tool_returns:
        if returned.status != message_pb2.TOOL_RETURN_STATUS_SUCCESS:
            raise RuntimeError(f"{returned.name} failed: {returned.content[0].text.text}")


async def wave(
    connection: Connection, agents: Sequence[MeasuredAgent], each: int, *, streamed: bool = False
) -> list[TimedTurn]:
    """Runs `each` turns of every agent: sequentially per agent, concurrently across agents."""

    async def lane(agent: MeasuredAgent) -> list[TimedTurn]:
        return [await turn(connection, agent, streamed=streamed) for _ in range(each)]

    lanes = await asyncio.gather(*map(lane, agents))
    return [timed for timed_lane in lanes for timed in timed_lane]
