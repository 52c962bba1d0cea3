"""Generates function schemas from the signatures and JSDoc comments of TypeScript, and prepares sources for Node."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

import tree_sitter_typescript
from mnemesh_kit.unicode import well_formed
from mnemesh_sandbox.inside.node import EXPORT
from tree_sitter import Language, Node, Parser

from mnemesh_tools.errors import ToolSourceInvalid
from mnemesh_tools.schema.declarations import SchemaBudget, UnsupportedAnnotation
from mnemesh_tools.schema.source import MAX_PARAMETERS, MAX_SOURCE_CHARS, FunctionSchema, SourceFacts, check_name

_PLAIN: Final[Mapping[str, dict[str, Any]]] = {
    "string": {"type": "string"},
    "number": {"type": "number"},
    "boolean": {"type": "boolean"},
    "any": {},
    "unknown": {},
    "object": {"type": "object"},
}
_ARRAYS: Final = ("Array", "ReadonlyArray")
_NOT_JSON: Final = {
    "Date": "a string",
    "Map": "Record",
    "Set": "an array",
    "ReadonlyMap": "Record",
    "ReadonlySet": "an array",
    "Buffer": "a string",
    "Uint8Array": "an array of numbers",
    "bigint": "a string or a number",
    "symbol": "a string",
    "Function": "data",
}
_DECLARATIONS: Final = ("interface_declaration", "type_alias_declaration", "enum_declaration", "class_declaration")
_NO_VALUES: Final = ("undefined", "void", "never")


def text_of(node: Node) -> str:
    """Returns the source of a node."""
    return (node.text or b"").decode("utf-8", "replace")


class TypeReader:
    """Reads the types of one source."""

    def __init__(self, root: Node) -> None:
        """Collects the declarations at the top level of a source."""
        self._budget = SchemaBudget()
        self._open: list[str] = []
        self._declared: dict[str, Node] = {}
        for statement in root.named_children:
            declared = statement.child_by_field_name("declaration") or statement
            name = declared.child_by_field_name("name")
            if declared.type in _DECLARATIONS and name is not None:
                self._declared[text_of(name)] = declared

    def parameter(self, annotation: Node | None, default: Node | None) -> tuple[dict[str, Any], bool]:
        """Returns the schema of a parameter, and whether its type includes undefined.

        Raises:
            UnsupportedAnnotation: JSON has no values of the type.
        """
        if annotation is None:
            return dict(_PLAIN[_type_of_literal(default)]), False
        node = _inner(annotation)
        parts = _members(node)
        return self._union(parts, 0), any(text_of(part) == "undefined" for part in parts)

    def _schema(self, node: Node, depth: int) -> dict[str, Any]:
        schema = self._make(node, depth)
        texts = [*schema.values(), *schema.get("enum", ()), *schema.get("properties", ())]
        self._budget.spend(1, sum(len(text) for text in texts if isinstance(text, str)), depth)
        return schema

    def _make(self, node: Node, depth: int) -> dict[str, Any]:
        self._budget.spend(0, 0, depth)
        match node.type:
            case "predefined_type" | "type_identifier":
                return self._named(text_of(node), depth)
            case "union_type":
                return self._union(_members(node), depth)
            case "literal_type":
                return self._union([node], depth)
            case "array_type":
                return {"type": "array", "items": self._schema(node.named_children[0], depth + 1)}
            case "parenthesized_type" | "readonly_type":
                return self._schema(node.named_children[0], depth)
            case "tuple_type":
                return self._tuple(node, depth)
            case "object_type":
                return self._object(node, depth)
            case "generic_type":
                return self._generic(node, depth)
            case "intersection_type":
                return self._intersection(node, depth)
            case "template_literal_type":
                return dict(_PLAIN["string"])
            case _:
                raise UnsupportedAnnotation(f"'{text_of(node)[:100]}' has no JSON schema")

    def _named(self, name: str, depth: int) -> dict[str, Any]:
        if name in self._declared:
            return self._declaration(name, depth)
        if name in _PLAIN:
            return dict(_PLAIN[name])
        if name in _NOT_JSON:
            raise UnsupportedAnnotation(f"JSON has no values of '{name}'; use {_NOT_JSON[name]}")
        raise UnsupportedAnnotation(f"'{name[:100]}' is not declared in the source")

    def _declaration(self, name: str, depth: int) -> dict[str, Any]:
        node = self._declared[name]
        if name in self._open:
            raise UnsupportedAnnotation(f"'{name}' contains itself")
        if node.child_by_field_name("type_parameters") is not None:
            raise UnsupportedAnnotation(f"'{name}' is generic")
        self._open.append(name)
        try:
            match node.type:
                case "interface_declaration":
                    return self._interface(node, depth)
                case "enum_declaration":
                    return self._enum(node)
                case "type_alias_declaration":
                    value = node.child_by_field_name("value")
                    return self._schema(value, depth) if value is not None else {}
                case _:
                    raise UnsupportedAnnotation(f"'{name}' is a class; use an interface")
        finally:
            self._open.pop()

    def _interface(self, node: Node, depth: int) -> dict[str, Any]:
        parents = [
            child for part in node.named_children if part.type.startswith("extends") for child in part.named_children
        ]
        body = node.child_by_field_name("body")
        own = self._object(body, depth) if body is not None else {"type": "object"}
        return _merged([*(self._schema(parent, depth) for parent in parents), own])

    def _intersection(self, node: Node, depth: int) -> dict[str, Any]:
        parts = [self._schema(child, depth + 1) for child in node.named_children]
        if any(part.get("type") != "object" for part in parts):
            raise UnsupportedAnnotation(f"'{text_of(node)[:100]}' joins types that are not objects")
        return _merged(parts)

    def _object(self, node: Node, depth: int) -> dict[str, Any]:
        properties: dict[str, Any] = {}
        required: list[str] = []
        others: Any = False
        for member in node.named_children:
            if member.type == "comment":
                continue
            annotation = member.child_by_field_name("type")
            if member.type == "index_signature" and annotation is not None:
                others = self._schema(_inner(annotation), depth + 1)
                continue
            name_node = member.child_by_field_name("name")
            if member.type != "property_signature" or name_node is None:
                raise UnsupportedAnnotation(f"'{text_of(member)[:100]}' is not a field")
            name = _literal(name_node) if name_node.type == "string" else text_of(name_node)
            properties[name] = self._field(member, name, annotation, depth)
            is_optional = any(child.type == "?" for child in member.children)
            parts = [] if annotation is None else _members(_inner(annotation))
            if not is_optional and not any(text_of(part) == "undefined" for part in parts):
                required.append(name)
        if not properties and others is not False:
            return {"type": "object", "additionalProperties": others}
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": others}

    def _field(self, member: Node, name: str, annotation: Node | None, depth: int) -> dict[str, Any]:
        try:
            schema = {} if annotation is None else self._union(_members(_inner(annotation)), depth + 1)
        except UnsupportedAnnotation as error:
            raise UnsupportedAnnotation(f"the field '{name}': {error}") from error
        self._budget.spend(1, len(name), depth + 1)
        before = member.prev_named_sibling
        if before is not None and before.type == "comment" and text_of(before).startswith("/**"):
            lines = [line.strip().removeprefix("*").strip() for line in text_of(before)[3:-2].splitlines()]
            schema = {**schema, "description": " ".join(line for line in lines if line)}
        return schema

    def _tuple(self, node: Node, depth: int) -> dict[str, Any]:
        items = []
        for child in node.named_children:
            if child.type in ("rest_type", "optional_type", "optional_parameter"):
                raise UnsupportedAnnotation(f"'{text_of(node)[:100]}' has no fixed length")
            inner = child.child_by_field_name("type") if child.type == "required_parameter" else child
            items.append(self._schema(_inner(inner) if inner is not None else child, depth + 1))
        return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}

    def _generic(self, node: Node, depth: int) -> dict[str, Any]:
        name = text_of(node.named_children[0])
        given = [child for child in node.named_children[1].named_children if child.type != "comment"]
        if name in _ARRAYS and len(given) == 1:
            return {"type": "array", "items": self._schema(given[0], depth + 1)}
        if name == "Record" and len(given) == 2:
            return self._record(given[0], given[1], depth)
        change = _CHANGES.get(name)
        if change is not None:
            schema = self._schema(given[0], depth)
            if "properties" not in schema:
                raise UnsupportedAnnotation(f"'{text_of(node)[:100]}' is not of an object with fields")
            keys = [str(key) for key in self._keys(given[1], depth)] if len(given) > 1 else []
            return change(schema, keys)
        if name in _NOT_JSON:
            raise UnsupportedAnnotation(f"JSON has no values of '{name}'; use {_NOT_JSON[name]}")
        raise UnsupportedAnnotation(f"'{text_of(node)[:100]}' has no JSON schema")

    def _record(self, key: Node, value: Node, depth: int) -> dict[str, Any]:
        keys, values = self._schema(key, depth + 1), self._schema(value, depth + 1)
        if "enum" in keys:
            names = [str(name) for name in keys["enum"]]
            fields = dict.fromkeys(names, values)
            return {"type": "object", "properties": fields, "required": names, "additionalProperties": False}
        if keys != _PLAIN["string"]:
            raise UnsupportedAnnotation(f"the keys '{text_of(key)[:100]}' of a Record are not strings")
        return {"type": "object", "additionalProperties": values}

    def _keys(self, node: Node, depth: int) -> list[Any]:
        return list(self._schema(node, depth + 1).get("enum", ()))

    def _enum(self, node: Node) -> dict[str, Any]:
        values: list[Any] = []
        body = node.child_by_field_name("body")
        for member in body.named_children if body is not None else ():
            if member.type == "comment":
                continue
            given = member.child_by_field_name("value")
            if given is not None:
                values.append(_literal(given))
            else:
                before = values[-1] if values else -1
                if not isinstance(before, int):
                    raise UnsupportedAnnotation(f"the member '{text_of(member)[:100]}' of an enum has no value")
                values.append(before + 1)
        return _choice(values)

    def _union(self, parts: list[Node], depth: int) -> dict[str, Any]:
        """Returns the schema of a union. undefined is not a value: what it makes optional is decided elsewhere."""
        literals: list[Any] = []
        schemas: list[dict[str, Any]] = []
        for part in parts:
            word = text_of(part)
            if word == "undefined":
                continue
            if word in _NO_VALUES:
                raise UnsupportedAnnotation(f"JSON has no values of '{word}'")
            if word == "null":
                schemas.append({"type": "null"})
            elif part.type == "literal_type":
                literals.append(_literal(part.named_children[0]))
            else:
                schemas.append(self._schema(part, depth + (len(parts) > 1)))
        if literals:
            schemas.insert(0, _choice(literals))
        if not schemas:
            raise UnsupportedAnnotation("JSON has no values of 'undefined'")
        return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _inner(annotation: Node) -> Node:
    """Returns the type of an annotation such as `: string`."""
    return annotation.named_children[0] if annotation.type == "type_annotation" else annotation


def _members(node: Node) -> list[Node]:
    """Returns the members of a union, which the parser nests to the left; others as they are."""
    found: list[Node] = []
    waiting = [node]
    while waiting:
        part = waiting.pop()
        if part.type == "union_type":
            waiting += reversed(part.named_children)
        elif part.type == "parenthesized_type" and part.named_children[0].type == "union_type":
            waiting.append(part.named_children[0])
        elif part.type != "comment":
            found.append(part)
    return found


def _literal(node: Node) -> Any:
    """Returns the value of a literal."""
    text = text_of(node)
    match node.type:
        case "string":
            return "".join(_character(child) for child in node.named_children)
        case "number" | "unary_expression":
            try:
                number = float(text.replace("_", "").replace(" ", ""))
            except ValueError:
                raise UnsupportedAnnotation(f"'{text[:100]}' is not a decimal number") from None
            return int(number) if number.is_integer() else number
        case "true" | "false":
            return text == "true"
        case "null":
            return None
        case _:
            raise UnsupportedAnnotation(f"'{text[:100]}' is not a literal")


def _character(node: Node) -> str:
    text = text_of(node)
    if node.type == "escape_sequence":
        try:
            return str(json.loads(f'"{text}"'))
        except ValueError:
            return text[1:]
    return text


def _choice(values: list[Any]) -> dict[str, Any]:
    if not values:
        raise UnsupportedAnnotation("an enum without members has no values")
    kinds = {str: "string", bool: "boolean", int: "number", float: "number"}
    types = {kinds.get(type(value)) for value in values}
    distinct = list({json.dumps(value): value for value in values}.values())
    if len(types) == 1 and None not in types:
        return {"type": types.pop(), "enum": distinct}
    return {"enum": distinct}


def _type_of_literal(default: Node | None) -> str:
    return (
        "string"
        if default is None
        else {"number": "number", "true": "boolean", "false": "boolean"}.get(default.type, "string")
    )


def _merged(parts: list[dict[str, Any]]) -> dict[str, Any]:
    merged: dict[str, Any] = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
    for part in parts:
        merged["properties"] |= part.get("properties", {})
        merged["required"] += [name for name in part.get("required", ()) if name not in merged["required"]]
        if part.get("additionalProperties", True) is not False:
            merged["additionalProperties"] = part.get("additionalProperties", True)
    return merged


def _partial(schema: dict[str, Any], _: list[str]) -> dict[str, Any]:
    return {**schema, "required": []}


def _required(schema: dict[str, Any], _: list[str]) -> dict[str, Any]:
    return {**schema, "required": list(schema["properties"])}


def _readonly(schema: dict[str, Any], _: list[str]) -> dict[str, Any]:
    return schema


def _pick(schema: dict[str, Any], keys: list[str]) -> dict[str, Any]:
    properties = {name: value for name, value in schema["properties"].items() if name in keys}
    return {**schema, "properties": properties, "required": [name for name in schema["required"] if name in keys]}


def _omit(schema: dict[str, Any], keys: list[str]) -> dict[str, Any]:
    return _pick(schema, [name for name in schema["properties"] if name not in keys])


_CHANGES: Final[Mapping[str, Callable[[dict[str, Any], list[str]], dict[str, Any]]]] = {
    "Partial": _partial,
    "Required": _required,
    "Readonly": _readonly,
    "Pick": _pick,
    "Omit": _omit,
}


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
