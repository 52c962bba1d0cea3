"""Checks of the JSON objects and the JSON schemas that clients provide."""

from __future__ import annotations

import json
import sys
from typing import Any, Final

from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.text import require_json_object

_MAX_DEPTH: Final = 64
_DEFAULT_DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"


def parse_object(text: str, field: str) -> dict[str, Any]:
    """Returns the JSON object in a text.

    Raises:
        InvalidArgument: The text is not one, is nested too deeply, or has a number with too many digits.
    """
    try:
        parsed: dict[str, Any] = json.loads(require_json_object(text, field))
    except ValueError as error:  # the text is JSON, so the conversion of a number failed
        digits = sys.get_int_max_str_digits()
        raise InvalidArgument(f"{field} has an integer with more than {digits:,} digits.", field=field) from error
    level: list[Any] = [parsed]
    for _ in range(_MAX_DEPTH):
        level = [part for value in level for part in _parts(value) if isinstance(part, (dict, list))]
        if not level:
            return parsed
    raise InvalidArgument(f"{field} must be nested at most {_MAX_DEPTH} deep.", field=field)


def require_json_schema(schema: dict[str, Any], field: str) -> None:
    """Checks that `schema`, from `parse_object`, is a JSON schema, of the draft 2020-12 unless it names another one.

    Raises:
        InvalidArgument: It is not.
    """
    # Imported at the first use: most tools have a generated schema.
    import jsonschema_rs  # noqa: PLC0415

    try:
        jsonschema_rs.meta.validate({"$schema": _DEFAULT_DRAFT, **schema})
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
        where = "/".join(str(part) for part in getattr(error, "instance_path", []))
        place = f" at {where[:100]}" if where else ""
        raise InvalidArgument(f"{field} is not a JSON schema{place}: {_first_line(error)}.", field=field) from error


def _parts(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value


def _first_line(error: Exception) -> str:
    text = getattr(error, "message", None) or str(error)
    return str(text).split("\n", 1)[0][:200].rstrip(".")
