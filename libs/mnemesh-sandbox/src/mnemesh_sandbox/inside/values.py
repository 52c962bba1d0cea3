"""Converts decoded JSON to the types that a tool's function declares, and its result back: dataclasses, enums, models.

Annotations that cannot be resolved leave their values unchanged: the schema of the tool was checked before.
"""

import collections.abc
import dataclasses
import enum
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any


class ArgumentInvalid(Exception):
    """A value does not fit the declared type."""


def converted(function: Callable[..., Any], arguments: Mapping[str, Any], namespace: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments with the declared types.

    Args:
        function: The tool's function.
        arguments: Values as JSON gives them, by parameter.
        namespace: The globals of the tool, in which quoted annotations are resolved.

    Raises:
        ArgumentInvalid: A value does not fit. The text names the argument.
    """
    annotations = getattr(function, "__annotations__", {})
    if all(annotations.get(name, str) in _UNCHANGED for name in arguments):
        return dict(arguments)
    hints = _hints(function, namespace)
    result = {}
    for name, value in arguments.items():
        try:
            result[name] = _convert(value, hints[name]) if name in hints else value
        except ArgumentInvalid as error:
            raise ArgumentInvalid(f"Argument '{name}' {error}") from error.__cause__
    return result


def plain(value: Any) -> Any:
    """Returns a value of a declared type in the form that JSON has for it; other values unchanged."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (set, frozenset)):
        return list(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}
    dump = getattr(type(value), "model_dump", None)
    return value if dump is None else dump(value)


_UNCHANGED = [str, int, float, bool, list, dict, Any, *("str", "int", "float", "bool", "list", "dict", "Any")]


def _hints(function: Callable[..., Any], namespace: dict[str, Any]) -> dict[str, Any]:
    hints = {}
    # One by one: an annotation may name a type that does not exist here, such as AgentState.
    for name, annotation in getattr(function, "__annotations__", {}).items():
        try:
            owner = types.SimpleNamespace(__annotations__={name: annotation})
            hints[name] = typing.get_type_hints(owner, namespace)[name]
        except Exception:  # noqa: S112 - this one stays as it is
            continue
    return hints


def _convert(value: Any, hint: Any) -> Any:
    origin, parameters = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Union or origin is types.UnionType:
        return _first_of(value, parameters)
    if origin in _TRANSPARENT:
        return _convert(value, parameters[0])
    for alias in ("__value__", "__supertype__"):  # of `type X = ...`, and of NewType
        if not isinstance(hint, type) and hasattr(hint, alias):
            return _convert(value, getattr(hint, alias))
    if isinstance(origin, type):
        return _generic(value, origin, parameters)
    return _plain(value, hint) if isinstance(hint, type) else value


_TRANSPARENT = [
    found
    for name in ("Annotated", "Final", "Required", "NotRequired", "ReadOnly")
    if (found := getattr(typing, name, None)) is not None
]


def _first_of(value: Any, hints: tuple[Any, ...]) -> Any:
    """Returns the value as the member of a union whose type it has, else as the first that it can be converted to."""
    if any(hint is type(value) for hint in hints):
        return value
    problem: ArgumentInvalid | None = None
    for hint in hints:
        try:
            result = _convert(value, hint)
        except ArgumentInvalid as error:
            problem = problem or error
            continue
        if _has_type(result, hint):
            return result
    if problem is not None:
        raise problem
    return value


def _has_type(value: Any, hint: Any) -> bool:
    kind = typing.get_origin(hint) or hint
    try:
        return isinstance(value, kind)
    except TypeError:  # not a class, or a TypedDict, whose values are dicts
        return not isinstance(kind, type) or isinstance(value, dict)


def _generic(value: Any, origin: type, parameters: tuple[Any, ...]) -> Any:
    if isinstance(value, list):
        if issubclass(origin, tuple):
            inner = parameters[:1] * len(value) if parameters[1:] == (...,) else parameters
            return tuple(_convert(item, hint) for item, hint in zip(value, inner, strict=False))
        items = [_convert(item, parameters[0]) for item in value]
        if origin in _SETS:
            return _set(items, origin)
        return items
    if isinstance(value, dict) and issubclass(origin, collections.abc.Mapping) and len(parameters) == 2:
        return {_convert(key, parameters[0]): _convert(item, parameters[1]) for key, item in value.items()}
    return value


_SETS = (set, frozenset, collections.abc.Set, collections.abc.MutableSet)


def _set(items: list[Any], origin: type) -> Any:
    try:
        return frozenset(items) if origin is frozenset else set(items)
    except TypeError as error:
        raise ArgumentInvalid(f"cannot be a set: {error}") from error


def _plain(value: Any, hint: type) -> Any:
    if isinstance(value, (list, dict)):
        return _structure(value, hint)
    if issubclass(hint, enum.Enum):
        return _called(hint, value)
    try:
        if value is None or isinstance(value, hint) or hint.__module__ == "builtins":
            return value
    except TypeError:  # Any and protocols are classes that have no instances
        return value
    make = _makers().get((hint.__module__.partition(".")[0], hint.__name__))
    return value if make is None else _called(make, value)


def _structure(value: Any, hint: type) -> Any:
    if isinstance(value, list):
        return tuple(value) if hint is tuple else _set(value, hint) if hint in (set, frozenset) else value
    if typing.is_typeddict(hint):
        return _fields(value, hint)
    if hasattr(hint, "model_validate"):
        return _called(hint.model_validate, _with_none(value, _required_by_model(hint)))
    if hasattr(hint, "parse_obj"):  # pydantic 1
        return _called(hint.parse_obj, value)
    if dataclasses.is_dataclass(hint):
        required = {
            item.name
            for item in dataclasses.fields(hint)
            if item.init and item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING
        }
        return _called(lambda fields: hint(**fields), _with_none(_fields(value, hint), required))
    if issubclass(hint, tuple) and hasattr(hint, "_fields"):
        required = set(hint._fields) - set(getattr(hint, "_field_defaults", ()))
        return _called(lambda fields: hint(**fields), _with_none(_fields(value, hint), required))
    return value


def _fields(value: Mapping[str, Any], owner: type) -> dict[str, Any]:
    try:
        hints = typing.get_type_hints(owner)
    except Exception:  # an annotation of the class names an unknown type
        return dict(value)
    result = {}
    for name, item in value.items():
        try:
            result[name] = _convert(item, hints[name]) if name in hints else item
        except ArgumentInvalid as error:
            raise ArgumentInvalid(f"has an invalid field '{name}': {error}") from error.__cause__
    return result


def _with_none(fields: Mapping[str, Any], required: set[str]) -> dict[str, Any]:
    """Returns the fields with None for those that are absent and have no default; the schema admits only optional
    ones."""
    return {**{name: None for name in required if name not in fields}, **fields}


def _required_by_model(model: Any) -> set[str]:
    fields = getattr(model, "model_fields", {})
    return {item.alias or name for name, item in fields.items() if item.is_required()}


def _called(make: Callable[[Any], Any], value: Any) -> Any:
    try:
        return make(value)
    except Exception as error:
        raise ArgumentInvalid(f"is invalid: {str(error)[:500]}") from error


def _makers() -> dict[tuple[str, str], Callable[[Any], Any]]:
    """Returns how to make values of types of the standard library from text, by the top module and the name."""
    import datetime  # noqa: PLC0415
    import decimal  # noqa: PLC0415
    import pathlib  # noqa: PLC0415
    import uuid  # noqa: PLC0415

    return {
        ("datetime", "date"): datetime.date.fromisoformat,
        ("datetime", "datetime"): datetime.datetime.fromisoformat,
        ("datetime", "time"): datetime.time.fromisoformat,
        ("decimal", "Decimal"): lambda value: decimal.Decimal(str(value)),
        ("pathlib", "Path"): pathlib.Path,
        ("uuid", "UUID"): uuid.UUID,
    }
