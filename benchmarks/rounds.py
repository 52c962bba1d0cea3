"""Measures the CPU time of a round robin of four members with one-step turns, and of four turns of single agents.

`python -m benchmarks.rounds`
"""

import argparse
import sys
import tempfile
from pathlib import Path
from statistics import median

import uvloop
from mnemesh.agents.v1 import agents_pb2, groups_pb2, groups_service_pb2, runs_pb2
from mnemesh.agents.v1 import runs_service_pb2 as runs
from mnemesh.types.v1 import message_pb2

from benchmarks.agents import Connection, MeasuredAgent, create_agent
from benchmarks.mesh import fake_model, running_mesh
from benchmarks.processes import difference
from benchmarks.turns import wave

_MEMBERS = 4
_ROUNDS_PER_WAVE = 5
_OWN = ("fake model", "load")
"""Processes that are not services."""


async def measure(data_dir: Path, window: int, waves: int) -> dict[str, dict[str, float]]:
    """Returns the CPU milliseconds of four turns by kind and process: the median of waves of five rounds."""
    async with (
        fake_model() as model,
        running_mesh(data_dir, model) as mesh,
        Connection(mesh.config) as connection,
    ):
        agents = [
            await create_agent(connection, model="one-step", stored=window, window=window) for _ in range(2 * _MEMBERS)
        ]
        alone, members = agents[:_MEMBERS], agents[_MEMBERS:]
        created = await connection.groups.CreateGroup(
            groups_service_pb2.CreateGroupRequest(group=groups_pb2.Group(agent_ids=[agent.id for agent in members]))
        )
        costs: dict[str, list[dict[str, float]]] = {"four single turns": [], "a round of four": []}
        for number in range(waves + 1):
            for agent in agents:
                await agent.trim(connection)
            before = mesh.processes.cpu_ms()
            await _one_after_the_other(connection, alone)
            between = mesh.processes.cpu_ms()
            for _ in range(_ROUNDS_PER_WAVE):
                await _round(connection, created.group.id)
            after = mesh.processes.cpu_ms()
            if number:  # the first wave warms up
                costs["four single turns"].append(difference(before, between))
                costs["a round of four"].append(difference(between, after))
        return {
            kind: {name: median(one[name] for one in found) / _ROUNDS_PER_WAVE for name in found[0]}
            for kind, found in costs.items()
        }


async def _one_after_the_other(connection: Connection, agents: list[MeasuredAgent]) -> None:
    for _ in range(_ROUNDS_PER_WAVE):
        for agent in agents:
            await wave(connection, [agent], 1)


async def _round(connection: Connection, group_id: str) -> None:
    """Sends a message to a group, and reads the stream to its end. Raises RuntimeError if a turn failed."""
    text = message_pb2.ContentPart(text=message_pb2.TextPart(text="Tell me what you found out, and remember it."))
    request = runs.SendMessageRequest(group_id=group_id, messages=[runs_pb2.InputMessage(content=[text])])
    ended = 0
    async for response in connection.runs.SendMessage(request):
        if response.event.WhichOneof("event") == "member_turn_ended":
            ended += response.event.member_turn_ended.stop_reason == agents_pb2.STOP_REASON_END_TURN
    if ended != _MEMBERS:
        raise RuntimeError(f"{ended} of {_MEMBERS} turns completed")


def main() -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rounds", description=__doc__)
    parser.add_argument("--window", type=int, default=20, help="messages in each window (%(default)s)")
    parser.add_argument("--waves", type=int, default=10, help="waves of five rounds (%(default)s)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mnemesh-rounds-") as data_dir:
        found = uvloop.run(measure(Path(data_dir), given.window, given.waves))
    totals = []
    for kind, by_process in found.items():
        services = {process: value for process, value in by_process.items() if process not in _OWN}
        totals.append(sum(services.values()))
        parts = "  ".join(f"{process} {value:.2f}" for process, value in services.items())
        print(f"{kind}: {totals[-1]:.2f} ms  ({parts})")
    print(f"a round costs {totals[1] / totals[0]:.2f} times the turns")
    return 0


if __name__ == "__main__":
    sys.exit(main())
