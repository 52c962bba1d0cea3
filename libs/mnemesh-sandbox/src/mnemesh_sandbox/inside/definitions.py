"""Classes for the definitions of a JSON schema, for a source that names these types without defining them."""

import dataclasses
import enum
import keyword
from collections.abc import Mapping
from typing import Any

_NAMES = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "object": "dict", "null": "None"}


class Model:
    """The base class of generated classes. Tools call `model_dump` to convert an object to plain values."""

    def model_dump(self) -> dict[str, Any]:
        """Returns the fields as plain values."""
        return dataclasses.asdict(self)  # type: ignore[call-overload, no-any-return]


def classes(definitions: Mapping[str, Any], module: str) -> dict[str, type]:
    """Returns classes by their names: dataclasses for objects, and enums.

    Args:
        definitions: JSON schemas by name. Those that describe neither are left out.
        module: The name of the module that will have the classes. Their annotations are resolved there.
    """
    found = {}
    for name, schema in definitions.items():
        if not _is_name(name) or not isinstance(schema, dict):
            continue
        made = _class(name, schema)
        if made is not None:
            made.__module__ = module
            found[name] = made
    return found


def _class(name: str, schema: Mapping[str, Any]) -> type | None:
    if schema.get("enum"):
        functional: Any = enum.Enum
        made: type = functional(name, [(str(value), value) for value in schema["enum"]])
        return made
    properties = schema.get("properties")
    if not isinstance(properties, dict) or not all(map(_is_name, properties)):
        return None
    required = schema.get("required") or ()
    fields = [
        (field, _annotation(inner), dataclasses.field() if field in required else _optional(inner))
        for field, inner in properties.items()
    ]
    return dataclasses.make_dataclass(name, fields, bases=(Model,), kw_only=True)


def _is_name(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name)


def _optional(schema: Any) -> Any:
    default = schema.get("default") if isinstance(schema, dict) else None
    if isinstance(default, (list, dict)):
        return dataclasses.field(default_factory=default.copy)
    return dataclasses.field(default=default)


def _annotation(schema: Any) -> str:
    if not isinstance(schema, dict):
        return "Any"
    reference = schema.get("$ref")
    if isinstance(reference, str):
        name = reference.rpartition("/")[2]
        return name if _is_name(name) else "Any"
    choices = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf")
    if isinstance(choices, list) and choices:
        return f"Union[{', '.join(_annotation(choice) for choice in choices)}]"
    kind = schema.get("type")
    if kind == "array":
        return f"list[{_annotation(schema.get('items'))}]"
    return _NAMES.get(kind, "Any") if isinstance(kind, str) else "Any"
