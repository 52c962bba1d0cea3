"""Anthropic bodies, field by field."""

from dataclasses import replace
from typing import Any

import pytest
from mnemesh_orchestrator.llm.anthropic_messages import CLOSING, OPENING, render_body
from mnemesh_orchestrator.llm.port import LlmRequest, ToolChoice, ToolChoiceKind
from mnemesh_orchestrator.llm.wire import encode_body
from mnemesh_orchestrator.model.models import ResponseFormat
from mnemesh_types.agents import ModelSettings
from mnemesh_types.messages import (
    ImagePart,
    OmittedReasoningPart,
    ReasoningPart,
    RedactedReasoningPart,
    Role,
    ToolCall,
    ToolReturn,
    ToolStatus,
)
from msgspec import structs

from .windows import CLAUDE, REQUIRED, ask, called, hello, message, returned, tool

TIME = "2026-01-20 02:13:45 PM PST-0800"
SIGNED = ReasoningPart("Hm.", is_native=True, signature="sig")
THINKING = ModelSettings(enable_reasoner=True, max_reasoning_tokens=2000, max_output_tokens=1000)


def bare(request: LlmRequest) -> dict[str, Any]:
    return render_body(request, cache_breakpoints=False)


def test_message_of_thinking_alone_is_left_out() -> None:
    window = message(1, Role.USER, "Go."), message(2, Role.ASSISTANT, SIGNED), message(3, Role.USER, "And?")
    assert [each["role"] for each in bare(ask(CLAUDE, *window, settings=THINKING))["messages"]] == ["user"]


def test_whole_window_renders_as_expected() -> None:
    request = ask(
        CLAUDE,
        message(0, Role.SYSTEM, "You are an agent."),
        called(1, "call_b", "boot", "{}", "Waking up. "),
        returned(2, "call_b", "boot", "None"),
        message(3, Role.USER, "Look it up."),
        called(4, "call_a", "search", '{"query": "x"}'),
        returned(5, "call_a", "search", "no", ToolStatus.ERROR),
        tools=(tool("search", ["query"], query="string"),),
        tool_choice=REQUIRED,
    )
    assert encode_body(render_body(request)).decode() == (
        '{"model":"claude-sonnet-4-5","max_tokens":8192,'
        '"system":[{"type":"text","text":"You are an agent.","cache_control":{"type":"ephemeral"}}],'
        f'"messages":[{{"role":"user","content":[{{"type":"text","text":"{OPENING}"}}]}},'
        '{"role":"assistant","content":[{"type":"text","text":"Waking up. "},'
        '{"type":"tool_use","id":"call_b","name":"boot","input":{}}]},'
        '{"role":"user","content":[{"type":"tool_result","tool_use_id":"call_b","content":'
        f'"{{\\"status\\": \\"OK\\", \\"message\\": \\"None\\", \\"time\\": \\"{TIME}\\"}}"}},'
        '{"type":"text","text":"{\\"type\\": \\"user_message\\", \\"message\\": \\"Look it up.\\", '
        f'\\"time\\": \\"{TIME}\\"}}"}}]}},'
        '{"role":"assistant","content":[{"type":"tool_use","id":"call_a","name":"search","input":{"query":"x"}}]},'
        '{"role":"user","content":[{"type":"tool_result","tool_use_id":"call_a","content":'
        f'"{{\\"status\\": \\"Failed\\", \\"message\\": \\"no\\", \\"time\\": \\"{TIME}\\"}}","is_error":true,'
        '"cache_control":{"type":"ephemeral"}}]}],'
        '"tools":[{"name":"search","description":"Does search.","input_schema":{"type":"object",'
        '"properties":{"query":{"type":"string"}},"required":["query"]}}],'
        '"tool_choice":{"type":"any","disable_parallel_tool_use":true},"stream":true}'
    )


def test_roles_alternate_and_start_and_end_with_user() -> None:
    window = (
        message(1, Role.ASSISTANT, "a"),
        message(2, Role.ASSISTANT, "b"),
        message(3, Role.USER, "c"),
        message(4, Role.USER, "d"),
        message(5, Role.ASSISTANT, "e"),
    )
    messages = bare(ask(CLAUDE, *window))["messages"]
    assert [m["role"] for m in messages] == ["user", "assistant", "user", "assistant", "user"]
    assert [block["text"] for block in messages[1]["content"]] == ["a", "b"]
    assert messages[-1]["content"][0]["text"] == CLOSING


def test_empty_window_is_a_valid_request() -> None:
    assert bare(ask(CLAUDE))["messages"] == [{"role": "user", "content": [{"type": "text", "text": OPENING}]}]


def test_results_of_a_message_precede_text_in_the_next_one() -> None:
    calls = (ToolCall("call_1", "a", "{}"), ToolCall("call_1", "b", "[]"))
    returns = (
        ToolReturn.from_text("call_1", "a", ToolStatus.SUCCESS, "one"),
        ToolReturn.from_text("call:2", "b", ToolStatus.SUCCESS, "two"),
    )
    window = (
        message(1, Role.USER, "go"),
        message(2, Role.ASSISTANT, tool_calls=(calls[0], structs.replace(calls[1], id="call:2"))),
        message(3, Role.USER, "hurry"),
        message(4, Role.TOOL, tool_returns=returns),
    )
    blocks = bare(ask(CLAUDE, *window))["messages"]
    ids = [block["id"] for block in blocks[1]["content"]]
    assert ids[0] == "call_1" != ids[1]
    assert blocks[1]["content"][1]["input"] == {"raw": "[]"}
    assert [block["type"] for block in blocks[2]["content"]] == ["tool_result", "tool_result", "text"]
    assert [block.get("tool_use_id") for block in blocks[2]["content"]] == [*ids, None]


def test_signed_thinking_is_sent_only_while_thinking_is_enabled() -> None:
    thoughts = (SIGNED, RedactedReasoningPart("enc"), OmittedReasoningPart("s2"), ReasoningPart("unsigned", True))
    window = (
        message(1, Role.USER, "go"),
        called(2, "c1", "a", "{}", *thoughts),
        returned(3, "c1", "a", "ok"),
    )
    on = bare(ask(CLAUDE, *window, settings=THINKING, tools=(tool("a"),), tool_choice=REQUIRED))
    assert on["thinking"] == {"type": "enabled", "budget_tokens": 2000}
    assert on["max_tokens"] > 2000
    assert on["tool_choice"]["type"] == "auto"
    assert on["messages"][1]["content"][:3] == [
        {"type": "thinking", "thinking": "Hm.", "signature": "sig"},
        {"type": "redacted_thinking", "data": "enc"},
        {"type": "thinking", "thinking": "", "signature": "s2"},
    ]
    assert on["messages"][1]["content"][3]["type"] == "tool_use"
    off = bare(ask(CLAUDE, *window))
    assert "thinking" not in off
    assert [block["type"] for block in off["messages"][1]["content"]] == ["tool_use"]


def test_thinking_is_disabled_after_call_of_another_model() -> None:
    window = (message(1, Role.USER, "go"), called(2, "c1", "a"), returned(3, "c1", "a", "ok"))
    assert "thinking" not in bare(ask(CLAUDE, *window, settings=THINKING))


def test_thinking_excludes_sampling_and_later_models_think_adaptively() -> None:
    settings = replace(THINKING, temperature=0.3)
    assert "temperature" not in bare(hello(CLAUDE, settings=settings))
    assert bare(hello(CLAUDE, settings=ModelSettings(temperature=0.3)))["temperature"] == 0.3
    later = replace(CLAUDE, provider_model="claude-opus-4-8")
    assert bare(hello(later, settings=THINKING))["thinking"] == {"type": "adaptive"}


@pytest.mark.parametrize(
    ("choice", "shown"),
    [
        (ToolChoice(), {"type": "auto"}),
        (REQUIRED, {"type": "any"}),
        (ToolChoice(ToolChoiceKind.NAMED, "a"), {"type": "tool", "name": "a"}),
    ],
)
def test_tool_choices(choice: ToolChoice, shown: dict[str, str]) -> None:
    body = bare(hello(CLAUDE, tools=(tool("a"),), tool_choice=choice, parallel_tool_calls=True))
    assert body["tool_choice"] == {**shown, "disable_parallel_tool_use": False}


def test_images_and_structured_output() -> None:
    images = (ImagePart(data=b"\x01\x02", media_type="image/jpeg"), ImagePart(url="https://x/y.png"))
    wanted = ResponseFormat("json_schema", "answer", '{"type": "object"}')
    body = bare(ask(CLAUDE, message(1, Role.USER, "See", *images), response_format=wanted))
    assert body["messages"][0]["content"][1:] == [
        {"type": "image", "source": {"type": "base64", "media_type": "image/jpeg", "data": "AQI="}},
        {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}},
    ]
    assert body["output_config"] == {"format": {"type": "json_schema", "schema": {"type": "object"}}}


def test_blank_texts_are_never_sent() -> None:
    window = (message(0, Role.SYSTEM, " "), message(1, Role.USER, "go"), message(2, Role.ASSISTANT, "\n"))
    body = bare(ask(CLAUDE, *window))
    assert "system" not in body
    assert [m["role"] for m in body["messages"]] == ["user"]


def test_parameters_of_a_run_have_the_words_of_this_api() -> None:
    given = '{"seed": 7, "stop": "END", "top_k": 40, "frequency_penalty": 1}'
    body = render_body(hello(CLAUDE, parameters=given))
    assert (body["stop_sequences"], body["top_k"]) == (["END"], 40)
    assert {"seed", "stop", "frequency_penalty"}.isdisjoint(body)
