"""Validates and coerces the arguments of a call. Arguments are data and are never evaluated."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from mnemesh_tools.errors import ToolArgumentsInvalid

_INTEGER: Final = re.compile(r"[+-]?\d{1,400}")
_TRUE: Final = frozenset({"true", "1", "yes", "on"})
_FALSE: Final = frozenset({"false", "0", "no", "off"})
_NO_VALUE: Final = object()


class _Mismatch(Exception):
    """The value at a path does not match its schema."""

    def __init__(self, path: str, expected: str) -> None:
        super().__init__(path, expected)
        self.path = path
        self.expected = expected


def coerce(arguments: Mapping[str, Any], parameters: Mapping[str, Any], field: str) -> dict[str, Any]:
    """Returns `arguments`, converted to the types that `parameters` declares.

    Models often send numbers as text and lists as JSON text. For an integer, "5" and 5.0 become 5; for a list or an
    object, JSON text is parsed; for a string, other values become text. None is dropped if the parameter is optional.

    Args:
        arguments: The decoded arguments of a call.
        parameters: A JSON schema of type object.
        field: The request's field, for errors.

    Raises:
        ToolArgumentsInvalid: An argument is unknown, missing or of another type. The error names it.
    """
    properties: Mapping[str, Any] = parameters.get("properties") or {}
    required = parameters.get("required") or []
    result: dict[str, Any] = {}
    for name, value in arguments.items():
        if name not in properties and not parameters.get("additionalProperties"):
            known = ", ".join(properties) or "none"
            raise ToolArgumentsInvalid(
                f"Parameter '{name[:100]}' does not exist. The parameters are: {known}.",
                field=field,
                parameter=name[:100],
            )
        schema = properties.get(name, {})
        if value is None and name not in required:
            continue
        try:
            result[name] = _coerce_value(value, schema, name)
        except _Mismatch as mismatch:
            text = f"Argument '{mismatch.path}' must be {mismatch.expected}, not {_quote(value)}."
            raise ToolArgumentsInvalid(text, field=field, parameter=name) from None
    missing = [name for name in required if name not in result]
    if missing:
        names = ", ".join(f"'{name}'" for name in missing)
        text = f"Required arguments are missing: {names}."
        raise ToolArgumentsInvalid(text, field=field, parameter=missing[0])
    return result


def _coerce_value(value: Any, schema: Any, path: str) -> Any:
    if not isinstance(schema, Mapping) or not schema:
        return value
    alternatives = schema.get("anyOf") or schema.get("oneOf")
    kinds = schema.get("type")
    if alternatives:
        return _first_match(value, list(alternatives), path)
    if isinstance(kinds, list):
        return _require_enum(_first_match(value, [{"type": kind} for kind in kinds], path), schema, path)
    return _require_enum(_coerce_type(value, kinds, schema, path), schema, path)


def _first_match(value: Any, schemas: list[Any], path: str) -> Any:
    """Returns the value unchanged if it matches a schema, or else as the first schema that it can be converted to."""
    for exact in (True, False):
        for schema in schemas:
            try:
                coerced = _coerce_value(value, schema, path)
            except _Mismatch:
                continue
            if not exact or (type(coerced) is type(value) and coerced == value):
                return coerced
    raise _Mismatch(path, "one of the declared types")


def _require_enum(value: Any, schema: Mapping[str, Any], path: str) -> Any:
    choices = schema.get("enum")
    if choices is None or any(type(choice) is type(value) and choice == value for choice in choices):
        return value
    raise _Mismatch(path, f"one of {', '.join(json.dumps(choice) for choice in choices)}")


def _string(value: Any, path: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, (bool, int, float, list, dict)):
        return json.dumps(value, ensure_ascii=False)
    raise _Mismatch(path, "a string")


def _integer(value: Any, path: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and _INTEGER.fullmatch(value.strip()):
        return int(value)
    raise _Mismatch(path, "an integer")


def _number(value: Any, path: str) -> float | int:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    if isinstance(value, str):
        try:
            number = float(value)
        except ValueError:
            raise _Mismatch(path, "a number") from None
        if math.isfinite(number):
            return int(value) if _INTEGER.fullmatch(value.strip()) else number
    raise _Mismatch(path, "a number")


def _boolean(value: Any, path: str) -> bool:
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower() if isinstance(value, (str, int)) else ""
    if word in _TRUE | _FALSE:
        return word in _TRUE
    raise _Mismatch(path, "true or false")


def _null(value: Any, path: str) -> None:
    if value is not None and value not in ("null", "None", ""):
        raise _Mismatch(path, "null")


def _array(value: Any, schema: Mapping[str, Any], path: str) -> list[Any]:
    value = _parse(value) if isinstance(value, str) else value
    if not isinstance(value, list):
        raise _Mismatch(path, "a list")
    prefix = schema.get("prefixItems")
    if prefix is not None:
        if len(value) != len(prefix):
            raise _Mismatch(path, f"a list of {len(prefix)}")
        return [
            _coerce_value(item, one, f"{path}[{index}]")
            for index, (item, one) in enumerate(zip(value, prefix, strict=True))
        ]
    items = schema.get("items")
    return [_coerce_value(item, items, f"{path}[{index}]") for index, item in enumerate(value)]


def _object(value: Any, schema: Mapping[str, Any], path: str) -> dict[str, Any]:
    value = _parse(value) if isinstance(value, str) else value
    if not isinstance(value, dict):
        raise _Mismatch(path, "an object")
    properties: Mapping[str, Any] = schema.get("properties") or {}
    for name in schema.get("required") or []:
        if name not in value:
            raise _Mismatch(f"{path}.{name}", "present")
    rest = schema.get("additionalProperties")
    return {name: _coerce_value(item, properties.get(name, rest), f"{path}.{name}") for name, item in value.items()}


def _coerce_type(value: Any, kind: Any, schema: Mapping[str, Any], path: str) -> Any:
    if not isinstance(kind, str):
        return value
    if kind in _SCALARS:
        return _SCALARS[kind](value, path)
    if kind in _CONTAINERS:
        return _CONTAINERS[kind](value, schema, path)
    return value


_SCALARS: Final[dict[str, Callable[[Any, str], Any]]] = {
    "string": _string,
    "integer": _integer,
    "number": _number,
    "boolean": _boolean,
    "null": _null,
}
_CONTAINERS: Final[dict[str, Callable[[Any, Mapping[str, Any], str], Any]]] = {"array": _array, "object": _object}


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return _NO_VALUE


def _quote(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 100 else f"{text[:100]}…"
