"""The content of requests, and when the stored system message is rewritten after a change of memory."""

from dataclasses import replace

import pytest
from mnemesh_orchestrator.model.agents import AgentType, PromptPolicy
from mnemesh_orchestrator.model.inputs import ClientSkill, InputMessage, RunConfig
from mnemesh_orchestrator.model.models import ResponseFormat
from mnemesh_orchestrator.model.runs import RunRequest, RunStatus, StopReason
from mnemesh_types.agents import ModelSettings
from mnemesh_types.messages import Role, TextPart

from ..support.model import call, say
from ..support.world import ME, Process, World, lines


def owner_writes(world: World, agent_id: str, value: str) -> None:
    block = world.blocks.blocks[world.blocks.held[agent_id][0]]
    world.blocks.put(replace(block, value=value))


async def test_system_message_is_stable_while_memory_is(world: World, process: Process) -> None:
    agent = await world.agent(process)
    before = world.window(agent).messages[0]
    world.model.follow(say("One."), say("Two."))
    await process.send(agent)
    world.clock.advance(86_400 * 40)
    await process.send(agent)
    assert world.window(agent).messages[0] == before
    assert world.model.requests[0].messages[0] == world.model.requests[1].messages[0]


async def test_edited_block_rewrites_the_same_system_message(world: World, process: Process) -> None:
    agent = await world.agent(process)
    before = world.window(agent).messages[0]
    world.model.follow(
        call("memory_replace", label="human", old_str="Nothing yet.", new_str="Ada"), say("One."), say("Two.")
    )
    await process.send(agent)
    after = world.window(agent).messages[0]
    assert after.id == before.id
    assert "<value>\nAda\n</value>" in after.text
    # Within the turn the model sees it at the next step already.
    assert "Nothing yet." in world.model.requests[0].messages[0].text
    assert "<value>\nAda\n</value>" in world.model.requests[1].messages[0].text
    owner_writes(world, agent.id, "Ada, of London")
    await process.send(agent)
    assert "Ada, of London" in world.model.last.messages[0].text
    assert world.window(agent).messages[0].id == before.id


async def test_memory_metadata_is_updated_with_a_rewrite(world: World, process: Process) -> None:
    agent = await world.agent(process)
    world.model.follow(
        call("archival_memory_insert", content="x", tags=["tea"]),
        call("memory_insert", label="human", new_str="Ada"),
        say("Done."),
    )
    await process.send(agent)
    text = world.model.last.messages[0].text
    assert "1 total memories you created are stored in archival memory" in text
    assert "Available archival memory tags: tea" in text
    assert "total memories" not in world.model.requests[1].messages[0].text


async def test_cached_prompt_is_not_rendered_again(world: World, process: Process) -> None:
    agent = await world.agent(process, prompt_policy=PromptPolicy.CACHE)
    before = world.window(agent).messages[0]
    world.model.follow(call("memory_insert", label="human", new_str="Ada"), say("Done."), say("Again."))
    await process.send(agent)
    owner_writes(world, agent.id, "Somebody else")
    await process.send(agent)
    assert world.window(agent).messages[0] == before
    assert [request.messages[0] for request in world.model.requests] == [before] * 3


async def test_autoclear_starts_each_turn_with_an_empty_window_and_keeps_every_row(
    world: World, process: Process
) -> None:
    agent = await world.agent(process, message_buffer_autoclear=True)
    world.model.follow(say("One."), call("archival_memory_insert", content="x"), say("Two."))
    await process.send(agent, "First")
    await process.send(agent, "Second")
    assert [message.text for message in world.model.requests[1].messages[1:]] == ["Second"]
    # Within a turn nothing is cleared.
    assert [message.role for message in world.model.last.messages[1:]] == [Role.USER, Role.ASSISTANT, Role.TOOL]
    assert [message.text for message in world.recall.rows[agent.id][1:3]] == ["First", "One."]
    assert lines(world.turn(agent))[0] == "user text: Second"


async def test_system_prompt_of_one_run_is_not_stored(world: World, process: Process) -> None:
    agent = await world.agent(process)
    before = world.window(agent).messages[0]
    world.model.follow(say("Arr."), say("Hello."))
    await process.send(agent, override_system="You are a pirate. {CORE_MEMORY}")
    await process.send(agent)
    pirate, plain = world.model.requests
    assert pirate.messages[0].text.startswith("You are a pirate. <memory_blocks>")
    assert plain.messages[0] == before
    assert world.window(agent).messages[0] == before


async def test_skills_of_the_client_are_listed_in_the_requests_only(world: World, process: Process) -> None:
    agent = await world.agent(process)
    before = world.window(agent).messages[0]
    world.model.follow(call("archival_memory_insert", content="x"), say("Done."), say("Hello."))
    await process.send(agent, client_skills=(ClientSkill("review", "Reads\na diff.", "/skills/review.md"),))
    await process.send(agent)
    first, second, plain = world.model.requests
    for request in (first, second):
        assert request.messages[0].text.startswith(f"{before.text}\n\n<available_skills>\n")
        assert "\n- review (/skills/review.md): Reads a diff.\n</available_skills>" in request.messages[0].text
    assert plain.messages[0] == before
    assert world.window(agent).messages[0] == before


@pytest.mark.parametrize("kind", ["tools", "archival"])
async def test_unavailable_services_are_noted_in_the_request_only(world: World, process: Process, kind: str) -> None:
    world.tools.add("probe")
    agent = await world.agent(process, tool_names=("probe",))
    owner_writes(world, agent.id, "changed")
    world.faults.unavailable = {f"{kind}.": 99}
    world.model.follow(say("I go on."), say("Again."))
    await process.send(agent, "Hello")
    note = world.model.last.messages[-1]
    assert note.role is Role.USER
    assert "cannot be reached at the moment" in note.text
    assert '"type": "system_alert"' in note.text
    assert lines(world.turn(agent)) == ["user text: Hello", "assistant text: I go on."]
    assert ("probe" in [tool.name for tool in world.model.last.tools]) is (kind != "tools")
    world.faults.unavailable = {}
    await process.send(agent)
    assert world.model.last.messages[-1].text == "Hello"


async def test_overflow_stops_the_run_and_keeps_the_window(world: World, process: Process) -> None:
    agent = await world.agent(process, model_settings=ModelSettings(context_window=6_000))
    world.model.follow(say("One."))
    await process.send(agent)
    before = world.window(agent)
    events = await process.send(agent, "long " * 6_000)
    run = await process.outcome(agent)
    assert (run.stop_reason, run.status) == (StopReason.CONTEXT_WINDOW_OVERFLOW, RunStatus.FAILED)
    assert run.error is not None
    assert run.error.reason == "CONTEXT_WINDOW_OVERFLOW"
    assert int(run.error.metadata["tokens"]) > int(run.error.metadata["limit"]) == 6_000 * 0.98
    assert len(world.model.requests) == 1
    assert world.window(agent).messages == before.messages
    assert events[-1].sequence == 4


async def test_too_long_system_prompt_has_its_own_stop_reason(world: World, process: Process) -> None:
    agent = await world.agent(process, model_settings=ModelSettings(context_window=6_000))
    owner_writes(world, agent.id, "long " * 6_000)
    before = world.window(agent)
    await process.send(agent)
    run = await process.outcome(agent)
    assert run.stop_reason is StopReason.CONTEXT_WINDOW_OVERFLOW_IN_SYSTEM_PROMPT
    assert run.error is not None
    assert run.error.reason == "SYSTEM_PROMPT_OVERFLOW"
    assert world.window(agent).messages == before.messages


async def test_returns_may_take_a_fifth_of_the_window(world: World, process: Process) -> None:
    world.tools.add("print_much", "y" * 40_000)
    agent = await world.agent(process, tool_names=("print_much",))
    world.model.follow(call("print_much"), say("Much."))
    await process.send(agent)
    # Stored whole; what is sent is clipped by the renderer, to this bound.
    assert len(world.turn(agent)[2].tool_returns[0].text) == 40_000
    assert world.model.last.tool_return_char_limit == int(32_000 * 0.98 * 0.2 * 4)


async def test_small_windows_still_show_five_thousand_characters(world: World, process: Process) -> None:
    agent = await world.agent(process, model_settings=ModelSettings(context_window=6_000))
    world.model.follow(say("Hello."))
    await process.send(agent)
    assert world.model.last.tool_return_char_limit == 5_000


async def test_input_is_stored_as_sent(world: World, process: Process) -> None:
    agent = await world.agent(process)
    world.model.follow(say("Hello, Ada."))
    sent = InputMessage((TextPart("It is {me}."),), name="Ada", otid="o-1", sender_id="identity-1")
    system = InputMessage((TextPart("Be brief."),), role=Role.SYSTEM)
    async for _ in process.runs.send(ME, None, RunRequest(agent.id, "", [system, sent], RunConfig())):
        pass
    first, second = world.turn(agent)[:2]
    assert (first.role, first.text) == (Role.SYSTEM, "Be brief.")
    assert (second.text, second.name, second.otid, second.sender_id) == ("It is {me}.", "Ada", "o-1", "identity-1")


async def test_response_format_is_sent_only_for_plain_text_answers(world: World, process: Process) -> None:
    wanted = ResponseFormat("json_object")
    plain = await world.agent(process, response_format=wanted)
    talker = await world.agent(process, AgentType.MEMGPT_V2, response_format=wanted)
    world.model.follow(say("{}"), call("send_message", message="{}"))
    await process.send(plain)
    await process.send(talker)
    assert [request.response_format.kind for request in world.model.requests] == ["json_object", "text"]


async def test_each_section_occurs_once_after_many_turns(world: World, process: Process) -> None:
    agent = await world.agent(process, AgentType.MEMGPT_V2)
    world.model.script = lambda _: call("send_message", message="Yes.")
    for number in range(20):
        owner_writes(world, agent.id, f"Turn {number}")
        await process.send(agent)
    text = world.model.last.messages[0].text
    for tag in ("memory_blocks", "tool_usage_rules", "memory_metadata"):
        assert (text.count(f"<{tag}>"), text.count(f"</{tag}>")) == (1, 1)
    assert "Turn 19" in text
    assert "Turn 18" not in text
