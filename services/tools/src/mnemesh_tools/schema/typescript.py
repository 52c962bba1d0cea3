"""Generates function schemas from the signatures and JSDoc comments of TypeScript, and prepares sources for Node."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

import tree_sitter_typescript
from mnemesh_kit.unicode import well_formed
from mnemesh_sandbox.inside.node import EXPORT
from tree_sitter import Language, Node, Parser

from mnemesh_tools.errors import ToolSourceInvalid
from mnemesh_tools.schema.budget import UnsupportedAnnotation
from mnemesh_tools.schema.source import MAX_PARAMETERS, MAX_SOURCE_CHARS, FunctionSchema, SourceFacts, check_name
from mnemesh_tools.schema.typescript_types import TypeReader, text_of

AGENT: Final = "agent_state"
_FUNCTIONS: Final = ("arrow_function", "function_expression")
_PARAMETER: Final = re.compile(r"(?:\{[^}]*\}\s*)?\[?([\w$.]+)(?:\s*=[^\]]*)?\]?\s*(?:-\s*)?(.*)", re.DOTALL)
_COMMENT_MARK: Final = re.compile(r"^[ \t]*\*?[ ]?", re.MULTILINE)


@cache
def _language() -> Language:
    return Language(tree_sitter_typescript.language_typescript())


def read_typescript(source: str, source_field: str, *, name: str | None = None) -> SourceFacts:
    """Returns the facts about the last function at the top level of `source`, or about the function `name`.

    Raises:
        ToolSourceInvalid: The source is not valid TypeScript, or has no such function with a name that a tool can have.
    """
    root = _parsed(source, source_field)
    functions = [found for node in root.named_children for found in _functions(node)]
    if name is not None:
        functions = [found for found in functions if found.name == name]
    if not functions:
        missing = "function" if name is None else f"function '{name[:100]}'"
        raise ToolSourceInvalid(f"The source has no {missing} at its top level.", field=source_field)
    function = functions[-1]
    check_name(function.name, source_field)
    comment = _comment(function.statement)
    names = tuple(text_of(_pattern(parameter))[:200] for parameter in function.parameters)
    schema, problem, cause = None, "", None
    try:
        schema = FunctionSchema(function.name, comment.text, _signature(root, function, comment))
    except _NoSchema as error:
        problem, cause = error.problem, error.parameter
    return SourceFacts(
        function.name,
        comment.text,
        AGENT in names,
        schema,
        problem,
        cause,
        parameters=names,
        takes_object=_takes_object(function),
    )


def tool_module(source: str, function: str) -> str:
    """Returns the source of a tool as a module that exports its function for the sandbox."""
    return f"{source}\nexport {{ {function} as {EXPORT} }};"


def program_module(source: str) -> str:
    """Returns a program as a module whose default export is the value of its last expression.

    A source that cannot be parsed is returned unchanged: Node names the error in it.
    """
    data = source.encode("utf-8", "replace")
    root = Parser(_language()).parse(data).root_node
    statements = [node for node in root.named_children if node.type != "comment"]
    has_export = any(child.type == "default" for node in statements for child in node.children)
    if root.has_error or not statements or has_export or statements[-1].type != "expression_statement":
        return source
    last = statements[-1].named_children[0]
    value = data[last.start_byte : last.end_byte]
    return (data[: last.start_byte] + b"export default (" + value + b");" + data[statements[-1].end_byte :]).decode()


@dataclass(frozen=True, slots=True)
class _Function:
    name: str
    statement: Node
    """The statement at the top level, behind its comment."""
    parameters: tuple[Node, ...]


@dataclass(slots=True)
class _Comment:
    exists: bool = False
    text: str = ""
    parameters: dict[str, str] = field(default_factory=dict)


class _NoSchema(Exception):
    def __init__(self, problem: str, parameter: str | None = None) -> None:
        super().__init__(problem)
        self.problem = problem
        self.parameter = parameter


def _parsed(source: str, source_field: str) -> Node:
    if len(source) > MAX_SOURCE_CHARS:
        raise ToolSourceInvalid(f"The source must be at most {MAX_SOURCE_CHARS:,} characters.", field=source_field)
    if well_formed(source) != source:
        raise ToolSourceInvalid("The source contains a NUL character or half of a character.", field=source_field)
    root = Parser(_language()).parse(source.encode()).root_node
    if root.has_error:
        line = _first_error(root).start_point[0] + 1
        raise ToolSourceInvalid(
            f"The source is not valid TypeScript: there is an error in line {line}.", field=source_field
        )
    return root


def _first_error(node: Node) -> Node:
    while True:
        found = next((child for child in node.children if child.has_error or child.is_missing), None)
        if found is None or node.is_error:
            return node
        node = found


def _functions(statement: Node) -> Iterator[_Function]:
    declared = statement.child_by_field_name("declaration") if statement.type == "export_statement" else statement
    if declared is None:
        return
    if declared.type == "function_declaration":
        name, parameters = declared.child_by_field_name("name"), declared.child_by_field_name("parameters")
        if name is not None and parameters is not None:
            yield _Function(text_of(name), statement, tuple(_parameters(parameters)))
    elif declared.type in ("lexical_declaration", "variable_declaration"):
        for item in declared.named_children:
            value, name = item.child_by_field_name("value"), item.child_by_field_name("name")
            if value is None or name is None or value.type not in _FUNCTIONS or name.type != "identifier":
                continue
            listed = value.child_by_field_name("parameters")
            single = value.child_by_field_name("parameter")  # x => x
            parameters_ = tuple(_parameters(listed)) if listed is not None else (single,) if single is not None else ()
            yield _Function(text_of(name), statement, parameters_)


def _parameters(node: Node) -> Iterator[Node]:
    for child in node.named_children:
        pattern = child.child_by_field_name("pattern")
        if child.type != "comment" and not (pattern is not None and pattern.type == "this"):
            yield child


def _pattern(parameter: Node) -> Node:
    return parameter.child_by_field_name("pattern") or parameter


def _takes_object(function: _Function) -> bool:
    return len(function.parameters) == 1 and _pattern(function.parameters[0]).type == "object_pattern"


def _comment(statement: Node) -> _Comment:
    before = statement.prev_named_sibling
    if before is None or before.type != "comment" or not text_of(before).startswith("/**"):
        return _Comment()
    head, *tags = re.split(r"^[ \t]*@", _COMMENT_MARK.sub("", text_of(before)[3:-2]), flags=re.MULTILINE)
    comment = _Comment(True, head.strip())
    for tag in tags:
        kind, _, rest = tag.partition(" ")
        if kind in ("param", "arg", "argument") and (match := _PARAMETER.fullmatch(rest.strip())):
            comment.parameters[match[1]] = " ".join(match[2].split())
        elif kind == "description" and not comment.text:
            comment.text = rest.strip()
    return comment


def _signature(root: Node, function: _Function, comment: _Comment) -> dict[str, Any]:
    """Returns the JSON schema of the arguments."""
    if not comment.exists:
        raise _NoSchema(f"Function '{function.name}' has no JSDoc comment.")
    reader = TypeReader(root)
    if _takes_object(function):
        return _object_signature(reader, function, comment)
    if len(function.parameters) > MAX_PARAMETERS:
        raise _NoSchema(f"Function '{function.name}' has more than {MAX_PARAMETERS} parameters.")
    properties: dict[str, Any] = {}
    required: list[str] = []
    for parameter in function.parameters:
        pattern = _pattern(parameter)
        name = text_of(pattern)[:200]
        if pattern.type == "rest_pattern":
            raise _invalid(function, name, "collects the rest: a tool must declare each of its parameters")
        if pattern.type != "identifier":
            raise _invalid(function, name, "is a pattern: only a single parameter can be one")
        if name == AGENT:
            continue
        annotation, default = parameter.child_by_field_name("type"), parameter.child_by_field_name("value")
        try:
            schema, is_optional = reader.parameter(annotation, default)
        except UnsupportedAnnotation as error:
            raise _invalid(function, name, f"has an unsupported type: {error}") from error
        properties[name] = _described(function, name, schema, comment.parameters.get(name, ""))
        if parameter.type != "optional_parameter" and default is None and not is_optional:
            required.append(name)
    return {"type": "object", "properties": properties, "required": required}


def _object_signature(reader: TypeReader, function: _Function, comment: _Comment) -> dict[str, Any]:
    parameter = function.parameters[0]
    pattern = _pattern(parameter)
    name = text_of(pattern)[:200]
    annotation = parameter.child_by_field_name("type")
    if annotation is None:
        raise _invalid(function, name, "has no type: declare the fields of the object")
    try:
        schema, _ = reader.parameter(annotation, None)
    except UnsupportedAnnotation as error:
        raise _invalid(function, name, f"has an unsupported type: {error}") from error
    if "properties" not in schema:
        raise _invalid(function, name, "is a pattern, so its type must be an object with fields")
    defaults = {
        text_of(item.named_children[0]) for item in pattern.named_children if item.type == "object_assignment_pattern"
    }
    described = {key.rpartition(".")[2]: text for key, text in comment.parameters.items()}
    properties = {
        key: _described(function, key, value, described.get(key) or value.get("description", ""))
        for key, value in schema["properties"].items()
    }
    required = [key for key in schema.get("required", ()) if key not in defaults]
    return {"type": "object", "properties": properties, "required": required}


def _described(function: _Function, name: str, schema: dict[str, Any], description: str) -> dict[str, Any]:
    if not description:
        raise _NoSchema(
            f"Parameter '{name}' in function '{function.name}' lacks a description in the JSDoc comment (@param)", name
        )
    return {**schema, "description": description}


def _invalid(function: _Function, parameter: str, problem: str) -> _NoSchema:
    return _NoSchema(f"Parameter '{parameter}' in function '{function.name}' {problem}.", parameter)
