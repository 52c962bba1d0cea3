"""Schemas of choices between literals: `Literal` and enums."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any, Final

from mnemesh_kit.unicode import well_formed

from mnemesh_tools.schema.budget import MAX_MEMBERS, UnsupportedAnnotation
from mnemesh_tools.schema.declarations import DeclaredClass

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
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
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
