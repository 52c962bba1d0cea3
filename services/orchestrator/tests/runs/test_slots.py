"""Turn slots: what is no run holds a conversation like one, and keeping leases at all."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from engram_kit.errors import Unavailable
from engram_orchestrator.errors import ConversationBusy, LeaseLost
from engram_orchestrator.model.agents import Agent
from engram_orchestrator.model.runs import OnBusy, RunStatus

from ..support.model import Held, say
from ..support.world import ME, Process, World, kinds, lines


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0)


def held_in(process: Process, call: str) -> tuple[asyncio.Event, asyncio.Event]:
    """The next call of that name is held: set when it is reached, and to be set to let it go on."""
    reached, released = asyncio.Event(), asyncio.Event()

    async def hold(name: str) -> None:
        if name == call and not reached.is_set():
            reached.set()
            await released.wait()

    process.faults.on_call = hold
    return reached, released


CHANGES: dict[str, tuple[str, Callable[[Process, Agent], Awaitable[object]]]] = {
    "reset": (
        "recall.replace_context",
        lambda process, agent: process.windows.reset(
            ME, None, agent.id, agent.default_conversation_id, add_default=False
        ),
    ),
    "fork": (
        "recall.fork_context",
        lambda process, agent: process.conversations.fork(ME, None, agent.default_conversation_id, None, None),
    ),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_runs_wait_while_a_conversation_is_changed(world: World, process: Process, change: str) -> None:
    """Sent while the window is being changed, by two replicas: both wait, and neither is lost."""
    other = world.process("owner-2")
    agent = await world.agent(process)
    world.model.follow(say("One."), say("Two."))
    await process.send(agent, "First")
    method, made = CHANGES[change]
    reached, released = held_in(process, method)
    changing = asyncio.ensure_future(made(process, agent))
    await reached.wait()
    run, late = await process.start(agent, "Second"), await other.start(agent, "Third")
    assert (run.status, late.status) == (RunStatus.CREATED, RunStatus.CREATED)
    with pytest.raises(ConversationBusy):
        await other.start(agent, "No.", on_busy=OnBusy.REJECT)
    with pytest.raises(ConversationBusy):
        await made(other, agent)
    await process.recover()  # what this process holds is not something that it left behind
    assert (await process.runs.get(ME, run.id)).status is RunStatus.CREATED
    world.model.follow(say("Two."), say("Three."))
    released.set()
    await changing
    assert kinds(await process.follow(run)) == ["assistant", "Stopped", "UsageReported"]
    assert kinds(await process.follow(late)) == ["assistant", "Stopped", "UsageReported"]
    shown = lines(world.turn(agent))
    assert shown[-4:] == ["user text: Second", "assistant text: Two.", "user text: Third", "assistant text: Three."]
    assert len(shown) == (4 if change == "reset" else 6)


async def test_a_holder_of_a_slot_that_was_overtaken_changes_nothing(world: World) -> None:
    """It is stopped by its own renewal where it notices, and by the epoch in recall where it does not."""
    first, second = world.process(), world.process("owner-2")
    agent = await world.agent(first)
    world.model.follow(say("One."), say("Two."))
    await first.send(agent, "First")
    for notices in (True, False):
        reached, released = held_in(first, "recall.replace_context")
        reset = first.windows.reset(ME, None, agent.id, agent.default_conversation_id, add_default=False)
        changing = asyncio.ensure_future(reset)
        await reached.wait()
        run = await second.start(agent, "Go on.")
        world.clock.advance(31)
        world.model.follow(say("Further."))
        await second.recover()
        assert (await second.runs.get(ME, run.id)).status is RunStatus.COMPLETED
        before = world.window(agent)
        if notices:
            await first.keeper.renew_once()
        released.set()
        with pytest.raises(LeaseLost):
            await changing
        assert world.window(agent) == before
    assert not first.keeper.leases


async def test_a_slot_is_given_back_whatever_happens_in_it(world: World, process: Process) -> None:
    agent = await world.agent(process)
    for error in (Unavailable("away"), asyncio.CancelledError()):
        with pytest.raises(type(error)):
            async with process.slots.take(agent.organization_id, agent.id, agent.default_conversation_id):
                raise error
    world.model.follow(say("One."))
    assert kinds(await process.send(agent, on_busy=OnBusy.REJECT)) == ["assistant", "Stopped", "UsageReported"]
    await process.idle()
    assert not process.keeper.leases


async def test_a_holder_that_cannot_renew_stops_before_its_lease_lapses(world: World) -> None:
    first, second = world.process(), world.process("owner-2")
    agent = await world.agent(first)
    held = Held(say("From the first."))
    world.model.follow(held, say("From the second."))
    await first.start(agent)
    await held.asked.wait()
    first.faults.away = {"leases.renew": 2}
    for seconds in (10, 13.9):
        world.clock.advance(seconds)
        assert not await first.keeper.renew_once()
        assert first.keeper.leases, "it still holds for sure"
    first.faults.away = {"leases.renew": 1}
    world.clock.advance(0.2)
    assert not await first.keeper.renew_once()
    await first.idle()
    await second.recover()
    assert lines(world.turn(agent)) == [], "it stopped, and its lease has not lapsed yet"
    world.clock.advance(6)
    await second.recover()
    assert lines(world.turn(agent)) == ["user text: Hello", "assistant text: From the second."]


async def test_a_holder_whose_lease_is_gone_stops_at_its_next_renewal(world: World) -> None:
    first, second = world.process(), world.process("owner-2")
    agent = await world.agent(first)
    held = Held(say("Too late."))
    world.model.follow(held, say("From the second."))
    await first.start(agent)
    await held.asked.wait()
    world.clock.advance(31)
    await second.recover()
    await first.keeper.renew_once()
    await first.idle()
    assert not held.released.is_set()
    assert lines(world.turn(agent)) == ["user text: Hello", "assistant text: From the second."]
