"""What is carried with a message: fields of streams joined as a whole answer has them, content in parts, and bounds."""

import json
from typing import Any

import pytest
from mnemesh_orchestrator.llm.anthropic_messages import MessagesAnswer
from mnemesh_orchestrator.llm.anthropic_messages import render_body as render_messages
from mnemesh_orchestrator.llm.openai_chat import ChatAnswer, render_body
from mnemesh_orchestrator.llm.openai_responses import ResponsesAnswer
from mnemesh_orchestrator.llm.openai_responses import render_body as render_responses
from mnemesh_orchestrator.llm.wire import MAX_CARRIED_BYTES, MergedFields
from mnemesh_types.messages import Message, Role, ToolCall

from .windows import CLAUDE, OPENAI, THINKER, ask, message


def merged(*pieces: dict[str, Any]) -> dict[str, Any]:
    fields = MergedFields()
    for piece in pieces:
        fields.add(piece)
    return fields.value


@pytest.mark.parametrize(
    ("pieces", "whole"),
    [
        ([{"note": "eu"}, {"note": "eu"}, {"note": None}], {"note": "eu"}),
        ([{"trace": "ab"}, {"trace": "c"}], {"trace": "abc"}),
        (
            [
                {"details": [{"index": 0, "type": "text", "text": "ha"}]},
                {"details": [{"index": 0, "type": "text", "text": "ha"}]},
                {"details": [{"index": 0, "type": "text", "text": "", "signature": "s"}]},
                {"details": [{"index": 1, "type": "encrypted", "data": "gAAA", "id": "rs_1"}]},
            ],
            {
                "details": [
                    {"index": 0, "type": "text", "text": "haha", "signature": "s"},
                    {"index": 1, "type": "encrypted", "data": "gAAA", "id": "rs_1"},
                ]
            },
        ),
        (
            [{"parts": [{"type": "text", "text": "a"}]}, {"parts": [{"type": "text", "text": "b"}, {"type": "end"}]}],
            {"parts": [{"type": "text", "text": "ab"}, {"type": "end"}]},
        ),
        ([{"a": {"b": {"text": "x"}}}, {"a": {"b": {"text": "y"}, "n": 1}}], {"a": {"b": {"text": "xy"}, "n": 1}}),
    ],
)
def test_pieces_of_fields_become_whole(pieces: list[dict[str, Any]], whole: dict[str, Any]) -> None:
    assert merged(*pieces) == whole


def test_fields_that_are_too_long_are_not_carried() -> None:
    assert merged({"text": "x" * 1_000}, *({"text": "x" * 1_000} for _ in range(MAX_CARRIED_BYTES // 1_000))) == {}
    answer = ChatAnswer("p")
    list(answer.add({"choices": [{"message": {"content": "Hi", "blob": "x" * MAX_CARRIED_BYTES}}]}))
    assert answer.carried is None


def own(answer: Any, model: Any) -> Message:
    """Returns an answer as the loop stores it."""
    calls = tuple(
        ToolCall(f"call_{n}", call.name, call.arguments, call.provider_id) for n, call in enumerate(answer.tool_calls)
    )
    return message(2, Role.ASSISTANT, *answer.content, tool_calls=calls, carried=answer.carried, model=model.handle)


def test_content_in_typed_parts_returns_as_it_came() -> None:
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm"}]}
    deltas = [{"content": [thinking]}, {"content": [thinking]}, {"content": "Hel"}, {"content": "lo"}]
    answer = ChatAnswer("p")
    for delta in deltas:
        list(answer.add({"choices": [{"index": 0, "delta": delta}]}))
    list(answer.add({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}))
    window = (message(1, Role.USER, "Go."), own(answer, OPENAI))
    shown = render_body(ask(OPENAI, *window))["messages"][1]
    assert shown["content"] == [
        {"type": "thinking", "thinking": [{"type": "text", "text": "HmHm"}]},
        {"type": "text", "text": "Hello"},
    ]


def test_plain_answers_carry_nothing() -> None:
    answer = ChatAnswer("p")
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "a", "arguments": "{}"}}
    list(
        answer.add(
            {"choices": [{"delta": {"role": "assistant", "content": "Hi", "refusal": None, "tool_calls": [call]}}]}
        )
    )
    assert answer.carried is None


def test_blocks_that_mnemesh_does_not_know_keep_their_place() -> None:
    blocks = [
        {"type": "text", "text": "I search."},
        {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "x"}},
        {
            "type": "web_search_tool_result",
            "tool_use_id": "srv_1",
            "content": [{"type": "r", "encrypted_content": "e"}],
        },
        {"type": "text", "text": "Found.", "citations": [{"type": "web", "cited_text": "x"}]},
        {"type": "tool_use", "id": "toolu_1", "name": "a", "input": {}},
        {"type": "text", "text": "And."},
    ]
    answer = MessagesAnswer("p")
    list(answer.add({"type": "message", "content": blocks, "stop_reason": "tool_use"}))
    window = (message(1, Role.USER, "Go."), own(answer, CLAUDE))
    shown = render_messages(ask(CLAUDE, *window), cache_breakpoints=False)["messages"][1]["content"]
    assert shown == blocks
    other = render_messages(ask(CLAUDE, window[0], message(2, Role.ASSISTANT, *answer.content, model="x/y")))
    assert "srv_1" not in json.dumps(other)


def test_items_keep_their_order() -> None:
    def reasoning(number: int) -> dict[str, Any]:
        return {"type": "reasoning", "id": f"rs_{number}", "summary": [], "encrypted_content": f"g{number}"}

    def call(number: int) -> dict[str, Any]:
        return {"type": "function_call", "call_id": f"fc_{number}", "name": "a", "arguments": "{}"}

    search = {"type": "web_search_call", "id": "ws_1", "action": {"query": "x"}}
    output = [reasoning(1), call(1), search, reasoning(2), call(2)]
    answer = ResponsesAnswer("p")
    list(answer.add({"object": "response", "status": "completed", "output": output}))
    shown = render_responses(ask(THINKER, message(1, Role.USER, "Go."), own(answer, THINKER)))["input"]
    assert shown[1:6] == output


def test_streamed_block_that_mnemesh_does_not_know_is_whole() -> None:
    answer = MessagesAnswer("p")
    block = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {}}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {"id": "m", "usage": {}}},
        {"type": "content_block_start", "index": 0, "content_block": block},
        *(
            {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": piece}}
            for piece in ('{"query":', ' "x"}')
        ),
        {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "Found."}},
        {
            "type": "content_block_delta",
            "index": 1,
            "delta": {"type": "citations_delta", "citation": {"cited_text": "x"}},
        },
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
    ]
    deltas = [delta for event in events for delta in answer.add(event)]
    assert [type(delta).__name__ for delta in deltas] == ["TextDelta"]
    shown = render_messages(ask(CLAUDE, message(1, Role.USER, "Go."), own(answer, CLAUDE)), cache_breakpoints=False)
    assert shown["messages"][1]["content"] == [
        {**block, "input": {"query": "x"}},
        {"type": "text", "text": "Found.", "citations": [{"cited_text": "x"}]},
    ]
