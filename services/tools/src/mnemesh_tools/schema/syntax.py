"""Readers of small parts of a syntax tree."""

from __future__ import annotations

import ast
from typing import Any, Final

_FIELD_CALLS: Final = frozenset({"Field", "field"})


def last_name(node: ast.expr | None) -> str | None:
    """Returns the last part of a name: `List` for `typing.List` and `t.List`; "None" for None."""
    if isinstance(node, ast.Constant) and node.value is None:
        return "None"
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else None


def literal(node: ast.expr | None) -> Any:
    """Returns the value of a literal; `...` if it is none."""
    try:
        return ... if node is None else ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return ...


def field_call(node: ast.expr | None) -> ast.Call | None:
    """Returns the node if it is a call of pydantic's `Field` or of the `field` of dataclasses."""
    return node if isinstance(node, ast.Call) and last_name(node.func) in _FIELD_CALLS else None


def keyword_value(call: ast.Call, name: str) -> ast.expr | None:
    """Returns the argument that a call passes by this name."""
    return next((item.value for item in call.keywords if item.arg == name), None)
