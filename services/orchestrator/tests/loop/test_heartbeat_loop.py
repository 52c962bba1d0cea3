"""V2: a tool at every step, send_message to answer, and heartbeats to continue."""

import json

import pytest
from mnemesh_orchestrator.llm.port import ToolChoiceKind
from mnemesh_orchestrator.model.agents import Agent, AgentType
from mnemesh_orchestrator.model.events import MessageEvent
from mnemesh_orchestrator.model.rules import (
    ConstrainChildTools,
    ContinueLoop,
    ExitLoop,
    MaxCountPerStep,
    RequiredBeforeExit,
    ToolRule,
)
from mnemesh_orchestrator.model.runs import RunStatus, StopReason
from mnemesh_types.messages import Message, Role, TextPart

from ..support.model import call, raw_call, say, together
from ..support.world import Process, World, deltas, kinds, lines, require_valid, told

PREFIX = "[This is an automated system message hidden from the user] "


async def talker(world: World, process: Process, *rules: ToolRule, **draft: object) -> Agent:
    """Creates an agent of the heartbeat loop. Its window begins with the system message and four first messages."""
    draft.setdefault("tool_rules", (ExitLoop("send_message"), *rules))
    return await world.agent(process, AgentType.MEMGPT_V2, include_base_tool_rules=False, **draft)


def reasons(messages: tuple[Message, ...]) -> list[str]:
    """Returns the texts of the heartbeats among these messages, without their prefix."""
    found = []
    for message in messages:
        if message.role is Role.USER and '"heartbeat"' in message.text:
            reason = json.loads(message.text)["reason"]
            assert reason.startswith(PREFIX)
            found.append(reason.removeprefix(PREFIX))
    return found


async def test_send_message_ends_the_turn(world: World, process: Process) -> None:
    agent = await talker(world, process)
    world.model.follow(call("send_message", thinking="Polite.", message="Hello yourself."))
    events = await process.send(agent)
    assert kinds(events) == ["reasoning", "assistant", "StopEvent", "UsageEvent"]
    assert told(events)[1].content == (TextPart("Hello yourself."),)  # type: ignore[union-attr]
    assert lines(world.turn(agent, 5 - 1)) == [
        "user text: Hello",
        "assistant thought: Polite.",
        'assistant calls send_message{"message": "Hello yourself."}',
        "tool success of send_message: Sent message successfully.",
    ]
    run = await process.outcome(agent)
    assert (run.stop_reason, run.status) == (StopReason.END_TURN, RunStatus.COMPLETED)


async def test_requested_heartbeat_continues_the_turn(world: World, process: Process) -> None:
    agent = await talker(world, process)
    world.model.follow(
        call("archival_memory_insert", thinking="Keep.", content="tea", request_heartbeat=True),
        call("send_message", thinking="Tell.", message="Kept.", request_heartbeat=True),
    )
    await process.send(agent)
    turn = world.turn(agent, 4)
    assert lines(turn[:4])[:4] == [
        "user text: Hello",
        "assistant thought: Keep.",
        'assistant calls archival_memory_insert{"content": "tea", "request_heartbeat": true}',
        "tool success of archival_memory_insert: ",
    ]
    assert reasons(turn) == ["Function called using request_heartbeat=true, returning control"]
    assert turn[3].step_id == turn[1].step_id
    # The last call asked for a heartbeat too, and a rule ended the turn.
    assert (await process.outcome(agent)).stop_reason is StopReason.TOOL_RULE
    require_valid(world.window(agent).messages)


@pytest.mark.parametrize("asked", [True, "true", " True "])
async def test_heartbeat_request_may_be_text(world: World, process: Process, asked: object) -> None:
    agent = await talker(world, process)
    world.model.follow(
        call("archival_memory_insert", content="tea", request_heartbeat=asked), call("send_message", message="Kept.")
    )
    await process.send(agent)
    assert len(world.model.requests) == 2


async def test_turn_ends_without_a_heartbeat_request(world: World, process: Process) -> None:
    agent = await talker(world, process)
    world.model.follow(call("archival_memory_insert", content="tea", request_heartbeat=False))
    await process.send(agent)
    assert lines(world.turn(agent, 4))[1] == (
        'assistant calls archival_memory_insert{"content": "tea", "request_heartbeat": false}'
    )
    assert (await process.outcome(agent)).stop_reason is StopReason.END_TURN


async def test_continue_rule_overrides_a_missing_heartbeat(world: World, process: Process) -> None:
    agent = await talker(world, process, ContinueLoop("archival_memory_insert"))
    world.model.follow(
        call("archival_memory_insert", content="tea", request_heartbeat=False), call("send_message", message="Kept.")
    )
    await process.send(agent)
    turn = world.turn(agent, 4)
    assert reasons(turn) == ["Continuing: continue tool rule."]
    # What is stored is what was decided, not what was asked.
    assert json.loads(turn[1].tool_calls[0].arguments)["request_heartbeat"] is True


async def test_parent_rule_requires_its_child_next(world: World, process: Process) -> None:
    agent = await talker(world, process, ConstrainChildTools("archival_memory_search", ("send_message",)))
    world.model.follow(call("archival_memory_search", query="tea"), call("send_message", message="Nothing."))
    await process.send(agent)
    assert reasons(world.turn(agent, 4)) == ["Continuing: child tool rule."]
    offered = world.model.last
    assert [tool.name for tool in offered.tools] == ["send_message"]
    assert (offered.tool_choice.kind, offered.tool_choice.name) == (ToolChoiceKind.NAMED, "send_message")


async def test_call_against_the_rules_is_refused_with_hints_and_the_turn_continues(
    world: World, process: Process
) -> None:
    agent = await talker(world, process, MaxCountPerStep("archival_memory_insert", 1))
    insert = call("archival_memory_insert", content="tea", request_heartbeat=True)
    world.model.follow(insert, insert, call("send_message", message="Once is enough."))
    await process.send(agent)
    assert await world.archival.texts(agent.id) == ["tea"]
    refused = [item for message in world.turn(agent, 4) for item in message.tool_returns][1].text
    assert refused.startswith("[ToolConstraintError] Cannot call archival_memory_insert, valid tools include: [")
    assert "\t- archival_memory_insert: at most 1 use(s) per response" in refused
    assert reasons(world.turn(agent, 4))[1] == "Continuing: tool rule violation."


async def test_limit_of_two_permits_two_calls(world: World, process: Process) -> None:
    agent = await talker(world, process, MaxCountPerStep("archival_memory_insert", 2))
    world.model.follow(
        call("archival_memory_insert", content="one", request_heartbeat=True),
        call("archival_memory_insert", content="two", request_heartbeat=True),
        call("send_message", message="Kept."),
    )
    await process.send(agent)
    assert await world.archival.texts(agent.id) == ["one", "two"]
    assert "archival_memory_insert" not in [tool.name for tool in world.model.last.tools]


async def test_required_tool_continues_the_turn(world: World, process: Process) -> None:
    agent = await talker(world, process, RequiredBeforeExit("archival_memory_insert"))
    world.model.follow(
        call("send_message", message="Done?"),
        call("archival_memory_insert", content="tea"),
        call("send_message", message="Done."),
    )
    await process.send(agent)
    turn = world.turn(agent, 4)
    assert reasons(turn) == [
        "Continuing, user expects these tools: [archival_memory_insert] to be called still.",
    ]
    assert (await process.outcome(agent)).stop_reason is StopReason.END_TURN


@pytest.mark.parametrize("others", [0, 1])
async def test_failed_tool_continues_the_turn_without_a_heartbeat_request(
    world: World, process: Process, others: int
) -> None:
    agent = await talker(world, process)
    failing = call("memory_replace", label="human", old_str="x", new_str="y", request_heartbeat=False)
    searches = [call("conversation_search", query="tea", request_heartbeat=False)] * others
    world.model.follow(together(failing, *searches), call("send_message", message="I could not."))
    await process.send(agent)
    assert reasons(world.turn(agent, 4)) == ["Function call failed, returning control"]


async def test_empty_send_message_is_retried_and_shown_as_a_call(world: World, process: Process) -> None:
    agent = await talker(world, process)
    world.model.follow(call("send_message", text="Hello"), call("send_message", message="Hello yourself."))
    events = await process.send(agent)
    assert reasons(world.turn(agent, 4)) == ["Function call failed, returning control"]
    returned = [item for message in world.turn(agent, 4) for item in message.tool_returns]
    assert returned[0].text == "Error: send_message has no argument text (its arguments: message)"
    # A client sees the failed call as a call, with its return; not as words of the agent.
    assert kinds(events) == ["tool_call", "tool_return", "assistant", "StopEvent", "UsageEvent"]


async def test_failed_send_message_is_not_shown_as_text(world: World, process: Process) -> None:
    agent = await talker(world, process)
    world.model.follow(call("send_message", message="Hello.", mood="merry"), call("send_message", message="Hello."))
    events = await process.send(agent)
    assert kinds(events) == ["tool_call", "tool_return", "assistant", "StopEvent", "UsageEvent"]


async def test_answer_without_a_call_fails_the_run_and_stores_nothing(world: World, process: Process) -> None:
    agent = await talker(world, process)
    before = world.window(agent)
    world.model.follow(say("I would rather just talk."))
    events = await process.send(agent)
    assert kinds(events) == ["ErrorEvent", "StopEvent", "UsageEvent"]
    run = await process.outcome(agent)
    assert (run.stop_reason, run.status) == (StopReason.NO_TOOL_CALL, RunStatus.FAILED)
    assert run.error is not None
    assert run.error.reason == "PROVIDER_BAD_ANSWER"
    assert world.window(agent).messages == before.messages


async def test_text_next_to_a_call_is_reasoning(world: World, process: Process) -> None:
    agent = await talker(world, process)
    world.model.follow(together(call("send_message", message="Hello."), text="I greet back."))
    events = await process.send(agent)
    assert kinds(events)[:2] == ["reasoning", "assistant"]
    assert lines(world.turn(agent, 4))[1] == "assistant thought: I greet back."


async def test_thinking_argument_is_stored_as_reasoning_and_hidden_from_the_tool(
    world: World, process: Process
) -> None:
    world.tools.add("probe")
    agent = await talker(world, process, tool_names=("probe",))
    world.model.follow(
        call("probe", thinking="Let me see.", n=1, request_heartbeat=True), call("send_message", message="Seen.")
    )
    await process.send(agent)
    assert world.tools.executed == [("probe", {"n": 1})]
    schema = next(tool for tool in world.model.requests[0].tools if tool.name == "probe").parameters
    assert list(schema["properties"]) == ["thinking", "n", "request_heartbeat"]
    assert {"thinking", "request_heartbeat"} <= set(schema["required"])
    assert (
        "request_heartbeat"
        not in next(tool for tool in world.model.requests[0].tools if tool.name == "send_message").parameters[
            "properties"
        ]
    )


async def test_last_step_with_a_heartbeat_request_stops_at_max_steps(world: World, process: Process) -> None:
    agent = await talker(world, process)
    world.model.script = lambda _: call("archival_memory_insert", content="again", request_heartbeat=True)
    await process.send(agent, max_steps=2)
    run = await process.outcome(agent)
    assert (run.stop_reason, run.status, run.step_count) == (StopReason.MAX_STEPS, RunStatus.COMPLETED, 2)
    turn = world.turn(agent, 4)
    assert json.loads(turn[-2].tool_calls[0].arguments)["request_heartbeat"] is False
    assert turn[-1].role is Role.TOOL


async def test_truncated_call_is_an_error_for_the_model(world: World, process: Process) -> None:
    agent = await talker(world, process)
    world.model.follow(raw_call("send_message", '{"message": "Hel'), call("send_message", message="Hello."))
    events = await process.send(agent)
    assert kinds(events) == ["tool_call", "tool_return", "assistant", "StopEvent", "UsageEvent"]
    assert (await process.outcome(agent)).stop_reason is StopReason.END_TURN


async def test_client_may_receive_send_message_as_a_tool_call(world: World, process: Process) -> None:
    agent = await talker(world, process)
    world.model.follow(call("send_message", message="Hello."))
    events = await process.send(agent, assistant_messages=False)
    assert kinds(events) == ["tool_call", "tool_return", "StopEvent", "UsageEvent"]


async def test_speaking_tool_and_argument_are_configurable(world: World, process: Process) -> None:
    agent = await world.agent(process, AgentType.MEMGPT_V2)
    noted = call("archival_memory_insert", content="It is noted.", request_heartbeat=True)
    world.model.follow(noted, call("send_message", message="Hidden."))
    events = await process.send(
        agent,
        stream_tokens=True,
        assistant_tool_name="archival_memory_insert",
        assistant_tool_argument="content",
    )
    spoken = [body for body in told(events) if isinstance(body, MessageEvent) and body.kind == "assistant"]
    assert [body.content for body in spoken] == [(TextPart("It is noted."),)]
    assert "".join(piece.text for piece in deltas(events) if piece.kind == "assistant") == "It is noted."
    called = [
        body.tool_calls[0].name for body in told(events) if isinstance(body, MessageEvent) and body.kind == "tool_call"
    ]
    assert called == ["send_message"]
    assert await world.archival.texts(agent.id) == ["It is noted."], "it is run as well"


async def test_every_request_requires_a_tool(world: World, process: Process) -> None:
    agent = await talker(world, process)
    world.model.follow(call("send_message", message="Hello."))
    await process.send(agent)
    assert world.model.last.tool_choice.kind is ToolChoiceKind.REQUIRED
    assert not world.model.last.parallel_tool_calls
