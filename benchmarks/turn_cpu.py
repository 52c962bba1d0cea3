"""Measures the CPU time of one-step turns of several kinds: `python -m benchmarks.turn_cpu`.

The kinds are sizes of the window, an agent with a sleep-time partner that does not run meanwhile, and a round robin of
four members, whose time is divided by four. Waves of all kinds alternate.
"""

import argparse
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median

import uvloop
from google.protobuf.field_mask_pb2 import FieldMask
from mnemesh.agents.v1 import agents_pb2, agents_service_pb2, groups_pb2, groups_service_pb2, runs_pb2
from mnemesh.agents.v1 import runs_service_pb2 as runs
from mnemesh.types.v1 import message_pb2

from benchmarks.agents import Connection, MeasuredAgent, create_agent
from benchmarks.mesh import fake_model, running_mesh
from benchmarks.processes import difference
from benchmarks.turns import TEXT, wave

_TURNS_PER_WAVE = 20
_MEMBERS = 4
_SELDOM = 10_000
"""A frequency with which the partner never runs."""
_OWN = ("fake model", "load")
"""Processes that are not services."""
Kind = tuple[Sequence[MeasuredAgent], Callable[[int], Awaitable[object]]]
"""The agents of a kind, and what takes so many turns."""


async def measure(
    data_dir: Path, windows: Sequence[int], waves: int, *, tls: bool = False
) -> dict[str, dict[str, float]]:
    """Returns the CPU milliseconds of one turn by kind and process: the median of waves of twenty turns.

    The window is put back between waves, so it holds at most 40 messages more than stated.
    """
    async with (
        fake_model() as model,
        running_mesh(data_dir, model, tls=tls) as mesh,
        Connection(mesh.config) as connection,
    ):
        kinds = {f"window {size}": await _single(connection, size) for size in windows}
        kinds["sleep-time partner"] = await _single(connection, windows[0], _add_partner)
        kinds["round robin"] = await _round_robin(connection, windows[0])
        costs: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
        for number in range(waves + 1):
            for kind, (agents, take_turns) in kinds.items():
                for agent in agents:
                    await agent.trim(connection)
                await take_turns(_MEMBERS)
                before = mesh.processes.cpu_ms()
                await take_turns(_TURNS_PER_WAVE)
                if number:  # the first wave warms up
                    costs[kind].append(difference(before, mesh.processes.cpu_ms()))
        return {
            kind: {name: median(one[name] for one in found) / _TURNS_PER_WAVE for name in found[0]}
            for kind, found in costs.items()
        }


async def _single(
    connection: Connection, window: int, prepare: Callable[[Connection, MeasuredAgent], Awaitable[None]] | None = None
) -> Kind:
    agent = await create_agent(connection, model="one-step", stored=window, window=window)
    if prepare is not None:
        await prepare(connection, agent)
    return [agent], partial(wave, connection, [agent])


async def _round_robin(connection: Connection, window: int) -> Kind:
    members = [await create_agent(connection, model="one-step", stored=window, window=window) for _ in range(_MEMBERS)]
    group = groups_pb2.Group(agent_ids=[agent.id for agent in members])
    created = await connection.groups.CreateGroup(groups_service_pb2.CreateGroupRequest(group=group))
    text = message_pb2.ContentPart(text=message_pb2.TextPart(text=TEXT))
    request = runs.SendMessageRequest(group_id=created.group.id, messages=[runs_pb2.InputMessage(content=[text])])

    async def take_turns(count: int) -> None:
        ended = 0
        for _ in range(count // _MEMBERS):
            async for response in connection.runs.SendMessage(request):
                if response.event.WhichOneof("event") == "member_turn_ended":
                    ended += response.event.member_turn_ended.stop_reason == agents_pb2.STOP_REASON_END_TURN
        if ended != count:
            raise RuntimeError(f"{ended} of {count} turns completed")

    return members, take_turns


async def _add_partner(connection: Connection, agent: MeasuredAgent) -> None:
    update = agents_service_pb2.UpdateAgentRequest(
        agent=agents_pb2.Agent(id=agent.id, enable_sleeptime=True), update_mask=FieldMask(paths=["enable_sleeptime"])
    )
    await connection.agents.UpdateAgent(update)
    filter_ = groups_service_pb2.GroupFilter(agent_id=agent.id)
    (group,) = (await connection.groups.ListGroups(groups_service_pb2.ListGroupsRequest(filter=filter_))).groups
    manager = groups_pb2.SleeptimeManager(manager_agent_id=agent.id, sleeptime_agent_frequency=_SELDOM)
    changed = groups_pb2.Group(id=group.id, manager_config=groups_pb2.ManagerConfig(sleeptime=manager))
    mask = FieldMask(paths=["manager_config"])
    await connection.groups.UpdateGroup(groups_service_pb2.UpdateGroupRequest(group=changed, update_mask=mask))


def main() -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.turn_cpu", description=__doc__)
    parser.add_argument("--windows", type=int, nargs="+", default=[20, 10, 101], help="messages in the window")
    parser.add_argument("--waves", type=int, default=10, help="waves of twenty turns (%(default)s)")
    parser.add_argument("--tls", action="store_true", help="with mutual TLS between all processes")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mnemesh-turn-cpu-") as data_dir:
        found = uvloop.run(measure(Path(data_dir), given.windows, given.waves, tls=given.tls))
    for kind, by_process in found.items():
        services = {name: value for name, value in by_process.items() if name not in _OWN}
        parts = "  ".join(f"{name} {value:.2f}" for name, value in services.items())
        print(f"{kind}: {sum(services.values()):.2f} ms  ({parts})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
