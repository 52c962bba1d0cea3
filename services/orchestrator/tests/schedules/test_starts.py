"""Runs that schedules start: once for each due time, with crashes, several processes, pauses and missed times."""

import asyncio
import json
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from mnemesh_kit.errors import InvalidArgument, NotFound
from mnemesh_kit.ids import derive_id, new_id
from mnemesh_kit.paging import PageQuery
from mnemesh_orchestrator.builtin.schedules import MOST_SCHEDULES
from mnemesh_orchestrator.model import schedules
from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.model.groups import Group, ManagerConfig, ManagerType
from mnemesh_orchestrator.model.inputs import InputMessage, RunConfig
from mnemesh_orchestrator.model.runs import Run, RunFilter, RunOrigin, RunRequest, RunStatus
from mnemesh_orchestrator.model.schedules import LATE, MISSED, MissedRunRule, Schedule, ScheduleFilter
from mnemesh_types.messages import TextPart, ToolStatus

from ..support.faults import Crash, Faults
from ..support.model import call, say
from ..support.world import ME, Process, World, crashed, lines

ALL = PageQuery(100, ascending=True)
HOUR = 3_600.0
EVERY = {"cron": "0 * * * *"}


def a_draft(agent: Agent | None, **fields: Any) -> Schedule:
    now = fields.pop("now")
    target = ("", "") if agent is None else (agent.id, agent.default_conversation_id)
    messages = (InputMessage((TextPart("It is time."),), otid="always the same"),)
    return Schedule("", "", "", *target, messages=messages, created_at=now, updated_at=now, **fields)


async def scheduled(process: Process, agent: Agent | None, **fields: Any) -> Schedule:
    """Creates a schedule, by default one of every hour."""
    draft = a_draft(agent, now=process.clock.now(), **(fields or EVERY))
    return await process.orchestrator.schedules.create(ME, None, draft)


async def tick(*processes: Process) -> None:
    """Starts what is due in all processes, and waits for the end of the runs."""
    await asyncio.gather(*(process.orchestrator.schedules.start_due() for process in processes))
    for process in processes:
        await process.idle()


async def started(process: Process) -> tuple[Run, ...]:
    return (await process.runs.list(ME, RunFilter(origins=(RunOrigin.SCHEDULE,)), ALL)).items


async def test_each_due_time_is_a_turn_of_the_agent(world: World, process: Process) -> None:
    world.model.script = lambda _: say("Good morning.")
    agent = await world.agent(process)
    schedule = await scheduled(process, agent)
    await tick(process)
    assert await started(process) == ()
    for _ in range(2):
        world.clock.advance(HOUR)
        await tick(process, world.process("instance-2"))
    runs = await started(process)
    assert [(run.status, run.background, run.subject_id) for run in runs] == [
        (RunStatus.COMPLETED, True, ME.subject_id)
    ] * 2
    assert lines(world.turn(agent)) == ["user text: It is time.", "assistant text: Good morning."] * 2
    seen = await process.orchestrator.schedules.get(ME, schedule.id)
    assert (seen.run_count, seen.last_run_id) == (2, runs[-1].id)


async def test_a_crash_at_any_point_neither_loses_nor_doubles_a_run(world: World) -> None:
    point, world.model.script = 0, lambda _: say("Hi.")
    while True:
        setup = world.process()
        agent = await world.agent(setup)
        schedule = await scheduled(setup, agent, cron=None, due_at=world.clock.now() + timedelta(hours=1))
        world.clock.advance(HOUR)
        world.faults = Faults()
        world.faults.crashes_at = point
        dying = world.process()
        with suppress(Crash):
            await dying.orchestrator.schedules.start_due()
        await crashed(dying)
        has_crashed = world.faults.has_crashed
        world.faults = Faults()
        living = world.process()
        await tick(living)
        await living.recover()
        (run,) = (await living.runs.list(ME, RunFilter(agent_ids=(agent.id,)), ALL)).items
        assert (run.status, lines(world.turn(agent))[-1]) == (RunStatus.COMPLETED, "assistant text: Hi."), point
        assert (await living.orchestrator.schedules.get(ME, schedule.id)).last_run_id == run.id
        await living.worker.stop()
        if not has_crashed:
            break
        point += 1
    assert point >= 6


async def test_missed_runs_are_one_or_none(world: World, process: Process) -> None:
    world.model.script = lambda _: say("Hi.")
    once = await scheduled(process, await world.agent(process))
    none = await scheduled(process, await world.agent(process), missed_runs=MissedRunRule.SKIP, **EVERY)
    world.clock.advance(5.5 * HOUR)
    await tick(process)
    assert [run.agent_id for run in await started(process)] == [once.agent_id]
    skipped = await process.orchestrator.schedules.get(ME, none.id)
    assert (skipped.run_count, skipped.skipped_count) == (0, 1)
    assert skipped.last_skip == LATE, "the process ran when it was due"
    world.clock.advance(0.5 * HOUR + 59)
    await tick(process)
    agent_ids = sorted(run.agent_id for run in await started(process))
    assert agent_ids == sorted([once.agent_id, once.agent_id, none.agent_id])


async def test_the_reason_of_a_missed_run_says_if_no_orchestrator_was_running(world: World) -> None:
    before = world.process()
    schedule = await scheduled(before, await world.agent(before), missed_runs=MissedRunRule.SKIP, **EVERY)
    world.clock.advance(1.5 * HOUR)
    after = world.process("instance-2")
    await tick(after)
    assert (await after.orchestrator.schedules.get(ME, schedule.id)).last_skip == MISSED


async def test_a_paused_schedule_starts_nothing_and_continues_later(world: World, process: Process) -> None:
    world.model.script = lambda _: say("Hi.")
    schedule = await scheduled(process, await world.agent(process))
    service = process.orchestrator.schedules
    await service.update(ME, None, schedule.id, {"paused": True})
    world.clock.advance(1.5 * HOUR)
    await tick(process)
    resumed = await service.update(ME, None, schedule.id, {"paused": False})
    await tick(process)
    assert (await started(process), resumed.next_run_at) == ((), world.clock.now() + timedelta(hours=0.5))
    once = await service.update(ME, None, schedule.id, {"due_at": world.clock.now() + timedelta(minutes=1)})
    assert (once.cron, once.next_run_at) == (None, world.clock.now() + timedelta(minutes=1))


async def test_a_run_that_cannot_start_does_not_stop_other_schedules(world: World, process: Process) -> None:
    world.model.script = lambda _: say("Hi.")
    missing = await process.orchestrator.schedules.create(
        ME,
        None,
        a_draft(
            await world.agent(process), now=process.clock.now(), config=RunConfig(override_model="no/model"), **EVERY
        ),
    )
    works = await scheduled(process, await world.agent(process))
    world.clock.advance(HOUR)
    await tick(process)
    assert [run.agent_id for run in await started(process)] == [works.agent_id]
    assert "no/model" in ((await process.orchestrator.schedules.get(ME, missing.id)).last_skip or "")


async def test_a_schedule_whose_run_is_refused_by_the_store_does_not_stop_the_others(
    world: World, process: Process
) -> None:
    world.model.script = lambda _: say("Hi.")
    doubled = await scheduled(process, await world.agent(process))
    works = await scheduled(process, await world.agent(process))
    world.clock.advance(HOUR)
    run_id = derive_id("run", doubled.id, world.clock.now().isoformat())
    other = await world.agent(process)
    request = RunRequest(other.id, "", (InputMessage((TextPart("Hello"),)),), RunConfig())
    taken = replace(process.runs.new_run(ME, request, background=True), id=run_id)
    await process.worker.start(None, taken, reject_busy=False)
    await tick(process)
    assert [run.agent_id for run in await started(process)] == [works.agent_id]
    assert "log" in ((await process.orchestrator.schedules.get(ME, doubled.id)).last_skip or "")


async def test_a_schedule_whose_time_zone_is_unknown_here_is_paused_and_does_not_stop_the_others(
    world: World, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.model.script = lambda _: say("Hi.")
    foreign = await scheduled(process, await world.agent(process), time_zone="Asia/Tokyo", **EVERY)
    works = await scheduled(process, await world.agent(process))
    world.clock.advance(HOUR)
    known = schedules.zone_from_name
    monkeypatch.setattr(
        schedules, "zone_from_name", lambda name, field: known("Mars/Base" if name == "Asia/Tokyo" else name, field)
    )
    await tick(process)
    assert {run.agent_id for run in await started(process)} == {foreign.agent_id, works.agent_id}
    seen = await process.orchestrator.schedules.get(ME, foreign.id)
    assert (seen.paused, seen.next_run_at, seen.run_count) == (True, None, 1)
    assert "time_zone" in (seen.last_skip or "")
    service = process.orchestrator.schedules
    resumed = await service.update(ME, None, foreign.id, {"time_zone": "UTC", "paused": False})
    assert resumed.next_run_at == world.clock.now() + timedelta(hours=1)


async def test_a_schedule_that_has_run_once_is_not_due_again(world: World, process: Process) -> None:
    world.model.script = lambda _: say("Hi.")
    schedule = await scheduled(process, await world.agent(process), due_at=world.clock.now())
    await tick(process)
    assert len(await started(process)) == 1
    with pytest.raises(InvalidArgument, match="due_time"):
        await process.orchestrator.schedules.update(ME, None, schedule.id, {"paused": False})


async def test_schedules_go_with_their_agent(world: World, process: Process) -> None:
    agent = await world.agent(process)
    schedule = await scheduled(process, agent)
    await process.lifecycle.delete(ME, agent.id)
    with pytest.raises(NotFound):
        await process.orchestrator.schedules.get(ME, schedule.id)
    world.clock.advance(HOUR)
    await tick(process)
    assert await started(process) == ()
    with pytest.raises(NotFound):
        await scheduled(process, agent)


async def test_a_group_has_schedules(world: World, process: Process) -> None:
    world.model.script = lambda _: say("Hi.")
    agents = [await world.agent(process) for _ in range(2)]
    now = process.clock.now()
    ids = tuple(agent.id for agent in agents)
    manager = ManagerConfig(ManagerType.ROUND_ROBIN)
    group = Group(new_id("group"), ME.organization_id, now, now, agent_ids=ids, manager=manager)
    await process.stores.groups.create(None, group)
    draft = replace(a_draft(None, now=now, **EVERY), group_id=group.id, conversation_id=group.conversation_id)
    schedule = await process.orchestrator.schedules.create(ME, None, draft)
    world.clock.advance(HOUR)
    await tick(process)
    (run,) = await started(process)
    assert (run.group_id, run.agent_id, run.status) == (group.id, "", RunStatus.COMPLETED)
    assert all(lines(world.turn(agent))[-1] == "assistant text: Hi." for agent in agents)
    found = await process.orchestrator.schedules.list(ME, ScheduleFilter(group_id=group.id), ALL)
    assert [each.id for each in found.items] == [schedule.id]


async def test_an_agent_schedules_a_message_to_itself(world: World, process: Process) -> None:
    world.model.script = [
        call("schedule_message", message="Ask how the exam went.", time="2026-01-01T09:00"),
        say("I will ask you."),
        say("How was the exam?"),
    ]
    agent = await world.agent(process, tool_names=("schedule_message",), time_zone="Europe/Rome")
    await process.send(agent, "My exam is at eight.")
    (own,) = (await process.orchestrator.schedules.list(ME, ScheduleFilter(agent_id=agent.id), ALL)).items
    assert (own.created_by_agent, own.conversation_id) == (True, agent.default_conversation_id)
    assert own.next_run_at is not None
    assert own.next_run_at.isoformat() == "2026-01-01T08:00:00+00:00"
    world.clock.advance(8 * HOUR)
    await tick(process)
    told, asked = lines(world.turn(agent))[-2:]
    assert told.endswith("It does not come from the user.]\n\nAsk how the exam went.")
    assert asked == "assistant text: How was the exam?"


async def test_the_schedules_of_an_agent_are_bounded_and_repeats_are_one(world: World, process: Process) -> None:
    names = ("schedule_message", "list_scheduled_messages", "cancel_scheduled_message")
    agent = await world.agent(process, tool_names=names)

    async def run(name: str, **arguments: Any) -> tuple[bool, Any]:
        """Returns whether a tool succeeded, and its result."""
        world.clock.advance(1)
        returned = await process.tool_runner.run(ME, None, agent.id, name, json.dumps(arguments))
        (part,) = returned.content
        assert isinstance(part, TextPart)
        is_done = returned.status is ToolStatus.SUCCESS
        return is_done, json.loads(part.text) if is_done and part.text[0] in "[{" else part.text

    for refused in (
        {"cron": "*/4 * * * *"},
        {"time": "2026-01-01T00:04"},
        {"time": "tomorrow"},
        {"cron": "0 9 * * *", "time": "2026-01-02"},
        {"cron": "9 o'clock"},
        {},
    ):
        assert not (await run("schedule_message", message="x", **refused))[0], refused
    created = [await run("schedule_message", message=f"m{n}", cron="*/5 * * * *") for n in range(MOST_SCHEDULES)]
    assert all(is_done for is_done, _ in created)
    assert not (await run("schedule_message", message="one more", cron="0 9 * * *"))[0]
    _, listed = await run("list_scheduled_messages")
    assert [each["message"] for each in listed] == [f"m{n}" for n in range(MOST_SCHEDULES)]
    first = created[0][1]["schedule_id"]
    shown = {"message": "m0", "next_time": "2026-01-01T00:05+00:00", "cron": "*/5 * * * *"}
    assert listed[0] == {"schedule_id": first, **shown}
    of_client = await scheduled(process, agent)
    cancelled = [await run("cancel_scheduled_message", schedule_id=id_) for id_ in (first, first, of_client.id)]
    assert [is_done for is_done, _ in cancelled] == [True, False, False]
