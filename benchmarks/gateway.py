"""Measures what the gateway adds to a turn: `python -m benchmarks.gateway`, or `make bench ARGS=--gateway`.

One client sends the same turns over gRPC and through the gateway, in turn. Then streams wait for a model that holds
back the rest of its answer, all at the same time. The model is a fake one that answers immediately.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import uvloop
from mnemesh.agents.v1 import runs_pb2, runs_service_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_gateway.http.convert.chat import chat_request_from_json
from mnemesh_gateway.http.convert.messages import json_object
from mnemesh_gateway.http.streams import sse
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.server import Reply

from benchmarks.agents import Connection, MeasuredAgent, create_agent
from benchmarks.measurement import percentiles
from benchmarks.mesh import RunningMesh, fake_model, running_mesh
from benchmarks.turns import HttpClient

_DONE = b"data: [DONE]"
_WARM_UP = 20
_PATH = "/v1/chat/completions"


async def over_grpc(connection: Connection, agent: MeasuredAgent, number: int, *, stream: bool) -> tuple[float, float]:
    """Returns the milliseconds to the first words and to the end of a turn."""
    started, first = time.perf_counter(), 0.0
    part = message_pb2.ContentPart(text=message_pb2.TextPart(text=f"Question {number}."))
    request = runs_service_pb2.SendMessageRequest(
        agent_id=agent.id,
        messages=[runs_pb2.InputMessage(content=[part])],
        config=runs_pb2.RunConfig(stream_tokens=stream),
    )
    async for response in connection.runs.SendMessage(request):
        event = response.event
        if not first and (event.HasField("delta") or event.message.HasField("assistant")):
            first = time.perf_counter()
    return (first - started) * 1000, (time.perf_counter() - started) * 1000


async def over_http(client: HttpClient, agent: MeasuredAgent, number: int, *, stream: bool) -> tuple[float, float]:
    """Returns the milliseconds to the first words and to the end of a turn."""
    started, first = time.perf_counter(), 0.0
    # With history, as front ends replay it.
    messages = [
        {"role": "assistant", "content": f"{number} {stream}"},
        {"role": "user", "content": f"Question {number}."},
    ]
    async for chunk in client.post(_PATH, {"model": agent.id, "messages": messages, "stream": stream}):
        if not first and (b'"content":"H' in chunk or not stream):
            first = time.perf_counter()
    return (first - started) * 1000, (time.perf_counter() - started) * 1000


async def added(mesh: RunningMesh, turns: int) -> dict[str, dict[str, float]]:
    """Returns the milliseconds of turns by way, and the CPU of the gateway."""
    found: dict[str, dict[str, float]] = {}
    async with Connection(mesh.config) as connection:
        agent = await create_agent(connection, model="one-step", stored=20, window=20)
        client = await HttpClient.open(mesh.config.address("gateway"))
        for stream in (False, True):
            timings: dict[str, list[tuple[float, float]]] = {"gRPC": [], "gateway": []}
            for number in range(turns + _WARM_UP):
                if number == _WARM_UP:
                    before = mesh.processes.cpu_ms()["gateway"]
                timings["gRPC"].append(await over_grpc(connection, agent, number, stream=stream))
                timings["gateway"].append(await over_http(client, agent, number, stream=stream))
                if number % 10 == 0:
                    await agent.trim(connection)
            cpu = mesh.processes.cpu_ms()["gateway"] - before
            for way, measured in timings.items():
                firsts, totals = zip(*measured[_WARM_UP:], strict=True)
                found[f"{'stream' if stream else 'whole answer'} over {way}"] = {
                    "first words p50": percentiles(firsts)[0],
                    "turn p50": percentiles(totals)[0],
                    "turn p95": percentiles(totals)[1],
                    **({"gateway CPU": cpu / turns} if way == "gateway" else {}),
                }
        client.close()
    return found


async def open_streams(data_dir: Path, count: int) -> dict[str, float]:
    """Returns the seconds until `count` streams of one process have their first words, and its memory."""
    gates = [asyncio.Event(), asyncio.Event()]
    gates[0].set()
    reply = Reply(text="Half of the answer. The rest.", gates=gates, piece_size=20)
    async with FakeOpenAI(lambda _: reply) as model, running_mesh(data_dir, (model.base_url, os.getpid())) as mesh:
        async with Connection(mesh.config) as connection:
            agent = await create_agent(connection, model="fake-model", stored=1, window=1)
        reached, all_reached = 0, asyncio.Event()
        started = time.perf_counter()

        async def one(number: int) -> int:
            nonlocal reached
            client = await HttpClient.open(mesh.config.address("gateway"))
            body = {"model": agent.id, "messages": [{"role": "user", "content": "Tell me."}], "stream": True}
            ended = 0
            async for chunk in client.post(_PATH, body, session=f"stream-{number}"):
                if b"Half" in chunk:
                    reached += 1
                    if reached == count:
                        all_reached.set()
                ended += _DONE in chunk
            client.close()
            return ended

        streams = [asyncio.create_task(one(number)) for number in range(count)]
        await asyncio.wait_for(all_reached.wait(), 300)
        opened = time.perf_counter() - started
        memory = mesh.processes.resident_mb()["gateway"]
        gates[1].set()
        complete = sum(await asyncio.gather(*streams))
        return {"streams": float(complete), "all open after s": opened, "gateway MB": memory}


def json_costs() -> dict[str, float]:
    """Returns the milliseconds of the conversions that a request needs."""
    short = json.dumps({"model": "ada", "messages": [{"role": "user", "content": "Hello."}]}).encode()
    turns = [{"role": role, "content": "word " * 40} for _ in range(100) for role in ("user", "assistant")]
    long = json.dumps({"model": "ada", "messages": [*turns, {"role": "user", "content": "Hello."}]}).encode()
    chunk = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [{"delta": {"content": "Hello, Ada."}}]}

    def timed(function: Any, *arguments: Any) -> float:
        rounds = 300
        started = time.perf_counter()
        for _ in range(rounds):
            function(*arguments)
        return (time.perf_counter() - started) / rounds * 1000

    return {
        "request with 1 message": timed(lambda body: chat_request_from_json(json_object(body)), short),
        "request with 201 messages, 40 KB": timed(lambda body: chat_request_from_json(json_object(body)), long),
        "one chunk": timed(sse, chunk),
    }


async def measure(directory: Path, turns: int, streams: int) -> dict[str, Any]:
    """Runs all measurements."""
    async with fake_model() as model, running_mesh(directory / "turns", model) as mesh:
        ways = await added(mesh, turns)
    return {"turns": ways, "open": await open_streams(directory / "streams", streams), "json": json_costs()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints, and writes `build/bench-gateway.json`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gateway", description=__doc__)
    parser.add_argument("--turns", type=int, default=200, help="turns of each kind (%(default)s)")
    parser.add_argument("--streams", type=int, default=200, help="streams at the same time (%(default)s)")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="mnemesh-gateway-") as directory:
        found = uvloop.run(measure(Path(directory), given.turns, given.streams))
    for name, figures in found["turns"].items():
        print(f"{name:28}" + "  ".join(f"{figure} {value:.2f} ms" for figure, value in figures.items()))
    for kind in ("whole answer", "stream"):
        way, direct = found["turns"][f"{kind} over gateway"], found["turns"][f"{kind} over gRPC"]
        print(f"added to a {kind}: first words {way['first words p50'] - direct['first words p50']:+.2f} ms, ", end="")
        print(f"turn {way['turn p50'] - direct['turn p50']:+.2f} ms")
    print("  ".join(f"{name} {value:.1f}" for name, value in found["open"].items()))
    print("conversion: " + ", ".join(f"{name} {value:.4f} ms" for name, value in found["json"].items()))
    out = Path("build/bench-gateway.json")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
