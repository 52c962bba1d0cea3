"""The Responses API through OpenAI's SDK: chains of responses, conversations, streams, and function calls."""

from typing import Any

import openai
import pytest
from mnemesh.types.v1 import message_pb2
from mnemesh_client import Agent
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.server import Reply
from mnemesh_testkit.mesh.in_process import Mesh
from mnemesh_testkit.mesh.turns import stored

WEATHER: Any = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}


async def words(agent: Agent) -> list[str]:
    said = [message for message in await stored(agent) if message.role == message_pb2.ROLE_USER]
    return ["".join(part.text.text for part in message.content) for message in said]


async def test_chain_of_responses(mesh: Mesh, sdk: openai.AsyncOpenAI, agent: Agent, fake_openai: FakeOpenAI) -> None:
    replies = iter(["A1", "A2", "A3", "A4"])
    fake_openai.script = lambda _: Reply(text=next(replies), reasoning="Hm.")
    first = await sdk.responses.create(model="ada", instructions="Be kind.", input="Q1", temperature=0.5)
    assert (first.output_text, first.status) == ("A1", "completed")
    assert first.usage is not None
    assert (first.usage.input_tokens, first.usage.output_tokens, first.usage.total_tokens) == (11, 7, 18)
    assert [item.type for item in first.output] == ["reasoning", "message"]
    await mesh.restart("gateway")
    second = await sdk.responses.create(model="ada", input="Q1", previous_response_id=first.id)
    again = await sdk.responses.create(model="ada", input="Q1", previous_response_id=first.id)
    assert (second.output_text, again.id, again.output_text) == ("A2", second.id, "A2")
    assert second.conversation is not None
    items: Any = [{"role": "user", "content": [{"type": "input_text", "text": "Q3"}]}]
    third = await sdk.responses.create(model="ada", input=items, conversation=second.conversation.id)
    assert third.output_text == "A3"
    assert await words(agent) == ["Q1", "Q1", "Q3"]
    assert "Be kind." in str(fake_openai.requests[-1].body["messages"][0])
    replayed: Any = [
        {"role": "user", "content": "Q1"},
        *(item.model_dump(exclude_none=True) for item in first.output),
        {"role": "user", "content": "Q4"},
    ]
    assert (await sdk.responses.create(model="ada", instructions="Be kind.", input=replayed)).output_text == "A4"
    assert (await words(agent))[3:] == ["Q4"]


async def test_stream_with_function_calls(sdk: openai.AsyncOpenAI, agent: Agent, fake_openai: FakeOpenAI) -> None:
    fake_openai.script = [
        Reply(tool_calls=[("weather", {"city": "Rome"})]),
        Reply(text="It is warm in Rome.", reasoning="Rome.", piece_size=4),
    ]
    async with sdk.responses.stream(model="ada", input="Rome?", tools=[WEATHER]) as stream:
        kinds = [event.type async for event in stream]
        first = await stream.get_final_response()
    assert [kinds[0], kinds[-1]] == ["response.created", "response.completed"]
    call: Any = first.output[0]
    assert (call.type, call.name, call.arguments) == ("function_call", "weather", '{"city": "Rome"}')
    output: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "25 °C"}]
    deltas, reasoning, numbers = "", "", []
    events = await sdk.responses.create(
        model="ada", input=output, previous_response_id=first.id, tools=[WEATHER], stream=True
    )
    async for event in events:
        numbers.append(event.sequence_number)
        if event.type == "response.output_text.delta":
            deltas += event.delta
        elif event.type == "response.reasoning_summary_text.delta":
            reasoning += event.delta
        elif event.type == "response.completed":
            assert event.response.output_text == "It is warm in Rome."
    assert (deltas, reasoning, numbers) == ("It is warm in Rome.", "Rome.", list(range(len(numbers))))


async def test_wrong_requests_name_the_field(sdk: openai.AsyncOpenAI, agent: Agent) -> None:
    unknown = "00000000-0000-4000-8000-000000000000"
    wrong: list[tuple[dict[str, Any], str | None]] = [
        ({"input": 5}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content[0].type"),
        ({"input": [{"type": "web_search_call"}]}, "input[0].type"),
        ({"previous_response_id": "resp_x"}, "previous_response_id"),
        ({"previous_response_id": f"resp_{unknown}"}, "previous_response_id"),
        ({"conversation": "mine"}, "conversation"),
        ({"conversation": f"conv-{unknown}"}, "conversation"),
        ({"background": True}, "background"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tool_choice": "required"}, "tool_choice"),
    ]
    for change, param in wrong:
        with pytest.raises(openai.BadRequestError) as refused:
            await sdk.responses.create(**{"model": "ada", "input": "Hi", **change})
        assert refused.value.param == param, change
