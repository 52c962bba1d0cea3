"""Organizations that share a process: the queued runs of one do not hold up another, and limits follow changes."""

import asyncio
from dataclasses import replace
from typing import Any, Final

import pytest
from mnemesh_kit.call_context import Principal, as_principal
from mnemesh_kit.ids import new_id
from mnemesh_kit.paging import PageQuery
from mnemesh_orchestrator.errors import BudgetExceeded
from mnemesh_orchestrator.model.agents import Agent, AgentType
from mnemesh_orchestrator.model.creation import AgentDraft
from mnemesh_orchestrator.model.inputs import InputMessage, RunConfig
from mnemesh_orchestrator.model.runs import PoolLimits, Run, RunRequest, RunStatus, StopReason
from mnemesh_orchestrator.store.run_pools import in_turns
from mnemesh_types.agents import Budget
from mnemesh_types.messages import TextPart

from ..support.model import Held, say
from ..support.world import ME, Process, World

OTHERS: Final = Principal(new_id("org"), new_id("user"))
ALL = PageQuery(100, ascending=True)
QUEUED: Final = 40
LIMIT: Final = 3


class Gate:
    """A model that answers the flood only when the gate is open, and everything else at once."""

    def __init__(self, world: World) -> None:
        self.held: list[Held] = []
        self.is_open = False
        world.model.script = self._answer

    def _answer(self, request: Any) -> Any:
        if "flood" not in request.messages[-1].text or self.is_open:
            return say("Yes.")
        self.held.append(Held(say("Yes.")))
        return self.held[-1]

    @property
    def at_work(self) -> int:
        return sum(not held.released.is_set() for held in self.held)

    def open(self) -> None:
        self.is_open = True
        for held in self.held:
            held.released.set()


async def agents_of(process: Process, caller: Principal, count: int) -> list[Agent]:
    draft = AgentDraft(AgentType.LETTA_V1, system="You are a test.", initial_messages=(), include_base_tools=False)
    with as_principal(caller):
        return [await process.lifecycle.create(caller, None, draft) for _ in range(count)]


async def start(process: Process, caller: Principal, agent: Agent, text: str) -> Run:
    process.clock.advance(0.001)
    return await process.runs.start(
        caller, None, RunRequest(agent.id, "", [InputMessage((TextPart(text),))], RunConfig())
    )


async def test_queued_runs_of_one_organization_do_not_hold_up_another(world: World) -> None:
    world.limits = replace(PoolLimits(), client=LIMIT)
    process, gate = world.process(), Gate(world)
    flood, (agent,) = await agents_of(process, OTHERS, QUEUED), await agents_of(process, ME, 1)
    runs = [await start(process, OTHERS, other, "flood") for other in flood]
    while gate.at_work < LIMIT:
        await asyncio.sleep(0)
    before = len(world.model.requests)
    await process.send(agent, "Hello")
    assert (await process.outcome(agent)).stop_reason is StopReason.END_TURN
    assert len(world.model.requests) - before == 1, "no run of the others began before it"
    assert gate.at_work == LIMIT
    waiting = [run for run in runs if (await process.runs.get(OTHERS, run.id)).status is RunStatus.CREATED]
    assert waiting == runs[LIMIT:], "those that were sent first began first"
    gate.open()
    await process.idle()
    assert {(await process.runs.get(OTHERS, run.id)).status for run in runs} == {RunStatus.COMPLETED}


async def test_limit_follows_the_budget(world: World, process: Process) -> None:
    gate, budgets = Gate(world), process.orchestrator.budgets
    agents = await agents_of(process, ME, 4)
    await budgets.set(ME, None, Budget(max_concurrent_runs=1))
    for agent in agents[:3]:
        await start(process, ME, agent, "flood")
    while not gate.at_work:
        await asyncio.sleep(0)
    with pytest.raises(BudgetExceeded):
        await process.send(agents[3], "Hello")
    await budgets.set(ME, None, Budget(max_concurrent_runs=2))
    while gate.at_work < 2:
        await asyncio.sleep(0)
    (budget,) = (await budgets.list(ME, None, ALL)).items
    await budgets.delete(ME, None, budget.id)
    while gate.at_work < 3:
        await asyncio.sleep(0)
    await process.send(agents[3], "Hello")
    gate.open()
    await process.idle()


def test_organizations_take_turns_and_so_do_their_agents() -> None:
    class Row:
        def __init__(self, name: str) -> None:
            self.name, self.organization_id, self.agent_id = name, name[0], name[:2]

    rows = [Row(name) for name in ("a11", "a12", "a13", "a21", "b11", "b12")]
    assert [row.name for row in in_turns(rows)] == ["a11", "b11", "a21", "b12", "a12", "a13"]
