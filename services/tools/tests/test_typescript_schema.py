"""Schemas of TypeScript, and programs as modules."""

from typing import Any

import pytest
from mnemesh_tools.errors import ToolSourceInvalid
from mnemesh_tools.schema import program_module, read_typescript

DECLARATIONS = """
import { readFile } from 'node:fs/promises';

enum Unit { Celsius = 'c', Fahrenheit = "f" }
enum Level { Low, Middle = 5, High }
const enum Flag { On = 'on' }
type Ids = number[];
type Mode = 'fast' | 'slow';
interface Base { id: string }
export interface Place extends Base {
  /** The city, by name. */
  city: string;
  zip?: number;
  'post-box': string | undefined;
}
type Node_ = { next: Node_ };
type Box<T> = { value: T };
class Robot {}
"""


def _facts(parameter: str) -> Any:
    comment = "/**\n * Does.\n *\n * @param p - It.\n */\n"
    return read_typescript(f"{DECLARATIONS}{comment}export function tool({parameter}) {{}}", "source")


PLACE = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "city": {"type": "string", "description": "The city, by name."},
        "zip": {"type": "number"},
        "post-box": {"type": "string"},
    },
    "required": ["id", "city"],
    "additionalProperties": False,
}
LETTERS = {"type": "string", "enum": ["a", "b"]}


def _object(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


@pytest.mark.parametrize(
    ("annotation", "schema"),
    [
        ("string", {"type": "string"}),
        ("number", {"type": "number"}),
        ("boolean", {"type": "boolean"}),
        ("any", {}),
        ("unknown", {}),
        ("object", {"type": "object"}),
        ("null", {"type": "null"}),
        ("string[]", {"type": "array", "items": {"type": "string"}}),
        ("number[][]", {"type": "array", "items": {"type": "array", "items": {"type": "number"}}}),
        ("Array<boolean>", {"type": "array", "items": {"type": "boolean"}}),
        ("readonly string[]", {"type": "array", "items": {"type": "string"}}),
        ("ReadonlyArray<Place>", {"type": "array", "items": PLACE}),
        ("('a' | 'b')[]", {"type": "array", "items": LETTERS}),
        (
            "[string, number]",
            {
                "type": "array",
                "prefixItems": [{"type": "string"}, {"type": "number"}],
                "minItems": 2,
                "maxItems": 2,
            },
        ),
        ("[x: string]", {"type": "array", "prefixItems": [{"type": "string"}], "minItems": 1, "maxItems": 1}),
        ("'a' | 'b'", LETTERS),
        ("'a' | 'b' | 'a'", LETTERS),
        ("'it\\'s' | '\\u00e9'", {"type": "string", "enum": ["it's", "é"]}),
        ("1 | -2 | 0.5", {"type": "number", "enum": [1, -2, 0.5]}),
        ("true", {"type": "boolean", "enum": [True]}),
        ("'a' | 1", {"enum": ["a", 1]}),
        ("'a' | null", {"anyOf": [{"type": "string", "enum": ["a"]}, {"type": "null"}]}),
        ("string | number", {"anyOf": [{"type": "string"}, {"type": "number"}]}),
        ("string | (number | null)", {"anyOf": [{"type": "string"}, {"type": "number"}, {"type": "null"}]}),
        ("Unit", {"type": "string", "enum": ["c", "f"]}),
        ("Level", {"type": "number", "enum": [0, 5, 6]}),
        ("Flag", {"type": "string", "enum": ["on"]}),
        ("Mode", {"type": "string", "enum": ["fast", "slow"]}),
        ("Ids", {"type": "array", "items": {"type": "number"}}),
        ("Place", PLACE),
        ("{ a: string; b?: number }", _object(["a"], a={"type": "string"}, b={"type": "number"})),
        ("{ a: { b: Unit } }", _object(["a"], a=_object(["b"], b={"type": "string", "enum": ["c", "f"]}))),
        ("{ [name: string]: number }", {"type": "object", "additionalProperties": {"type": "number"}}),
        (
            "Record<string, string[]>",
            {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "string"}}},
        ),
        ("Record<'a' | 'b', number>", _object(["a", "b"], a={"type": "number"}, b={"type": "number"})),
        ("Partial<{ a: string }>", _object([], a={"type": "string"})),
        ("Required<{ a?: string }>", _object(["a"], a={"type": "string"})),
        ("Readonly<{ a: string }>", _object(["a"], a={"type": "string"})),
        ("Pick<Place, 'id'>", _object(["id"], id={"type": "string"})),
        ("Omit<Place, 'city' | 'zip' | 'post-box'>", _object(["id"], id={"type": "string"})),
        ("Base & { n: number }", _object(["id", "n"], id={"type": "string"}, n={"type": "number"})),
        ("`id-${string}`", {"type": "string"}),
    ],
)
def test_schema_of_a_type(annotation: str, schema: dict[str, Any]) -> None:
    facts = _facts(f"p: {annotation}")
    assert facts.problem == ""
    assert facts.schema.parameters == {
        "type": "object",
        "properties": {"p": {**schema, "description": "It."}},
        "required": ["p"],
    }
    assert (facts.name, facts.description, facts.parameters) == ("tool", "Does.", ("p",))


@pytest.mark.parametrize(
    ("parameter", "schema"),
    [
        ("p?: string", {"type": "string"}),
        ("p: string | undefined", {"type": "string"}),
        ("p: string = 'x'", {"type": "string"}),
        ("p = 5", {"type": "number"}),
        ("p = true", {"type": "boolean"}),
        ("p = 'x'", {"type": "string"}),
    ],
)
def test_parameter_with_a_default_is_optional(parameter: str, schema: dict[str, Any]) -> None:
    parameters = _facts(parameter).schema.parameters
    assert parameters["properties"]["p"] == {**schema, "description": "It."}
    assert parameters["required"] == []


@pytest.mark.parametrize(
    ("parameter", "problem"),
    [
        ("p: Date", "JSON has no values of 'Date'; use a string"),
        ("p: Map<string, number>", "JSON has no values of 'Map'; use Record"),
        ("p: { when: Date }", "the field 'when': JSON has no values of 'Date'"),
        ("p: bigint", "use a string or a number"),
        ("p: undefined", "JSON has no values of 'undefined'"),
        ("p: void | string", "JSON has no values of 'void'"),
        ("p: Unknown_", "'Unknown_' is not declared in the source"),
        ("p: Node_", "'Node_' contains itself"),
        ("p: Box<string>", "'Box<string>' has no JSON schema"),
        ("p: Box", "'Box' is generic"),
        ("p: Robot", "'Robot' is a class; use an interface"),
        ("p: (a: string) => void", "has no JSON schema"),
        ("p: Place['city']", "has no JSON schema"),
        ("p: keyof Place", "has no JSON schema"),
        ("p: Record<number, string>", "are not strings"),
        ("p: string & number", "joins types that are not objects"),
        ("p: { run(): void }", "is not a field"),
        ("p: [string, ...number[]]", "has no fixed length"),
        ("p: Partial<string>", "is not of an object with fields"),
        ("...p: string[]", "collects the rest"),
        ("[p]: string[]", "is a pattern"),
        ("p: " + "[" * 60 + "string" + "]" * 60, "nested too deeply"),
        ("p: {" + "".join(f"a{n}: string;" for n in range(2_500)) + "}", "more than 2,000 parts"),
    ],
)
def test_type_without_json_values_is_refused(parameter: str, problem: str) -> None:
    facts = _facts(parameter)
    assert facts.schema is None
    assert facts.problem.startswith("Parameter '")
    assert problem in facts.problem
    with pytest.raises(ToolSourceInvalid) as caught:
        facts.require_schema("tool.source_code")
    assert caught.value.metadata["parameter"] == facts.parameter


def test_object_pattern_is_the_object_of_all_arguments() -> None:
    source = """
    /**
     * Books.
     * @param args.city The city.
     */
    export const book = async ({ city, nights = 1 }: { city: string; /** How many. */ nights: number }) => city;
    """
    facts = read_typescript(source, "source")
    assert facts.takes_object
    assert facts.schema is not None
    assert facts.schema.parameters == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "The city."},
            "nights": {"type": "number", "description": "How many."},
        },
        "required": ["city"],
    }


def test_last_function_is_the_tool_and_agent_state_is_hidden() -> None:
    source = """
    function helper() { return 1; }
    /** Reads. */
    export default async function read(this: any, agent_state: any): Promise<string> { return ''; }
    const value = 3;
    """
    facts = read_typescript(source, "source")
    assert (facts.name, facts.takes_agent, facts.parameters) == ("read", True, ("agent_state",))
    assert facts.schema is not None
    assert facts.schema.parameters["properties"] == {}
    assert read_typescript(source, "source", name="helper").problem == "Function 'helper' has no JSDoc comment."


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("const x = 1;", "The source has no function at its top level."),
        ("", "The source has no function at its top level."),
        ("\nfunction f( {", "The source is not valid TypeScript: there is an error in line 2."),
        ("def f():\n    pass", "The source is not valid TypeScript"),
        ("/** F. */\nfunction f() {}\0", "contains a NUL character"),
        ("function " + "f" * 60 + "() {}", "longer than 48 characters"),
        ("function ünï() {}", "is not an identifier"),
        ("x" * 250_001, "at most 250,000 characters"),
        ("(" * 100_000, "The source is not valid TypeScript"),
    ],
)
def test_source_without_a_tool_is_refused(source: str, problem: str) -> None:
    with pytest.raises(ToolSourceInvalid, match=problem) as caught:
        read_typescript(source, "tool.source_code")
    assert caught.value.metadata["field"] == "tool.source_code"


def test_parameter_needs_a_description() -> None:
    facts = read_typescript("/** F. */\nfunction f(a: string) {}", "source")
    assert facts.problem == "Parameter 'a' in function 'f' lacks a description in the JSDoc comment (@param)"
    assert facts.parameter == "a"


@pytest.mark.parametrize(
    ("source", "module"),
    [
        ("const x = 1;\nx + 1; // sum\n", "const x = 1;\nexport default (x + 1); // sum\n"),
        ("await f()", "export default (await f());"),
        ("'é'", "export default ('é');"),
        ("const x = 1;", "const x = 1;"),
        ("", ""),
        ("export default 4;\n5", "export default 4;\n5"),
        ("const x = (", "const x = ("),
    ],
)
def test_value_of_a_program_is_its_default_export(source: str, module: str) -> None:
    assert program_module(source) == module
