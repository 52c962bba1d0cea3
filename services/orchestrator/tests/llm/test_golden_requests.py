"""Whole requests of every renderer, byte for byte, and prefixes that stay equal as a window grows.

`MNEMESH_GOLDEN=write` writes the files again. Their diff shows what invalidates a provider's prefix cache.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mnemesh_orchestrator.builtin.schemas import with_heartbeat, with_thinking
from mnemesh_orchestrator.llm import anthropic_messages, openai_chat, openai_responses
from mnemesh_orchestrator.llm.port import LlmRequest
from mnemesh_orchestrator.llm.settings import Api
from mnemesh_orchestrator.llm.wire import RenderCache, encode_body
from mnemesh_orchestrator.model.models import ModelInfo, ResponseFormat
from mnemesh_orchestrator.prompt.assembly import heartbeat
from mnemesh_types.agents import ModelSettings
from mnemesh_types.messages import (
    ContentPart,
    ImagePart,
    Message,
    OmittedReasoningPart,
    ReasoningPart,
    RedactedReasoningPart,
    Role,
    SummarizedReasoningPart,
    TextPart,
    ToolCall,
    ToolReturn,
    ToolStatus,
)

from .windows import CLAUDE, NOON, OPENAI, REQUIRED, THINKER, ZONE, ask, message, served_by, tool

GOLDEN = Path(__file__).parent / "golden"
PLAIN = (
    tool("search", ["query"], query="string", limit="integer"),
    tool("send_message", ["message"], message="string"),
)
ADDED = tuple(with_thinking(with_heartbeat(each)) for each in PLAIN)
PICTURES = (
    ImagePart(data=b"\x89PNG", media_type="image/png", detail="low"),
    ImagePart(url="https://example.org/a.jpg"),
)
FORMAT = ResponseFormat("json_schema", "city", '{"type": "object", "properties": {"city": {"type": "string"}}}', True)

MODELS = {
    "openai_chat": OPENAI,
    "openai_responses": THINKER,
    "anthropic": CLAUDE,
    "mistral": served_by("mistral"),
    "deepseek": served_by("deepseek"),
    "google_ai": served_by("google_ai"),
    "lmstudio": served_by("lmstudio"),
    "ollama": served_by("ollama"),
}


def calls(number: int, *names: str, content: Sequence[ContentPart] = ()) -> Message:
    call = tuple(ToolCall(f"call_{number}_{place}", name, '{"query": "x"}') for place, name in enumerate(names))
    # What Gemini and DeepSeek add to a message with calls.
    extra = {"extra_content": {"google": {"thought_signature": "sig-3"}}}
    carried = {"api": "openai_chat", "reasoning": ["reasoning_content"], "calls": [extra]}
    return message(number, Role.ASSISTANT, *content, tool_calls=call, carried=json.dumps(carried) if content else None)


def returns(number: int, *names: str, status: ToolStatus = ToolStatus.SUCCESS) -> Message:
    came = tuple(
        ToolReturn.from_text(f"call_{number}_{i}", name, status, f"result {i}") for i, name in enumerate(names)
    )
    return message(number + 1, Role.TOOL, tool_returns=came)


def thoughts(model: ModelInfo) -> tuple[ContentPart, ...]:
    """Returns reasoning parts of every kind of this API."""
    match model.api:
        case Api.MESSAGES:
            signed = ReasoningPart("Let me see.", is_native=True, signature="sig-1")
            return (signed, RedactedReasoningPart("enc-1"), OmittedReasoningPart("sig-2"))
        case Api.RESPONSES:
            return (SummarizedReasoningPart("rs_1", ("Looking.",), "gAAA"),)
        case _:
            return (ReasoningPart("Let me see.", is_native=True),)


def v3(model: ModelInfo) -> LlmRequest:
    """Images, parallel calls, native reasoning, a denied call, words to the user, a structured answer."""
    window = (
        message(0, Role.SYSTEM, "You are an agent.\n<memory_blocks>…</memory_blocks>"),
        message(1, Role.USER, "What is this?", *PICTURES, name="Ada"),
        calls(2, "search", "search", content=(*thoughts(model), TextPart("I look it up."))),
        returns(2, "search", "search"),
        calls(4, "search", content=thoughts(model)),
        # As a denied approval stores it.
        message(
            5,
            Role.TOOL,
            tool_returns=(ToolReturn.from_text("call_4_0", "search", ToolStatus.ERROR, "Denied: not now."),),
        ),
        message(6, Role.ASSISTANT, "It is a cat."),
        message(7, Role.USER, "And where does it live?"),
    )
    chosen = ModelSettings(enable_reasoner=True, max_reasoning_tokens=2048, max_output_tokens=4096)
    return ask(
        model,
        *window,
        tools=PLAIN,
        settings=replace(chosen, reasoning_effort="low", temperature=0.5, strict_tool_schemas=True),
        parallel_tool_calls=True,
        response_format=FORMAT,
    )


def v2(model: ModelInfo) -> LlmRequest:
    """Inner thoughts as an argument, heartbeats, a forced tool, and a summary of older messages."""
    thought = ReasoningPart("They greet me.")
    window = (
        message(0, Role.SYSTEM, "You are an agent."),
        message(1, Role.SUMMARY, "Ada and the agent spoke of cats."),
        calls(2, "search", content=(thought,)),
        returns(2, "search", status=ToolStatus.ERROR),
        message(4, Role.USER, heartbeat("Function call failed, returning control", NOON, ZONE), is_event=True),
        calls(5, "send_message", content=(thought,)),
        returns(5, "send_message"),
        message(7, Role.USER, "Hello again."),
    )
    return ask(model, *window, tools=ADDED, tool_choice=REQUIRED, inner_thoughts=True)


def continued(model: ModelInfo) -> LlmRequest:
    """A user message after tool returns, with reasoning before the calls."""
    window = (
        message(0, Role.SYSTEM, "You are an agent."),
        message(1, Role.USER, "What is new?"),
        calls(2, "search", "search", content=thoughts(model)),
        returns(2, "search", "search"),
        message(4, Role.USER, heartbeat("All tools finished. Continue.", NOON, ZONE), is_event=True),
    )
    return ask(model, *window, tools=PLAIN, settings=ModelSettings(enable_reasoner=True, max_reasoning_tokens=2048))


def rendered(request: LlmRequest, cache: RenderCache | None = None) -> bytes:
    match request.model.api:
        case Api.MESSAGES:
            return encode_body(anthropic_messages.render_body(request, cache))
        case Api.RESPONSES:
            return encode_body(openai_responses.render_body(request, cache))
        case _:
            return encode_body(openai_chat.render_body(request, cache))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("make", [v2, v3, continued])
def test_request_equals_golden_file(name: str, make: object) -> None:
    request = make(MODELS[name])  # type: ignore[operator]
    cache = RenderCache()
    body = rendered(request, cache)
    assert rendered(request, cache) == body == rendered(request), "with and without cached texts"
    file = GOLDEN / f"{make.__name__}-{name}.json"  # type: ignore[attr-defined]
    if os.environ.get("MNEMESH_GOLDEN") == "write":
        file.write_bytes(body + b"\n")
    assert body + b"\n" == file.read_bytes()


TEXTS = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=20)


@st.composite
def exchanges(draw: st.DrawFn) -> list[tuple[str, int, str]]:
    """Generates a conversation as kinds of exchanges, each with a number of calls and a text."""
    kind = st.sampled_from(["words", "tools", "tools_and_words"])
    return draw(st.lists(st.tuples(kind, st.integers(1, 3), TEXTS), min_size=1, max_size=5))


def windows(model: ModelInfo, made: list[tuple[str, int, str]]) -> list[tuple[Message, ...]]:
    """Returns the window of each request of a conversation. Each is a prefix of the next."""
    messages: list[Message] = [message(0, Role.SYSTEM, "You are an agent.")]
    seen = []
    for place, (kind, count, words) in enumerate(made):
        number = 10 * place + 1
        messages.append(message(number, Role.USER, f"{words}?"))
        seen.append(tuple(messages))
        if kind != "words":
            names = ["search"] * count
            texts = [*thoughts(model), *([TextPart(words)] if kind == "tools_and_words" else [])]
            messages += [calls(number + 1, *names, content=texts), returns(number + 1, *names)]
            seen.append(tuple(messages))
        messages.append(message(number + 5, Role.ASSISTANT, words))
    return seen


@pytest.mark.parametrize("inner_thoughts", [True, False])
@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=15, deadline=None)
@given(made=exchanges())
def test_request_starts_with_all_of_the_previous_one(
    name: str, made: list[tuple[str, int, str]], *, inner_thoughts: bool
) -> None:
    model, cache = MODELS[name], RenderCache()
    chosen = ModelSettings(enable_reasoner=not inner_thoughts)
    before = b""
    for window in windows(model, made):
        request = ask(model, *window, settings=chosen, tools=PLAIN, inner_thoughts=inner_thoughts)
        body = _without_marks(rendered(request, cache))
        # After its last message, a request has fields that are equal in all requests.
        received = body[: _end_of_messages(body)]
        assert received.startswith(before)
        before = received.removesuffix(b"]").removesuffix(b"}]}").removesuffix(b"}")


def _without_marks(body: bytes) -> bytes:
    """Returns the body without Anthropic's cache breakpoints, which move and are not part of the cached prefix."""
    return body.replace(b',"cache_control":{"type":"ephemeral"}', b"")


def _end_of_messages(body: bytes) -> int:
    return body.index(b'],"tools":[') + 1
