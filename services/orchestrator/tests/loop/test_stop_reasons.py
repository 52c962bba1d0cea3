"""Every stop reason, with a script that leads to it and the status of the run."""

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pytest
from mnemesh_orchestrator.errors import BudgetExceeded
from mnemesh_orchestrator.llm.errors import (
    ContextOverflow,
    ProviderAuth,
    ProviderBadAnswer,
    ProviderContentFilter,
    ProviderPaymentRequired,
)
from mnemesh_orchestrator.llm.port import FinishReason
from mnemesh_orchestrator.model.agents import AgentType
from mnemesh_orchestrator.model.events import StopEvent
from mnemesh_orchestrator.model.rules import ExitLoop, RequiresApproval, RunFirst
from mnemesh_orchestrator.model.runs import RunFilter, RunStatus, StopReason
from mnemesh_types.agents import ModelSettings

from ..support.model import Held, Item, call, say, together
from ..support.world import ME, Process, World, lines, require_valid, told

PLAIN, BY_TOOL = AgentType.LETTA_V1, AgentType.MEMGPT_V2
COMPLETED, FAILED = RunStatus.COMPLETED, RunStatus.FAILED
SEARCH: Final = call("conversation_search", query="x", request_heartbeat=True)
SPEAK: Final = call("send_message", message="Hello.")
EAGER: Final = call("send_message", message="Hello.", request_heartbeat=True)


@dataclass(frozen=True)
class Script:
    """A model's answer to a greeting, the agent, and the status with which the run ends."""

    kind: AgentType
    answers: tuple[Item, ...]
    status: RunStatus
    draft: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)


def refusing(error: Exception) -> Script:
    return Script(PLAIN, (error,), FAILED)


SMALL = {"model_settings": ModelSettings(context_window=4_000)}
SCRIPTS: Final[dict[StopReason, dict[str, Script]]] = {
    StopReason.END_TURN: {
        "words": Script(PLAIN, (say("Hello."),), COMPLETED),
        "words after a tool": Script(PLAIN, (SEARCH, say("Hello.")), COMPLETED),
        "speech": Script(BY_TOOL, (SPEAK,), COMPLETED),
        "no heartbeat": Script(
            BY_TOOL, (call("archival_memory_insert", content="x"),), COMPLETED, {"include_base_tool_rules": False}
        ),
    },
    StopReason.TOOL_RULE: {
        "an exit in the plain loop": Script(
            PLAIN, (SEARCH,), COMPLETED, {"tool_rules": (ExitLoop("conversation_search"),)}
        ),
        "an exit that asked for a heartbeat": Script(BY_TOOL, (EAGER,), COMPLETED),
    },
    StopReason.MAX_STEPS: {
        "plain": Script(PLAIN, (SEARCH, SEARCH), COMPLETED, config={"max_steps": 2}),
        "by tool": Script(BY_TOOL, (SEARCH, SEARCH), COMPLETED, config={"max_steps": 2}),
    },
    StopReason.REQUIRES_APPROVAL: {
        kind.value: Script(kind, (SEARCH,), COMPLETED, {"tool_rules": (RequiresApproval("conversation_search"),)})
        for kind in (PLAIN, BY_TOOL)
    },
    StopReason.NO_TOOL_CALL: {
        "words where a tool is due": Script(BY_TOOL, (say("Hello."),), FAILED),
        "no tools": Script(AgentType.REACT, (), FAILED, {"include_base_tools": False}),
    },
    StopReason.CONTENT_FILTER: {
        "words": Script(PLAIN, (say("I wo", finish=FinishReason.CONTENT_FILTER),), FAILED),
        "nothing": Script(PLAIN, (say("", finish=FinishReason.CONTENT_FILTER),), FAILED),
        "words of an agent that acts by tools": Script(
            BY_TOOL, (say("I", finish=FinishReason.CONTENT_FILTER),), FAILED
        ),
        "a refused request": refusing(ProviderContentFilter("400.", provider="scripted", status=400)),
    },
    StopReason.INVALID_TOOL_CALL: {
        kind.value: Script(kind, (SEARCH,), FAILED, {"tool_rules": (RunFirst("conversation_search", '{"far": 1}'),)})
        for kind in (PLAIN, BY_TOOL)
    },
    StopReason.MAX_TOKENS_EXCEEDED: {
        "cut": Script(PLAIN, (say("Hel", finish=FinishReason.LENGTH),), FAILED),
    },
    StopReason.INVALID_LLM_RESPONSE: {
        "nonsense": Script(PLAIN, (ProviderBadAnswer("No JSON.", provider="scripted"),) * 2, FAILED),
        "nothing": Script(PLAIN, (say(""),) * 2, FAILED),
        "reasoning alone": Script(PLAIN, (say("", thought="Hm."),) * 2, FAILED),
        "nothing after a tool": Script(PLAIN, (SEARCH, say(""), say("")), FAILED),
        "nothing where a tool is due": Script(BY_TOOL, (say("", thought="Hm."),) * 2, FAILED),
    },
    StopReason.LLM_API_ERROR: {"no key": refusing(ProviderAuth("401.", provider="scripted", status=401))},
    StopReason.INSUFFICIENT_CREDITS: {
        "no credit": refusing(ProviderPaymentRequired("402.", provider="scripted", status=402))
    },
    StopReason.BUDGET_EXCEEDED: {"a budget is used up": refusing(BudgetExceeded("429.", limit="tokens"))},
    StopReason.ERROR: {"a defect": refusing(RuntimeError("of ours"))},
    StopReason.CONTEXT_WINDOW_OVERFLOW: {
        "the provider finds it too long": refusing(ContextOverflow("400.", provider="scripted", status=400)),
    },
    StopReason.CONTEXT_WINDOW_OVERFLOW_IN_SYSTEM_PROMPT: {
        "a system prompt of the run larger than the window": Script(
            PLAIN, (), FAILED, SMALL, {"override_system": "long " * 4_000}
        ),
    },
    StopReason.CANCELLED: {
        kind.value: Script(kind, (Held(answer),), RunStatus.CANCELLED)
        for kind, answer in ((PLAIN, say("Hello.")), (BY_TOOL, SPEAK))
    },
}


def test_every_reason_has_a_script() -> None:
    assert set(SCRIPTS) == set(StopReason)
    assert all(SCRIPTS.values())


@pytest.mark.parametrize(
    ("reason", "script"),
    [
        pytest.param(reason, script, id=f"{reason}: {name}")
        for reason, scripts in SCRIPTS.items()
        for name, script in scripts.items()
    ],
)
async def test_script_leads_to_its_stop_reason(
    world: World, process: Process, reason: StopReason, script: Script
) -> None:
    agent = await world.agent(process, script.kind, **script.draft)
    world.model.follow(*script.answers)
    cancelling = None
    if script.answers and isinstance(held := script.answers[0], Held):
        cancelling = asyncio.create_task(_cancelled(process, held))
    events = await process.send(agent, **script.config)
    if cancelling is not None:
        await cancelling
    run = await process.outcome(agent)
    assert (run.stop_reason, run.status) == (reason, script.status)
    assert next(body for body in told(events) if isinstance(body, StopEvent)) == StopEvent(reason, script.status)
    assert (run.error is not None) == (script.status is RunStatus.FAILED)
    assert (await process.agents.get(ME, agent.id)).last_stop_reason == reason
    if reason is not StopReason.REQUIRES_APPROVAL:
        require_valid(world.window(agent).messages)


async def _cancelled(process: Process, held: Held) -> None:
    await held.asked.wait()
    await process.runs.cancel(ME, RunFilter(), [])


async def test_text_before_a_content_filter_is_kept(world: World, process: Process) -> None:
    agent = await world.agent(process, initial_messages=())
    cut = together(call("archival_memory_insert", content="x"), text="I will")
    world.model.follow(replace(cut, finish_reason=FinishReason.CONTENT_FILTER))
    await process.send(agent)
    run = await process.outcome(agent)
    assert run.error is not None
    assert run.error.reason == "PROVIDER_CONTENT_FILTER"
    assert lines(world.turn(agent)) == ["user text: Hello", "assistant text: I will"]
    assert await world.archival.texts(agent.id) == []


async def test_workflow_agent_without_tools_fails_before_the_model_call(world: World, process: Process) -> None:
    agent = await world.agent(process, AgentType.WORKFLOW, include_base_tools=False)
    await process.send(agent)
    run = await process.outcome(agent)
    assert run.error is not None
    assert (run.error.reason, "Attach a tool" in run.error.message) == ("FAILED_PRECONDITION", True)
    assert world.model.requests == []
