"""Messages of an agent to the agents with tags, and to those of its group."""

import ast
from dataclasses import replace
from typing import Any

from mnemesh_kit.errors import Internal
from mnemesh_kit.ids import new_id
from mnemesh_orchestrator.builtin.agent_messages import MAX_AT_ONCE
from mnemesh_orchestrator.builtin.call import BuiltinCall
from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.model.groups import Group, ManagerConfig, ManagerType

from ..support.model import Held, Item, call, say
from ..support.waiting import until
from ..support.world import ME, Process, World
from .correspondents import BY_TAGS, TO_GROUP, children, named, result, returns, script


async def group_of(process: Process, *agents: Agent, manager: ManagerConfig | None = None) -> Group:
    now, ids = process.clock.now(), tuple(agent.id for agent in agents)
    group = Group(new_id("group"), ME.organization_id, now, now, agent_ids=ids, manager=manager or ManagerConfig())
    return (await process.stores.groups.create(None, group))[0]


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
    builtin = process.orchestrator.tool_runner.builtin

    def as_call(effect: str, **of_run: Any) -> BuiltinCall:
        return BuiltinCall(TO_GROUP, {"message": "Here?"}, ann.id, "UTC", "call-1", replace(run, **of_run), effect)

    turn = await builtin.execute(as_call("step-1/0", group_id=first.id))
    assert [reply["agent_id"] for reply in ast.literal_eval(turn.text)] == [cleo.id, ben.id]
    supervised = replace(run.lineage, supervised_agent_ids=(ben.id,))
    turn = await builtin.execute(as_call("step-2/0", lineage=supervised))
    assert [reply["agent_id"] for reply in ast.literal_eval(turn.text)] == [ben.id]
