"""A crash at every point of a group run: the next process completes it, and repeats no turn and no event."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from mnemesh_kit.paging import PageQuery
from mnemesh_orchestrator.llm.port import LlmRequest
from mnemesh_orchestrator.model.groups import Group, ManagerType
from mnemesh_orchestrator.model.runs import RunFilter, RunStatus
from mnemesh_testkit.plugin import Sample

from ..support.faults import Crash, Faults
from ..support.groups import Cast, send, start
from ..support.model import Held, Item, by_place, call, say
from ..support.world import ME, Process, World, crashed, opened, require_valid

ALL = PageQuery(50, ascending=True)
SCRIPTS: dict[str, Callable[[LlmRequest], Item]] = {
    "Ada": by_place(call("archival_memory_insert", content="one"), say("Ada speaks.")),
    "Bob": by_place(say("Bob speaks.")),
    "Max": lambda request: say("Ada" if "Said since" not in request.messages[-1].text else "Bob"),
}


class Repeatable(Cast):
    """Agents whose answers depend on the request alone."""

    def _answer(self, request: LlmRequest) -> Item:
        name = request.messages[0].text.partition("I am ")[2].partition(".")[0]
        self.requests.setdefault(name, []).append(request)
        return SCRIPTS[name](request)


async def lived(world: World, cast: Cast, kind: ManagerType, point: int | None) -> tuple[Process, Group, bool]:
    """Sends to a new group in a process that crashes at a point. Returns whether the run was stored."""
    world.faults = Faults()
    process = world.process()
    await cast.join(process, *SCRIPTS)
    by = "Max" if kind is ManagerType.DYNAMIC else ""
    group = await cast.group(process, "Ada", "Bob", kind=kind, by=by)
    process.faults.calls.clear()
    process.faults.crashes_at = point
    was_stored = True
    try:
        await send(process, group, "Hello", stream_tokens=True)
    except Crash:
        was_stored = False
    await crashed(process)
    return process, group, was_stored


async def recovered(world: World) -> Process:
    """Starts the same instance again, and waits until nothing is left to do."""
    world.faults = Faults()
    process = world.process()
    while await process.stores.leases.claimable(process.lease_renewer.instance_id):
        await process.recover()
    return process


@pytest.mark.parametrize("kind", [ManagerType.ROUND_ROBIN, ManagerType.DYNAMIC])
async def test_run_survives_a_crash_at_every_point(tmp_path: Path, kind: ManagerType, sample: Sample) -> None:
    async with opened(tmp_path) as world:
        await survives(world, kind, lambda points: sample(points, 36, 2))


@pytest.mark.full
async def test_run_survives_crashes_on_postgresql(tmp_path: Path, postgres_url: str) -> None:
    async with opened(tmp_path, postgres_url) as world:
        await survives(world, ManagerType.DYNAMIC, lambda points: points[::17])


async def survives(world: World, kind: ManagerType, choose: Callable[[Sequence[int]], Sequence[int]]) -> None:
    cast = Repeatable(world)
    process, group, _ = await lived(world, cast, kind, None)
    points, whole = world.faults.points, await outcome(process, cast, group)
    assert points > 50
    for point in choose(range(points)):
        cast = Repeatable(world)
        _, group, was_stored = await lived(world, cast, kind, point)
        process = await recovered(world)
        found = await outcome(process, cast, group)
        assert found == whole or (found is None and not was_stored), f"point {point}"


async def outcome(process: Process, cast: Cast, group: Group) -> object:
    """Returns what a user sees of the run of a group, or None if it was not stored."""
    page = await process.runs.list(ME, RunFilter(group_id=group.id), ALL)
    if not page.items:
        return None
    run, *turns = page.items
    assert {turn.status for turn in page.items} == {RunStatus.COMPLETED}
    assert run.child_run_ids == tuple(turn.id for turn in turns)
    for agent in cast.agents.values():
        require_valid(cast.world.window(agent).messages)
    assert await cast.world.archival.texts(cast.agents["Ada"].id) == ["one"]
    events = cast.shown(await process.follow(run))
    return events, cast.turn("Ada")[0::3], cast.turn("Bob"), len(turns), run.step_count


async def test_cancellation_survives_a_crash_at_every_point(tmp_path: Path, sample: Sample) -> None:
    """The run is cancelled with the turn, or not at all: no other agent speaks after a turn that was cancelled."""
    async with opened(tmp_path) as world:
        points = await cancelled(world, None)
        assert points > 15
        for point in sample(range(points), 16, 2):
            await cancelled(world, point)


async def cancelled(world: World, point: int | None) -> int:
    """Cancels a group run while its second member speaks, and crashes at a point. Returns the number of points."""
    world.faults = Faults()
    process, cast = world.process(), Cast(world)
    await cast.join(process, "Ada", "Bob", "Cleo")
    held = Held(say("Never said."))
    cast.says("Bob", held, "Bob speaks.")
    group = await cast.group(process, "Ada", "Bob", "Cleo")
    run = await start(process, group)
    await held.asked.wait()
    process.faults.calls.clear()
    process.faults.crashes_at = point
    with suppress(Crash):
        await process.approvals.cancel(ME, RunFilter(), (run.id,))
    points = process.faults.points
    held.released.set()
    await crashed(process)
    process = await recovered(world)
    page = await process.runs.list(ME, RunFilter(group_id=group.id), ALL)
    ends = [item.status for item in page.items]
    assert ends in ([RunStatus.CANCELLED, RunStatus.COMPLETED, RunStatus.CANCELLED], [RunStatus.COMPLETED] * 4), point
    assert point is not None or ends[0] is RunStatus.CANCELLED
    events = cast.shown(await process.follow(page.items[0]))
    assert events.count("Bob MemberTurnStarted 2") == events.count("Bob MemberTurnEnded 2") == 1, point
    for agent in cast.agents.values():
        require_valid(world.window(agent).messages)
    return points


async def test_run_that_cannot_be_resumed_ends_with_the_turn(world: World, process: Process) -> None:
    cast = Cast(world)
    await cast.join(process, "Ada", "Bob")
    held = Held(say("Never said."))
    cast.says("Ada", held)
    group = await cast.group(process, "Ada", "Bob")
    run = await start(process, group)
    await held.asked.wait()
    for _ in range(11):
        await process.worker.stop()
        process = world.process()
        for conversation_id in sorted(await process.stores.leases.claimable(process.lease_renewer.instance_id)):
            await process.worker.claim_and_run(conversation_id)
        if not process.worker.holds(run.id):
            break
    await process.follow(run)
    ended = await process.runs.get(ME, run.id)
    assert (ended.status, ended.error and ended.error.reason) == (RunStatus.FAILED, "RUN_STALLED")
    (turn,) = (await process.runs.list(ME, RunFilter(parent_run_id=run.id), ALL)).items
    assert turn.status.ended
    await process.worker.stop()
