"""Whole turns on providers that refuse a history as the real ones do: tools, compactions, and changes of the model."""

from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from mnemesh.agents.v1 import agents_pb2
from mnemesh_client import Agent
from mnemesh_testkit.fakes.anthropic import FakeAnthropic
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.server import Call, Reply
from mnemesh_testkit.fakes.strict import (
    Check,
    Echo,
    SignedThinking,
    alternating,
    alternating_with_tools,
    mistral_order,
    only_user_and_assistant,
    strict,
    with_reasoning,
    without_fields,
)
from mnemesh_testkit.mesh.in_process import Mesh
from mnemesh_testkit.mesh.turns import turn


def _summarizes(body: dict[str, Any]) -> bool:
    shown = f"{body.get('system')}{body['messages'][0]}{body['messages'][-1]}"
    return any(words in shown for words in ("leaves it", "about to leave your context", "leaves its context"))


class Talk:
    """A model that calls a tool in the first and the second step of a turn, two at once in the second, and answers.

    One that speaks by a tool asks for another step, and sends its answer.
    """

    def __init__(self, *, by_tool: bool = False, **fields: Any) -> None:
        self._by_tool = by_tool
        self._fields = fields
        self.steps = 0

    def __call__(self, body: dict[str, Any]) -> str | Reply:
        if _summarizes(body):
            return "They spoke of trains."
        self.steps += 1
        again = {"request_heartbeat": True, "thinking": "On."} if self._by_tool else {}
        search = Call("conversation_search", {"query": "trains", **again})
        match self.steps % 3:
            case 1:
                return Reply(tool_calls=[search], **self._fields)
            case 2:
                return Reply(text="Once more.", tool_calls=[search, search], **self._fields)
        if self._by_tool:
            said = {"message": f"I see, {self.steps}.", "thinking": "So."}
            return Reply(tool_calls=[Call("send_message", said)], **self._fields)
        return Reply(text=f"I see, {self.steps}.", **self._fields)


async def _create(mesh: Mesh, model: str = "openai/fake-model", **options: Any) -> Agent:
    options.setdefault("settings", agents_pb2.ModelSettings(context_window=100_000))
    return await mesh.client.agents.create(model=model, blocks={"human": ""}, **options)


async def _turns(agent: Agent, count: int, first: int = 1) -> None:
    for number in range(first, first + count):
        result = await turn(agent, f"{number}. What of the trains?")
        assert (result.status, "I see, " in result.said) == ("COMPLETED", True), result.error


SERVERS: dict[str, tuple[Check, ...]] = {
    "mistral": (alternating,),
    "gemma_tools": (alternating_with_tools,),
    "gemma_2": (only_user_and_assistant,),
    "mistral_api": (mistral_order,),
    "deepseek": (with_reasoning(),),
    "kimi": (with_reasoning("thinking is enabled but reasoning_content is missing", may_be_empty=False),),
    "extra_forbidden": (without_fields("reasoning_content"),),
    "one_field": (without_fields("annotations"), with_reasoning()),
}
WITH_SEND_MESSAGE = ("mistral", "kimi")
"""The servers to which an agent that answers with a tool speaks in every run."""


@pytest.mark.parametrize(
    ("type_", "checks"),
    [
        *(
            pytest.param(
                "letta_v1", checks, id=f"letta_v1-{name}", marks=pytest.mark.full if name in WITH_SEND_MESSAGE else ()
            )
            for name, checks in SERVERS.items()
        ),
        *(
            pytest.param(
                "memgpt_v2", checks, id=f"memgpt_v2-{name}", marks=() if name in WITH_SEND_MESSAGE else pytest.mark.full
            )
            for name, checks in SERVERS.items()
        ),
    ],
)
async def test_agent_survives_tools_and_compaction_on_a_strict_server(
    mesh: Mesh, fake_openai: FakeOpenAI, checks: tuple[Check, ...], type_: str
) -> None:
    talk = Talk(by_tool=type_ == "memgpt_v2", reasoning="Because.", fields={"annotations": [{"type": "mark"}]})
    fake_openai.script = strict(talk, *checks)
    agent = await _create(mesh, type=type_)
    await _turns(agent, 2)
    await agent.compact()
    sent, steps = len(fake_openai.requests), talk.steps
    await _turns(agent, 2, first=3)
    repeated = len(fake_openai.requests) - sent - (talk.steps - steps)
    assert repeated <= 2, "what was refused is remembered"
    sent = len(fake_openai.requests)
    await _turns(agent, 1, first=5)
    assert len(fake_openai.requests) - sent == 3


async def test_what_a_server_adds_to_its_messages_comes_back_and_to_no_other_model(
    mesh: Mesh, fake_openai: FakeOpenAI
) -> None:
    details = [
        {"type": "reasoning.summary", "summary": "Look first.", "index": 0, "format": "openai-responses-v1"},
        {"type": "reasoning.encrypted", "data": "gAAA", "id": "rs_1", "index": 1},
    ]
    signed = {"extra_content": {"google": {"thought_signature": "c2ln"}}}
    fields = {"reasoning_details": details, "provider_note": {"region": "eu"}}

    def answer(body: dict[str, Any]) -> str | Reply:
        reply = talk(body)
        if isinstance(reply, str):
            return reply
        calls = [
            Call(call.name, call.arguments, f"c{talk.steps}.{number}:x", fields=signed)
            for number, call in enumerate(reply.calls)
        ]
        return replace(reply, tool_calls=calls)

    talk, models = Talk(reasoning="Because.", fields=fields), dict[str, Echo]()
    fake_openai.script = lambda body: models.setdefault(body["model"], Echo(answer))(body)
    agent = await _create(mesh)
    await _turns(agent, 2)
    await agent.compact()
    await _turns(agent, 1, first=3)
    await agent.update(model="openai/other-model")
    await _turns(agent, 1, first=4)
    await agent.update(model="openai/fake-model")
    await _turns(agent, 1, first=5)
    assert {name: echo.refused for name, echo in models.items()} == {"fake-model": 0, "other-model": 0}
    assert "c2ln" in str(fake_openai.requests[-1].body)


def _thinking(name: str, *, calls: int) -> Reply:
    blocks: list[dict[str, Any]] = [
        {"type": "thinking", "thinking": f"First {name}.", "signature": f"{name}1"},
        {"type": "text", "text": f"I look, {name}. \n"},
        {"type": "thinking", "thinking": f"Then {name}.", "signature": f"{name}2"},
    ]
    arguments = {"query": "trains"}
    blocks += [
        {"type": "tool_use", "id": f"toolu_{name}{number}", "name": "conversation_search", "input": arguments}
        for number in range(calls)
    ]
    return Reply(blocks=blocks)


def _claude() -> Any:
    steps = count(1)

    def answer(body: dict[str, Any]) -> str | Reply:
        if _summarizes(body):
            return "They spoke of trains."
        number = next(steps)
        if number % 3 == 0:
            return Reply(blocks=[*_thinking(f"n{number}", calls=0).blocks, {"type": "text", "text": "I see, now."}])
        return _thinking(f"n{number}", calls=number % 3)

    return answer


async def _claude_agent(mesh: Mesh) -> Agent:
    settings = agents_pb2.ModelSettings(context_window=100_000, enable_reasoner=True, max_reasoning_tokens=2_000)
    return await _create(mesh, "anthropic/claude-sonnet-4-5", settings=settings)


async def test_signed_thinking_keeps_its_place_between_texts_and_calls(
    mesh: Mesh, fake_anthropic: FakeAnthropic
) -> None:
    server = SignedThinking(_claude())
    fake_anthropic.script = server
    agent = await _claude_agent(mesh)
    await _turns(agent, 2)
    await agent.compact()
    await _turns(agent, 1, first=3)
    assert server.refused == 0
    assert "n2" in str(fake_anthropic.requests[2].body), "the thinking of the step before"
    await agent.update(model="anthropic/claude-opus-4-5")
    await _turns(agent, 1, first=4)
    await agent.update(model="anthropic/claude-sonnet-4-5")
    await _turns(agent, 1, first=5)
    assert server.refused == 0


async def test_thinking_that_a_server_can_no_longer_verify_is_left_out_from_then_on(
    mesh: Mesh, fake_anthropic: FakeAnthropic
) -> None:
    fake_anthropic.script = SignedThinking(_claude())
    agent = await _claude_agent(mesh)
    await _turns(agent, 1)
    # Another account has other keys.
    server = SignedThinking(_claude())
    fake_anthropic.script = server
    await _turns(agent, 3, first=2)
    assert server.refused == 1
    assert "First n" in str(fake_anthropic.requests[-1].body), "new thinking is sent back"
