"""Supervisors: the manager asks all members, and answers then."""

import pytest
from mnemesh_kit.paging import PageQuery
from mnemesh_orchestrator.model.agents import AgentType
from mnemesh_orchestrator.model.groups import ManagerType
from mnemesh_orchestrator.model.runs import RunFilter, RunOrigin

from ..support.groups import Cast, send
from ..support.model import call, say
from ..support.world import ME, Process

BROADCAST = "send_message_to_all_agents_in_group"


@pytest.mark.parametrize("kind", [AgentType.LETTA_V1, AgentType.MEMGPT_V2])
async def test_manager_asks_all_members_and_answers(cast: Cast, process: Process, kind: AgentType) -> None:
    await cast.join(process, "Max", kind=kind)
    if kind is AgentType.LETTA_V1:
        cast.says("Max", call(BROADCAST, message="What do you say?"), "They speak.")
    else:
        cast.says(
            "Max",
            call(BROADCAST, thinking="Ask.", message="What do you say?", request_heartbeat=True),
            call("send_message", thinking="Answer.", message="They speak."),
        )
    group = await cast.group(process, "Ada", "Bob", kind=ManagerType.SUPERVISOR, by="Max")
    events = await send(process, group, "Hello")
    shown = cast.shown(events)
    assert [shown[0], *shown[-4:]] == [
        "Max MemberTurnStarted 1",
        "Max assistant: They speak.",
        "Max MemberTurnEnded 1",
        "StopEvent",
        "UsageEvent",
    ]
    assert "Max tool_call" in shown
    first, second = cast.requests["Max"]
    assert [tool.name for tool in first.tools] == [BROADCAST]
    if kind is AgentType.MEMGPT_V2:
        assert [tool.name for tool in second.tools] == ["send_message"]
    returns = [item for message in second.messages for item in message.tool_returns]
    returned = next(item.text for item in returns if item.name == BROADCAST)
    assert "Ada speaks." in returned
    assert "Bob speaks." in returned
    stored = await process.agents.get(ME, cast.agents["Max"].id)
    assert (stored.tools, stored.tool_rules) == (cast.agents["Max"].tools, cast.agents["Max"].tool_rules)
    cast.says("Max", say("Alone.") if kind is AgentType.LETTA_V1 else call("send_message", thinking="!", message="A."))
    await process.send(cast.agents["Max"], "And you?")
    assert BROADCAST not in {tool.name for tool in cast.requests["Max"][-1].tools}
    asked = await process.runs.list(ME, RunFilter(origins=(RunOrigin.AGENT,)), PageQuery(9, ascending=True))
    assert {run.agent_id for run in asked.items} == set(cast.ids("Ada", "Bob"))
