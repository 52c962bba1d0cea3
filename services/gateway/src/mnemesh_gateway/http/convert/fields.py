"""Typed access to decoded JSON. Errors name the field as OpenAI does."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, TypeVar

import msgspec

from mnemesh_gateway.errors import InvalidRequest
from mnemesh_gateway.http.body import JSON_ERRORS, json_problem, number_out_of_range

T = TypeVar("T")

_KINDS: Final[Mapping[type, str]] = {
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    list: "an array",
    dict: "an object",
    type(None): "null",
}


def json_object(body: bytes) -> dict[str, Any]:
    """Returns the object of a body. Raises InvalidRequest."""
    try:
        value = msgspec.json.decode(body)
    except JSON_ERRORS as error:
        if "out of range" in str(error):
            raise number_out_of_range(body) from error
        raise InvalidRequest(f"The body cannot be read: {json_problem(error)}.", code="invalid_json") from error
    if not isinstance(value, dict):
        raise InvalidRequest(f"The body must be a JSON object, not {_kind(value)}.", code="invalid_json")
    return value


def of_type(value: Any, expected: type[T], param: str) -> T:
    """Returns a value of the expected type; an integer is a number, a boolean is not. Raises InvalidRequest."""
    if expected is float and isinstance(value, int) and not isinstance(value, bool):
        value = _number(value, param)
    if not isinstance(value, expected) or (isinstance(value, bool) and expected is not bool):
        raise InvalidRequest(
            f"Invalid type for '{param}': expected {_KINDS[expected]}, but got {_kind(value)} instead.",
            param,
            "invalid_type",
        )
    if isinstance(value, str):
        _require_text(value, param)
    return value


def optional(body: Mapping[str, Any], name: str, expected: type[T], path: str = "") -> T | None:
    """Returns a field, or None if it is missing or null. Raises InvalidRequest."""
    value = body.get(name)
    return None if value is None else of_type(value, expected, joined(path, name))


def required(body: Mapping[str, Any], name: str, expected: type[T], path: str = "") -> T:
    """Returns a field. Raises InvalidRequest if it is missing or has another type."""
    param = joined(path, name)
    if name not in body:
        raise InvalidRequest(f"Missing required parameter: '{param}'.", param, "missing_required_parameter")
    return of_type(body[name], expected, param)


def one_of(value: str, allowed: Collection[str], param: str) -> str:
    """Returns a value if it is allowed. Raises InvalidRequest."""
    if value not in allowed:
        names = ", ".join(f"'{name}'" for name in allowed)
        raise InvalidRequest(f"Invalid value for '{param}': {value[:100]!r}. Supported values are: {names}.", param)
    return value


def between(value: float | None, low: float, high: float, param: str) -> None:
    """Raises InvalidRequest if a number is out of its range."""
    if value is not None and not low <= value <= high:
        raise InvalidRequest(f"Invalid value for '{param}': must be between {low:.10g} and {high:.10g}.", param)


def joined(path: str, name: str) -> str:
    """Returns the name of a field within another."""
    return f"{path}.{name}" if path else name


def _number(value: int, param: str) -> Any:
    try:
        return float(value)
    except OverflowError as error:
        raise InvalidRequest(f"Invalid value for '{param}': the number is out of range.", param) from error


def _require_text(value: str, param: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"Invalid value for '{param}': it contains a lone surrogate.", param) from error


def _kind(value: Any) -> str:
    return next((name for kind, name in _KINDS.items() if type(value) is kind), "another value")
