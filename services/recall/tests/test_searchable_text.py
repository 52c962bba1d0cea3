"""The searchable text of messages."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from mnemesh_recall.model.search import searchable_text
from mnemesh_types.messages import Message, Role, TextPart, ToolCall, ToolReturn, ToolStatus


def message(role: Role, text: str = "", **more: Any) -> Message:
    content = (TextPart(text),) if text else ()
    return Message(
        id="m", agent_id="a", role=role, created_at=datetime(2026, 1, 1, tzinfo=UTC), content=content, **more
    )


def call(name: str, **arguments: object) -> ToolCall:
    return ToolCall("c", name, json.dumps(arguments))


def returned(name: str, text: str) -> ToolReturn:
    return ToolReturn("c", name, ToolStatus.SUCCESS, (TextPart(text),))


HEARTBEAT = json.dumps({"type": "heartbeat", "reason": "again", "time": "t"})
PACKED = json.dumps({"status": "OK", "message": "42 degrees", "time": "now"})


@pytest.mark.parametrize(
    ("said", "found"),
    [
        (message(Role.USER, "hello"), "hello"),
        (message(Role.USER, HEARTBEAT, is_event=True), ""),
        (message(Role.USER, HEARTBEAT), HEARTBEAT),
        (message(Role.USER, '{"type": "user_message", "message": "hi"}'), '{"type": "user_message", "message": "hi"}'),
        (message(Role.USER, '{"json": "of the user"}'), '{"json": "of the user"}'),
        (message(Role.USER, "{" * 100_000), "{" * 100_000),
        (message(Role.ASSISTANT, "I think"), "I think"),
        (message(Role.ASSISTANT, "thought", tool_calls=(call("send_message", message="Hello!"),)), "thought\nHello!"),
        (message(Role.ASSISTANT, "let me look", tool_calls=(call("conversation_search", query="q"),)), ""),
        (message(Role.ASSISTANT, "let me look", tool_calls=(call("search_memory"),)), ""),
        (
            message(
                Role.ASSISTANT,
                "x",
                tool_calls=(call("conversation_search", query="q"), call("send_message", message="y")),
            ),
            "y",
        ),
        (message(Role.ASSISTANT, tool_calls=(call("send_message", message=5),)), ""),
        (message(Role.TOOL, tool_returns=(returned("weather", PACKED),)), PACKED),
        (message(Role.TOOL, tool_returns=(returned("weather", "plain"),)), "plain"),
        (message(Role.TOOL, tool_returns=(returned("send_message", PACKED),)), ""),
        (message(Role.TOOL, tool_returns=(returned("conversation_search", "old words"),)), ""),
        (message(Role.TOOL, tool_returns=(returned("search_memory", "old words"),)), ""),
        (message(Role.TOOL, tool_returns=(returned("conversation_search", "a"), returned("weather", "b"))), "b"),
        (message(Role.SYSTEM, "prompt"), ""),
        (message(Role.SUMMARY, "so far"), ""),
        (message(Role.APPROVAL, "may I"), ""),
        (message(Role.USER, "failed", is_err=True), ""),
    ],
)
def test_searchable_text(said: Message, found: str) -> None:
    assert searchable_text(said) == found
