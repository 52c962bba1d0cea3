"""The conversions between Letta's agent files and the contracts, one value at a time."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from mnemesh.tools.v1 import tools_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_client.letta_files.agents import agent, conversation_settings
from mnemesh_client.letta_files.message_writing import letta_message
from mnemesh_client.letta_files.messages import MessageReader
from mnemesh_client.letta_files.parts import content_parts, letta_parts
from mnemesh_client.letta_files.reading import read_agent_file
from mnemesh_client.letta_files.resources import block, block_label, custom_tool, group
from mnemesh_client.letta_files.rules import letta_rule, tool_rule
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import derive_id
from mnemesh_kit.unicode import well_formed_value

AGENT = derive_id("agent", "conversions")
NOON = "2026-03-01T12:00:00+00:00"


def of(kind: str, **fields: Any) -> dict[str, Any]:
    return {"tool_name": "look", "type": kind, "prompt_template": None, **fields}


RULES = [
    of("run_first", args={"query": "x"}),
    of("run_first", args=None),
    of("exit_loop"),
    of("continue_loop"),
    of("required_before_exit"),
    of("requires_approval"),
    of("max_count_per_step", max_count_limit=3),
    of("parent_last_tool", children=["act"]),
    of("constrain_child_tools", children=["act", "rest"], child_arg_nodes=[{"name": "act", "args": {"n": 1}}]),
    of("constrain_child_tools", children=["act"], child_arg_nodes=None),
    of("conditional", default_child="rest", child_output_mapping={"go": "act"}, require_output_mapping=True),
    of("conditional", default_child=None, child_output_mapping={"5": "act"}, require_output_mapping=False),
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["type"])
def test_a_rule_comes_back_as_it_was(rule: dict[str, Any]) -> None:
    assert letta_rule(tool_rule(rule)) == rule


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("true", "boolean", True),
        ("5", "integer", 5),
        ("1.5", "number", 1.5),
        ("yes", "text", "yes"),
        ("[1]", "text", "[1]"),
    ],
)
def test_an_output_that_a_rule_names_has_the_type_of_its_value(text: str, kind: str, value: Any) -> None:
    rule = tool_rule(of("conditional", child_output_mapping={text: "act"}))
    (outcome,) = rule.conditional.outcomes
    assert (outcome.WhichOneof("output"), getattr(outcome, kind), outcome.child) == (kind, value, "act")


def test_a_rule_of_an_unknown_type_is_named() -> None:
    with pytest.raises(ValueError, match=r"'look'.*'sometimes'"):
        tool_rule(of("sometimes"))


PARTS = [
    {"type": "text", "text": "Grüße.", "signature": None},
    {"type": "text", "text": "Signed.", "signature": "abc"},
    {"type": "reasoning", "is_native": True, "reasoning": "Because.", "signature": "sig"},
    {"type": "redacted_reasoning", "data": "xyz"},
    {"type": "omitted_reasoning", "signature": None},
    {
        "type": "summarized_reasoning",
        "id": "rs_1",
        "summary": [{"index": 0, "text": "First."}, {"index": 1, "text": "Second."}],
        "encrypted_content": "secret",
    },
    {"type": "image", "source": {"type": "base64", "media_type": "image/jpeg", "data": "/9j/", "detail": "low"}},
    {"type": "image", "source": {"type": "url", "url": "https://images.example/a.png"}},
]


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part["type"])
def test_a_part_comes_back_as_it_was(part: dict[str, Any]) -> None:
    assert letta_parts(content_parts([part])) == [part]


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"type": "video"}, "video"),
        ({"type": "image", "source": {"data": "?"}}, "base64"),
        ({"type": "image", "source": {}}, "neither data nor a URL"),
    ],
)
def test_a_part_that_cannot_be_read_is_named(part: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        content_parts([part])


def test_words_of_a_user_lose_their_envelope_and_other_json_stays() -> None:
    packed = json.dumps({"type": "user_message", "message": "Ahoy", "time": "noon"})
    for text, words in ((packed, "Ahoy"), ('{"type": "login"}', '{"type": "login"}'), ("{ no json", "{ no json")):
        (part,) = content_parts([{"type": "text", "text": text}], unpack=True)
        assert part.text.text == words
    (kept,) = content_parts([{"type": "text", "text": packed}])
    assert kept.text.text == packed


def read(*rows: dict[str, Any], agent_type: str | None = None) -> list[message_pb2.Message]:
    """Reads messages in their order, with ids by their positions."""
    reader = MessageReader(AGENT, "openai", agent_type=agent_type)
    common = {"created_at": NOON, "model": "gpt-4o"}
    return [reader.read({"id": derive_id("message", str(n)), **common, **row}) for n, row in enumerate(rows)]


def call(name: str) -> dict[str, Any]:
    return {"id": f"call-{name}", "type": "function", "function": {"name": name, "arguments": '{"n": 1}'}}


def test_a_return_gets_the_name_of_its_call_and_loses_its_envelope() -> None:
    envelope = json.dumps({"status": "Failed", "message": "No wind.", "time": "noon"})
    asked, returned = read(
        {"role": "assistant", "content": [{"type": "text", "text": "I look."}], "tool_calls": [call("look")]},
        {"role": "tool", "tool_call_id": "call-look", "content": [{"type": "text", "text": envelope}]},
    )
    assert (asked.role, asked.model, asked.tool_calls[0].arguments) == (
        message_pb2.ROLE_ASSISTANT,
        "openai/gpt-4o",
        '{"n": 1}',
    )
    (item,) = returned.tool_returns
    assert (item.name, item.tool_call_id, item.content[0].text.text) == ("look", "call-look", "No wind.")
    assert item.status == message_pb2.TOOL_RETURN_STATUS_ERROR

    ids = {asked.id: "message-0"}
    written = letta_message(returned, "message-1", ids, "Europe/Berlin")
    (given,) = written["tool_returns"]
    inner = json.loads(given["func_response"])
    assert (inner["status"], inner["message"], given["status"]) == ("Failed", "No wind.", "error")
    assert inner["time"] == "2026-03-01 01:00:00 PM CET+0100"
    assert [item.content[0].text.text for item in read(asked_row(), written)[1].tool_returns] == ["No wind."]


@pytest.mark.parametrize(
    ("agent_type", "calls", "kind"),
    [
        ("memgpt_v2_agent", ["send_message"], "reasoning"),
        ("react_agent", ["look"], "reasoning"),
        ("memgpt_v2_agent", [], "text"),
        ("letta_v1_agent", ["look"], "text"),
    ],
)
def test_text_beside_a_call_is_a_thought_of_agents_that_speak_by_tools(
    agent_type: str, calls: list[str], kind: str
) -> None:
    content = [{"type": "text", "text": "Ada is at sea.", "signature": None}]
    row = {"role": "assistant", "content": content, "tool_calls": [call(name) for name in calls]}

    (message,) = read(row, agent_type=agent_type)

    (part,) = message.content
    assert [part.WhichOneof("part"), part.text.text or part.reasoning.text] == [kind, "Ada is at sea."]
    thinks_in_text = agent_type != "letta_v1_agent"
    assert letta_message(message, "message-0", {}, "UTC", thinks_in_text=thinks_in_text)["content"] == content


def test_settings_of_a_conversation_have_the_names_of_the_api() -> None:
    openai = {"provider_type": "openai", "max_output_tokens": 555, "temperature": 0.5}
    read_settings = conversation_settings({**openai, "reasoning": {"reasoning_effort": "low"}, "strict": True})
    assert [read_settings.max_output_tokens, read_settings.temperature] == [555, 0.5]
    assert [read_settings.reasoning_effort, read_settings.strict_tool_schemas] == ["low", True]

    thinking = {"type": "enabled", "budget_tokens": 3000}
    read_settings = conversation_settings({"provider_type": "anthropic", "thinking": thinking, "effort": "medium"})
    assert [read_settings.enable_reasoner, read_settings.max_reasoning_tokens] == [True, 3000]
    assert read_settings.reasoning_effort == "medium"

    thinking_config = {"include_thoughts": False, "thinking_budget": 1024}
    read_settings = conversation_settings({"provider_type": "google_ai", "thinking_config": thinking_config})
    assert [read_settings.enable_reasoner, read_settings.max_reasoning_tokens] == [False, 1024]
    assert not read_settings.HasField("max_output_tokens")


def test_the_response_format_of_a_model_is_the_agents() -> None:
    llm = {"model": "m", "model_endpoint_type": "openai", "response_format": {"type": "json_object"}}
    read_agent = agent({"id": AGENT, "name": "A", "llm_config": llm}, tags=(), secrets=(), identity_ids=())
    assert read_agent.response_format.WhichOneof("format") == "json_object"


@pytest.mark.parametrize("label", ["human", "a.b/c-d_e", "l" * 100])
def test_a_label_that_is_possible_here_stays(label: str) -> None:
    assert block_label(label) == label


@pytest.mark.parametrize("label", ["Notes: today", "Über", "заметки", "l" * 300, ""])
def test_another_label_is_replaced_by_one_of_its_own(label: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_\-./]{1,100}", block_label(label))
    assert block_label(label) == block_label(label)
    assert block_label(label) != block_label(label + "!")


def test_characters_that_no_text_can_have_are_replaced_everywhere() -> None:
    value = {"a\ud800": ["b\x00", {"c": "d", "n": 1, "none": None}], "e": "\U0001f30a", "bytes": b"\x00"}
    expected = {"a\ufffd": ["b\ufffd", {"c": "d", "n": 1, "none": None}], "e": "\U0001f30a", "bytes": b"\x00"}
    assert well_formed_value(value) == expected


def asked_row() -> dict[str, Any]:
    return {"role": "assistant", "content": [], "tool_calls": [call("look")]}


def test_one_decision_of_an_older_release_is_one_for_each_call() -> None:
    request, answer = read(
        {"role": "approval", "content": [], "tool_calls": [call("sail"), call("anchor")]},
        {
            "role": "approval",
            "content": [],
            "approval_request_id": derive_id("message", "0"),
            "approve": False,
            "denial_reason": "Storm.",
        },
    )
    assert [item.tool_call_id for item in answer.approval_decisions] == ["call-sail", "call-anchor"]
    assert {item.deny.reason for item in answer.approval_decisions} == {"Storm."}
    assert answer.approval_request_id == request.id


def test_a_result_of_the_client_is_a_decision() -> None:
    item = {"type": "tool", "tool_call_id": "call-sail", "status": "success", "func_response": "Done.", "stdout": ["a"]}
    _, answer = read(
        {"role": "approval", "content": [], "tool_calls": [call("sail")]},
        {"role": "approval", "content": [], "approvals": [item]},
    )
    (decision,) = answer.approval_decisions
    assert decision.client_return.content[0].text.text == "Done."
    assert (decision.client_return.name, list(decision.client_return.stdout)) == ("sail", ["a"])


@pytest.mark.parametrize(
    ("row", "words"),
    [({"role": "oracle"}, "oracle"), ({"role": "user", "content": "x", "created_at": "yesterday"}, "yesterday")],
)
def test_a_message_that_cannot_be_read_is_named(row: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read(row)


def test_the_limit_of_a_block_is_at_least_its_length() -> None:
    row = {"id": "block-1", "label": "human", "value": "x" * 30, "limit": 10, "created_at": NOON}
    assert block(row).limit == 30
    assert block(row | {"limit": 50}).limit == 50
    assert block(row | {"value": "a\0b"}).value == "a\ufffdb", "no database takes NUL characters"


@pytest.mark.parametrize("kind", ["round_robin", "supervisor", "dynamic", "sleeptime", "voice_sleeptime", "swarm"])
def test_each_kind_of_manager_is_kept(kind: str) -> None:
    row = {"id": "group-1", "description": "", "manager_type": kind, "manager_agent_id": AGENT, "created_at": NOON}
    found = group(row | {"sleeptime_agent_frequency": 4, "max_turns": 2}, [derive_id("agent", "member")], ())
    config = found.manager_config
    assert config.WhichOneof("config") == kind
    manager = getattr(config, kind)
    if kind not in ("round_robin", "swarm"):
        assert manager.manager_agent_id == AGENT
    if kind == "sleeptime":
        assert manager.sleeptime_agent_frequency == 4


def test_the_count_of_turns_of_a_database_is_kept_and_that_of_an_agent_file_begins_before_the_first_turn() -> None:
    row = {"id": "group-1", "manager_type": "sleeptime", "manager_agent_id": AGENT, "created_at": NOON}
    often = row | {"sleeptime_agent_frequency": 4}
    counts = [group(each, [AGENT], ()).turns_counter for each in (often | {"turns_counter": 2}, often)]
    assert counts == [2, -1]
    assert not group(row, [AGENT], ()).HasField("turns_counter")


@pytest.mark.parametrize(
    ("source", "more", "kind"),
    [
        ("def find(text): return text", {"source_type": "json"}, "CUSTOM"),
        ("def find(-n=None): pass", {"source_type": "json"}, "CLIENT"),
        ("def find(-n=None): pass", {"source_type": "json", "json_schema": None}, "CUSTOM"),
        ("", {"source_type": "json"}, "CLIENT"),
        ("export function find(text: string) { return text }", {"source_type": "typescript"}, "CUSTOM"),
    ],
)
def test_a_tool_whose_source_cannot_run_is_one_of_the_client(source: str, more: dict[str, Any], kind: str) -> None:
    schema = {"name": "find", "parameters": {"type": "object", "properties": {"-n": {"type": "boolean"}}}}
    tool = custom_tool(
        {"id": derive_id("tool", "find"), "name": "find", "source_code": source, "json_schema": schema} | more
    )
    assert tools_pb2.ToolType.Name(tool.type) == f"TOOL_TYPE_{kind}"
    assert bool(tool.source_code) == (kind == "CUSTOM")


def test_a_file_that_cannot_be_read_is_refused_with_its_reason() -> None:
    legacy = {"agent_type": "memgpt_agent", "core_memory": [], "llm_config": {}, "messages": []}
    with pytest.raises(InvalidArgument, match="legacy format"):
        read_agent_file(legacy, AGENT)
    deep: dict[str, object] = {}
    for _ in range(5_000):
        deep = {"inner": deep}
    with pytest.raises(InvalidArgument, match="nested too deeply"):
        read_agent_file({"agents": [{"id": "agent-1", "metadata": deep}]}, AGENT)
    with pytest.raises(InvalidArgument, match="has no agents"):
        read_agent_file({"agents": []}, AGENT)
