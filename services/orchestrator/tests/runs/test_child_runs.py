"""Runs that runs start: once, followed to their end, refused in cycles, and cancelled with the run that waits."""

import asyncio
from dataclasses import replace

import pytest
from mnemesh_kit.errors import NotFound
from mnemesh_orchestrator.builtin.call import ChildOutcome, ChildRequest
from mnemesh_orchestrator.errors import MessageCycle, MessageDepthExceeded, PendingApproval
from mnemesh_orchestrator.llm.port import LlmRequest
from mnemesh_orchestrator.model.agents import Agent, AgentType
from mnemesh_orchestrator.model.events import MemberEvent
from mnemesh_orchestrator.model.inputs import InputMessage, RunConfig
from mnemesh_orchestrator.model.rules import RequiresApproval
from mnemesh_orchestrator.model.runs import (
    Ancestor,
    CancelOutcome,
    Lineage,
    Run,
    RunFilter,
    RunOrigin,
    RunStatus,
    StopReason,
)
from mnemesh_testkit.timeouts import scaled
from mnemesh_types.messages import Approve, Role, TextPart

from ..support.faults import Faults
from ..support.model import Held, Item, call, say, together
from ..support.waiting import until
from ..support.world import ME, Process, World, crashed, lines


def script(world: World, **items: list[Item]) -> None:
    """Gives each agent, by the system prompt that names it, its own answers."""

    def choose(request: LlmRequest) -> Item:
        name = request.messages[0].text.split()[0]
        return items[name].pop(0)

    world.model.script = choose


async def agents(world: World, process: Process, *names: str, kind: AgentType = AgentType.LETTA_V1) -> list[Agent]:
    return [await world.agent(process, kind, name=name, system=f"{name} is your name.") for name in names]


def request(agent: Agent, text: str = "Hello?", **given: object) -> ChildRequest:
    message = InputMessage((TextPart(text),), Role.SYSTEM)
    given.setdefault("effect_id", "effect/1")
    return ChildRequest(agent_id=agent.id, messages=(message,), origin=RunOrigin.AGENT, **given)  # type: ignore[arg-type]


async def running(world: World, process: Process, agent: Agent) -> Run:
    """Starts a run of an agent whose first answer is held, and returns the run once the model was called."""
    run = await process.start(agent)
    await until(lambda: any(agent.name in one.messages[0].text for one in world.model.requests))
    return await process.runs.get(ME, run.id)


async def ignore(_: MemberEvent) -> None:
    """Shows approvals to no one."""


def waiting(parent: Run, process: Process, run_id: str) -> "asyncio.Task[ChildOutcome]":
    return asyncio.ensure_future(process.orchestrator.child_runs.outcome(parent, run_id, ignore))


async def test_child_runs_once_and_its_words_are_returned(world: World, process: Process) -> None:
    asker, helper = await agents(world, process, "Ann", "Ben", kind=AgentType.MEMGPT_V2)
    answer = Held(call("send_message", message="Bye."))
    script(world, Ann=[answer], Ben=[together(call("send_message", message="It is tea."))])
    parent, children = await running(world, process, asker), process.orchestrator.child_runs
    child = await children.start(parent, request(helper))
    repeat = await children.start(parent, request(helper))
    outcome = await children.outcome(parent, child.id, ignore)
    assert (repeat.id, outcome.words, outcome.run.stop_reason) == (child.id, ("It is tea.",), StopReason.END_TURN)
    again = await children.outcome(parent, child.id, ignore)
    assert again == outcome
    assert outcome.run.lineage == Lineage(
        parent.id, RunOrigin.AGENT, (Ancestor(parent.id, parent.conversation_id, asker.id),), 1
    )
    assert (outcome.run.background, outcome.run.subject_id) == (True, parent.subject_id)
    assert [known.id for known in await children.list_children(parent)] == [child.id]
    assert [line for line in lines(world.turn(helper)) if "Hello?" in line] == ["system text: Hello?"]
    answer.released.set()
    await process.idle()


@pytest.mark.parametrize("shown", [True, False])
async def test_words_do_not_depend_on_how_the_run_shows_them(world: World, process: Process, shown: bool) -> None:
    asker, helper = await agents(world, process, "Ann", "Ben", kind=AgentType.MEMGPT)
    hold = Held(call("send_message", message="Bye."))
    first = call("send_message", message="One.", request_heartbeat=True)
    failed = call("send_message", text="Never said.", request_heartbeat=True)
    last = call("send_message", message="Two.", request_heartbeat=False)
    script(world, Ann=[hold], Ben=[first, failed, last])
    helper = await process.agents.get(ME, helper.id)
    parent, children = await running(world, process, asker), process.orchestrator.child_runs
    child = await children.start(parent, request(helper, config=RunConfig(assistant_messages=shown)))
    outcome = await children.outcome(parent, child.id, ignore)
    assert outcome.words[0] == "One."
    assert "Never said." not in outcome.words
    hold.released.set()
    await process.idle()


async def test_child_that_needs_approval_ends_with_the_run_that_answers(world: World, process: Process) -> None:
    asker, helper = await agents(world, process, "Ann", "Ben")
    helper = await world.agent(
        process,
        name="Cleo",
        system="Cleo is your name.",
        tool_rules=(RequiresApproval("archival_memory_insert"),),
        include_base_tool_rules=False,
    )
    hold = Held(say("Bye."))
    gated = together(call("archival_memory_insert", content="one"), text="Shall I?")
    script(world, Ann=[hold], Cleo=[gated, say("Kept.")])
    parent, children = await running(world, process, asker), process.orchestrator.child_runs
    child = await children.start(parent, request(helper))
    task = waiting(parent, process, child.id)
    await until(lambda: process.worker.active_runs == 1)
    assert not task.done()
    with pytest.raises(PendingApproval):
        await children.start(parent, request(helper, effect_id="effect/2"))
    asked = world.turn(helper)[-1].tool_calls[0].id
    await process.answer(helper, Approve(asked))
    outcome = await asyncio.wait_for(task, scaled(60))
    assert (outcome.words, outcome.run.stop_reason) == (("Shall I?", "Kept."), StopReason.END_TURN)
    assert outcome.run.id != child.id
    assert outcome.run.lineage == child.lineage
    hold.released.set()
    await process.idle()


async def test_cycles_and_deep_chains_are_refused(world: World, process: Process) -> None:
    asker, helper = await agents(world, process, "Ann", "Ben")
    hold, other = Held(say("Bye.")), Held(say("Yes."))
    script(world, Ann=[hold, say("Later.")], Ben=[other])
    parent, children = await running(world, process, asker), process.orchestrator.child_runs
    with pytest.raises(MessageCycle, match="itself"):
        await children.start(parent, request(asker))
    child = await children.start(parent, request(helper))
    with pytest.raises(MessageCycle, match="waits for this agent's answer"):
        await children.start(child, request(asker))
    deep = replace(parent, lineage=Lineage(depth=8))
    with pytest.raises(MessageDepthExceeded, match=r"9 runs led to it, .* 8 are allowed"):
        await children.start(deep, request(helper, effect_id="effect/2", is_awaited=False))
    with pytest.raises(NotFound):
        await children.start(parent, replace(request(helper), agent_id=f"agent-{child.id[4:]}", effect_id="effect/3"))
    other.released.set()
    hold.released.set()
    await process.idle()
    # An agent that has given up waiting can be written to.
    late = await children.start(child, request(asker))
    assert (await children.outcome(child, late.id, ignore)).words == ("Later.",)


@pytest.mark.parametrize("swapped", [False, True])
async def test_youngest_of_two_runs_that_wait_for_each_other_gives_up(
    world: World, process: Process, swapped: bool
) -> None:
    ann, ben = await agents(world, process, "Ann", "Ben")
    holds = [Held(say("From Ann.")), Held(say("From Ben."))]
    script(world, Ann=[holds[0], say("Ann answers.")], Ben=[holds[1], say("Ben answers.")])
    older, children = await running(world, process, ann), process.orchestrator.child_runs
    younger = await running(world, process, ben)
    to_ben, to_ann = await children.start(older, request(ben)), await children.start(younger, request(ann))
    pairs = [(older, to_ben), (younger, to_ann)]
    tasks = {parent.id: waiting(parent, process, child.id) for parent, child in (pairs[::-1] if swapped else pairs)}
    with pytest.raises(MessageCycle, match="wait for each other"):
        await asyncio.wait_for(tasks[younger.id], scaled(60))
    assert (await process.runs.get(ME, to_ann.id)).status is RunStatus.CANCELLED
    holds[1].released.set()
    assert (await asyncio.wait_for(tasks[older.id], scaled(60))).words == ("Ben answers.",)
    holds[0].released.set()
    await process.idle()


async def test_queued_child_without_a_cycle_waits_for_its_turn(world: World, process: Process) -> None:
    ann, ben = await agents(world, process, "Ann", "Ben")
    holds = [Held(say("From Ann.")), Held(say("From Ben."))]
    script(world, Ann=[holds[0]], Ben=[holds[1], say("Ben answers.")])
    parent, children = await running(world, process, ann), process.orchestrator.child_runs
    await running(world, process, ben)
    child = await children.start(parent, request(ben))
    task = waiting(parent, process, child.id)
    assert not await process.stores.run_relations.must_give_up(parent, child.id)
    holds[1].released.set()
    assert (await asyncio.wait_for(task, scaled(60))).words == ("Ben answers.",)
    holds[0].released.set()
    await process.idle()


@pytest.mark.parametrize("begun", [True, False])
async def test_cancelling_a_run_cancels_the_runs_that_it_waits_for(world: World, process: Process, begun: bool) -> None:
    ann, ben, cleo, dan = await agents(world, process, "Ann", "Ben", "Cleo", "Dan")
    holds = {name: Held(say("Done.")) for name in ("Ann", "Ben", "Cleo", "Dan")}
    script(world, **{name: [hold, say("Next.")] for name, hold in holds.items()})
    if not begun:
        await running(world, process, cleo)
    parent, children = await running(world, process, ann), process.orchestrator.child_runs
    child = await children.start(parent, request(ben))
    grandchild = await children.start(child, request(cleo))
    detached = await children.start(parent, request(dan, effect_id="effect/2", is_awaited=False))
    outcomes = await process.runs.cancel(ME, RunFilter(), [parent.id])
    assert outcomes == {parent.id: CancelOutcome.CANCELLED}
    states = [(await process.runs.get(ME, run.id)).status for run in (parent, child, grandchild, detached)]
    assert states == [*[RunStatus.CANCELLED] * 3, RunStatus.RUNNING]
    for hold in holds.values():
        hold.released.set()
    await process.idle()


async def test_cancelled_run_withdraws_the_approval_that_it_waits_for(world: World, process: Process) -> None:
    (asker,) = await agents(world, process, "Ann")
    rule = RequiresApproval("archival_memory_insert")
    helper = await world.agent(
        process, name="Ben", system="Ben is your name.", tool_rules=(rule,), include_base_tool_rules=False
    )
    script(world, Ann=[Held(say("Bye."))], Ben=[call("archival_memory_insert", content="one"), say("Hello.")])
    parent, children = await running(world, process, asker), process.orchestrator.child_runs
    await children.start(parent, request(helper))
    await until(lambda: process.worker.active_runs == 1)
    await process.runs.cancel(ME, RunFilter(), [parent.id])
    await process.send(helper, "Hello!")
    assert await world.archival.texts(helper.id) == []


@pytest.mark.parametrize("has_ended", [False, True])
async def test_child_survives_a_crash_of_its_process(world: World, process: Process, has_ended: bool) -> None:
    """Before the child's end and after it: the next process finds the run under the same id, and its words."""
    asker, helper = await agents(world, process, "Ann", "Ben")
    asking, hold = Held(say("Bye.")), Held(say("Tea."))
    script(world, Ann=[asking, say("Bye.")], Ben=[hold, say("Tea.")])
    parent = await running(world, process, asker)
    child = await process.orchestrator.child_runs.start(parent, request(helper))
    await hold.asked.wait()
    if has_ended:
        hold.released.set()
        await until(lambda: process.worker.active_runs == 1)
    process.faults.has_crashed = True
    for held in (hold, asking):
        held.released.set()
    await crashed(process)
    world.faults = Faults()
    later = world.process()
    task = asyncio.ensure_future(later.recover())
    again = await later.orchestrator.child_runs.start(parent, request(helper))
    outcome = await later.orchestrator.child_runs.outcome(parent, again.id, ignore)
    await task
    assert (again.id, outcome.words) == (child.id, ("Tea.",))
    assert [line for line in lines(world.turn(helper)) if "Hello?" in line] == ["system text: Hello?"]
    ended = await later.runs.get(ME, parent.id)
    assert (ended.status, ended.child_run_ids) == (RunStatus.COMPLETED, (child.id,))


async def test_child_that_another_replica_executes_is_awaited_and_cancelled(world: World, process: Process) -> None:
    other = world.process("instance-2")
    ann, ben = await agents(world, process, "Ann", "Ben")
    busy, again, hold = Held(say("From Ben.")), Held(say("From Ben.")), Held(say("Never."))
    script(world, Ann=[Held(say("Bye."))], Ben=[busy, say("Ben answers."), again, hold])
    await running(world, other, ben)
    parent, children = await running(world, process, ann), process.orchestrator.child_runs
    child = await children.start(parent, request(ben))
    task = waiting(parent, process, child.id)
    await until(lambda: child.id in process.event_broker.followed)
    busy.released.set()
    await other.idle()
    await process.replica_watcher.look_once()
    assert (await asyncio.wait_for(task, scaled(60))).words == ("Ben answers.",)
    await other.start(ben)
    await again.asked.wait()
    second = await children.start(parent, request(ben, effect_id="effect/2"))
    again.released.set()
    await hold.asked.wait()
    assert other.worker.holds(second.id)
    cancelling = asyncio.ensure_future(process.runs.cancel(ME, RunFilter(), [parent.id]))
    while not cancelling.done():
        for replica in (process, other):
            await replica.replica_watcher.look_once()
        await asyncio.sleep(0)
    assert (await process.runs.get(ME, second.id)).status is RunStatus.CANCELLED
    await other.worker.stop()
