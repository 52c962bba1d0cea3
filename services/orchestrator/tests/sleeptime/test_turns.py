"""Turns of a manager start its partners: when, with which messages, and exactly once."""

from dataclasses import replace

import pytest
from mnemesh_orchestrator.model.events import MessageEvent, UsageEvent
from mnemesh_orchestrator.model.runs import RunOrigin, RunStatus

from ..support.world import Process, World, require_valid, told
from .partners import partners, said


async def test_every_turn_starts_the_partners_and_names_their_runs(world: World, process: Process) -> None:
    crew = await partners(world, process, members=2)
    events = await process.send(crew.manager, "I moved to Lima.")
    await process.idle()
    (usage,) = (event.body for event in events if isinstance(event.body, UsageEvent))
    foreground = await process.outcome(crew.manager)
    runs = [run for member in range(2) for run in await crew.runs(process, member)]
    assert usage.child_run_ids == foreground.child_run_ids == tuple(run.id for run in runs)
    assert [run.agent_id for run in runs] == [member.id for member in crew.members]
    assert {run.status for run in runs} == {RunStatus.COMPLETED}
    assert {(run.lineage.origin, run.lineage.parent_run_id, run.group_id) for run in runs} == {
        (RunOrigin.SLEEPTIME, foreground.id, crew.group.id)
    }
    group = await crew.current(process)
    assert (group.turns_counter, group.last_processed_message_id) == (1, crew.rows()[-1].id)
    for member in range(2):
        assert said(await crew.inputs(process, member)) == ["I moved to Lima."]
        require_valid(world.window(crew.members[member]).messages)


async def test_transcript_is_the_first_event_of_its_run(world: World, process: Process) -> None:
    crew = await partners(world, process)
    await process.send(crew.manager, "Hello.")
    await process.idle()
    (run,) = await crew.runs(process)
    events = [event for event in await process.follow(run) if event.sequence is not None]
    assert [event.sequence for event in events] == list(range(1, run.last_sequence + 1))
    first = events[0].body
    assert isinstance(first, MessageEvent)
    assert (first.kind, first.content) == ("user", run.input[0].content)
    assert next(message.id for message in world.turn(crew.members[0], 2)) == first.message_id
    assert len(told(events)) == len(events) - 1


async def test_third_turns_have_every_message_once(world: World, process: Process) -> None:
    crew = await partners(world, process, frequency=3)
    for turn in range(10):
        await process.send(crew.manager, f"Turn {turn}.")
        await process.idle()
    inputs = await crew.inputs(process)
    assert [said([text]) for text in inputs] == [[f"Turn {n}." for n in range(start, start + 3)] for start in (0, 3, 6)]
    assert (await crew.current(process)).turns_counter == 10


async def test_group_that_begins_below_zero_starts_its_partners_after_the_first_turn(
    world: World, process: Process
) -> None:
    crew = await partners(world, process, frequency=3, turns_counter=-1)
    for turn in range(8):
        await process.send(crew.manager, f"Turn {turn}.")
        await process.idle()
    inputs = await crew.inputs(process)
    expected = [["Turn 0."], ["Turn 1.", "Turn 2.", "Turn 3."], ["Turn 4.", "Turn 5.", "Turn 6."]]
    assert [said([text]) for text in inputs] == expected
    assert (await crew.current(process)).turns_counter == 7


async def test_end_whose_answer_is_lost_starts_the_partners_once(world: World, process: Process) -> None:
    crew = await partners(world, process)
    process.faults.lost["runs.finish"] = 1
    events = await process.send(crew.manager, "Hello.")
    await process.idle()
    (usage,) = (event.body for event in events if isinstance(event.body, UsageEvent))
    (run,) = await crew.runs(process)
    assert usage.child_run_ids == (run.id,)
    assert run.status is RunStatus.COMPLETED
    assert (await crew.current(process)).turns_counter == 1


@pytest.mark.parametrize(("refusals", "is_counted"), [(1, True), (2, True), (3, False)])
async def test_end_in_a_smaller_form_starts_the_partners_once(
    world: World, process: Process, refusals: int, is_counted: bool
) -> None:
    """A turn that cannot be counted ends nevertheless, and its messages are in the next transcript."""
    crew = await partners(world, process)
    left = [refusals]

    async def refuse(name: str) -> None:
        if name == "runs.finish" and left[0]:
            left[0] -= 1
            raise ValueError("the store refuses this form")

    process.faults.on_call = refuse
    await process.send(crew.manager, "one")
    await process.idle()
    assert (await process.outcome(crew.manager)).status is RunStatus.COMPLETED
    assert len(await crew.runs(process)) == is_counted
    await process.send(crew.manager, "two")
    await process.idle()
    assert said(await crew.inputs(process)) == ["one", "two"]
    assert (await crew.current(process)).turns_counter == 1 + is_counted


async def test_switched_off_partners_rest_and_continue(world: World, process: Process) -> None:
    crew = await partners(world, process)

    async def switch(on: bool) -> None:
        await process.stores.agents.update(
            None, crew.group.organization_id, crew.manager.id, lambda agent: replace(agent, enable_sleeptime=on)
        )

    await switch(on=False)
    await process.send(crew.manager, "one")
    await process.idle()
    assert (await crew.current(process)).turns_counter == 0
    await switch(on=True)
    await process.send(crew.manager, "two")
    await process.idle()
    assert said(await crew.inputs(process)) == ["one", "two"]
