"""Validates and coerces the arguments of a call. Arguments are data and are never evaluated."""

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
_MAX_REFERENCES: Final = 32


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
    coercion = _Coercion(parameters)
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
            result[name] = coercion.value(value, schema, name)
        except _Mismatch as mismatch:
            text = f"Argument '{mismatch.path}' must be {mismatch.expected}, not {_quote(value)}."
            raise ToolArgumentsInvalid(text, field=field, parameter=name) from None
    missing = [name for name in required if name not in result]
    if missing:
        names = ", ".join(f"'{name}'" for name in missing)
        text = f"Required arguments are missing: {names}."
        raise ToolArgumentsInvalid(text, field=field, parameter=missing[0])
    return result


class _Coercion:
    """Converts values to the types of their schemas. References are looked up in the schema of the parameters."""

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        self._parameters = parameters

    def value(self, value: Any, schema: Any, path: str) -> Any:
        """Returns the value, converted. Raises _Mismatch."""
        schema = self._resolved(schema)
        if not isinstance(schema, Mapping) or not schema:
            return value
        alternatives = schema.get("anyOf") or schema.get("oneOf")
        kinds = schema.get("type")
        if alternatives:
            return self._first_match(value, list(alternatives), path)
        if isinstance(kinds, list):
            return _require_enum(self._first_match(value, [{"type": kind} for kind in kinds], path), schema, path)
        return _require_enum(self._typed(value, kinds, schema, path), schema, path)

    def _resolved(self, schema: Any) -> Any:
        """Returns the schema that a reference within the parameters names. Anything matches another reference."""
        for _ in range(_MAX_REFERENCES):
            reference = schema.get("$ref") if isinstance(schema, Mapping) else None
            if not isinstance(reference, str):
                return schema
            if not reference.startswith("#"):
                return {}
            schema = self._parameters
            for part in reference[1:].split("/")[1:]:
                name = part.replace("~1", "/").replace("~0", "~")
                schema = schema.get(name) if isinstance(schema, Mapping) else None
        return {}

    def _first_match(self, value: Any, schemas: list[Any], path: str) -> Any:
        """Returns the value unchanged if it matches a schema, else as the first schema that it can be converted to."""
        for exact in (True, False):
            for schema in schemas:
                try:
                    coerced = self.value(value, schema, path)
                except _Mismatch:
                    continue
                if not exact or (type(coerced) is type(value) and coerced == value):
                    return coerced
        raise _Mismatch(path, "one of the declared types")

    def _typed(self, value: Any, kind: Any, schema: Mapping[str, Any], path: str) -> Any:
        if kind == "array":
            return self._array(value, schema, path)
        if kind == "object":
            return self._object(value, schema, path)
        return _SCALARS[kind](value, path) if isinstance(kind, str) and kind in _SCALARS else value

    def _array(self, value: Any, schema: Mapping[str, Any], path: str) -> list[Any]:
        value = _parse(value) if isinstance(value, str) else value
        if not isinstance(value, list):
            raise _Mismatch(path, "a list")
        prefix = schema.get("prefixItems")
        if prefix is not None:
            if len(value) != len(prefix):
                raise _Mismatch(path, f"a list of {len(prefix)}")
            pairs = zip(value, prefix, strict=True)
            return [self.value(item, one, f"{path}[{index}]") for index, (item, one) in enumerate(pairs)]
        items = schema.get("items")
        return [self.value(item, items, f"{path}[{index}]") for index, item in enumerate(value)]

    def _object(self, value: Any, schema: Mapping[str, Any], path: str) -> dict[str, Any]:
        value = _parse(value) if isinstance(value, str) else value
        if not isinstance(value, dict):
            raise _Mismatch(path, "an object")
        properties: Mapping[str, Any] = schema.get("properties") or {}
        required = schema.get("required") or []
        for name in required:
            if name not in value:
                raise _Mismatch(f"{path}.{name}", "present")
        rest = schema.get("additionalProperties")
        result: dict[str, Any] = {}
        for name, item in value.items():
            if rest is False and name not in properties:
                raise _Mismatch(path, f"an object with no other fields than {', '.join(properties) or 'none'}")
            try:
                result[name] = self.value(item, properties.get(name, rest), f"{path}.{name}")
            except _Mismatch:
                if item is not None or name in required:
                    raise  # None stands for an absent value
        return result


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


_SCALARS: Final[dict[str, Callable[[Any, str], Any]]] = {
    "string": _string,
    "integer": _integer,
    "number": _number,
    "boolean": _boolean,
    "null": _null,
}


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return _NO_VALUE


def _quote(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 100 else f"{text[:100]}…"
