"""Arguments of tool calls: accepted and refused texts. Arguments are never invented."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mnemesh_orchestrator.builtin.arguments import Arguments, ParseFailure, check, parse, storable_arguments
from mnemesh_orchestrator.builtin.schemas import BUILTIN_SCHEMAS, with_heartbeat, with_thinking
from mnemesh_orchestrator.model.models import ToolSchema

REPLACE = BUILTIN_SCHEMAS["memory_replace"]
SEARCH = BUILTIN_SCHEMAS["conversation_search"]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ('{"a": 1}', {"a": 1}),
        ("", {}),
        ("  ", {}),
        ('{"a": 1}{"a": 2}', {"a": 1}),
        ('{"a": 1}\n {"b": 2', {"a": 1}),
        ('{"a": "}{"}', {"a": "}{"}),
        (json.dumps('{"a": 1}'), {"a": 1}),
        ('{"a": "two\nlines"}', {"a": "two\nlines"}),
        ('{"a": 123456789012345678901234567890}', {"a": 123456789012345678901234567890}),
        ('{"b": 1, "a": 2}', {"b": 1, "a": 2}),
    ],
)
def test_texts_with_one_meaning_are_parsed(text: str, values: dict[str, Any]) -> None:
    parsed = parse(text, REPLACE)
    assert parsed == Arguments(values)
    assert list(values) == list(json.loads(storable_arguments(text)))


@pytest.mark.parametrize(
    "text",
    [
        "{",
        '{"label": "human"',
        "hello",
        "[1]",
        "1",
        "null",
        "{'a': 1}",
        '{"a": NaN}',
        '{"a": 1,}',
        '[{"a": 1}]',
        '{"a": 1e999}',
        '{"a": 1} and more',
        json.dumps(json.dumps('{"a": 1}')),
        '{"a": "\\ud800"}',
        "[" * 100_000,
        '{"a":' * 100_000,
        '{"a": ' + "9" * 5000 + "}",
    ],
)
def test_other_texts_fail_and_can_be_stored(text: str) -> None:
    parsed = parse(text, REPLACE)
    assert isinstance(parsed, ParseFailure)
    assert parsed.text.startswith("Error: the arguments are")
    kept = storable_arguments(text)
    assert kept.encode()
    assert json.loads(kept) == {"unreadable_arguments": text[:2000]}


@given(st.text())
def test_parser_accepts_any_text_and_every_text_can_be_stored(text: str) -> None:
    assert isinstance(parse(text, REPLACE), Arguments | ParseFailure)
    assert isinstance(json.loads(storable_arguments(text)), dict)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text().filter(lambda key: key not in ("thinking", "request_heartbeat")), json_values))
def test_objects_are_parsed_unchanged(values: dict[str, Any]) -> None:
    assert parse(json.dumps(values), REPLACE) == Arguments(values)


@pytest.mark.parametrize(
    ("given_value", "expected"),
    [(True, True), ("true", True), (" True ", True), (False, False), ("false", False), (1, False), (None, False)],
)
def test_heartbeat_is_removed_and_may_be_text(given_value: object, expected: bool) -> None:
    parsed = parse(json.dumps({"label": "human", "request_heartbeat": given_value}), REPLACE)
    assert parsed == Arguments({"label": "human"}, request_heartbeat=expected)


def test_thinking_is_removed() -> None:
    parsed = parse('{"thinking": "I wonder.", "label": "human"}', REPLACE)
    assert parsed == Arguments({"label": "human"}, thinking="I wonder.")


def test_own_argument_of_that_name_is_kept() -> None:
    properties = {"thinking": {"type": "string"}, "request_heartbeat": {"type": "boolean"}}
    own = ToolSchema("own", "", {"type": "object", "properties": properties})
    assert parse('{"thinking": "x", "request_heartbeat": true}', own) == Arguments(
        {"thinking": "x", "request_heartbeat": True}
    )
    assert with_thinking(own) == own
    assert with_heartbeat(own) == own


def test_added_arguments_are_required_and_thinking_is_first() -> None:
    shown = with_thinking(with_heartbeat(REPLACE))
    assert list(shown.parameters["properties"]) == ["thinking", "label", "old_str", "new_str", "request_heartbeat"]
    assert shown.parameters["required"] == ["thinking", "label", "old_str", "new_str", "request_heartbeat"]
    assert shown.parameters["properties"]["request_heartbeat"]["type"] == "boolean"
    assert "thinking" not in REPLACE.parameters["properties"]
    bare = with_thinking(ToolSchema("bare", "", {}))
    assert bare.parameters["required"] == ["thinking"]


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"label": "human", "old_str": "a"}, "Error: new_str is required for memory_replace"),
        ({"label": None, "old_str": "a", "new_str": "b"}, "Error: label is required for memory_replace"),
        ({"label": 5, "old_str": "a", "new_str": "b"}, "Error: label must be a string, not an integer"),
        ({"label": True, "old_str": "a", "new_str": "b"}, "Error: label must be a string, not true or false"),
        (
            {"label": "human", "old_str": "a", "new_str": "b", "force": True},
            "Error: memory_replace has no argument force (its arguments: label, old_str, new_str)",
        ),
    ],
)
def test_mismatches_name_the_argument(values: dict[str, Any], problem: str) -> None:
    assert check(values, REPLACE) == ParseFailure(problem)


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("limit", "5", "Error: limit must be an integer, not a string"),
        ("limit", True, "Error: limit must be an integer, not true or false"),
        ("limit", 2.5, "Error: limit must be an integer, not a number"),
        ("limit", 0, "Error: limit must be at least 1, not 0"),
        ("roles", "user", "Error: roles must be a list, not a string"),
        ("roles", ["user", 1], "Error: roles[1] must be a string, not an integer"),
        ("roles", ["system"], "Error: Unknown roles 'system'. Supported roles: assistant, user, tool"),
    ],
)
def test_invalid_values_of_a_search_name_the_argument(name: str, value: object, problem: str) -> None:
    assert check({"query": "x", name: value}, SEARCH) == ParseFailure(problem)


def test_unset_null_and_integral_numbers_are_accepted() -> None:
    assert check({"query": "x", "limit": None, "roles": None}, SEARCH) == {"query": "x"}
    checked = check({"query": "x", "limit": 7.0}, SEARCH)
    assert checked == {"query": "x", "limit": 7}
    assert isinstance(checked, dict)
    assert type(checked["limit"]) is int


@pytest.mark.parametrize("tool", ["conversation_search", "archival_memory_search", "semantic_search_files"])
def test_a_search_for_more_results_than_allowed_returns_as_many_as_allowed(tool: str) -> None:
    schema = BUILTIN_SCHEMAS[tool]
    name = next(name for name, field in schema.parameters["properties"].items() if "maximum" in field)
    checked = check({"query": "x", name: 10**12}, schema)
    assert checked == {"query": "x", name: schema.parameters["properties"][name]["maximum"]}


def test_integers_beyond_32_bits_are_refused() -> None:
    insert = BUILTIN_SCHEMAS["memory_insert"]
    refused = check({"label": "human", "new_str": "x", "insert_line": 10**12}, insert)
    assert isinstance(refused, ParseFailure)
    assert refused.text == "Error: insert_line must be at most 2147483647, not 1000000000000"


def test_schemas_are_complete() -> None:
    for name, schema in BUILTIN_SCHEMAS.items():
        properties = schema.parameters["properties"]
        assert schema.name == name
        assert schema.parameters["type"] == "object"
        assert set(schema.parameters["required"]) <= set(properties)
        assert all(given["description"] for given in properties.values())
        assert "letta" not in json.dumps(schema.parameters).lower()
