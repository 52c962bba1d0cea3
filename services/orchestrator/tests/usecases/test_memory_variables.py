"""Variables in the texts of a new agent."""

import pytest
from mnemesh.agents.v1 import agents_pb2, agents_service_pb2
from mnemesh.blocks.v1 import blocks_pb2
from mnemesh_kit.errors import InvalidArgument
from mnemesh_orchestrator.model.creation import filled, prepared_draft
from mnemesh_orchestrator.rpc.convert.agents import draft_from_proto

from ..support.world import ME, Process, World

VARIABLES = {"name": "Ada", "city": "{{name}}"}


async def test_variables_are_filled_into_blocks_and_prompt(world: World, process: Process) -> None:
    draft = draft_from_proto(
        agents_service_pb2.CreateAgentRequest(
            agent=agents_pb2.Agent(system="You serve {{ name }} and {{nobody}}. {CORE_MEMORY}"),
            blocks=[blocks_pb2.Block(label="human", value="{{name}} lives in {{city}}.", description="{{name}}")],
            memory_variables=VARIABLES,
        )
    )
    agent = await process.lifecycle.create(ME, None, draft)
    assert agent.system == "You serve Ada and {{nobody}}. {CORE_MEMORY}"
    assert world.blocks.value(agent.id, "human") == "Ada lives in {{name}}."
    assert "Ada lives in {{name}}." in world.window(agent).messages[0].text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{{name}}{{name}}", "AdaAda"),
        ("{{{name}}}", "{Ada}"),
        ("{name} {{}} {{Name}} {{ name", "{name} {{}} {{Name}} {{ name"),
        ("{{" + " " * 500_000 + "name {{name}}", "{{" + " " * 500_000 + "name Ada"),
        ("", ""),
    ],
)
def test_other_text_in_braces_is_unchanged(text: str, expected: str) -> None:
    assert filled(text, VARIABLES) == expected


def test_filled_prompt_is_validated() -> None:
    request = agents_service_pb2.CreateAgentRequest(
        agent=agents_pb2.Agent(system="{{x}}"), memory_variables={"x": "a" * 1_000_001}
    )
    with pytest.raises(InvalidArgument) as raised:
        prepared_draft(draft_from_proto(request))
    assert raised.value.metadata["field"] == "agent.system"
