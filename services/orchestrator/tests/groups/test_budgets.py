"""Budgets and runs of groups: members meet the limits, and runs of groups need a place."""

import pytest
from mnemesh_orchestrator.errors import BudgetExceeded
from mnemesh_orchestrator.model.events import MemberTurnEnded
from mnemesh_orchestrator.model.inputs import InputMessage, RunConfig
from mnemesh_orchestrator.model.runs import RunRequest, RunStatus, StopReason
from mnemesh_types.agents import Budget, BudgetLimit, BudgetPeriod
from mnemesh_types.messages import TextPart

from ..support.groups import Cast, bodies, send
from ..support.world import ME, Process


def daily(requests: int) -> tuple[BudgetLimit, ...]:
    return (BudgetLimit(BudgetPeriod.DAY, max_requests=requests),)


async def test_member_that_meets_its_budget_ends_its_turn_and_the_round_goes_on(cast: Cast, process: Process) -> None:
    group = await cast.group(process, "Ada", "Bob", "Cleo")
    await process.orchestrator.budgets.set(ME, None, Budget(agent_id=cast.agents["Bob"].id, limits=daily(0)))
    events = await send(process, group, "Hello")
    ends = [end.stop_reason for end in bodies(events, MemberTurnEnded)]
    assert ends == [StopReason.END_TURN, StopReason.BUDGET_EXCEEDED, StopReason.END_TURN]


async def test_group_needs_the_budget_and_a_place_of_its_organization(cast: Cast, process: Process) -> None:
    group = await cast.group(process, "Ada", "Bob")
    budgets = process.orchestrator.budgets
    await budgets.set(ME, None, Budget(max_concurrent_runs=0))
    with pytest.raises(BudgetExceeded):
        await send(process, group, "Hello")
    request = RunRequest("", "", [InputMessage((TextPart("Hello"),))], RunConfig(), group_id=group.id)
    waiting = await process.runs.start(ME, None, request)
    assert (await process.runs.get(ME, waiting.id)).status is RunStatus.CREATED
    await budgets.set(ME, None, Budget(max_concurrent_runs=1))
    await process.idle()
    assert (await process.runs.get(ME, waiting.id)).status is RunStatus.COMPLETED
    await budgets.set(ME, None, Budget(limits=daily(2)))
    with pytest.raises(BudgetExceeded):
        await send(process, group, "Hello")
