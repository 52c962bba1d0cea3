"""The conversions between Letta's agent files and the contracts, one value at a time."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from mnemesh.tools.v1 import tools_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import derive_id
from mnemesh_kit.json_bounds import TooManyValues
from mnemesh_kit.unicode import well_formed_value
from mnemesh_letta.convert.messages import MessageReader, content_parts, letta_message, letta_parts
from mnemesh_letta.convert.resources import block, block_label, custom_tool, group
from mnemesh_letta.convert.settings import agent, conversation_settings, letta_rule, tool_rule
from mnemesh_letta.files.reading import AgentFile, read_agent_file

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


EVENT = {"type": "heartbeat", "reason": "go on", "time": "noon"}


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


def test_events_of_letta_are_marked_and_other_json_of_users_is_not() -> None:
    texts = [json.dumps(EVENT), json.dumps({**EVENT, "more": 1}), "Ahoy"]
    rows = [{"role": "user", "content": [{"type": "text", "text": text}]} for text in texts]
    assert [row.is_event for row in read(*rows)] == [True, False, False]


@pytest.mark.parametrize("text", ['{"type": "user_message", "message": "x"}', json.dumps(EVENT), "Ahoy", "{"])
def test_words_of_a_user_survive_the_way_into_a_file_and_back(text: str) -> None:
    for is_event in (False, text == json.dumps(EVENT)):
        message = message_pb2.Message(id=derive_id("message", "1"), agent_id=AGENT, role=message_pb2.ROLE_USER)
        message.content.add().text.text = text
        if is_event:
            message.is_event = True
        (again,) = read(letta_message(message, "message-0", {}, "UTC"))
        assert (again.content[0].text.text, again.is_event) == (text, is_event)


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
    deep: dict[str, object] = {}
    for _ in range(5_000):
        deep = {"inner": deep}
    with pytest.raises(InvalidArgument, match="nested too deeply"):
        read_agent_file({"agents": [{"id": "agent-1", "metadata": deep}]}, AGENT)
    with pytest.raises(InvalidArgument, match="nested too deeply"):
        read_agent_file(b'{"agents": [{"id": "agent-1", "metadata": ' + b"[" * 900 + b"]" * 900 + b"}]}", AGENT)
    with pytest.raises(InvalidArgument, match="has no agents"):
        read_agent_file({"agents": []}, AGENT)
    with pytest.raises(InvalidArgument, match="has no agents"):
        read_agent_file(b"[1]", AGENT)
    with pytest.raises(InvalidArgument, match="not JSON"):
        read_agent_file(b"{'agents': []}", AGENT)
    with pytest.raises(InvalidArgument, match=r"agents\[0\] cannot be read"):
        read_agent_file({"agents": ["ada"]}, AGENT)


def test_a_file_with_too_many_agents_or_values_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="at most 1,000 agents"):
        read_agent_file(json.dumps({"agents": [{"id": f"a{n}"} for n in range(100_000)]}).encode(), AGENT)
    many = {"agents": [{"id": "a"}], "blocks": [{} for _ in range(500_000)]}
    for text in (json.dumps(many), json.dumps(json.dumps(many))):
        with pytest.raises(TooManyValues):
            read_agent_file(text, AGENT)


def test_one_text_that_many_agents_share_is_bounded_in_sum() -> None:
    tool = {"id": "t", "name": "t", "source_code": "def t(): ...  # " + "x" * 1_000_000}
    agents = [{"id": f"a{n}", "tool_ids": ["t"] * 50} for n in range(300)]
    with pytest.raises(InvalidArgument, match="too large"):
        read_agent_file({"agents": agents, "tools": [tool]}, AGENT)
    assert len(read_agent_file({"agents": agents[:2], "tools": [tool]}, AGENT).agents) == 2


SMALL: dict[str, Any] = {
    "agents": [
        {
            "id": "agent-0",
            "name": "Pilot",
            "agent_type": "letta_v1_agent",
            "system": "Steer.",
            "llm_config": {"handle": "openai/gpt-4o-mini", "context_window": 32000},
            "tool_ids": ["tool-0"],
            "block_ids": ["block-0"],
            "tool_rules": [{"type": "exit_loop", "tool_name": "send_message"}],
            "messages": [
                {"id": "message-0", "role": "system", "content": [{"type": "text", "text": "Steer."}]},
                {"id": "message-1", "role": "user", "content": [{"type": "text", "text": "Hello."}]},
            ],
            "in_context_message_ids": ["message-0", "message-1"],
        }
    ],
    "blocks": [{"id": "block-0", "label": "human", "value": "A captain."}],
    "tools": [{"id": "tool-0", "name": "find", "tool_type": "custom", "source_code": "def find(): pass"}],
}


def kinds(file: AgentFile) -> list[list[str]]:
    """The kinds of the records of each agent."""
    return [[str(record.WhichOneof("record")) for record in records] for records in file.agents.values()]


@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_file_that_was_encoded_again_is_read(times: int, mark: str) -> None:
    text: Any = SMALL
    for _ in range(times):
        text = json.dumps(text, indent=1)
    expected = read_agent_file(SMALL, AGENT)
    assert kinds(read_agent_file((mark + text).encode(), AGENT)) == kinds(expected)
    assert not expected.left_out


def test_a_file_of_the_legacy_form_is_read() -> None:
    agent = SMALL["agents"][0]
    legacy = {
        "agent_type": "memgpt_agent",
        "name": "Pilot",
        "system": "Steer.",
        "core_memory": [{"label": "human", "value": "A captain.", "metadata_": {}}],
        "llm_config": agent["llm_config"],
        "embedding_config": {"handle": "openai/text-embedding-ada-002"},
        "tools": [{"name": "find", "source_code": "def find(): pass", "tags": [], "source_type": "python"}],
        "tags": [{"tag": "boat"}],
        "messages": [{"role": row["role"], "content": row["content"]} for row in agent["messages"]],
        "in_context_message_indices": [0, 1],
        "tool_exec_environment_variables": [{"key": "HARBOUR", "value": ""}],
        "tool_rules": [],
        "metadata_": None,
        "version": "0.6.47",
    }
    file = read_agent_file(legacy, AGENT)
    assert file.left_out == []
    (records,) = file.agents.values()
    (read,) = [record.agent for record in records if record.HasField("agent")]
    assert [read.name, list(read.tags), read.secrets[0].key] == ["Pilot", ["boat"], "HARBOUR"]
    (conversation,) = [record.conversation for record in records if record.HasField("conversation")]
    assert len(conversation.message_ids) == 2
    assert sorted(kinds(file)[0]) == sorted(kinds(read_agent_file(SMALL, AGENT))[0])


CHANGES: list[tuple[str, Callable[[dict[str, Any]], object], str]] = [
    ("no tool", lambda data: data["agents"][0]["tool_rules"].append({"type": "exit_loop", "tool_name": ""}), "no tool"),
    ("rule", lambda data: data["agents"][0]["tool_rules"].append({"type": "spin", "tool_name": "x"}), "type 'spin'"),
    ("rule text", lambda data: data["agents"][0]["tool_rules"].append("stop"), "A tool rule of Pilot"),
    ("skills", lambda data: data.update(skills=[{"name": "sail"}, {"name": "moor"}]), "sail, moor"),
    ("missing block", lambda data: data["agents"][0]["block_ids"].append("block-7"), "no block block-7"),
    ("missing tool", lambda data: data["agents"][0]["tool_ids"].append("tool-7"), "no tool tool-7"),
    ("block", lambda data: data["blocks"][0].pop("label"), "'label' is missing"),
    ("blocks", lambda data: data.update(blocks={"id": "block-0"}), "blocks: it is not a list"),
    ("row", lambda data: data["tools"].append("send_message"), "tools[1]: it is not an object"),
    ("role", lambda data: data["agents"][0]["messages"][1].update(role="oracle"), "the role 'oracle' is not known"),
    ("part", lambda data: data["agents"][0]["messages"][1].update(content=[{"type": "hologram"}]), "'hologram'"),
    ("messages", lambda data: data["agents"][0].update(messages="none"), "messages of Pilot: it is not a list"),
    ("type", lambda data: data["agents"][0].update(agent_type="pirate"), "'pirate' is not known"),
    ("window", lambda data: data["agents"][0]["llm_config"].update(context_window="big"), "llm_config.context_window"),
    ("large", lambda data: data["agents"][0]["llm_config"].update(max_tokens=10**30), "llm_config.max_tokens"),
    ("mode", lambda data: data["agents"][0].update(compaction_settings={"mode": "lossy"}), "'lossy' is not known"),
    ("time", lambda data: data["agents"][0].update(created_at="yesterday"), "created_at of Pilot"),
    ("export time", lambda data: data.update(created_at="long ago"), "The time of the export"),
    ("field", lambda data: data["agents"][0].update(mood="calm"), "Fields of Pilot that are not known: mood"),
    ("file field", lambda data: data.update(signature="x"), "Fields of the file that are not known: signature"),
    ("agent", lambda data: data["agents"].append({"id": "agent-0"}), "another agent has the id agent-0"),
    ("agent text", lambda data: data["agents"].append("Clerk"), "agents[1] cannot be read"),
    ("server", lambda data: data.update(mcp_servers=[{"id": "s"}]), "no server_name"),
    ("file", lambda data: data.update(files=[{"id": "f", "content": "x", "source_id": "s"}]), "its folder is missing"),
    ("group", lambda data: data.update(groups=[{"id": "g", "agent_ids": ["agent-9"]}]), "no agent agent-9"),
    ("composio", lambda data: data["tools"][0].update(tool_type="external_composio"), "external_composio have no code"),
    ("unused tool", lambda data: data["tools"].append({"id": "tool-8", "name": "spare"}), "spare: no agent"),
]


@pytest.mark.parametrize(("change", "note"), [case[1:] for case in CHANGES], ids=[case[0] for case in CHANGES])
def test_what_cannot_be_read_is_left_out_and_named(change: Callable[[dict[str, Any]], object], note: str) -> None:
    data = json.loads(json.dumps(SMALL))
    change(data)
    file = read_agent_file(data, AGENT)
    assert [line for line in file.left_out if note in line], file.left_out
    (records,) = file.agents.values()
    (agent,) = [record.agent for record in records if record.HasField("agent")]
    assert [agent.name, agent.model, agent.system] == ["Pilot", "openai/gpt-4o-mini", "Steer."]
    (conversation,) = [record.conversation for record in records if record.HasField("conversation")]
    messages = {record.message.id for record in records if record.HasField("message")}
    assert set(conversation.message_ids) == messages
    assert records[-1].end.record_count == len(records) - 1


def test_what_belongs_to_no_agent_or_runs_elsewhere_is_taken() -> None:
    data = json.loads(json.dumps(SMALL))
    data["blocks"].append({"id": "block-1", "label": "log", "value": "Calm sea."})
    data["tools"] += [
        {"id": "tool-1", "name": "shell", "tool_type": "custom", "json_schema": {"name": "shell"}, "source_code": None},
        {"id": "tool-2", "name": "weather", "tool_type": "external_mcp", "json_schema": {"name": "weather"}},
    ]
    data["agents"][0]["tool_ids"] += ["tool-1", "tool-2"]
    file = read_agent_file(data, AGENT)
    assert file.left_out == []
    assert [block.label for block in file.blocks] == ["log"]
    (records,) = file.agents.values()
    types = [tools_pb2.ToolType.Name(record.tool.type) for record in records if record.HasField("tool")]
    assert types == ["TOOL_TYPE_CUSTOM", "TOOL_TYPE_CLIENT", "TOOL_TYPE_MCP"]
