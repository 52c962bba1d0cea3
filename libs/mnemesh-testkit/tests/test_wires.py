"""The strict servers of the wires: each refuses the histories that its original refuses, and accepts its own."""

from typing import Any

import pytest
from mnemesh_testkit.fakes.server import Reply
from mnemesh_testkit.wires import WIRES, encoded

SENT = (Reply(reasoning="Hm.", tool_calls=[("a", {})]), Reply(text="Done."))
USER, TEXT = {"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Done."}
CALL = {"id": "call_1", "type": "function", "function": {"name": "a", "arguments": "{}"}}
RETURN = {"role": "tool", "tool_call_id": "call_1", "content": "ok"}
BLOCK_CALL = {"type": "tool_use", "id": "t1", "name": "a", "input": {}}
BLOCK_RETURN = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "ok"}]}
BLOCK_USER = {"role": "user", "content": [{"type": "text", "text": "Hello"}]}
THOUGHT = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln0"}
ITEM_CALL = {"type": "function_call", "call_id": "c1", "name": "a", "arguments": "{}"}
ITEM_RETURN = {"type": "function_call_output", "call_id": "c1", "output": "ok"}
ITEM_THOUGHT = {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "c2ln0"}


def calling(**fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": [CALL], **fields}


def detail(signature: str) -> list[dict[str, Any]]:
    return [{"type": "reasoning.text", "text": "Hm.", "signature": signature}]


def signed(signature: str) -> dict[str, Any]:
    return {"tool_calls": [{**CALL, "extra_content": {"google": {"thought_signature": signature}}}]}


def blocks(*given: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": list(given)}


MESSAGES = [
    ("openai", [USER, calling(), RETURN], None),
    ("openai", [USER, calling(), USER], "must be followed by tool messages"),
    ("openai", [USER, {**RETURN, "tool_call_id": "call_2"}], "unknown tool_call_id"),
    ("openai", [USER, {"role": "assistant", "content": ""}], "either content or tool_calls"),
    ("llama.cpp", [USER, calling(), RETURN, TEXT, USER], None),
    ("llama.cpp", [USER, USER], "must alternate"),
    ("llama.cpp", [TEXT, USER], "must alternate"),
    ("deepseek", [USER, calling(reasoning_content="Hm."), RETURN], None),
    ("deepseek", [USER, calling(), RETURN], "must be passed back"),
    ("kimi", [USER, calling(reasoning_content=""), RETURN], "missing in assistant tool call message at index 1"),
    ("openrouter", [USER, calling(reasoning_details=detail("sig0")), RETURN], None),
    ("openrouter", [USER, calling(reasoning_details=detail("sig1")), RETURN], "cannot be modified"),
    ("openrouter", [USER, calling(), RETURN], "cannot be modified"),
    ("gemini", [USER, calling(**signed("c2ln0")), RETURN], None),
    ("gemini", [USER, calling(), RETURN], "missing a thought_signature"),
    ("mistral", [USER, calling(), RETURN], "length of 9"),
    ("mistral", [USER, TEXT], "Expected last role"),
    ("anthropic", [BLOCK_USER, blocks(THOUGHT, BLOCK_CALL), BLOCK_RETURN], None),
    ("anthropic", [BLOCK_USER, BLOCK_USER], "must alternate"),
    ("anthropic", [BLOCK_USER, blocks(THOUGHT, BLOCK_CALL), BLOCK_USER], "without tool_result"),
    ("anthropic", [BLOCK_USER, blocks({**THOUGHT, "thinking": "Hmm."}, BLOCK_CALL)], "cannot be modified"),
    ("anthropic", [BLOCK_USER, blocks({"type": "text", "text": " "})], "non-whitespace"),
    ("anthropic", [BLOCK_USER, blocks(BLOCK_CALL), BLOCK_RETURN], "must start with a thinking block"),
    ("responses", [USER, ITEM_THOUGHT, ITEM_CALL, ITEM_RETURN], None),
    ("responses", [USER, ITEM_CALL], "No tool output found"),
    ("responses", [USER, ITEM_RETURN], "No tool call found"),
    ("responses", [ITEM_THOUGHT, USER], "without its following item"),
    ("responses", [{**ITEM_THOUGHT, "encrypted_content": "x"}, ITEM_CALL, ITEM_RETURN], "could not be verified"),
]


@pytest.mark.parametrize(("name", "messages", "words"), MESSAGES)
def test_server_refuses_what_its_original_refuses(name: str, messages: list[Any], words: str | None) -> None:
    (wire,) = (wire for wire in WIRES if wire.name == name)
    body = {"messages": messages, "input": messages, "thinking": {"type": "enabled"}}
    problem = wire.problem(body, SENT)
    assert problem is None if words is None else words in (problem or "")


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
def test_ids_of_answers_differ(wire: Any) -> None:
    streams = {encoded(wire.events(SENT[0], number)) for number in range(3)}
    assert len(streams) == 3
