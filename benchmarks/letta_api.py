"""Measures Letta's REST API with its own SDK: `python -m benchmarks.letta_api`.

One client sends messages to an agent whose model answers at once, whole and as streams. The times include the SDK.
"""

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import uvloop
from letta_client import Letta

from benchmarks.measurement import percentiles
from benchmarks.mesh import fake_model, running_mesh

_WARM_UP = 20
_RESET_EVERY = 10


def whole(client: Letta, agent_id: str) -> float:
    """Returns the milliseconds of a message and its answer."""
    started = time.perf_counter()
    client.agents.messages.create(agent_id, input="Hello.")
    return (time.perf_counter() - started) * 1000


def first_event(client: Letta, agent_id: str) -> float:
    """Returns the milliseconds to the first event of a stream, which is read to its end."""
    started, first = time.perf_counter(), 0.0
    body = {"input": "Hello.", "streaming": True, "stream_tokens": True}
    for _ in client.agents.messages.create(agent_id, **body):
        first = first or time.perf_counter()
    return (first - started) * 1000


def rounds(address: str, count: int) -> dict[str, dict[str, float]]:
    """Returns the percentiles of both ways in milliseconds."""
    found: dict[str, dict[str, float]] = {}
    with Letta(base_url=f"http://{address}", api_key="none", max_retries=0) as client:
        agent = client.agents.create(model="openai/one-step", include_base_tools=False, memory_blocks=[])
        for name, measure in (("message", whole), ("first event of a stream", first_event)):
            taken = []
            for number in range(count + _WARM_UP):
                if number % _RESET_EVERY == 0:
                    client.agents.messages.reset(agent.id)
                taken.append(measure(client, agent.id))
            p50, p95, *_ = percentiles(taken[_WARM_UP:])
            found[name] = {"p50": p50, "p95": p95}
        started = time.perf_counter()
        for _ in range(count):
            client.health()
        found["health"] = {"mean": (time.perf_counter() - started) * 1000 / count}
    return found


async def measure(directory: Path, count: int) -> dict[str, Any]:
    """Runs the mesh as processes and measures it."""
    async with fake_model() as model, running_mesh(directory, model) as mesh:
        return await asyncio.to_thread(rounds, mesh.config.address("gateway"), count)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints the result as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.letta_api", description=__doc__)
    parser.add_argument("--count", type=int, default=200, help="messages of each kind (%(default)s)")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="mnemesh-letta-") as directory:
        print(json.dumps(uvloop.run(measure(Path(directory), given.count)), indent=2))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
