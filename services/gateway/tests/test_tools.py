"""The client's tools: calls go out, results come in, over several rounds and restarts of the gateway."""

import json
from typing import Any

import openai
import pytest
from mnemesh.types.v1 import message_pb2
from mnemesh_client import Agent
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.server import Reply
from mnemesh_testkit.mesh.in_process import Mesh
from mnemesh_testkit.mesh.turns import assert_whole, stored, tool_texts

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def call(city: str) -> Reply:
    return Reply(tool_calls=[("weather", {"city": city})])


def results(answer: Any, *texts: str) -> list[dict[str, Any]]:
    """The assistant's message and the results of its calls, as clients append them."""
    calls = answer.choices[0].message.tool_calls
    returned = [
        {"role": "tool", "tool_call_id": item.id, "content": text} for item, text in zip(calls, texts, strict=True)
    ]
    return [answer.choices[0].message.model_dump(exclude_none=True), *returned]


async def answered(agent: Agent) -> list[message_pb2.Message]:
    """The agent's messages without those that only record requests and decisions."""
    return [message for message in await stored(agent) if message.role != message_pb2.ROLE_APPROVAL]


async def ask(sdk: openai.AsyncOpenAI, messages: list[Any], **more: Any) -> Any:
    return await sdk.chat.completions.create(model="ada", messages=messages, tools=[WEATHER], **more)


async def test_three_rounds_with_a_restart_between_them(
    mesh: Mesh, sdk: openai.AsyncOpenAI, agent: Agent, fake_openai: FakeOpenAI
) -> None:
    two = Reply(tool_calls=[("weather", {"city": "Bonn"}), ("weather", {"city": "Köln"})])
    fake_openai.script = [call("Rome"), two, call("Oslo"), "Rome is warmest."]
    history: list[Any] = [user("Where is it warm?")]
    for texts in (("25 °C",), ("12 °C", "13 °C"), ("3 °C",)):
        answer = await ask(sdk, history)
        assert (await ask(sdk, history)).id == answer.id, "the same request again gets the same calls"
        choice = answer.choices[0]
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
        assert {item.function.name for item in choice.message.tool_calls} == {"weather"}
        history += results(answer, *texts)
        await mesh.restart("gateway")
    stream = await ask(sdk, history, stream=True)
    said = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    assert said == "Rome is warmest."
    again = await ask(sdk, history)
    assert again.choices[0].message.content == said
    shown = [json.loads(text)["message"] for text in tool_texts(fake_openai.requests[-1].body)]
    assert shown == ["25 °C", "12 °C", "13 °C", "3 °C"]
    assert len(fake_openai.requests) == 4
    assert_whole(await answered(agent))


async def test_streamed_calls_and_results_as_a_parameter(
    sdk: openai.AsyncOpenAI, agent: Agent, fake_openai: FakeOpenAI
) -> None:
    fake_openai.script = [call("Rome"), "Warm.", "You are welcome."]
    chunks = [chunk async for chunk in await ask(sdk, [user("Rome?")], stream=True)]
    deltas = [delta for chunk in chunks for delta in chunk.choices[0].delta.tool_calls or ()]
    assert [(delta.index, delta.function.name, delta.function.arguments) for delta in deltas] == [
        (0, "weather", '{"city": "Rome"}')
    ]
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    given = [{"tool_call_id": deltas[0].id, "content": "25 °C"}]
    answer = await ask(sdk, [user("Rome?"), {"role": "assistant", "content": "…"}], extra_body={"tool_results": given})
    assert answer.choices[0].message.content == "Warm."


async def test_client_that_goes_on_without_results(
    sdk: openai.AsyncOpenAI, agent: Agent, fake_openai: FakeOpenAI
) -> None:
    fake_openai.script = [call("Rome"), "Hello.", "Never mind."]
    first = await ask(sdk, [user("Rome?")])
    history = [user("Rome?"), *results(first, "25 °C")]
    assert (await ask(sdk, [user("Hi!")])).choices[0].message.content == "Hello.", "a new chat in the same session"
    with pytest.raises(openai.BadRequestError) as late:
        await ask(sdk, history)
    assert (late.value.code, late.value.param) == ("tool_results_not_expected", "messages")
    assert (await ask(sdk, [*history, user("Well?")])).choices[0].message.content == "Never mind."
    assert_whole(await answered(agent))


async def test_results_that_do_not_match(sdk: openai.AsyncOpenAI, agent: Agent, fake_openai: FakeOpenAI) -> None:
    fake_openai.script = [Reply(tool_calls=[("weather", {"city": "A"}), ("weather", {"city": "B"})]), "Done."]
    first = await ask(sdk, [user("Where?")])
    history = [user("Where?"), *results(first, "1", "2")]
    with pytest.raises(openai.BadRequestError) as partial:
        await ask(sdk, history[:-1])
    assert partial.value.code == "tool_results_mismatch"
    assert (await ask(sdk, [*history, user("Thanks!")])).choices[0].message.content == "Done."
    said = [m.content[0].text.text for m in await stored(agent) if m.role == message_pb2.ROLE_USER]
    assert said == ["Where?", "Thanks!"]


async def test_approval_of_the_agents_own_tool_is_left_to_a_person(
    mesh: Mesh, sdk: openai.AsyncOpenAI, fake_openai: FakeOpenAI
) -> None:
    careful = await mesh.client.agents.create(
        "careful", model="openai/fake-model", tools=["archival_memory_insert"], include_base_tools=False
    )
    await careful.set_tool_approval("archival_memory_insert", True)
    fake_openai.script = [Reply(tool_calls=[("archival_memory_insert", {"content": "The key."})]), "Stored."]
    for text in ("Remember the key.", "Hello?"):
        with pytest.raises(openai.BadRequestError) as refused:
            await sdk.chat.completions.create(model="careful", messages=[user(text)])  # type: ignore[list-item]
        assert refused.value.code == "approval_required"
    assert len(fake_openai.requests) == 1, "a message does not withdraw the approval"


async def test_agent_that_speaks_by_a_tool(mesh: Mesh, sdk: openai.AsyncOpenAI, fake_openai: FakeOpenAI) -> None:
    await mesh.client.agents.create("memgpt", model="openai/fake-model", type="memgpt_v2")
    said = Reply(tool_calls=[("send_message", {"message": "Hello, Ada. Nice to meet you.", "thinking": "A greeting."})])
    fake_openai.script = lambda _: said
    for text in ("Hi", "Hi again"):
        stream = await sdk.chat.completions.create(model="memgpt", messages=[user(text)], stream=True)  # type: ignore[list-item]
        deltas = [chunk.choices[0].delta async for chunk in stream]
        assert "".join(delta.content or "" for delta in deltas) == "Hello, Ada. Nice to meet you."
        assert "".join(getattr(delta, "reasoning_content", "") or "" for delta in deltas) == "A greeting."


TIME: dict[str, Any] = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object"}}}


async def test_forced_tool_is_called_and_another_choice_is_the_models(
    sdk: openai.AsyncOpenAI, agent: Agent, fake_openai: FakeOpenAI
) -> None:
    both = [WEATHER, TIME]
    named = {"type": "function", "function": {"name": "weather"}}
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named]}}
    for number, (choice, sent) in enumerate(
        ((named, named), ("required", "required"), (allowed, "required"), ("auto", "auto"))
    ):
        fake_openai.script = lambda _: call("Rome")
        answer = await sdk.chat.completions.create(  # type: ignore[call-overload]
            model="ada", messages=[user(f"Question {number}")], tools=both, tool_choice=choice
        )
        assert answer.choices[0].message.tool_calls[0].function.name == "weather"
        body = fake_openai.requests[-1].body
        assert body["tool_choice"] == sent
        assert len(body["tools"]) == (1 if choice is allowed else 2)
    fake_openai.script = lambda _: call("Rome")
    response = await sdk.responses.create(
        model="ada",
        input="Once more",
        tools=[{"type": "function", **WEATHER["function"], "strict": False}],
        tool_choice={"type": "function", "name": "weather"},
    )
    assert response.output[-1].type == "function_call"
    assert fake_openai.requests[-1].body["tool_choice"] == named


async def test_parameters_reach_the_provider_or_are_named(
    sdk: openai.AsyncOpenAI, agent: Agent, fake_openai: FakeOpenAI
) -> None:
    fake_openai.script = lambda _: Reply(text="Aye.")
    given: dict[str, Any] = {
        "seed": 7,
        "stop": ["\n", "END"],
        "frequency_penalty": 0.5,
        "presence_penalty": -0.5,
        "logit_bias": {"50256": -100},
    }
    habits: dict[str, Any] = {"n": 1, "logprobs": True, "top_logprobs": 2, "store": False, "metadata": {"a": "b"}}
    answer = await sdk.chat.completions.with_raw_response.create(
        model="ada",
        messages=[user("Hello")],
        parallel_tool_calls=True,
        extra_body={"top_k": 40, "custom_thing": 1},
        **given,
        **habits,
    )
    sent = fake_openai.requests[-1].body
    assert {name: sent.get(name) for name in given} == given
    assert sent["top_k"] == 40
    assert answer.headers["x-mnemesh-ignored-parameters"] == "logprobs, top_logprobs, custom_thing"
    quiet = await sdk.chat.completions.with_raw_response.create(model="ada", messages=[user("Hi")], logprobs=False)
    assert "x-mnemesh-ignored-parameters" not in quiet.headers
    assert "seed" not in fake_openai.requests[-1].body, "the parameters are those of one turn"
    other = await sdk.responses.with_raw_response.create(
        model="ada", input="Ahoy", max_tool_calls=2, service_tier="flex", extra_body={"seed": 0}
    )
    assert fake_openai.requests[-1].body["seed"] == 0
    assert other.headers["x-mnemesh-ignored-parameters"] == "max_tool_calls"
