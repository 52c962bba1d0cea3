"""JSON schemas of annotations. Annotations are read from the syntax tree and never evaluated.

Every annotation has a schema or is refused with `UnsupportedAnnotation`: its size and its depth are bounded.
"""

import ast
import json
from collections.abc import Sequence
from typing import Any, Final

from mnemesh_kit.unicode import well_formed

from mnemesh_tools.schema.declarations import (
    MAX_DEPTH,
    MAX_MEMBERS,
    NONE_DECLARED,
    UNPARSABLE,
    Declarations,
    DeclaredClass,
    DeclaredField,
    Kind,
    SchemaBudget,
    UnsupportedAnnotation,
    field_call,
    keyword_value,
    last_name,
    literal,
)

_LITERALS: Final[dict[type, str]] = {bool: "boolean", int: "integer", str: "string"}
_MAX_INTEGER: Final = 2**63
_MAX_SHOWN: Final = 100


def enum_schema(declared: DeclaredClass) -> dict[str, Any]:
    if len(declared.values) > MAX_MEMBERS:
        raise UnsupportedAnnotation(f"enum '{declared.name}' has more than {MAX_MEMBERS} members")
    if not declared.values or any(type(value) not in _LITERALS for value in declared.values):
        raise UnsupportedAnnotation(f"the members of enum '{declared.name}' must be literals of str, int or bool")
    return _values(declared.values)


def literal_schema(items: list[ast.expr], node: ast.expr) -> dict[str, Any]:
    values: list[Any] = []
    if len(items) > MAX_MEMBERS:
        raise UnsupportedAnnotation(f"it has more than {MAX_MEMBERS} literals")
    for item in items:
        try:
            value = ast.literal_eval(item)
        except UNPARSABLE as error:
            raise UnsupportedAnnotation(f"'{shown(node)}' contains a value that is not a literal") from error
        if value is not None and type(value) not in _LITERALS:
            raise UnsupportedAnnotation(f"'{shown(node)}' may contain only str, int, bool and None")
        if value is not None:
            values.append(value)
    return _values(values) if values else {"type": "null"}


def _values(values: Sequence[Any]) -> dict[str, Any]:
    """Returns the schema of a choice between literals."""
    for value in values:
        if isinstance(value, str) and well_formed(value) != value:
            raise UnsupportedAnnotation("a literal has a NUL character or half of a character (a lone surrogate)")
        if type(value) is int and not -_MAX_INTEGER <= value < _MAX_INTEGER:
            raise UnsupportedAnnotation("an int of a Literal must have at most 64 bits")
    kinds = list(dict.fromkeys(_LITERALS[type(value)] for value in values))
    return {"type": kinds[0] if len(kinds) == 1 else kinds, "enum": list(values)}


def shown(node: ast.expr) -> str:
    """Returns the beginning of the annotation's source."""
    try:
        return ast.unparse(node)[:_MAX_SHOWN]
    except (RecursionError, ValueError):  # an integer can have too many digits to be shown
        return "the annotation"


_NUMBERS: Final = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
    "multiple_of": "multipleOf",
}
_LENGTHS: Final = {
    "string": {"min_length": "minLength", "max_length": "maxLength"},
    "array": {"min_length": "minItems", "max_length": "maxItems"},
}
# Constraints of the package annotated_types, such as Ge(1) and MaxLen(10).
_TYPES: Final = {"Ge": "ge", "Gt": "gt", "Le": "le", "Lt": "lt", "MultipleOf": "multiple_of"}
_LENGTH_TYPES: Final = {"MinLen": "min_length", "MaxLen": "max_length"}
_MAX_NUMBER: Final = 2.0**63


def description_in(metadata: Sequence[ast.expr]) -> str | None:
    """Returns the first description: a string, or the argument `description` of `Field`."""
    for item in metadata:
        call = field_call(item)
        text = literal(item if call is None else keyword_value(call, "description"))
        if isinstance(text, str) and text.strip():
            return text.strip()
    return None


def constrained(schema: dict[str, Any], metadata: Sequence[ast.expr]) -> dict[str, Any]:
    """Returns the schema with the constraints that apply to its type. Others are left to the function."""
    found: dict[str, Any] = {}
    for item in metadata:
        for name, value in _constraints(item):
            found.update(_keyword(name, value, schema.get("type")))
    return {**schema, **found}


def _constraints(item: ast.expr) -> list[tuple[str, Any]]:
    if not isinstance(item, ast.Call):
        return []
    if field_call(item) is not None:
        return [(keyword.arg, literal(keyword.value)) for keyword in item.keywords if keyword.arg is not None]
    name = {**_TYPES, **_LENGTH_TYPES}.get(last_name(item.func) or "")
    argument = item.args[0] if item.args else next((keyword.value for keyword in item.keywords), None)
    return [] if name is None else [(name, literal(argument))]


def _keyword(name: str, value: Any, kind: Any) -> dict[str, Any]:
    is_number = type(value) in (int, float) and -_MAX_NUMBER <= value <= _MAX_NUMBER
    if name in _NUMBERS and is_number and kind in ("integer", "number"):
        return {} if name == "multiple_of" and value <= 0 else {_NUMBERS[name]: value}
    length = _LENGTHS.get(kind, {}).get(name) if isinstance(kind, str) else None
    if length is not None and type(value) is int and 0 <= value <= _MAX_NUMBER:
        return {length: value}
    if name == "pattern" and kind == "string" and isinstance(value, str) and well_formed(value) == value:
        return {"pattern": value}
    return {}


_SCALARS: Final[dict[str, dict[str, Any]]] = {
    "str": {"type": "string"},
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "bool": {"type": "boolean"},
    "None": {"type": "null"},
    "date": {"type": "string", "format": "date"},
    "datetime": {"type": "string", "format": "date-time"},
    "time": {"type": "string", "format": "time"},
    "UUID": {"type": "string", "format": "uuid"},
    "Decimal": {"type": "number"},
    "Path": {"type": "string"},
}
_SEQUENCES: Final = frozenset({"list", "List", "Sequence", "MutableSequence", "Collection", "Iterable"})
_SETS: Final = frozenset({"set", "Set", "frozenset", "FrozenSet", "AbstractSet", "MutableSet"})
_MAPPINGS: Final = frozenset({"dict", "Dict", "Mapping", "MutableMapping"})
_TUPLES: Final = frozenset({"tuple", "Tuple"})
_WRAPPERS: Final = frozenset({"Annotated", "Final", "Required", "NotRequired", "ReadOnly"})
SUPPORTED: Final = (
    "str, int, float, bool, None, date, datetime, time, UUID, Decimal, Path, list, set, tuple, dict with str keys, "
    "Literal, Optional, Union and Any of these, and the dataclasses, enums, TypedDicts, NamedTuples, pydantic models "
    "and aliases of the source"
)


class AnnotationReader:
    """Reads the annotations of one function. The size of its schemas is bounded, and so is the time.

    Its methods raise UnsupportedAnnotation if JSON arguments cannot be converted to the annotated type.
    """

    def __init__(self, declarations: Declarations = NONE_DECLARED) -> None:
        self.model: str | None = None
        """The first pydantic model that an annotation used."""
        self._declarations = declarations
        self._budget = SchemaBudget()
        self._parsed: dict[str, ast.expr] = {}
        self._open: list[str] = []
        """The classes whose fields are being read."""

    def parameter(self, annotation: ast.expr | None) -> dict[str, Any]:
        """Returns the JSON schema of a parameter, without None. A missing annotation is a string."""
        return {"type": "string"} if annotation is None else self.schema(annotation)

    def is_optional(self, annotation: ast.expr | None) -> bool:
        """Returns whether the annotation includes None."""
        return annotation is not None and any(_is_none(part) for part in self.alternatives(annotation))

    def description(self, annotation: ast.expr | None) -> str | None:
        """Returns the description that `Annotated` gives: a string, or that of `Field`."""
        return None if annotation is None else description_in(self.unwrapped(annotation)[1])

    def schema(self, node: ast.expr, depth: int = 0) -> dict[str, Any]:
        """Returns the JSON schema of an annotation, without None."""
        inner, metadata = self.unwrapped(node)
        name = inner.id if isinstance(inner, ast.Name) and inner.id in self._declarations.classes else None

        def make() -> dict[str, Any]:
            return constrained(self._without_metadata(inner, depth), metadata)

        return self._budget.made_once(name, (inner, *metadata), depth, make)

    def alternatives(self, node: ast.expr) -> list[ast.expr]:
        """Returns the members of a union, flattened and unwrapped, or else the annotation itself, unwrapped.

        A member with constraints stays wrapped.
        """
        found: list[ast.expr] = []
        waiting, steps = [node], 0
        while waiting:
            wrapped, steps = waiting.pop(), steps + 1
            node, metadata = self.unwrapped(wrapped)
            name, items = (last_name(node.value), _items(node.slice)) if isinstance(node, ast.Subscript) else (None, [])
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
                waiting += [node.right, node.left]
            elif name == "Optional" and len(items) == 1:
                waiting += [ast.Constant(None), items[0]]
            elif name == "Union":
                waiting += reversed(items)
            elif name == "Literal" and any(_is_none(item) for item in items):
                found += [node, ast.Constant(None)]
            else:
                found.append(wrapped if metadata else node)
            if len(waiting) + len(found) > MAX_MEMBERS or steps > 4 * MAX_MEMBERS:  # an alias can contain itself
                raise UnsupportedAnnotation(f"it has more than {MAX_MEMBERS} members")
        return found

    def _without_metadata(self, node: ast.expr, depth: int) -> dict[str, Any]:
        parts = [part for part in self.alternatives(node) if not _is_none(part)]
        if not parts:
            return {"type": "null"}
        if len(parts) > 1:
            return _union([self.schema(part, depth + 1) for part in parts])
        inner, metadata = self.unwrapped(parts[0])
        if metadata:
            return self.schema(parts[0], depth + 1)
        if isinstance(inner, ast.Subscript):
            return self._generic(last_name(inner.value), _items(inner.slice), inner, depth)
        return self._plain(inner, depth)

    def _plain(self, node: ast.expr, depth: int) -> dict[str, Any]:
        name = last_name(node)
        declared = self._declarations.classes.get(node.id) if isinstance(node, ast.Name) else None
        if declared is not None:
            return self._declared(declared, depth)
        if name in _SCALARS:
            return dict(_SCALARS[name])
        if name in _SEQUENCES or name in _TUPLES:
            return {"type": "array", "items": {}}
        if name in _SETS:
            return {"type": "array", "items": {}, "uniqueItems": True}
        if name in _MAPPINGS:
            return {"type": "object"}
        if name in ("Any", "object"):
            return {}
        raise UnsupportedAnnotation(f"'{shown(node)}' is not one of {SUPPORTED}")

    def _generic(self, name: str | None, items: list[ast.expr], node: ast.expr, depth: int) -> dict[str, Any]:
        if name in _SEQUENCES and len(items) == 1:
            return {"type": "array", "items": self.schema(items[0], depth + 1)}
        if name in _SETS and len(items) == 1:
            return {"type": "array", "items": self.schema(items[0], depth + 1), "uniqueItems": True}
        if name in _TUPLES:
            return self._tuple(items, depth)
        if name in _MAPPINGS and len(items) == 2:
            return self._mapping(items, node, depth)
        if name == "Literal":
            return literal_schema(items, node)
        raise UnsupportedAnnotation(f"'{shown(node)}' is not one of {SUPPORTED}")

    def _mapping(self, items: list[ast.expr], node: ast.expr, depth: int) -> dict[str, Any]:
        keys = self.schema(items[0], depth + 1)
        if keys.get("type") != "string":
            raise UnsupportedAnnotation(
                f"the keys of '{shown(node)}' must be str, because JSON objects have only such keys"
            )
        values = self.schema(items[1], depth + 1)
        names = {"propertyNames": {"enum": keys["enum"]}} if "enum" in keys else {}
        return {"type": "object", "additionalProperties": values or True, **names}

    def _tuple(self, items: list[ast.expr], depth: int) -> dict[str, Any]:
        if len(items) > MAX_MEMBERS:
            raise UnsupportedAnnotation(f"it has more than {MAX_MEMBERS} members")
        if len(items) == 2 and isinstance(items[1], ast.Constant) and items[1].value is Ellipsis:
            return {"type": "array", "items": self.schema(items[0], depth + 1)}
        prefix = [self.schema(item, depth + 1) for item in items]
        return {"type": "array", "prefixItems": prefix, "minItems": len(prefix), "maxItems": len(prefix)}

    def _declared(self, declared: DeclaredClass, depth: int) -> dict[str, Any]:
        if declared.kind is Kind.ENUM:
            return enum_schema(declared)
        if declared.name in self._open:
            raise UnsupportedAnnotation(f"'{declared.name}' contains itself")
        if declared.kind is Kind.MODEL:
            self.model = self.model or declared.name
        self._open.append(declared.name)
        properties = {item.name: self._field(declared, item, depth) for item in declared.fields}
        self._open.pop()
        required = [item.name for item in declared.fields if item.required and not self.is_optional(item.annotation)]
        schema = {"type": "object", "properties": properties, "required": required}
        return schema if declared.kind is Kind.MODEL else {**schema, "additionalProperties": False}

    def _field(self, declared: DeclaredClass, item: DeclaredField, depth: int) -> dict[str, Any]:
        try:
            schema = constrained(self.schema(item.annotation, depth + 1), item.metadata)
        except UnsupportedAnnotation as error:
            raise UnsupportedAnnotation(f"field '{item.name}' of '{declared.name}': {error}") from error
        description = self.description(item.annotation) or description_in(item.metadata) or item.description
        if description is None:
            return schema
        if well_formed(description) != description:
            raise UnsupportedAnnotation(f"the description of field '{item.name}' of '{declared.name}' is not text")
        self._budget.spend(0, len(description), depth)
        return {**schema, "description": description}

    def unwrapped(self, node: ast.expr) -> tuple[ast.expr, tuple[ast.expr, ...]]:
        """Returns the annotation without quotes, aliases, Annotated and Required, and the metadata of Annotated."""
        metadata: tuple[ast.expr, ...] = ()
        aliases = self._declarations.aliases
        for _ in range(MAX_DEPTH):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                quoted = node.value
                if quoted not in self._parsed:
                    self._parsed[quoted] = _parsed(quoted)
                node = self._parsed[quoted]
            elif isinstance(node, ast.Name) and node.id in aliases and node.id not in _SCALARS:
                node = aliases[node.id]
            elif isinstance(node, ast.Subscript) and last_name(node.value) in _WRAPPERS:
                items = _items(node.slice)
                if not items:
                    raise UnsupportedAnnotation(f"'{shown(node)}' names no type")
                node = items[0]
                metadata = (*metadata, *items[1:])
            else:
                return node, metadata
        raise UnsupportedAnnotation("it is nested too deeply")


def _parsed(quoted: str) -> ast.expr:
    try:
        return ast.parse(quoted.strip(), mode="eval").body
    except UNPARSABLE as error:
        raise UnsupportedAnnotation(f"'{quoted[:_MAX_SHOWN]}' is not an annotation") from error


def _union(schemas: list[dict[str, Any]]) -> dict[str, Any]:
    distinct = list({json.dumps(schema): schema for schema in schemas}.values())
    if any(not schema for schema in distinct):
        return {}
    return distinct[0] if len(distinct) == 1 else {"anyOf": distinct}


def _is_none(node: ast.expr) -> bool:
    return (isinstance(node, ast.Constant) and node.value is None) or (
        isinstance(node, ast.Name) and node.id == "NoneType"
    )


def _items(node: ast.expr) -> list[ast.expr]:
    return list(node.elts) if isinstance(node, ast.Tuple) else [node]
