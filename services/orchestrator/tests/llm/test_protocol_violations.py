"""Answers of servers that violate the protocol: each is refused as a malformed answer, or can be stored."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mnemesh_kit.ids import new_id
from mnemesh_orchestrator.llm.anthropic_messages import MessagesAnswer
from mnemesh_orchestrator.llm.calls import UNREADABLE, well_formed_answer
from mnemesh_orchestrator.llm.errors import ProviderError
from mnemesh_orchestrator.llm.openai_chat import ChatAnswer
from mnemesh_orchestrator.llm.openai_responses import ResponsesAnswer
from mnemesh_orchestrator.llm.port import LlmAnswer
from mnemesh_orchestrator.model.events import UsageEvent
from mnemesh_recall.model.messages import require_message
from mnemesh_types.convert import message_from_proto, message_to_proto
from mnemesh_types.messages import Message, Role, ToolCall

_NOW = datetime(2026, 1, 1, tzinfo=UTC)
_LEAF = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(), max_size=5)
    | st.sampled_from(["\ud83d", "\0", "stop", "tool_use", "function_call", "message", '{"a":"\\ud800"}', 10**30])
)
_ANY = st.recursive(
    _LEAF, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
)


def _record(optional: dict[str, Any], **required: Any) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(required, optional=optional)


def _rows(row: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(row | _ANY, max_size=2)


def _fields(*names: str) -> st.SearchStrategy[Any]:
    return _record(dict.fromkeys(names, _ANY)) | _record(dict.fromkeys(names, _LEAF))


_CALL = _record({"index": _LEAF, "id": _LEAF}, function=_fields("name", "arguments"))
_MESSAGE = _record({"content": _ANY, "reasoning": _ANY, "tool_calls": _rows(_CALL)})
_CHOICE = _record({"delta": _MESSAGE, "message": _MESSAGE}, finish_reason=_LEAF)
_CHAT = _record({"usage": _fields("prompt_tokens", "total_tokens")}, choices=_rows(_CHOICE))

_ITEM = _record(
    dict.fromkeys(("name", "arguments", "call_id", "summary", "id", "encrypted_content", "phase"), _ANY),
    type=st.sampled_from(["message", "function_call", "reasoning", 7]),
    content=_rows(_fields("text", "refusal")) | _ANY,
)
_RESPONSES = _record(
    {}, type=st.just("response.output_item.done"), output_index=st.integers(0, 2), item=_ITEM
) | _record({"usage": _fields("input_tokens")}, object=st.just("response"), output=_rows(_ITEM))

_BLOCK = _record(
    dict.fromkeys(("name", "id", "input", "text", "thinking", "signature", "data"), _ANY),
    type=st.sampled_from(["text", "tool_use", "thinking", "redacted_thinking", 7]),
)
_MESSAGES = _record(
    {"usage": _fields("input_tokens")}, type=st.just("message"), content=_rows(_BLOCK), stop_reason=_LEAF
) | _record(
    {}, type=st.just("content_block_delta"), index=st.integers(0, 1), delta=_fields("type", "text", "partial_json")
)


@pytest.mark.parametrize(
    ("new", "chunks"), [(ChatAnswer, _CHAT), (ResponsesAnswer, _RESPONSES), (MessagesAnswer, _MESSAGES)]
)
def test_malformed_answer_is_refused_or_can_be_stored(
    new: Callable[[str], Any], chunks: st.SearchStrategy[Any], is_full: bool
) -> None:
    @settings(max_examples=60 if is_full else 25, database=None)
    @given(st.lists(chunks | _ANY, min_size=1, max_size=3))
    def check(given_chunks: list[Any]) -> None:
        answer = new("fake")
        try:
            for chunk in given_chunks:
                tuple(answer.add(chunk))
            body = json.dumps(answer.body, ensure_ascii=False)
            whole = LlmAnswer(answer.content, answer.tool_calls, answer.finish_reason, answer.usage, "", body)
        except (ProviderError, *UNREADABLE):  # stream_answer makes the latter a ProviderError.
            return
        try:
            found = well_formed_answer(whole, "fake")
        except ProviderError:
            return
        calls = tuple(ToolCall(f"call_{n}", c.name, "{}", c.provider_id) for n, c in enumerate(found.tool_calls))
        message = Message(
            id=new_id("message"), role=Role.ASSISTANT, created_at=_NOW, content=found.content, tool_calls=calls
        )
        require_message(message, "message")
        assert message_from_proto(message_to_proto(message)) == message
        for stored in (message, UsageEvent(found.usage, 1)):
            assert msgspec.json.decode(msgspec.json.encode(stored), type=type(stored)) == stored
        found.response_body.encode()

    check()
