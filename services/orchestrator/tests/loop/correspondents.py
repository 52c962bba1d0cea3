"""Agents that write to each other."""

import ast
from collections.abc import Sequence
from typing import Any

from mnemesh_kit.paging import PageQuery
from mnemesh_orchestrator.llm.port import LlmRequest
from mnemesh_orchestrator.model.agents import Agent, AgentType
from mnemesh_orchestrator.model.events import RunEvent, UsageEvent
from mnemesh_types.messages import Role, ToolReturn

from ..support.model import Item
from ..support.world import SYSTEM, Process, World, told

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
