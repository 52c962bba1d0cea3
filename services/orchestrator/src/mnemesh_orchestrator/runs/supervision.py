"""An agent as it acts in a turn in which it supervises the members of a group."""

from dataclasses import replace
from typing import Final

from mnemesh_orchestrator.loop.call_plan import SPEAKING
from mnemesh_orchestrator.model.agents import Agent, AttachedTool
from mnemesh_orchestrator.model.rules import ConstrainChildTools, ExitLoop, RequiresApproval, RunFirst, ToolRule

BROADCAST: Final = "send_message_to_all_agents_in_group"


def supervising(agent: Agent) -> Agent:
    """Returns the agent with the tool that asks all members, which it must call first.

    If the agent speaks by a tool, that one follows and ends the turn. These rules replace the agent's own, except for
    those that require a person's approval. The stored record does not change.
    """
    tools = agent.tools if agent.tool(BROADCAST) is not None else (*agent.tools, AttachedTool(BROADCAST))
    rules: tuple[ToolRule, ...] = (RunFirst(BROADCAST),)
    if agent.tool(SPEAKING) is not None:
        rules += (ConstrainChildTools(BROADCAST, (SPEAKING,)), ExitLoop(SPEAKING))
    approvals = tuple(rule for rule in agent.tool_rules if isinstance(rule, RequiresApproval))
    return replace(agent, tools=tools, tool_rules=(*rules, *approvals))
