"""Agents whose calls need an approval, and the answers to it."""

from typing import Any

from mnemesh_orchestrator.model.agents import Agent, AgentType
from mnemesh_orchestrator.model.events import MessageEvent, RunEvent
from mnemesh_orchestrator.model.rules import RequiresApproval
from mnemesh_types.messages import ApprovalDecision, Approve, Deny

from ..support.world import ME, Process, World, kinds, told

KEEP = RequiresApproval("archival_memory_insert")


DENIED = "Error: request to call tool denied. User reason: not now"


def shown(events: list[RunEvent], kind: str) -> MessageEvent:
    """Returns the only event of a kind."""
    found = [body for body in told(events) if isinstance(body, MessageEvent) and body.kind == kind]
    assert len(found) == 1, kinds(events)
    return found[0]


def asked(events: list[RunEvent]) -> tuple[str, ...]:
    """Returns the ids of the calls in an approval request event."""
    return tuple(call.id for call in shown(events, "approval_request").tool_calls)


def approve(*call_ids: str) -> list[ApprovalDecision]:
    return [Approve(id_) for id_ in call_ids]


def deny(*call_ids: str, reason: str | None = "not now") -> list[ApprovalDecision]:
    return [Deny(id_, reason) for id_ in call_ids]


async def pending(process: Process, agent: Agent) -> str | None:
    return (await process.agents.list_pending_approvals(ME, [agent])).get(agent.id)


async def gated(world: World, process: Process, kind: AgentType = AgentType.LETTA_V1, **draft: Any) -> Agent:
    draft.setdefault("tool_rules", (KEEP,))
    return await world.agent(process, kind, include_base_tool_rules=False, **draft)
