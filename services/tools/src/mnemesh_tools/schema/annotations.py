"""JSON schemas of annotations. Annotations are read from the syntax tree and never evaluated.

Every annotation has a schema or is refused with `UnsupportedAnnotation`: its size and its depth are bounded.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Collection
from typing import Any, Final

from mnemesh_kit.unicode import well_formed

_SCALARS: Final = {"str": "string", "int": "integer", "float": "number", "bool": "boolean", "None": "null"}
_LITERALS: Final[dict[type, str]] = {bool: "boolean", int: "integer", str: "string"}
_SEQUENCES: Final = frozenset({"list", "List", "Sequence", "Iterable"})
_MAPPINGS: Final = frozenset({"dict", "Dict", "Mapping", "MutableMapping"})
_TUPLES: Final = frozenset({"tuple", "Tuple"})
_MAX_DEPTH: Final = 32
_MAX_MEMBERS: Final = 200
_MAX_INTEGER: Final = 2**63
_MAX_SHOWN: Final = 100
SUPPORTED: Final = (
    "str, int, float, bool, None, list, tuple, dict with str keys, Literal, Optional, Union and Any of these"
)


class UnsupportedAnnotation(Exception):
    """The annotation has no JSON schema. The message names the part and the reason."""


def is_optional(node: ast.expr | None) -> bool:
    """Returns whether the annotation includes None."""
    return node is not None and any(_is_none(part) for part in _alternatives(node))


def schema_of(node: ast.expr | None, models: Collection[str] = ()) -> dict[str, Any]:
    """Returns the JSON schema of an annotation, without None. A missing annotation is a string.

    Args:
        node: The annotation.
        models: The names of pydantic models, for the text of the error.

    Raises:
        UnsupportedAnnotation: JSON arguments cannot be converted to the annotated type.
    """
    if node is None:
        return {"type": "string"}
    used = [part.id for part in ast.walk(node) if isinstance(part, ast.Name) and part.id in models]
    if used:
        raise UnsupportedAnnotation(
            f"'{used[0]}' is a pydantic model, and the sandbox has no pydantic. "
            "Declare its fields as parameters, or use dict"
        )
    return _schema(node, 0)


def _schema(node: ast.expr, depth: int) -> dict[str, Any]:
    if depth > _MAX_DEPTH:
        raise UnsupportedAnnotation("it is nested too deeply")
    parts = [part for part in _alternatives(node) if not _is_none(part)]
    if not parts:
        return {"type": "null"}
    if len(parts) > 1:
        return _union([_schema(part, depth + 1) for part in parts])
    node = parts[0]
    if isinstance(node, ast.Subscript):
        return _generic(_name(node.value), _items(node.slice), node, depth)
    return _plain(_name(node), node)


def _union(schemas: list[dict[str, Any]]) -> dict[str, Any]:
    distinct = list({json.dumps(schema): schema for schema in schemas}.values())
    if any(not schema for schema in distinct):
        return {}
    return distinct[0] if len(distinct) == 1 else {"anyOf": distinct}


def _plain(name: str | None, node: ast.expr) -> dict[str, Any]:
    if name in _SCALARS:
        return {"type": _SCALARS[name]}
    if name in _SEQUENCES or name in _TUPLES:
        return {"type": "array", "items": {}}
    if name in _MAPPINGS:
        return {"type": "object"}
    if name in ("Any", "object"):
        return {}
    raise UnsupportedAnnotation(f"'{_shown(node)}' is not one of {SUPPORTED}")


def _generic(name: str | None, items: list[ast.expr], node: ast.expr, depth: int) -> dict[str, Any]:
    if name in _SEQUENCES and len(items) == 1:
        return {"type": "array", "items": _schema(items[0], depth + 1)}
    if name in _TUPLES:
        return _tuple(items, depth)
    if name in _MAPPINGS and len(items) == 2:
        if _name(items[0]) != "str":
            raise UnsupportedAnnotation(
                f"the keys of '{_shown(node)}' must be str, because JSON objects have only such keys"
            )
        values = _schema(items[1], depth + 1)
        return {"type": "object", "additionalProperties": values or True}
    if name == "Literal":
        return _literal(items, node)
    raise UnsupportedAnnotation(f"'{_shown(node)}' is not one of {SUPPORTED}")


def _tuple(items: list[ast.expr], depth: int) -> dict[str, Any]:
    if len(items) > _MAX_MEMBERS:
        raise UnsupportedAnnotation(f"it has more than {_MAX_MEMBERS} members")
    if len(items) == 2 and isinstance(items[1], ast.Constant) and items[1].value is Ellipsis:
        return {"type": "array", "items": _schema(items[0], depth + 1)}
    prefix = [_schema(item, depth + 1) for item in items]
    return {"type": "array", "prefixItems": prefix, "minItems": len(prefix), "maxItems": len(prefix)}


def _literal(items: list[ast.expr], node: ast.expr) -> dict[str, Any]:
    values: list[Any] = []
    if len(items) > _MAX_MEMBERS:
        raise UnsupportedAnnotation(f"it has more than {_MAX_MEMBERS} literals")
    for item in items:
        try:
            value = ast.literal_eval(item)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
            raise UnsupportedAnnotation(f"'{_shown(node)}' contains a value that is not a literal") from error
        if value is not None and type(value) not in _LITERALS:
            raise UnsupportedAnnotation(f"'{_shown(node)}' may contain only str, int, bool and None")
        if isinstance(value, str) and well_formed(value) != value:
            raise UnsupportedAnnotation("a literal has a NUL character or half of a character (a lone surrogate)")
        if type(value) is int and not -_MAX_INTEGER <= value < _MAX_INTEGER:
            raise UnsupportedAnnotation("an int of a Literal must have at most 64 bits")
        if value is not None:
            values.append(value)
    kinds = list(dict.fromkeys(_LITERALS[type(value)] for value in values))
    return {"type": kinds[0] if len(kinds) == 1 else kinds, "enum": values} if kinds else {"type": "null"}


def _unwrap(node: ast.expr) -> ast.expr:
    """Returns the annotation without quotes, Annotated, Required and Final."""
    for _ in range(_MAX_DEPTH):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            quoted = node.value
            try:
                node = ast.parse(quoted.strip(), mode="eval").body
            except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
                raise UnsupportedAnnotation(f"'{quoted[:_MAX_SHOWN]}' is not an annotation") from error
        elif isinstance(node, ast.Subscript) and _name(node.value) in ("Annotated", "Final", "Required"):
            items = _items(node.slice)
            if not items:
                raise UnsupportedAnnotation(f"'{_shown(node)}' names no type")
            node = items[0]
        else:
            return node
    raise UnsupportedAnnotation("it is nested too deeply")


def _alternatives(node: ast.expr) -> list[ast.expr]:
    """Returns the members of a union, flattened and unwrapped, or else the annotation itself, unwrapped."""
    found: list[ast.expr] = []
    waiting = [node]
    while waiting:
        node = _unwrap(waiting.pop())
        name, items = (_name(node.value), _items(node.slice)) if isinstance(node, ast.Subscript) else (None, [])
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            waiting += [node.right, node.left]
        elif name == "Optional" and len(items) == 1:
            waiting += [ast.Constant(None), items[0]]
        elif name == "Union":
            waiting += reversed(items)
        elif name == "Literal" and any(_is_none(item) for item in items):
            found += [node, ast.Constant(None)]
        else:
            found.append(node)
        if len(waiting) + len(found) > _MAX_MEMBERS:
            raise UnsupportedAnnotation(f"it has more than {_MAX_MEMBERS} members")
    return found


def _shown(node: ast.expr) -> str:
    """Returns the beginning of the annotation's source."""
    try:
        return ast.unparse(node)[:_MAX_SHOWN]
    except (RecursionError, ValueError):  # an integer can have too many digits to be shown
        return "the annotation"


def _is_none(node: ast.expr) -> bool:
    return (isinstance(node, ast.Constant) and node.value is None) or (
        isinstance(node, ast.Name) and node.id == "NoneType"
    )


def _name(node: ast.expr) -> str | None:
    """Returns the last part of a name: `List` for `typing.List` and `t.List`."""
    if isinstance(node, ast.Constant) and node.value is None:
        return "None"
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else None


def _items(node: ast.expr) -> list[ast.expr]:
    return list(node.elts) if isinstance(node, ast.Tuple) else [node]
