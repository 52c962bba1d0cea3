"""The arguments of a call, held against a schema and coerced to it as data; nothing is ever evaluated."""

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


class _Misfit(Exception):
    """The value at a path does not fit."""

    def __init__(self, path: str, wanted: str) -> None:
        super().__init__(path, wanted)
        self.path = path
        self.wanted = wanted


def coerce(arguments: Mapping[str, Any], parameters: Mapping[str, Any], field: str) -> dict[str, Any]:
    """`arguments` as the types that `parameters` declares.

    "5" becomes 5 for an integer, 5.0 too; a JSON text becomes the list or object it says; a scalar becomes text for a
    string. None is left out where the parameter is not required.

    Args:
        arguments: the decoded arguments of a call.
        parameters: a JSON schema of type object.
        field: the request's field, for errors.

    Raises:
        ToolArgumentsInvalid: for an unknown, missing or unfitting argument, naming it.
    """
    properties: Mapping[str, Any] = parameters.get("properties") or {}
    required = parameters.get("required") or []
    result: dict[str, Any] = {}
    for name, value in arguments.items():
        if name not in properties and not parameters.get("additionalProperties"):
            known = ", ".join(properties) or "none"
            raise ToolArgumentsInvalid(
                f"There is no parameter '{name[:100]}'; known: {known}.", field=field, parameter=name[:100]
            )
        schema = properties.get(name, {})
        if value is None and name not in required:
            continue
        try:
            result[name] = _fitted(value, schema, name)
        except _Misfit as misfit:
            text = f"Argument '{misfit.path}' must be {misfit.wanted}, not {_shown(value)}."
            raise ToolArgumentsInvalid(text, field=field, parameter=name) from None
    missing = [name for name in required if name not in result]
    if missing:
        names = ", ".join(f"'{name}'" for name in missing)
        text = f"Missing: {names}."
        raise ToolArgumentsInvalid(text, field=field, parameter=missing[0])
    return result


def _fitted(value: Any, schema: Any, path: str) -> Any:
    if not isinstance(schema, Mapping) or not schema:
        return value
    alternatives = schema.get("anyOf") or schema.get("oneOf")
    kinds = schema.get("type")
    if alternatives:
        return _first_fitting(value, list(alternatives), path)
    if isinstance(kinds, list):
        return _enumerated(_first_fitting(value, [{"type": kind} for kind in kinds], path), schema, path)
    return _enumerated(_typed(value, kinds, schema, path), schema, path)


def _first_fitting(value: Any, schemas: list[Any], path: str) -> Any:
    """The alternative that the value fits as it stands, or else the first that it can be coerced to."""
    for exact in (True, False):
        for schema in schemas:
            try:
                fitted = _fitted(value, schema, path)
            except _Misfit:
                continue
            if not exact or (type(fitted) is type(value) and fitted == value):
                return fitted
    raise _Misfit(path, "one of the declared types")


def _enumerated(value: Any, schema: Mapping[str, Any], path: str) -> Any:
    choices = schema.get("enum")
    if choices is None or any(type(choice) is type(value) and choice == value for choice in choices):
        return value
    raise _Misfit(path, f"one of {', '.join(json.dumps(choice) for choice in choices)}")


def _string(value: Any, path: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, (bool, int, float, list, dict)):
        return json.dumps(value, ensure_ascii=False)
    raise _Misfit(path, "a string")


def _integer(value: Any, path: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and _INTEGER.fullmatch(value.strip()):
        return int(value)
    raise _Misfit(path, "an integer")


def _number(value: Any, path: str) -> float | int:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    if isinstance(value, str):
        try:
            number = float(value)
        except ValueError:
            raise _Misfit(path, "a number") from None
        if math.isfinite(number):
            return int(value) if _INTEGER.fullmatch(value.strip()) else number
    raise _Misfit(path, "a number")


def _boolean(value: Any, path: str) -> bool:
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower() if isinstance(value, (str, int)) else ""
    if word in _TRUE | _FALSE:
        return word in _TRUE
    raise _Misfit(path, "true or false")


def _null(value: Any, path: str) -> None:
    if value is not None and value not in ("null", "None", ""):
        raise _Misfit(path, "null")


def _array(value: Any, schema: Mapping[str, Any], path: str) -> list[Any]:
    value = _parsed(value) if isinstance(value, str) else value
    if not isinstance(value, list):
        raise _Misfit(path, "a list")
    prefix = schema.get("prefixItems")
    if prefix is not None:
        if len(value) != len(prefix):
            raise _Misfit(path, f"a list of {len(prefix)}")
        return [
            _fitted(item, one, f"{path}[{index}]") for index, (item, one) in enumerate(zip(value, prefix, strict=True))
        ]
    items = schema.get("items")
    return [_fitted(item, items, f"{path}[{index}]") for index, item in enumerate(value)]


def _object(value: Any, schema: Mapping[str, Any], path: str) -> dict[str, Any]:
    value = _parsed(value) if isinstance(value, str) else value
    if not isinstance(value, dict):
        raise _Misfit(path, "an object")
    properties: Mapping[str, Any] = schema.get("properties") or {}
    for name in schema.get("required") or []:
        if name not in value:
            raise _Misfit(f"{path}.{name}", "given")
    rest = schema.get("additionalProperties")
    return {name: _fitted(item, properties.get(name, rest), f"{path}.{name}") for name, item in value.items()}


def _typed(value: Any, kind: Any, schema: Mapping[str, Any], path: str) -> Any:
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


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return _NO_VALUE


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 100 else f"{text[:100]}…"
