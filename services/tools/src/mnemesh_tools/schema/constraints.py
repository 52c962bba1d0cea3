"""Descriptions and constraints in `Field(...)` and in the metadata of `Annotated`."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any, Final

from mnemesh_kit.unicode import well_formed

from mnemesh_tools.schema.syntax import field_call, keyword_value, last_name, literal

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
