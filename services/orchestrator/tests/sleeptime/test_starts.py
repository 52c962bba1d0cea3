"""Starts other than by a turn: on demand, after an interval, after inactivity; and the limit of an organization."""

import asyncio
import json
from dataclasses import replace

import pytest
from mnemesh_kit.errors import FailedPrecondition, NotFound
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.ids import new_id
from mnemesh_orchestrator.model.groups import Group, ManagerConfig, ManagerType, SleeptimeTarget
from mnemesh_orchestrator.model.inputs import InputMessage
from mnemesh_orchestrator.model.runs import PoolLimits, RunStatus
from mnemesh_types.messages import TextPart

from ..support.model import Held, call, say
from ..support.world import ME, Process, World
from .partners import Partners, answer_everything, is_partner, partners, said


def target(crew: Partners) -> SleeptimeTarget:
    return SleeptimeTarget(agent_id=crew.manager.id)


async def test_runs_on_demand_have_what_no_transcript_has(world: World, process: Process) -> None:
    crew = await partners(world, process, members=2, frequency=10)
    assert await process.orchestrator.sleeptime.start(ME, None, SleeptimeTarget(group_id=crew.group.id)) != ()
    await process.idle()
    for turn in range(2):
        await process.send(crew.manager, f"t{turn}")
    key = RequestKey(ME.organization_id, "StartSleeptimeRuns", "r-1", "same")
    runs = await process.orchestrator.sleeptime.start(ME, key, target(crew))
    await process.idle()
    again = await process.orchestrator.sleeptime.start(ME, key, target(crew))
    assert [run.id for run in again] == [run.id for run in runs]
    assert [run.agent_id for run in runs] == list(crew.group.agent_ids)
    assert {run.status for run in again} == {RunStatus.COMPLETED}
    assert said(await crew.inputs(process)) == said(await crew.inputs(process, 1)) == ["t0", "t1"]
    assert await process.orchestrator.sleeptime.start(ME, None, target(crew)) == ()


async def test_message_of_a_turn_in_progress_is_in_one_transcript(world: World, process: Process) -> None:
    crew = await partners(world, process)
    held = Held(say("At last."))
    steps = [call("archival_memory_insert", content="tea"), held]
    world.model.script = lambda request: call("memory_finish_edits") if is_partner(request) else steps.pop(0)
    run = await process.start(crew.manager, "slow")
    await held.asked.wait()
    await process.orchestrator.sleeptime.start(ME, None, target(crew))
    held.released.set()
    await process.follow(run)
    await process.idle()
    first, second = await crew.inputs(process)
    assert (said([first]), said([second])) == (["slow"], [])
    assert first.endswith("assistant: Calling tool archival_memory_insert")
    assert second.endswith("Messages:\nassistant: At last.")


async def test_other_groups_and_agents_without_one_are_refused(world: World, process: Process) -> None:
    agent = await world.agent(process)
    now = process.clock.now()
    plain = Group(
        new_id("group"),
        ME.organization_id,
        now,
        now,
        agent_ids=(agent.id,),
        manager=ManagerConfig(ManagerType.ROUND_ROBIN),
    )
    await process.stores.groups.create(None, plain)
    for refused in (SleeptimeTarget(agent_id=agent.id), SleeptimeTarget(group_id=plain.id)):
        with pytest.raises(FailedPrecondition):
            await process.orchestrator.sleeptime.start(ME, None, refused)
    with pytest.raises(NotFound):
        await process.orchestrator.sleeptime.preview(ME, SleeptimeTarget(group_id=new_id("group")))


async def test_preview_shows_the_transcript_and_the_requests_and_stores_nothing(world: World, process: Process) -> None:
    crew = await partners(world, process, members=2, frequency=10)
    await process.send(crew.manager, "I moved to Lima.")
    requests = len(world.model.requests)
    preview = await process.orchestrator.sleeptime.preview(ME, target(crew))
    assert said([preview.transcript]) == ["I moved to Lima."]
    assert preview.message_count == 2
    assert [member.agent_id for member in preview.members] == list(crew.group.agent_ids)
    for member in preview.members:
        assert json.loads(member.request)[3][-1] == preview.transcript
    assert (len(world.model.requests), await crew.runs(process)) == (requests, ())
    await process.orchestrator.sleeptime.start(ME, None, target(crew))
    await process.idle()
    assert await crew.inputs(process) == [preview.transcript]
    assert await process.orchestrator.sleeptime.preview(ME, target(crew)) == type(preview)()


@pytest.mark.parametrize(
    ("timer", "waits"),
    [({"inactivity_seconds": 600.0}, [400, 400, 601]), ({"interval_seconds": 600.0}, [300, 250, 51])],
)
async def test_timer_starts_the_partners_once(
    world: World, process: Process, timer: dict[str, float], waits: list[int]
) -> None:
    """Inactivity counts from the last turn, an interval from the last runs of the partners or the creation."""
    crew = await partners(world, process, frequency=100, **timer)
    other = world.process("instance-2")

    async def tick() -> None:
        await asyncio.gather(*(each.orchestrator.sleeptime.start_due() for each in (process, other)))
        await process.idle()
        await other.idle()

    await tick()
    for turn, wait in enumerate(waits):
        await tick()
        assert await crew.runs(process) == ()
        await process.send(crew.manager, f"t{turn}")
        await tick()
        world.clock.advance(wait)
    await tick()
    await tick()
    assert said(await crew.inputs(process)) == ["t0", "t1", "t2"]
    world.clock.advance(10_000)
    await tick()
    assert len(await crew.runs(process)) == 1, "without new messages nothing starts"
    await process.send(crew.manager, "t3")
    world.clock.advance(601)
    await tick()
    assert said(await crew.inputs(process)) == ["t0", "t1", "t2", "t3"]


async def test_timer_that_is_set_later_starts_the_partners(world: World, process: Process) -> None:
    crew = await partners(world, process, frequency=100)
    await process.send(crew.manager, "t0")
    world.clock.advance(1_000)
    timed = replace(crew.group.manager, inactivity_seconds=600.0)
    now = process.clock.now()
    await process.stores.groups.update(
        None, ME.organization_id, crew.group.id, lambda group: replace(group, manager=timed, updated_at=now)
    )
    await process.orchestrator.sleeptime.start_due()
    await process.idle()
    assert said(await crew.inputs(process)) == ["t0"]


class Kitchen:
    """Partners that work until they are released, and how many of them work at once."""

    def __init__(self, world: World) -> None:
        self.at_work: list[Held] = []
        self.most = 0
        world.model.script = self.answer

    def answer(self, request: object) -> object:
        if not is_partner(request):  # type: ignore[arg-type]
            return say("Yes.")
        held = Held(call("memory_finish_edits"))
        self.at_work.append(held)
        self.most = max(self.most, self.open)
        return held

    @property
    def open(self) -> int:
        return sum(not held.released.is_set() for held in self.at_work)


async def test_limit_holds_across_replicas_and_the_oldest_run_is_next(world: World, process: Process) -> None:
    world.limits = PoolLimits(sleeptime=2)
    replicas = [world.process("instance-1"), world.process("instance-2")]
    crews = [await partners(world, replicas[0]) for _ in range(6)]
    kitchen = Kitchen(world)
    for number, crew in enumerate(crews):
        await replicas[number % 2].send(crew.manager, f"t{number}")

    async def running() -> list[int]:
        statuses = [(await crew.runs(process))[0].status for crew in crews]
        return [number for number, status in enumerate(statuses) if status is RunStatus.RUNNING]

    for done in range(6):
        while await running() != list(range(done, min(6, done + 2))) or len(kitchen.at_work) <= done:
            await asyncio.sleep(0)
        kitchen.at_work[done].released.set()
    for replica in replicas:
        await replica.idle()
    assert kitchen.most == 2


async def test_pause_and_continuation(world: World, process: Process) -> None:
    crew = await partners(world, process)
    await process.orchestrator.sleeptime.update_settings(ME, None, {"max_concurrent_runs": 0})
    for turn in range(3):
        await process.send(crew.manager, f"t{turn}")
    await process.recover()
    assert {run.status for run in await crew.runs(process)} == {RunStatus.CREATED}
    assert await process.stores.leases.claimable("instance-1") == ()
    await process.orchestrator.sleeptime.update_settings(ME, None, {"max_concurrent_runs": None})
    await process.idle()
    assert said(await crew.inputs(process)) == ["t0", "t1", "t2"]


async def test_partner_answers_its_own_user_behind_its_runs(world: World, process: Process) -> None:
    crew = await partners(world, process)
    world.model.script = lambda request: (
        (say("Me.") if request.messages[-1].text == "Who are you?" else call("memory_finish_edits"))
        if is_partner(request)
        else say("Yes.")
    )
    await process.send(crew.manager, "t0")
    await process.send(crew.members[0], "Who are you?")
    await process.idle()
    message = InputMessage((TextPart("Who are you?"),))
    assert message.content[0] in [part for item in world.turn(crew.members[0]) for part in item.content]
    assert said(await crew.inputs(process)) == ["t0"]


async def test_partner_is_answered_by_one_that_waits_for_its_place(world: World, process: Process) -> None:
    """A message to an agent whose run waits for a place starts that run: no deadlock occurs."""
    await process.orchestrator.sleeptime.update_settings(ME, None, {"max_concurrent_runs": 1})
    first, second = [await partners(world, process) for _ in range(2)]
    ask = "send_message_to_agent_and_wait_for_reply"
    await process.agents.attach_tool(ME, None, first.members[0].id, None, ask)
    held = Held(call(ask, message="Done?", other_agent_id=second.members[0].id))
    finish = call("memory_finish_edits")
    answers = [held, finish, say("Done."), finish]
    world.model.script = lambda request: answers.pop(0) if is_partner(request) else say("Yes.")
    await process.send(first.manager, "t0")
    await held.asked.wait()
    await process.send(second.manager, "t1")
    held.released.set()
    await asyncio.wait_for(process.idle(), 20)
    returned = next(message for message in world.turn(first.members[0]) if message.tool_returns).tool_returns[0]
    assert "Done." in returned.text
    runs = [(await crew.runs(process))[0].status for crew in (first, second)]
    assert runs == [RunStatus.COMPLETED, RunStatus.COMPLETED]


@pytest.mark.parametrize("tier", ["recall.", "blocks."])
async def test_partner_sees_its_transcript_after_an_outage_that_lasts_longer_than_a_step_waits(
    world: World, process: Process, tier: str
) -> None:
    crew = await partners(world, process)
    world.model.script = answer_everything()

    async def goes_away_after_the_turn(name: str) -> None:
        if name == "runs.finish" and not world.waits:
            world.faults.unavailable = {tier: 200}

    world.faults.on_effect = goes_away_after_the_turn
    await process.send(crew.manager, "I like tea.")
    await process.idle()
    assert round(sum(world.waits), 3) >= 900
    (run,) = await crew.runs(process)
    assert not run.status.ended
    while not run.status.ended:
        await process.recover()
        (run,) = await crew.runs(process)
    assert run.status is RunStatus.COMPLETED
    assert said(await crew.inputs(process)) == ["I like tea."]
