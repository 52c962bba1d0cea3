"""The first messages of a new agent."""

import pytest
from mnemesh_kit.errors import NotFound
from mnemesh_kit.ids import new_id
from mnemesh_orchestrator.model.agents import Agent, AgentType
from mnemesh_orchestrator.model.creation import AgentDraft
from mnemesh_orchestrator.model.inputs import InputMessage
from mnemesh_types.messages import Role, TextPart

from ..support.world import ME, Process, World, lines


def roles(world: World, agent: Agent) -> list[str]:
    return [message.role.value for message in world.window(agent).messages]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (AgentType.MEMGPT, ["system", "assistant", "tool", "user"]),
        (AgentType.MEMGPT_V2, ["system", "assistant", "tool", "user"]),
        (AgentType.REACT, ["system", "assistant", "tool", "user"]),
        (AgentType.WORKFLOW, ["system", "assistant", "tool", "user"]),
        (AgentType.SPLIT_THREAD, ["system", "assistant", "tool", "user"]),
        (AgentType.SLEEPTIME, ["system", "user"]),
        (AgentType.LETTA_V1, ["system"]),
    ],
)
async def test_each_type_has_its_first_messages(
    world: World, process: Process, kind: AgentType, expected: list[str]
) -> None:
    agent = await process.lifecycle.create(ME, None, AgentDraft(kind))
    assert roles(world, agent) == expected
    messages = world.window(agent).messages
    if "assistant" in expected:
        (call,) = messages[1].tool_calls
        assert (call.name, len(call.id)) == ("send_message", 29)
        assert messages[2].tool_returns[0].tool_call_id == call.id
        assert messages[2].tool_returns[0].text == "Sent message successfully."
    if "user" in expected:
        assert ('"type": "login"' in messages[-1].text, messages[-1].is_event) == (True, True)


async def test_first_messages_for_lm_studio_start_with_the_user(world: World, process: Process) -> None:
    agent = await process.lifecycle.create(ME, None, AgentDraft(AgentType.MEMGPT_V2, model="lmstudio_openai/qwen"))
    assert roles(world, agent) == ["system", "user", "assistant", "tool"]
    assert len(world.window(agent).messages[2].tool_calls[0].id) == 9


async def test_first_messages_of_the_client_are_used(world: World, process: Process) -> None:
    given = (
        InputMessage((TextPart("I am Ada."),), name="Ada", otid="o-1", sender_id="identity-1"),
        InputMessage((TextPart("Hello, Ada."),), role=Role.ASSISTANT),
        InputMessage((TextPart("Be brief."),), role=Role.SYSTEM),
    )
    talker = await process.lifecycle.create(ME, None, AgentDraft(AgentType.MEMGPT_V2, initial_messages=given))
    assert lines(world.window(talker).messages[1:]) == [
        "user text: I am Ada.",
        'assistant calls send_message{"message": "Hello, Ada."}',
        "tool success of send_message: Sent message successfully.",
        "system text: Be brief.",
    ]
    first = world.window(talker).messages[1]
    assert (first.name, first.otid, first.sender_id) == ("Ada", "o-1", "identity-1")
    plain = await process.lifecycle.create(ME, None, AgentDraft(AgentType.LETTA_V1, initial_messages=given))
    assert lines(world.window(plain).messages[1:])[1] == "assistant text: Hello, Ada."
    none = await process.lifecycle.create(ME, None, AgentDraft(AgentType.MEMGPT_V2, initial_messages=()))
    assert roles(world, none) == ["system"]


async def test_custom_prompt_is_used_unchanged(world: World, process: Process) -> None:
    agent = await process.lifecycle.create(
        ME, None, AgentDraft(AgentType.LETTA_V1, system="{} and {foo}, but no memory.")
    )
    assert agent.system == "{} and {foo}, but no memory."
    assert world.window(agent).messages[0].text.startswith("{} and {foo}, but no memory.\n\n")
    with pytest.raises(NotFound):
        await process.windows.resolve(ME, agent.id, new_id("conv"))
