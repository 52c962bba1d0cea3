"""Coercion and validation of arguments."""

from typing import Any

import pytest
from mnemesh_tools.errors import ToolArgumentsInvalid
from mnemesh_tools.model.executions import ExecutableTool, coerced_arguments
from mnemesh_tools.schema import coerce
from mnemesh_types.tools import SourceType

INTEGERS = {"type": "array", "items": {"type": "integer"}}


def _coerced(value: Any, schema: dict[str, Any]) -> Any:
    return coerce({"p": value}, {"type": "object", "properties": {"p": schema}, "required": ["p"]}, "arguments")["p"]


@pytest.mark.parametrize(
    ("value", "schema", "expected"),
    [
        ("5", {"type": "integer"}, 5),
        (" -5 ", {"type": "integer"}, -5),
        (5.0, {"type": "integer"}, 5),
        ("1.5", {"type": "number"}, 1.5),
        ("2", {"type": "number"}, 2),
        ("true", {"type": "boolean"}, True),
        ("False", {"type": "boolean"}, False),
        (0, {"type": "boolean"}, False),
        (5, {"type": "string"}, "5"),
        (True, {"type": "string"}, "true"),
        ('[1, "2"]', INTEGERS, [1, 2]),
        (["1", 2], INTEGERS, [1, 2]),
        ('{"a": "1"}', {"type": "object", "additionalProperties": {"type": "integer"}}, {"a": 1}),
        ({"a": [1]}, {"type": "object"}, {"a": [1]}),
        (["1", "x"], {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}]}, [1, "x"]),
        ("2", {"type": "integer", "enum": [1, 2]}, 2),
        ("a", {"type": ["integer", "string"], "enum": [1, "a"]}, "a"),
        ("5", {"anyOf": [{"type": "integer"}, {"type": "string"}]}, "5"),
        (5, {"anyOf": [{"type": "string"}, {"type": "integer"}]}, 5),
        ("[1]", {"anyOf": [{"type": "integer"}, INTEGERS]}, [1]),
        ("__import__('os').getpid()", {"type": "string"}, "__import__('os').getpid()"),
        ({"x": 1}, {}, {"x": 1}),
    ],
)
def test_arguments_are_coerced(value: Any, schema: dict[str, Any], expected: Any) -> None:
    result = _coerced(value, schema)
    assert (result, type(result)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("value", "schema", "words"),
    [
        ("five", {"type": "integer"}, "Argument 'p' must be an integer, not \"five\"."),
        (True, {"type": "integer"}, "must be an integer"),
        (1.5, {"type": "integer"}, "must be an integer"),
        ("nan", {"type": "number"}, "must be a number"),
        ("perhaps", {"type": "boolean"}, "must be true or false"),
        ("[__import__('os')]", {"type": "array"}, "must be a list"),
        ("1, 2", INTEGERS, "must be a list"),
        ('[1, "x"]', INTEGERS, "Argument 'p[1]' must be an integer"),
        ("3", {"type": "integer", "enum": [1, 2]}, "must be one of 1, 2"),
        (None, {"type": "string"}, "must be a string, not null"),
        ([1], {"type": "array", "prefixItems": [{}, {}]}, "must be a list of 2"),
        ("[" * 100_000, {"type": "array"}, "must be a list"),
        ("9" * 5000, {"type": "integer"}, "must be an integer"),
    ],
)
def test_argument_of_another_type_is_refused_by_name(value: Any, schema: dict[str, Any], words: str) -> None:
    with pytest.raises(ToolArgumentsInvalid) as caught:
        _coerced(value, schema)
    assert words in caught.value.message
    assert caught.value.metadata == {"field": "arguments", "parameter": "p"}


def test_unknown_and_missing_arguments_are_refused_by_name() -> None:
    """Optional arguments can be absent or null."""
    schema = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}, "required": ["a"]}
    assert coerce({"a": "x", "b": None}, schema, "arguments") == {"a": "x"}
    with pytest.raises(ToolArgumentsInvalid, match=r"Parameter 'c' does not exist. The parameters are: a, b\."):
        coerce({"a": "x", "c": 1}, schema, "arguments")
    with pytest.raises(ToolArgumentsInvalid, match=r"Required arguments are missing: 'a'\."):
        coerce({}, schema, "arguments")


def test_schema_that_is_not_valid_is_named_as_the_cause() -> None:
    parameters = {"type": "object", "properties": {"p": {"type": "array", "prefixItems": 5}}}
    tool = ExecutableTool("", SourceType.PYTHON, "f", parameters, (), (), network=None, takes_agent=False)
    with pytest.raises(ToolArgumentsInvalid, match="its schema is not a JSON schema"):
        coerced_arguments(tool, '{"p": [1]}')


REFERENCES = {
    "type": "object",
    "properties": {"order": {"$ref": "#/$defs/Order"}},
    "required": ["order"],
    "$defs": {
        "Order": {
            "type": "object",
            "properties": {
                "count": {"type": "integer"},
                "parts": {"type": "array", "items": {"$ref": "#/$defs/Order"}},
                "note": {"type": "string"},
            },
            "required": ["count"],
            "additionalProperties": False,
        },
        "Loop": {"$ref": "#/$defs/Loop"},
    },
}


def test_references_within_a_schema_are_followed() -> None:
    """Clients send schemas of pydantic, which have their models in $defs."""
    order = '{"count": "1", "parts": [{"count": "2"}]}'
    assert coerce({"order": order}, REFERENCES, "arguments") == {"order": {"count": 1, "parts": [{"count": 2}]}}


@pytest.mark.parametrize("reference", ["#/$defs/Loop", "#/$defs/Missing", "https://example.com/schema", "#"])
def test_anything_matches_a_reference_that_leads_nowhere(reference: str) -> None:
    schema = {**REFERENCES, "properties": {"order": {"$ref": reference}}, "required": []}
    value = 5 if reference != "#" else {}
    assert coerce({"order": value}, schema, "arguments") == {"order": value}


@pytest.mark.parametrize(
    ("order", "words"),
    [
        ({"count": "many"}, "Argument 'order.count' must be an integer"),
        ({"parts": []}, "Argument 'order.count' must be present"),
        (
            {"count": 1, "parts": [{"count": 2, "x": 1}]},
            "'order.parts[0]' must be an object with no other fields than ",
        ),
    ],
)
def test_fields_of_an_object_are_checked_by_name(order: Any, words: str) -> None:
    with pytest.raises(ToolArgumentsInvalid) as caught:
        coerce({"order": order}, REFERENCES, "arguments")
    assert words in caught.value.message


def test_none_stands_for_an_absent_optional_field() -> None:
    assert coerce({"order": {"count": 1, "note": None}}, REFERENCES, "arguments") == {"order": {"count": 1}}
    nullable = {"type": "object", "properties": {"note": {"anyOf": [{"type": "string"}, {"type": "null"}]}}}
    assert _coerced({"note": None}, nullable) == {"note": None}
