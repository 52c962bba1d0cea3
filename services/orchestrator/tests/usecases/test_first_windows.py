"""New agents of each type against golden files: tools, rules, settings and window.

The files are the contract. The type's own prompt stands as its key; it is held by the tests of prompts.
"""

from pathlib import Path

import pytest
from mnemesh_orchestrator.model.agents import AGENT_TYPES, Agent, AgentType, shows_line_numbers
from mnemesh_orchestrator.model.creation import AgentDraft
from mnemesh_types.blocks import Block

from ..support.world import ME, Process, World, lines

GOLDEN = Path(__file__).parent / "golden"
BLOCKS = (
    Block(label="human", value="Ada.", description="Who speaks."),
    Block(label="persona", value="A friend.", description="Who you are."),
)


def beginning(world: World, agent: Agent) -> str:
    spec = AGENT_TYPES[agent.type]
    head = [
        f"policy: {spec.policy}",
        f"prompt: {spec.prompt_key}",
        f"thinking argument: {spec.inner_thoughts}",
        f"starts empty: {agent.message_buffer_autoclear}",
        f"keeps short: {spec.buffer}",
        *(f"tool: {tool.name}" for tool in agent.tools),
        *(f"rule: {rule}" for rule in agent.tool_rules),
    ]
    said = "\n".join(lines(world.window(agent).messages)).replace(agent.system, f"[{spec.prompt_key}]")
    return "\n".join((*head, "", said, ""))


def test_every_golden_file_is_used() -> None:
    numbered = {f"{kind}_numbered" for kind in AgentType if AGENT_TYPES[kind].numbered_lines}
    assert {file.stem for file in GOLDEN.iterdir()} == {*AgentType, *numbered}


@pytest.mark.parametrize("model", ["scripted/one", "anthropic/claude-haiku"])
@pytest.mark.parametrize("kind", AgentType)
async def test_first_window_equals_the_golden_file(world: World, process: Process, kind: AgentType, model: str) -> None:
    agent = await process.lifecycle.create(ME, None, AgentDraft(kind, blocks=BLOCKS, model=model))
    name = f"{kind}_numbered" if shows_line_numbers(kind, model.partition("/")[0]) else kind
    assert beginning(world, agent).replace(agent.id, "agent-1") == (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")


async def test_workflow_agent_always_clears_its_window(world: World, process: Process) -> None:
    agent = await process.lifecycle.create(ME, None, AgentDraft(AgentType.WORKFLOW))
    received = await process.agents.update(ME, None, agent.id, {"message_buffer_autoclear": False})
    assert received.message_buffer_autoclear


async def test_models_that_imitate_examples_get_a_shorter_one(world: World, process: Process) -> None:
    usual = await process.lifecycle.create(ME, None, AgentDraft(AgentType.MEMGPT))
    copying = await process.lifecycle.create(ME, None, AgentDraft(AgentType.MEMGPT, model="scripted/gpt-3.5-turbo"))
    (_, thought, said, *rest), (_, shorter, same, *others) = (
        lines(world.window(agent).messages) for agent in (usual, copying)
    )
    assert (said, rest) == (same, others)
    assert thought != shorter
