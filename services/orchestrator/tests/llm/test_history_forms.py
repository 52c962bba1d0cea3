"""Refusals of a history, with the words of real servers: the request is sent again in another form, which is kept."""

import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mnemesh_orchestrator.llm.anthropic_messages import AnthropicMessagesClient
from mnemesh_orchestrator.llm.errors import ProviderError, ProviderRefused
from mnemesh_orchestrator.llm.history import CLOSING, PLAIN
from mnemesh_orchestrator.llm.openai_chat import OpenAiChatClient, render_body
from mnemesh_orchestrator.llm.openai_responses import OpenAiResponsesClient
from mnemesh_orchestrator.llm.port import LlmRequest
from mnemesh_orchestrator.llm.wire import RenderCache
from mnemesh_testkit.fakes.anthropic import FakeAnthropic
from mnemesh_testkit.fakes.openai import FakeOpenAI, FakeResponses
from mnemesh_testkit.fakes.server import Fault, context_overflow, raw_stream, status
from mnemesh_types.agents import ModelSettings
from mnemesh_types.messages import (
    ImagePart,
    Message,
    ReasoningPart,
    Role,
    SummarizedReasoningPart,
    TextPart,
    ToolCall,
    ToolReturn,
    ToolStatus,
)

from .windows import CLAUDE, OPENAI, THINKER, ask, at, everything, message, returned, tool

TOOLS = (tool("search", ["query"], query="string"),)
CARRIED = json.dumps(
    {"api": "openai_chat", "reasoning": ["reasoning_content"], "fields": {"reasoning_details": [{"data": "gAAA"}]}}
)


async def never(_: float) -> None:
    raise AssertionError("a refusal is not waited for")


def thought(number: int, *parts: Any, calls: int = 1, **fields: Any) -> Message:
    made = tuple(ToolCall(f"call_{number}_{place}", "search", '{"query": "x"}') for place in range(calls))
    return message(number, Role.ASSISTANT, *parts, tool_calls=made, **fields)


def returns(number: int, calls: int = 1) -> Message:
    came = tuple(
        ToolReturn.from_text(f"call_{number}_{place}", "search", ToolStatus.SUCCESS, f"result {place}")
        for place in range(calls)
    )
    return message(number + 1, Role.TOOL, tool_returns=came)


def chat(*more: Message, calls: int = 1) -> LlmRequest:
    """Returns a request after a call with reasoning, and a user's message after its return."""
    own = thought(2, ReasoningPart("Because.", is_native=True), calls=calls, carried=CARRIED)
    head = (message(0, Role.SYSTEM, "You are an agent."), message(1, Role.USER, "Go."))
    return ask(OPENAI, *head, own, returns(2, calls), message(4, Role.USER, "And?"), *more, tools=TOOLS)


@pytest.fixture
async def fake() -> AsyncIterator[FakeOpenAI]:
    async with FakeOpenAI() as server:
        yield server


@pytest.fixture
async def client(fake: FakeOpenAI) -> AsyncIterator[OpenAiChatClient]:
    adapter = OpenAiChatClient(at(fake.base_url, "openai_compatible"), sleep=never)
    yield adapter
    await adapter.close()


def answers_of(body: dict[str, Any]) -> list[dict[str, Any]]:
    return [each for each in body["messages"] if each["role"] == "assistant"]


def roles_of(body: dict[str, Any]) -> list[str]:
    return [each["role"] for each in body["messages"]]


@pytest.mark.parametrize(
    ("refusal", "gone", "kept"),
    [
        (
            "messages.2.assistant.reasoning_content: property 'messages.2.assistant.reasoning_content' is unsupported",
            {"reasoning_content"},
            {"reasoning_details"},
        ),
        ("body.messages.2.assistant.reasoning_details: Extra inputs are not permitted", {"reasoning_details"}, set()),
        ("Unrecognized request argument supplied: reasoning_details", {"reasoning_details"}, {"reasoning_content"}),
        ("Corrupted thought signature.", {"reasoning_details", "reasoning_content"}, set()),
        ("Invalid request.", {"reasoning_details", "reasoning_content"}, set()),
    ],
)
async def test_parts_that_a_server_refuses_are_left_out_from_then_on(
    fake: FakeOpenAI, client: OpenAiChatClient, refusal: str, gone: set[str], kept: set[str]
) -> None:
    fake.script = lambda body: (
        status(400, refusal) if any(gone & each.keys() for each in answers_of(body)) else "I see."
    )
    await everything(client, chat())
    assert len(fake.requests) == 2
    (answer,) = (each for each in answers_of(fake.requests[1].body) if each.get("tool_calls"))
    assert kept <= answer.keys()
    await everything(client, chat(message(5, Role.ASSISTANT, "I see."), message(6, Role.USER, "So?")))
    assert len(fake.requests) == 3, "what was refused is remembered"


@pytest.mark.parametrize(
    ("refusal", "accepts_empty"),
    [
        ("The `reasoning_content` in the thinking mode must be passed back to the API.", True),
        ("thinking is enabled but reasoning_content is missing in assistant tool call message at index 2", True),
        ("thinking is enabled but reasoning_content is missing in assistant tool call message at index 2", False),
        ("messages[2].reasoning_content is required", True),
    ],
)
async def test_field_that_a_server_requires_is_added_to_answers_of_other_models(
    fake: FakeOpenAI, client: OpenAiChatClient, refusal: str, *, accepts_empty: bool
) -> None:
    def answer(body: dict[str, Any]) -> str | Fault:
        given = [each.get("reasoning_content") for each in answers_of(body)]
        is_refused = None in given or ("" in given and not accepts_empty)
        return status(400, refusal) if is_refused else "I see."

    fake.script = answer
    foreign = thought(6, ReasoningPart("Private.", is_native=True), model="groq/x")
    request = chat(foreign, returns(6))
    await everything(client, request)
    own, other = (each["reasoning_content"] for each in answers_of(fake.requests[-1].body) if each.get("tool_calls"))
    assert (own, other.strip()) == ("Because.", "")
    sent = len(fake.requests)
    await everything(client, request)
    assert len(fake.requests) == sent + 1


@pytest.mark.parametrize(
    "refusal",
    [
        status(400, "Conversation roles must alternate user/assistant/user/assistant/..."),
        status(400, "Unexpected role 'user' after role 'tool'", error_code="3230"),
        status(500, "Jinja Exception: Conversation roles must alternate user/assistant/user/assistant/..."),
        status(400, "Error rendering prompt with jinja template"),
        status(500, "This model only supports single tool-calls at once!"),
        status(422, "Bad request"),
    ],
    ids=lambda fault: fault.message[:30],
)
async def test_roles_that_a_server_refuses_are_made_to_alternate(
    fake: FakeOpenAI, client: OpenAiChatClient, refusal: Fault
) -> None:
    def answer(body: dict[str, Any]) -> str | Fault:
        roles = ["user" if role == "tool" else role for role in roles_of(body)[1:]]
        return refusal if any(one == other for one, other in pairwise(roles)) else "I see."

    fake.script = answer
    await everything(client, chat(calls=2))
    assert roles_of(fake.requests[-1].body) == ["system", "user", *["assistant", "tool"] * 2, "assistant", "user"]
    sent = len(fake.requests)
    await everything(client, chat(calls=2))
    assert len(fake.requests) == sent + 1


async def test_calls_become_text_for_a_template_without_tools(fake: FakeOpenAI, client: OpenAiChatClient) -> None:
    fake.script = lambda body: (
        status(400, "System role not supported")
        if "system" in roles_of(body)
        else status(400, "Only user and assistant roles are supported!")
        if "tool" in roles_of(body)
        else "I see."
    )
    await everything(client, chat(calls=2))
    shown = fake.requests[-1].body["messages"]
    assert [each["role"] for each in shown] == ["user", "assistant", "user"]
    assert shown[0]["content"].startswith("You are an agent.\n\n")
    assert "result 1" in shown[2]["content"]
    assert "tool_calls" not in str(shown)


APIS = [
    (FakeOpenAI, OpenAiChatClient, OPENAI),
    (FakeResponses, OpenAiResponsesClient, THINKER),
    (FakeAnthropic, AnthropicMessagesClient, CLAUDE),
]
OPAQUE = "Requests which include `tool_use` or `tool_result` blocks must define tools"


@pytest.mark.parametrize(("server", "adapter", "model"), APIS, ids=["chat", "responses", "messages"])
async def test_calls_that_a_server_refuses_are_text_in_that_window(server: Any, adapter: Any, model: Any) -> None:
    def request(number: int) -> LlmRequest:
        window = (thought(number, "Let me see."), returns(number), message(number + 4, Role.USER, "And?"))
        return ask(model, message(0, Role.SYSTEM, "You are an agent."), message(1, Role.USER, "Go."), *window)

    async with server(lambda body: status(400, OPAQUE) if "call_2_0" in str(body) else "I see.") as fake:
        client = adapter(at(fake.base_url, api_key="sk-x"), sleep=never)
        await everything(client, request(2))
        sent = len(fake.requests)
        assert all(
            text in str(fake.requests[-1].body) for text in ("Let me see.", "called the tool search", "result 0")
        )
        await everything(client, request(2))
        await everything(client, request(3))
        await client.close()
    assert ["call_3_0" in str(each.body) for each in fake.requests[sent:]] == [False, True]


async def test_message_with_calls_has_no_text_for_a_server_that_refuses_both(
    fake: FakeOpenAI, client: OpenAiChatClient
) -> None:
    words = "Assistant message must have either content or tool_calls, but not both."
    fake.script = lambda body: (
        status(400, words) if any(m.get("content") and m.get("tool_calls") for m in answers_of(body)) else "I see."
    )
    for number in (6, 8):
        await everything(client, chat(thought(number, "Let me see."), returns(number)))
    assert len(fake.requests) == 3


def seeing(number: int, model: Any = OPENAI) -> LlmRequest:
    """Returns a request with an image of the user, one in a return, and one more of the user."""
    picture = ImagePart(b"x", "image/png")
    made = (ToolCall("call_1", "search", '{"query": "x"}'),)
    returned_ = ToolReturn("call_1", "search", ToolStatus.SUCCESS, (TextPart("A chart."), picture))
    return ask(
        model,
        message(number, Role.USER, "What is it?", picture),
        message(number + 1, Role.ASSISTANT, "I look.", tool_calls=made),
        message(number + 2, Role.TOOL, tool_returns=(returned_,)),
        message(number + 3, Role.USER, "And this?", picture),
        tools=TOOLS,
    )


def images_of(body: dict[str, Any]) -> int:
    return len(re.findall(r"'type': '(?:image|image_url|input_image)'", str(body)))


@pytest.mark.parametrize(("server", "adapter", "model"), APIS, ids=["chat", "responses", "messages"])
@pytest.mark.parametrize(
    ("code", "refusal", "most"),
    [
        (400, "messages.7.content.2: image dimensions exceed max allowed size for many-image requests: 2000 pixels", 1),
        (404, "No endpoints found that support image input", 0),
        (500, "image input is not supported", 0),
        (400, "messages[1].content must be a string", 0),
    ],
)
async def test_images_that_a_server_refuses_are_hidden_in_that_window(
    server: Any, adapter: Any, model: Any, code: int, refusal: str, most: int
) -> None:
    async with server(lambda body: status(code, refusal) if images_of(body) > most else "I see.") as fake:
        client = adapter(at(fake.base_url, api_key="sk-x"), sleep=never)
        await everything(client, seeing(10, model))
        sent = len(fake.requests)
        await everything(client, seeing(10, model))
        await client.close()
    assert [images_of(each.body) for each in fake.requests[sent - 1 :]] == [most, most]
    assert str(fake.requests[-1].body).count("[An image that the provider refused is not shown.]") == 3 - most
    assert images_of(fake.requests[0].body) == 3


def test_message_without_text_and_calls_is_left_out() -> None:
    lone = message(2, Role.ASSISTANT, ReasoningPart("Hm.", is_native=True))
    shown = render_body(ask(OPENAI, message(1, Role.USER, "Go."), lone, message(3, Role.USER, "And?")))["messages"]
    assert [each["role"] for each in shown] == ["user"]


@pytest.mark.parametrize(
    "refusal",
    [
        "messages.7.content.0.thinking.signature: Field required",
        "Item with id 'rs_1' not found. Items are not persisted when `store` is set to false.",
    ],
)
async def test_parts_that_cannot_be_verified_are_left_out(
    fake: FakeOpenAI, client: OpenAiChatClient, refusal: str
) -> None:
    fake.script = lambda body: status(404 if "Item" in refusal else 400, refusal) if "gAAA" in str(body) else "I see."
    await everything(client, chat())
    assert len(fake.requests) == 2


@pytest.mark.parametrize(
    "fault",
    [
        status(401, "reasoning_content"),
        context_overflow(8_000, 9_000),
        status(404, "no"),
        status(501, "Switch to an alternative provider."),
    ],
)
async def test_refusals_of_other_things_are_not_repeated(
    fake: FakeOpenAI, client: OpenAiChatClient, fault: Fault
) -> None:
    fake.script = [fault]
    with pytest.raises(ProviderError):
        await everything(client, chat())
    assert len(fake.requests) == 1


async def test_history_that_is_refused_in_every_form_is_reported_and_changes_nothing(
    fake: FakeOpenAI, client: OpenAiChatClient
) -> None:
    fake.script = lambda _: status(400, "tools[0]: the schema is invalid")
    with pytest.raises(ProviderRefused, match="the schema is invalid"):
        await everything(client, chat())
    assert len(fake.requests) == 3
    fake.script = ["I see."]
    await everything(client, chat())
    assert fake.requests[-1].raw == fake.requests[0].raw


async def test_only_parts_of_a_refused_window_are_left_out(fake: FakeOpenAI, client: OpenAiChatClient) -> None:
    fake.script = [status(400, "Corrupted thought signature."), "I see.", "I see."]
    await everything(client, chat())
    other = chat()
    other = replace(other, messages=tuple(replace(each, id=f"{each.id}0") for each in other.messages))
    await everything(client, other)
    assert "gAAA" not in str(fake.requests[1].body)
    assert "gAAA" in str(fake.requests[2].body)


@pytest.mark.parametrize(
    "refusal",
    [
        "messages.1.content.0: Invalid `signature` in `thinking` block",
        "messages.1.content.0: `thinking` blocks in the latest assistant message cannot be modified.",
        "messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found `tool_use`.",
    ],
)
async def test_thinking_that_anthropic_refuses_is_left_out(refusal: str) -> None:
    own = thought(2, ReasoningPart("Because.", is_native=True, signature="sig"))
    request = ask(
        CLAUDE,
        message(1, Role.USER, "Go."),
        own,
        returns(2),
        settings=ModelSettings(enable_reasoner=True),
        tools=TOOLS,
    )
    async with FakeAnthropic([status(400, refusal), "I see.", "I see."]) as fake:
        client = AnthropicMessagesClient(at(fake.base_url, "anthropic", api_key="sk-ant-x"), sleep=never)
        await everything(client, request)
        await everything(client, request)
        await client.close()
    assert ["sig" in str(each.body) for each in fake.requests] == [True, False, False]
    assert "thinking" not in fake.requests[1].body, "a loop of tools goes on without thinking"


@pytest.mark.parametrize(
    "refusal", ["The encrypted content gAAA could not be verified.", "Encrypted content is not supported."]
)
async def test_reasoning_that_cannot_be_decrypted_is_left_out(refusal: str) -> None:
    own = thought(2, SummarizedReasoningPart("rs_1", ("Hm.",), "gAAA"))
    request = ask(THINKER, message(1, Role.USER, "Go."), own, returns(2), tools=TOOLS)
    async with FakeResponses([status(400, refusal), "I see.", "I see."]) as fake:
        client = OpenAiResponsesClient(at(fake.base_url, api_key="sk-x"), sleep=never)
        await everything(client, request)
        await everything(client, request)
        await client.close()
    assert ["gAAA" in str(each.body) for each in fake.requests] == [True, False, False]


KINDS = st.lists(st.sampled_from(["user", "image", "words", "calls", "system"]), min_size=1, max_size=7)


@settings(max_examples=60, deadline=None)
@given(KINDS, st.booleans())
def test_appended_messages_change_at_most_the_last_one(kinds: list[str], is_strict: bool) -> None:
    window: list[Message] = [message(0, Role.SYSTEM, "You are an agent.")]
    form, cache = replace(PLAIN, strict_roles=is_strict), RenderCache()
    before: list[dict[str, Any]] = []
    for place, kind in enumerate(kinds):
        number = 10 * place + 1
        match kind:
            case "user":
                window.append(message(number, Role.USER, f"{place}?"))
            case "image":
                window.append(message(number, Role.USER, f"{place}?", ImagePart(url="https://x/y.png")))
            case "system":
                window.append(message(number, Role.SYSTEM, f"Rule {place}."))
            case "words":
                window.append(message(number, Role.ASSISTANT, f"{place}."))
            case _:
                window += [thought(number, calls=2), returns(number, 2)]
        shown = render_body(ask(OPENAI, *window), cache, form)["messages"]
        assert shown == render_body(ask(OPENAI, *window), None, form)["messages"]
        kept = before[:-2] if before and before[-1]["content"] == CLOSING else before[:-1]
        assert shown[: len(kept)] == kept
        roles = [each["role"] for each in shown]
        assert roles[0:2] == ["system", "user"]
        assert roles[-1] in ("user", "tool")
        assert not any(one == other for one, other in pairwise(roles) if one != "tool")
        before = shown


def test_return_without_its_call_and_history_of_an_assistant_are_accepted() -> None:
    shown = render_body(ask(OPENAI, message(1, Role.ASSISTANT, "Hi."), returned(2, "gone", "a", "x")))["messages"]
    assert [each["role"] for each in shown] == ["user", "assistant", "user"]


async def test_refusal_inside_a_stream_and_around_another_provider_is_understood(
    fake: FakeOpenAI, client: OpenAiChatClient
) -> None:
    raw = json.dumps({"error": {"message": "reasoning_details.0: invalid signature"}})
    around = {"error": {"message": "Provider returned error", "code": 400, "metadata": {"raw": raw}}}
    for fault in (
        Fault(kind="body", status=400, body=json.dumps(around).encode(), headers={"content-type": "application/json"}),
        raw_stream(f"data: {json.dumps(around)}\n"),
    ):
        sent = len(fake.requests)
        fake.script = [fault, "I see."]
        request = chat()
        request = replace(request, messages=tuple(replace(each, id=f"{each.id}-{sent}") for each in request.messages))
        await everything(client, request)
        assert ["gAAA" in str(each.body) for each in fake.requests[sent:]] == [True, False]


async def test_call_without_a_signature_gets_the_documented_value(fake: FakeOpenAI, client: OpenAiChatClient) -> None:
    fake.script = [status(400, "Function call is missing a thought_signature in functionCall parts."), "I see."]
    await everything(client, chat(thought(6, model="groq/x"), returns(6)))
    (_, other) = (each["tool_calls"][0] for each in answers_of(fake.requests[1].body) if each.get("tool_calls"))
    assert other["extra_content"] == {"google": {"thought_signature": "skip_thought_signature_validator"}}
