"""Messages between agents: replies, refusals, time limits, and a crash at every point."""

import ast
import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mnemesh_kit.errors import Internal
from mnemesh_kit.ids import new_id
from mnemesh_kit.paging import PageQuery
from mnemesh_kit.principal import Principal
from mnemesh_orchestrator.builtin.agent_messages import MAX_AT_ONCE
from mnemesh_orchestrator.builtin.call import BuiltinCall
from mnemesh_orchestrator.llm.port import LlmRequest
from mnemesh_orchestrator.model.agents import Agent, AgentType
from mnemesh_orchestrator.model.creation import AgentDraft
from mnemesh_orchestrator.model.events import RunEvent, UsageEvent
from mnemesh_orchestrator.model.groups import Group, ManagerConfig, ManagerType
from mnemesh_orchestrator.model.lineage import RunOrigin
from mnemesh_orchestrator.model.rules import RequiresApproval
from mnemesh_orchestrator.model.runs import CancelOutcome, RunFilter, RunStatus
from mnemesh_types.messages import Role, ToolReturn, ToolStatus

from ..runs.test_conversation_lock import until
from ..support.faults import Crash, Faults
from ..support.model import Held, Item, call, say
from ..support.world import ME, SYSTEM, Process, World, crashed, lines, opened, require_valid, told

ASK = "send_message_to_agent_and_wait_for_reply"
SEND = "send_message_to_agent_async"
BY_TAGS = "send_message_to_agents_matching_tags"
TO_GROUP = "send_message_to_all_agents_in_group"
TEN = PageQuery(10, ascending=True)


def script(world: World, **items: Sequence[Item]) -> None:
    """Gives each agent, by its name, the answers of a turn. Each turn begins with the first one."""

    def choose(request: LlmRequest) -> Item:
        place = 0
        for message in request.messages[1:]:
            place = (
                place + 1
                if message.role is Role.ASSISTANT
                else 0
                if message.role in (Role.USER, Role.SYSTEM)
                else place
            )
        return items[request.messages[0].text.split()[0]][place]

    world.model.script = choose


async def named(world: World, process: Process, name: str, kind: AgentType = AgentType.LETTA_V1, **draft: Any) -> Agent:
    world.clock.advance(1)
    draft.setdefault("tool_names", (ASK, SEND, BY_TAGS, TO_GROUP))
    return await world.agent(process, kind, name=name, system=f"{name} {SYSTEM}", **draft)


def returns(events: Sequence[RunEvent]) -> list[ToolReturn]:
    return [item for body in told(events) for item in getattr(body, "tool_returns", ())]


def result(events: Sequence[RunEvent]) -> Any:
    """Returns the value of the only tool return."""
    (returned,) = returns(events)
    return ast.literal_eval(returned.text)


def children(events: Sequence[RunEvent]) -> tuple[str, ...]:
    return next(event.body.child_run_ids for event in events if isinstance(event.body, UsageEvent))


@pytest.mark.parametrize("kind", [AgentType.LETTA_V1, AgentType.MEMGPT_V2])
async def test_reply_of_another_agent_is_returned(world: World, process: Process, kind: AgentType) -> None:
    ann, ben = await named(world, process, "Ann"), await named(world, process, "Ben", kind)
    answer = say("Green tea.") if kind is AgentType.LETTA_V1 else call("send_message", message="Green tea.")
    script(world, Ann=[call(ASK, message="Which tea?", other_agent_id=ben.id), say("It is green.")], Ben=[answer])
    events = await process.send(ann, "Ask Ben.")
    (returned,) = returns(events)
    assert returned.text == f"{{'agent_id': '{ben.id}', 'response': ['Green tea.'], 'agent_name': 'Ben'}}"
    assert lines(world.turn(ann))[-1] == "assistant text: It is green."
    (received,) = [message for message in world.turn(ben) if message.role is Role.SYSTEM]
    assert received.sender_id == ann.id
    assert received.text.startswith(f"[This message comes from the agent Ann (id {ann.id}), not from the user.")
    assert received.text.endswith("\n\nWhich tea?")
    sender, child = await process.outcome(ann), await process.outcome(ben)
    assert (child.lineage.parent_run_id, child.lineage.origin) == (sender.id, RunOrigin.AGENT)
    assert sender.child_run_ids == children(events) == (child.id,)
    require_valid(world.window(ben).messages)


async def test_run_without_messages_reads_no_children(world: World, process: Process) -> None:
    ann = await named(world, process, "Ann")
    script(world, Ann=[say("Hello.")])
    process.faults.calls.clear()
    events = await process.send(ann)
    assert children(events) == ()
    assert not [name for name in process.faults.calls if name.startswith("run_relations")]


async def test_message_without_reply_ends_the_turn_and_the_answer_stays_there(world: World, process: Process) -> None:
    ann, ben = await named(world, process, "Ann", AgentType.MEMGPT_V2), await named(world, process, "Ben")
    hold = Held(say("I will."))
    script(world, Ann=[call(SEND, message="Water the plants.", other_agent_id=ben.id)], Ben=[hold])
    events = await process.send(ann, "Tell Ben.")
    assert returns(events)[0].text == "Successfully sent message"
    (child_id,) = children(events)
    assert (await process.runs.get(ME, child_id)).lineage.ancestors == ()
    hold.released.set()
    await process.idle()
    assert lines(world.turn(ben))[-1] == "assistant text: I will."


async def refusal(process: Process, sender: Agent) -> dict[str, str]:
    events = await process.send(sender, "Ask.")
    (returned,) = returns(events)
    assert returned.status is ToolStatus.ERROR
    error: dict[str, str] = ast.literal_eval(returned.text)
    return error


@pytest.mark.parametrize("tool", [ASK, SEND])
async def test_agents_that_cannot_be_reached(world: World, process: Process, tool: str) -> None:
    """Agents of other organizations do not exist for an agent, like ids that do not exist."""
    ann = await named(world, process, "Ann")
    stranger = Principal(new_id("org"), new_id("user"))
    foreign = await process.lifecycle.create(stranger, None, AgentDraft(AgentType.LETTA_V1, name="Far"))
    for other in (foreign.id, new_id("agent"), "Ben", ""):
        script(world, Ann=[call(tool, message="Hello?", other_agent_id=other), say("Nobody.")])
        error = await refusal(process, ann)
        assert (error["agent_id"], error["type"]) == (other, "NOT_FOUND")
        assert error["error"].startswith(f"There is no agent {other}.")
    script(world, Ann=[call(tool, message="Hello?", other_agent_id=ann.id), say("Nobody.")])
    error = await refusal(process, ann)
    assert error["error"] == "An agent cannot send a message to itself."
    assert error["type"] == "MESSAGE_CYCLE"
    script(world, Ann=[call(tool, message="", other_agent_id=foreign.id), say("Nobody.")])
    await process.send(ann)
    assert (await process.runs.list(stranger, RunFilter(), TEN)).items == ()


async def test_agent_that_asks_back_gets_an_error_and_the_chain_ends(world: World, process: Process) -> None:
    ann, ben = await named(world, process, "Ann"), await named(world, process, "Ben")
    script(
        world,
        Ann=[call(ASK, message="Which tea?", other_agent_id=ben.id), say("Fine.")],
        Ben=[call(ASK, message="Which one do you like?", other_agent_id=ann.id), say("Any.")],
    )
    events = await process.send(ann)
    assert result(events)["response"] == ["Any."]
    (returned,) = [item for message in world.turn(ben) for item in message.tool_returns]
    error = ast.literal_eval(returned.text)
    assert (returned.status, error["agent_id"]) == (ToolStatus.ERROR, ann.id)
    assert "waits for this agent's answer" in error["error"]


async def test_two_agents_that_ask_each_other_at_once_both_end(world: World, process: Process) -> None:
    ann, ben = await named(world, process, "Ann"), await named(world, process, "Ben")
    asks = [
        Held(call(ASK, message="Ann asks.", other_agent_id=ben.id)),
        Held(call(ASK, message="Ben asks.", other_agent_id=ann.id)),
    ]
    script(world, Ann=[asks[0], say("Ann is done.")], Ben=[asks[1], say("Ben is done.")])
    runs = [await process.start(agent) for agent in (ann, ben)]
    for ask in asks:
        await ask.asked.wait()
    # The turns that answer have nothing to ask.
    answers = {"Ann": say("Ann answers."), "Ben": say("Ben answers.")}
    first = world.model.script

    def choose(request: LlmRequest) -> Item:
        last = request.messages[-1]
        if last.role is Role.SYSTEM:
            return answers[request.messages[0].text.split()[0]]
        return first(request)  # type: ignore[operator]

    world.model.script = choose
    for ask in asks:
        ask.released.set()
    of_ann, of_ben = [await asyncio.wait_for(process.follow(run), 20) for run in runs]
    assert result(of_ann)["response"] == ["Ben answers."]
    assert "would wait for each other" in result(of_ben)["error"]
    await process.idle()


async def test_messages_without_replies_go_on_to_a_depth(world: World, process: Process) -> None:
    ann, ben = await named(world, process, "Ann"), await named(world, process, "Ben")
    script(
        world,
        Ann=[call(SEND, message="Ping.", other_agent_id=ben.id), say("Sent.")],
        Ben=[call(SEND, message="Pong.", other_agent_id=ann.id), say("Sent.")],
    )
    await process.send(ann)
    await process.idle()
    runs = (await process.runs.list(ME, RunFilter(origins=(RunOrigin.AGENT,)), TEN)).items
    assert [run.lineage.depth for run in runs] == list(range(1, 9))
    (last,) = [item for message in world.turn(ann)[-3:] for item in message.tool_returns]
    assert ast.literal_eval(last.text)["type"] == "MESSAGE_DEPTH_EXCEEDED"


@pytest.mark.parametrize("begun", [False, True])
async def test_late_replies_are_not_awaited(world: World, process: Process, begun: bool) -> None:
    """A message that its recipient has not begun to answer is withdrawn; an answer that has begun goes on."""
    world.reply_seconds = 0.02
    process = world.process()
    ann, ben = await named(world, process, "Ann"), await named(world, process, "Ben")
    hold = Held(say("Late."))
    script(world, Ann=[call(ASK, message="Which tea?", other_agent_id=ben.id), say("No answer.")], Ben=[hold])
    if not begun:
        await process.start(ben, "Think.")
        await hold.asked.wait()
    events = await asyncio.wait_for(process.send(ann), 20)
    error = result(events)
    assert error["type"] == "REPLY_TIMEOUT"
    assert ("It goes on" in error["error"]) == begun
    assert ("was withdrawn" in error["error"]) != begun
    hold.released.set()
    await process.idle()
    child = await process.runs.get(ME, children(events)[0])
    assert child.status is (RunStatus.COMPLETED if begun else RunStatus.CANCELLED)


async def test_failures_of_the_other_agent_are_told(world: World, process: Process) -> None:
    ann, ben = await named(world, process, "Ann"), await named(world, process, "Ben")
    script(world, Ann=[call(ASK, message="Tea?", other_agent_id=ben.id), say("No.")], Ben=[Internal("No model.")])
    error = await refusal(process, ann)
    assert (error["agent_id"], error["error"]) == (ben.id, "The agent failed: No model.")
    hold = Held(say("Late."))
    script(world, Ann=[call(ASK, message="Tea?", other_agent_id=ben.id), say("No.")], Ben=[hold])
    run = await process.start(ann)
    await hold.asked.wait()
    child = await process.outcome(ben)
    await process.runs.cancel(ME, RunFilter(), [child.id])
    assert result(await process.follow(run))["type"] == "CANCELLED"
    rule = RequiresApproval("archival_memory_insert")
    cleo = await named(world, process, "Cleo", tool_rules=(rule,), include_base_tool_rules=False)
    script(
        world,
        Ann=[call(ASK, message="Tea?", other_agent_id=cleo.id), say("No.")],
        Cleo=[call("archival_memory_insert", content="x")],
    )
    await process.send(cleo, "Keep it.")
    assert (await refusal(process, ann))["type"] == "PENDING_APPROVAL"


async def test_cancelled_sender_cancels_the_reply(world: World, process: Process) -> None:
    ann, ben = await named(world, process, "Ann"), await named(world, process, "Ben")
    hold = Held(say("Late."))
    script(world, Ann=[call(ASK, message="Tea?", other_agent_id=ben.id), say("No.")], Ben=[hold])
    run = await process.start(ann)
    await hold.asked.wait()
    assert await process.runs.cancel(ME, RunFilter(), [run.id]) == {run.id: CancelOutcome.CANCELLED}
    ended, child = await process.runs.get(ME, run.id), await process.outcome(ben)
    assert (child.status, ended.child_run_ids) == (RunStatus.CANCELLED, (child.id,))
    require_valid(world.window(ann).messages)
    require_valid(world.window(ben).messages)


async def test_agents_with_tags_answer_in_parallel_and_in_order(world: World, process: Process) -> None:
    others = []
    for number in range(MAX_AT_ONCE + 2):
        others.append(await named(world, process, f"A{number}", tags=("team", f"n{number % 2}")))
    ann = await named(world, process, "Ann", tags=("team", "n0"))
    await named(world, process, "Out", tags=("n0",))
    holds = {agent.name: Held(say(f"{agent.name} is here.")) for agent in others}
    arguments = {"message": "Here?", "match_all": ["team"], "match_some": ["n0", "n1"]}
    items: dict[str, list[Item]] = {name: [hold] for name, hold in holds.items()}
    script(world, Ann=[call(BY_TAGS, **arguments), say("Thanks.")], **items)
    run = await process.start(ann)
    await until(lambda: sum(hold.asked.is_set() for hold in holds.values()) == MAX_AT_ONCE)
    assert process.worker.active_runs == 1 + MAX_AT_ONCE
    for hold in reversed(holds.values()):
        hold.released.set()
    events = await process.follow(run)
    assert result(events) == [
        {"agent_id": agent.id, "agent_name": agent.name, "response": [f"{agent.name} is here."]} for agent in others
    ]
    assert len(children(events)) == len(others)


async def test_tags_that_select_nobody_everybody_or_a_failing_agent(world: World, process: Process) -> None:
    ann, ben = await named(world, process, "Ann"), await named(world, process, "Ben", tags=("x",))
    script(world, Ann=[call(BY_TAGS, message="Here?", match_all=["y"], match_some=[]), say("No.")])
    assert result(await process.send(ann)) == []
    script(world, Ann=[call(BY_TAGS, message="Here?", match_all=[], match_some=[]), say("No.")])
    assert "Name at least one tag" in returns(await process.send(ann))[0].text
    script(
        world,
        Ann=[call(BY_TAGS, message="Here?", match_all=["x"], match_some=[]), say("No.")],
        Ben=[Internal("Broken.")],
    )
    (error,) = result(await process.send(ann))
    assert (error["agent_id"], error["type"]) == (ben.id, "INTERNAL")


async def group_of(process: Process, *agents: Agent, manager: ManagerConfig | None = None) -> Group:
    now, ids = process.clock.now(), tuple(agent.id for agent in agents)
    group = Group(new_id("group"), ME.organization_id, now, now, agent_ids=ids, manager=manager or ManagerConfig())
    return (await process.stores.groups.create(None, group))[0]


async def test_group_is_the_one_of_the_turn_or_the_only_one(world: World, process: Process) -> None:
    ann, ben, cleo = [await named(world, process, name) for name in ("Ann", "Ben", "Cleo")]
    script(world, Ann=[call(TO_GROUP, message="Here?"), say("Yes.")], Ben=[say("Ben.")], Cleo=[say("Cleo.")])
    assert "in no group" in returns(await process.send(ann))[0].text
    first = await group_of(process, cleo, ann, ben)
    background = ManagerConfig(ManagerType.SLEEPTIME, ann.id)
    await group_of(process, ben, manager=background)
    replies = result(await process.send(ann))
    assert [reply["response"] for reply in replies] == [["Cleo."], ["Ben."]]
    await group_of(process, ann, ben)
    assert "in 2 groups" in returns(await process.send(ann))[0].text
    run = await process.outcome(ann)
    builtin = process.orchestrator.tool_runner._builtin

    def as_call(effect: str, **of_run: Any) -> BuiltinCall:
        return BuiltinCall(TO_GROUP, {"message": "Here?"}, ann.id, "UTC", "call-1", replace(run, **of_run), effect)

    turn = await builtin.execute(as_call("step-1/0", group_id=first.id))
    assert [reply["agent_id"] for reply in ast.literal_eval(turn.text)] == [cleo.id, ben.id]
    supervised = replace(run.lineage, supervised_agent_ids=(ben.id,))
    turn = await builtin.execute(as_call("step-2/0", lineage=supervised))
    assert [reply["agent_id"] for reply in ast.literal_eval(turn.text)] == [ben.id]


@pytest.mark.parametrize("tool", [ASK, SEND, BY_TAGS, TO_GROUP])
async def test_messages_outside_of_a_turn_are_refused(world: World, process: Process, tool: str) -> None:
    ann, ben = await named(world, process, "Ann"), await named(world, process, "Ben", tags=("x",))
    arguments = {"message": "Tea?", "other_agent_id": ben.id, "match_all": ["x"], "match_some": []}
    known = process.orchestrator.tool_runner._builtin.schema(tool).parameters["properties"]
    given = {name: value for name, value in arguments.items() if name in known}
    returned = await process.tool_runner.run(ME, None, ann.id, tool, json.dumps(given))
    assert returned.status is ToolStatus.ERROR
    assert "only while the agent takes a turn" in returned.text


async def conversation(world: World, tool: str, crashes_at: int | None) -> tuple[Agent, Agent, Agent]:
    """Lets an agent write to one or two others, in a process that crashes at a point and one that goes on."""
    world.faults = Faults()
    setup = world.process()
    ann, ben, cleo = [await named(world, setup, name, tags=("x",)) for name in ("Ann", "Ben", "Cleo")]
    arguments = {"other_agent_id": ben.id} if tool != BY_TAGS else {"match_all": ["x"], "match_some": []}
    script(
        world,
        Ann=[call(tool, message="Which tea?", **arguments), say("Thanks.")],
        Ben=[call("archival_memory_insert", content="tea"), say("Green.")],
        Cleo=[say("Black.")],
    )
    world.faults = Faults()
    world.faults.crashes_at = crashes_at
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # runs that crash end with an exception
    process = world.process()
    try:
        await process.send(ann, "Ask them.")
        await process.idle()
    except Crash:
        pass
    await crashed(process)
    return ann, ben, cleo


@pytest.mark.parametrize("step", [17, pytest.param(1, marks=pytest.mark.full)])
@pytest.mark.parametrize("tool", [ASK, SEND, BY_TAGS])
async def test_messages_survive_a_crash_at_every_point(tmp_path: Path, tool: str, step: int) -> None:
    """No message is sent twice, and no reply is lost."""
    async with opened(tmp_path) as world:
        await conversation(world, tool, None)
        points = world.faults.points
    (tmp_path / "worlds").mkdir()
    async with opened(tmp_path / "worlds") as world:
        for point in range(0, points, step):
            await survives(world, tool, point)


async def survives(world: World, tool: str, point: int) -> None:
    ann, ben, cleo = await conversation(world, tool, point)
    later = Faults()
    world.faults = later
    process = world.process()
    if not (await process.runs.list(ME, RunFilter(agent_ids=(ann.id,)), TEN)).items:
        await process.send(ann, "Ask them.")  # the client repeats a request that was not stored
    while await process.stores.leases.claimable(process.lease_renewer.instance_id):
        await process.recover()
    asked = [ben, cleo] if tool == BY_TAGS else [ben]
    for agent in asked:
        received = [message for message in world.turn(agent) if message.role is Role.SYSTEM]
        assert len(received) == 1, (point, lines(world.turn(agent)))
        require_valid(world.window(agent).messages)
    assert await world.archival.texts(ben.id) == ["tea"], point
    run = await process.outcome(ann)
    assert (run.status, len(run.child_run_ids)) == (RunStatus.COMPLETED, len(asked)), point
    (returned,) = [item for message in world.turn(ann) for item in message.tool_returns]
    texts = {ben.id: "Green.", cleo.id: "Black."}
    replies = [{"agent_id": one.id, "agent_name": one.name, "response": [texts[one.id]]} for one in asked]
    if tool == SEND:
        assert returned.text == "Successfully sent message"
    else:
        assert ast.literal_eval(returned.text) == (replies if tool == BY_TAGS else replies[0]), point
    for agent in (ann, ben, cleo):
        await process.lifecycle.delete(ME, agent.id)
