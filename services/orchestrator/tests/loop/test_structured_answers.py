"""Response formats: enforced by the provider or the speaking tool's schema, checked, requested again, refused."""

import json
from typing import Any

import pytest
from mnemesh_kit.errors import InvalidArgument
from mnemesh_orchestrator.llm.schemas import format_instruction
from mnemesh_orchestrator.model.agents import AgentType
from mnemesh_orchestrator.model.events import MessageEvent, StepStarted
from mnemesh_orchestrator.model.models import ModelInfo, ResponseFormat, require_valid_format, schema_problem
from mnemesh_orchestrator.model.rules import RequiresApproval
from mnemesh_orchestrator.model.runs import RunStatus, StopReason
from mnemesh_types.agents import ModelSettings
from mnemesh_types.messages import Approve, TextPart

from ..support.model import USAGE, call, raw_call, say
from ..support.world import Process, World, kinds, lines, told

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
SCHEMA = ResponseFormat("json_schema", "city", json.dumps(CITY), True)
OBJECT = ResponseFormat("json_object")


@pytest.mark.parametrize("wanted", [SCHEMA, OBJECT])
async def test_text_in_the_required_format_ends_the_turn(
    world: World, process: Process, wanted: ResponseFormat
) -> None:
    agent = await world.agent(process, response_format=wanted)
    world.model.follow(say('{"city": "Oslo"}'))
    await process.send(agent)
    assert world.model.last.response_format == wanted
    assert lines(world.turn(agent))[-1] == 'assistant text: {"city": "Oslo"}'
    assert len(world.model.requests) == 1


async def test_text_without_the_format_is_retried_and_not_stored(world: World, process: Process) -> None:
    agent = await world.agent(process, response_format=SCHEMA)
    world.model.follow(say("Oslo."), say('{"town": "Oslo"}'), say('{"city": "Oslo"}'))
    events = await process.send(agent)
    starts = [event.body.attempt for event in events if isinstance(event.body, StepStarted)]
    assert starts == [1, 2, 3]
    assert lines(world.turn(agent)) == ["user text: Hello", 'assistant text: {"city": "Oslo"}']
    told = [request.messages[-1].text for request in world.model.requests]
    assert "not JSON" in told[1]
    assert "city" in told[2]
    run = await process.outcome(agent)
    assert run.usage == USAGE + USAGE + USAGE, "every answer was paid for"
    world.model.follow(say('{"city": "Rome"}'))
    await process.send(agent)
    assert "not shown" not in json.dumps([message.text for message in world.model.last.messages])


async def test_text_that_never_has_the_format_fails_the_run(world: World, process: Process) -> None:
    agent = await world.agent(process, response_format=SCHEMA)
    world.model.follow(*[say('{"city": 7}')] * 3)
    events = await process.send(agent)
    run = await process.outcome(agent)
    assert (run.stop_reason, run.status) == (StopReason.INVALID_LLM_RESPONSE, RunStatus.FAILED)
    assert run.error is not None
    assert run.error.reason == "PROVIDER_BAD_ANSWER"
    assert "['city']" in run.error.message
    assert "string" in run.error.message
    assert kinds(events) == ["ErrorEvent", "StopEvent", "UsageEvent"]
    assert len(world.turn(agent)) == 0


async def test_run_may_override_the_format_of_its_agent(world: World, process: Process) -> None:
    agent = await world.agent(process, response_format=OBJECT)
    world.model.follow(say("{}"), say('{"city": "Oslo"}'), say("Plain."), say("{}"))
    await process.send(agent, response_format=SCHEMA)
    assert [request.response_format for request in world.model.requests] == [SCHEMA, SCHEMA]
    await process.send(agent, response_format=ResponseFormat("text"))
    assert lines(world.turn(agent))[1::2] == ['assistant text: {"city": "Oslo"}', "assistant text: Plain."]
    assert (await process.outcome(agent)).config.response_format == ResponseFormat("text")
    await process.send(agent)
    assert world.model.last.response_format == OBJECT, "it holds for the run alone"


async def test_format_of_a_run_is_in_the_schema_of_the_speaking_tool(world: World, process: Process) -> None:
    agent = await world.agent(process, AgentType.MEMGPT_V2)
    world.model.follow(
        raw_call("send_message", '{"thinking": "hm", "message": {"city": 1}}'),
        raw_call("send_message", '{"thinking": "hm", "message": {"city": "Oslo"}}'),
    )
    events = await process.send(agent, response_format=SCHEMA)
    schema = next(tool for tool in world.model.last.tools if tool.name == "send_message")
    assert schema.parameters["properties"]["message"]["properties"] == CITY["properties"]
    texts = [body.content for body in told(events) if isinstance(body, MessageEvent) and body.kind == "assistant"]
    assert texts == [(TextPart('{"city": "Oslo"}'),)]


async def test_answering_run_keeps_the_format_of_the_requesting_run(world: World, process: Process) -> None:
    rules = (RequiresApproval("archival_memory_insert"),)
    agent = await world.agent(process, tool_rules=rules)
    world.model.follow(call("archival_memory_insert", content="x"), say('{"city": "Oslo"}'))
    events = await process.send(agent, response_format=SCHEMA)
    (waiting,) = next(
        body.tool_calls for body in told(events) if isinstance(body, MessageEvent) and body.kind == "approval_request"
    )
    await process.answer(agent, Approve(waiting.id))
    assert world.model.last.response_format == SCHEMA


async def test_tool_calls_need_no_format(world: World, process: Process) -> None:
    agent = await world.agent(process, response_format=SCHEMA)
    world.model.follow(call("archival_memory_insert", content="x"), say('{"city": "Oslo"}'))
    await process.send(agent)
    assert len(world.model.requests) == 2


async def test_format_of_an_agent_is_in_the_schema_of_the_speaking_tool(world: World, process: Process) -> None:
    agent = await world.agent(process, AgentType.MEMGPT_V2, response_format=SCHEMA)
    start = len(world.turn(agent))
    world.model.follow(raw_call("send_message", '{"thinking": "hm", "message": {"city": "Zürich"}}'))
    await process.send(agent, stream_tokens=True)
    request = world.model.last
    shown = next(tool for tool in request.tools if tool.name == "send_message").parameters["properties"]["message"]
    assert {key: shown[key] for key in CITY} == CITY
    assert shown["description"]
    assert request.response_format == ResponseFormat(), "the schema of the tool says it all"
    called = next(line for line in lines(world.turn(agent))[start:] if "calls send_message" in line)
    assert '"message": "{\\"city\\": \\"Zürich\\"}"' in called
    assert (await process.outcome(agent)).stop_reason is StopReason.END_TURN


@pytest.mark.parametrize("said", ["Oslo.", {"town": "Oslo"}, ["Oslo"], 7])
async def test_send_message_without_the_format_is_a_tool_error_and_not_sent(
    world: World, process: Process, said: Any
) -> None:
    agent = await world.agent(process, AgentType.MEMGPT_V2, response_format=SCHEMA)
    world.model.follow(call("send_message", message=said), call("send_message", message={"city": "Oslo"}))
    events = await process.send(agent)
    assert kinds(events).count("assistant") == 1
    returned = [line for line in lines(world.turn(agent)) if "error of send_message" in line]
    assert len(returned) == 1
    assert "message is not what it has to be" in returned[0]


async def test_send_message_may_contain_its_json_as_text(world: World, process: Process) -> None:
    agent = await world.agent(process, AgentType.MEMGPT_V2, response_format=OBJECT)
    world.model.follow(call("send_message", message='{"any": "thing"}'))
    events = await process.send(agent)
    assert "assistant" in kinds(events)
    shown = next(tool for tool in world.model.last.tools if tool.name == "send_message").parameters
    assert shown["properties"]["message"]["type"] == "object"


@pytest.mark.parametrize(
    ("api", "vendor", "wanted", "told"),
    [
        ("openai_chat", "openai", SCHEMA, None),
        ("openai_responses", "openai", SCHEMA, None),
        ("anthropic", "anthropic", SCHEMA, None),
        ("openai_chat", "deepseek", SCHEMA, '"city"'),
        ("openai_chat", "openai", OBJECT, "JSON"),
        ("anthropic", "anthropic", OBJECT, "JSON"),
    ],
)
def test_format_that_an_api_does_not_enforce_is_described_in_words(
    api: str, vendor: str, wanted: ResponseFormat, told: str | None
) -> None:
    words = format_instruction(wanted, ModelInfo(f"{vendor}/m", vendor, "m", api, ModelSettings()))
    assert (words is None) if told is None else (told in (words or ""))


async def test_json_object_format_is_described_in_every_request(world: World, process: Process) -> None:
    agent = await world.agent(process, response_format=OBJECT)
    world.model.follow(say('{"a": 1}'))
    await process.send(agent)
    assert "JSON object" in world.model.last.messages[-1].text
    assert len(world.turn(agent)) == 2, "and not kept"


@pytest.mark.parametrize("schema", ['{"type": "nonsense"}', '{"$ref": "http://127.0.0.1:1/x"}', "[]", "{oops"])
def test_unsatisfiable_schema_is_refused_by_its_field(schema: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        require_valid_format(ResponseFormat("json_schema", "x", schema), "agent.response_format")
    assert caught.value.field == "agent.response_format.json_schema.schema"


def test_valid_schema_is_accepted() -> None:
    assert schema_problem(CITY) is None
