"""Tool schemas as providers accept them."""

import json
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest
from mnemesh_orchestrator.builtin.schemas import BUILTIN_SCHEMAS
from mnemesh_orchestrator.llm.schemas import renamed_arguments, sendable_tool, strict_schema
from mnemesh_orchestrator.llm.settings import DIALECTS
from mnemesh_orchestrator.model.models import ToolSchema

OPENAI, ANTHROPIC, GOOGLE = DIALECTS["openai"], DIALECTS["anthropic"], DIALECTS["google_ai"]
_OPEN_API = {
    *("type", "format", "title", "description", "nullable", "enum", "items", "minItems", "maxItems", "properties"),
    *("required", "minimum", "maximum", "anyOf"),
}


def _tool(parameters: Any, description: str = "A tool.") -> ToolSchema:
    return ToolSchema("tool", description, parameters)


def _properties(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


TREE = {
    "$defs": {
        "Node": {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/Node"}},
            },
            "required": ["name"],
        }
    },
    "$ref": "#/$defs/Node",
}
SCHEMAS: dict[str, Any] = {
    "empty": {},
    "no type": {"properties": {"a": {}}},
    "array without items": _properties(a={"type": "array"}),
    "array or null without items": _properties(a={"type": ["array", "null"]}),
    "type list": _properties(a={"type": ["string", "integer", "null"]}),
    "missing types": _properties(a={"enum": ["x", "y"]}, b={"items": {}}, c={"properties": {"d": {}}}, d={"const": 5}),
    "references": {
        **_properties(a={"$ref": "#/$defs/A"}, b={"$ref": "#/definitions/B"}, c={"$ref": "#/$defs/No"}),
        "$defs": {"A": {"type": "string", "enum": ["x"]}},
        "definitions": {"B": {"type": "integer"}},
    },
    "reference with siblings": {
        **_properties(a={"$ref": "#/$defs/A", "description": "Mine."}),
        "$defs": {"A": {"type": "string", "description": "Theirs."}},
    },
    "recursive": TREE,
    "recursive root": {**_properties(child={"$ref": "#"}, name={"type": "string"}), "required": ["name"]},
    "mutual": {
        **_properties(a={"$ref": "#/$defs/A"}),
        "$defs": {"A": _properties(b={"$ref": "#/$defs/B"}), "B": _properties(a={"$ref": "#/$defs/A"})},
    },
    "reference to itself": {**_properties(a={"$ref": "#/$defs/A"}), "$defs": {"A": {"$ref": "#/$defs/A"}}},
    "external reference": _properties(a={"$ref": "https://example.com/a.json"}),
    "booleans": _properties(a=True, b=False, c={"type": "array", "items": True}, d={"anyOf": [True, False]}),
    "nulls": {
        "type": "object",
        "properties": {"a": None, "b": {"type": "string", "enum": None, "description": None}},
        "required": None,
        "additionalProperties": None,
    },
    "null properties": {"type": "object", "properties": None, "required": ["a"]},
    "anyOf at the root": {
        "anyOf": [
            {**_properties(a={"type": "string"}), "required": ["a"]},
            {**_properties(b={"type": "string"}), "required": ["b"]},
        ]
    },
    "oneOf of requirements": {
        **_properties(a={"type": "string"}, b={"type": "string"}),
        "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
    },
    "allOf at the root": {
        "allOf": [{**_properties(a={"type": "string"}), "required": ["a"]}, {"$ref": "#/$defs/B"}],
        "$defs": {"B": _properties(b={"type": "integer"})},
    },
    "root with enum and not": {
        **_properties(a={"type": "string"}),
        "not": {"required": ["a"]},
        "enum": [{}],
        "if": {"required": ["a"]},
        "then": {"required": ["b"]},
    },
    "array root": {"type": "array", "items": {"type": "string"}},
    "text root": {"type": "string"},
    "unknown format": _properties(a={"type": "string", "format": "color"}, b={"type": "string", "format": "date-time"}),
    "empty enum": _properties(a={"type": "string", "enum": []}),
    "mixed enum": _properties(a={"enum": ["x", 1, None]}, b={"type": "integer", "enum": [1, 2]}),
    "const": _properties(a={"const": "x"}, b={"oneOf": [{"const": "x", "title": "X"}, {"const": "y"}]}),
    "additional properties": {
        **_properties(a={"type": "object", "additionalProperties": {"type": "array"}}),
        "additionalProperties": {"type": "string"},
    },
    "pattern properties": _properties(a={"type": "object", "patternProperties": {"^x": {"type": "string"}}}),
    "unknown types": _properties(a={"type": "strng"}, b={"type": ["any", "string"]}, c={"type": []}),
    "required unknown": {**_properties(a={"type": "string"}), "required": ["a", "b", "a", 5]},
    "nested requirements": _properties(
        a={"type": "object", "required": ["x"]}, b={"anyOf": [{"required": ["x"]}, {"type": "null"}]}
    ),
    "tuples": _properties(
        a={"type": "array", "items": [{"type": "string"}, {"type": "number"}]},
        b={"type": "array", "prefixItems": [{"type": "string"}], "items": False},
    ),
    "draft 4": _properties(a={"type": "integer", "minimum": 0, "exclusiveMinimum": True}, id="x"),
    "optional of pydantic": _properties(a={"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}),
    "extensions": _properties(a={"type": "string", "x-order": 1, "nullable": True, "example": "x", "deprecated": True}),
    "odd names": {
        **_properties(**{"a b": {"type": "string"}, "a_b": {}, "größe": {}, "x" * 80: {}}),
        "required": ["a b"],
    },
    "keywords as names": _properties(type={"type": "string"}, properties={"type": "object"}, enum={"type": "array"}),
    "numbers as texts": _properties(a={"type": "string", "minLength": "5", "maxLength": -1, "multipleOf": 2}),
}


def _nodes(schema: Any) -> Iterator[dict[str, Any]]:
    yield schema
    parts = [*schema.get("properties", {}).values(), *schema.get("anyOf", ()), *schema.get("oneOf", ())]
    parts += [*schema.get("allOf", ()), schema.get("items"), schema.get("additionalProperties")]
    for part in parts:
        if isinstance(part, dict):
            yield from _nodes(part)


def _require_common_form(schema: dict[str, Any]) -> None:
    assert schema["type"] == "object"
    assert isinstance(schema["properties"], dict)
    assert not {"anyOf", "oneOf", "allOf", "enum", "not", "const", "if", "$ref", "$defs"} & set(schema)
    jsonschema_rs.meta.validate({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema})
    for node in _nodes(schema):
        kinds = node.get("type", [])
        assert "array" not in kinds or "items" in node, node
        assert "$ref" not in json.dumps(node)
        assert node.get("enum") != []
        assert set(node.get("required", ())) <= set(node.get("properties", ())), node
        assert node.get("format") in (None, "date-time")


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_schema_becomes_one_that_providers_accept(name: str) -> None:
    for dialect in (OPENAI, ANTHROPIC, DIALECTS["openai_compatible"], DIALECTS["ollama"]):
        sent = dict(sendable_tool(_tool(SCHEMAS[name]), dialect).parameters)
        _require_common_form(sent)
        assert all(len(key) <= 64 and key.isascii() and " " not in key for key in sent["properties"])
        strict = strict_schema(sent)
        if strict is not None:
            _require_common_form(strict)


@pytest.mark.parametrize("name", SCHEMAS)
def test_google_gets_the_subset_of_openapi(name: str) -> None:
    sent = dict(sendable_tool(_tool(SCHEMAS[name]), GOOGLE).parameters)
    _require_common_form(sent)
    for node in _nodes(sent):
        assert set(node) <= _OPEN_API, node
        assert isinstance(node.get("type"), str) or node.get("anyOf"), node
        assert node.get("type") == "string" or "enum" not in node
        assert all(isinstance(value, str) for value in node.get("enum", ()))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("references", {"a": {"type": "string", "enum": ["x"]}, "b": {"type": "integer"}, "c": {}}),
        ("reference with siblings", {"a": {"type": "string", "description": "Mine."}}),
        ("booleans", {"a": {}, "c": {"type": "array", "items": {}}, "d": {"anyOf": [{}]}}),
        ("nulls", {"a": {}, "b": {"type": "string"}}),
        ("anyOf at the root", {"a": {"type": "string"}, "b": {"type": "string"}}),
        ("allOf at the root", {"a": {"type": "string"}, "b": {"type": "integer"}}),
        (
            "missing types",
            {
                "a": {"enum": ["x", "y"], "type": "string"},
                "b": {"items": {}, "type": "array"},
                "c": {"properties": {"d": {}}, "type": "object"},
                "d": {"const": 5, "type": "integer"},
            },
        ),
        ("array or null without items", {"a": {"type": ["array", "null"], "items": {}}}),
        ("extensions", {"a": {"type": ["string", "null"]}}),
    ],
)
def test_what_a_schema_says_is_kept(name: str, expected: dict[str, Any]) -> None:
    assert sendable_tool(_tool(SCHEMAS[name]), OPENAI).parameters["properties"] == expected


def test_alternatives_of_arguments_are_described() -> None:
    for name in ("anyOf at the root", "oneOf of requirements"):
        sent = sendable_tool(_tool(SCHEMAS[name]), ANTHROPIC).parameters
        assert sent["description"] == "Give one of these sets of arguments: a; or b."
    both = sendable_tool(_tool(SCHEMAS["allOf at the root"]), ANTHROPIC).parameters
    assert both["required"] == ["a"]


def test_a_recursive_schema_is_written_out_some_levels_deep() -> None:
    sent = sendable_tool(_tool(TREE), OPENAI).parameters
    child = sent["properties"]["children"]["items"]
    assert child["properties"]["name"] == {"type": "string"}
    assert len(json.dumps(sent)) < 2_000


def test_many_references_stay_within_bounds() -> None:
    wide = {f"p{number}": {"$ref": "#/$defs/A"} for number in range(20)}
    definitions = {
        name: _properties(**{f"q{n}": {"$ref": f"#/$defs/{after}"} for n in range(20)})
        for name, after in zip("ABCDE", "BCDEF", strict=True)
    }
    sent = sendable_tool(_tool({**_properties(**wide), "$defs": {**definitions, "F": {"type": "string"}}}), OPENAI)
    assert len(json.dumps(sent.parameters)) < 500_000


def test_google_gets_one_type_for_each_part() -> None:
    sent = sendable_tool(_tool(SCHEMAS["type list"]), GOOGLE).parameters["properties"]
    assert sent["a"] == {"nullable": True, "anyOf": [{"type": "string"}, {"type": "integer"}]}
    optional = sendable_tool(_tool(SCHEMAS["optional of pydantic"]), GOOGLE).parameters["properties"]
    assert optional["a"] == {"nullable": True, "type": "string"}
    values = sendable_tool(_tool(SCHEMAS["mixed enum"]), GOOGLE).parameters["properties"]
    assert values["b"] == {"type": "integer", "description": "One of: 1, 2."}
    assert sendable_tool(_tool(SCHEMAS["const"]), GOOGLE).parameters["properties"]["a"] == {
        "enum": ["x"],
        "type": "string",
    }


def test_odd_names_of_arguments_are_mapped_back() -> None:
    own = SCHEMAS["odd names"]
    sent = sendable_tool(_tool(own), ANTHROPIC).parameters
    assert list(sent["properties"]) == ["a_b_2", "a_b", "gr__e", "x" * 60]
    assert sent["required"] == ["a_b_2"]
    assert renamed_arguments(own) == {"a_b_2": "a b", "gr__e": "größe", "x" * 60: "x" * 80}
    assert renamed_arguments(SCHEMAS["const"]) == {}


def test_a_description_that_is_too_long_goes_on_with_the_arguments() -> None:
    words = " ".join(f"word{number}" for number in range(400))
    sent = sendable_tool(_tool(_properties(), words), OPENAI)
    assert len(sent.description) <= 1_024
    assert sent.description.endswith("…")
    assert f"{sent.description[:-1]} {sent.parameters['description'][1:]}" == words
    assert sendable_tool(_tool(_properties(), words), ANTHROPIC).description == words


@pytest.mark.parametrize("dialect", [OPENAI, ANTHROPIC, DIALECTS["vllm"]], ids=lambda dialect: dialect.type)
def test_built_in_tools_are_sent_as_they_are(dialect: Any) -> None:
    for tool in BUILTIN_SCHEMAS.values():
        assert json.dumps(sendable_tool(tool, dialect).parameters) == json.dumps(tool.parameters)
