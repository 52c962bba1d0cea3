"""Checks of the texts in a request: NUL and control characters, lengths, blank texts, JSON.

Each function returns the text unchanged, or raises InvalidArgument that names the request field. Texts that no caller
can correct, such as those of a model or a tool, are made well-formed instead (`well_formed`, `well_formed_json`).
"""

import re
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Final, TypeVar

import msgspec

from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.unicode import MAX_TEXT_BYTES, has_lone_surrogate, well_formed, well_formed_json

F = TypeVar("F")

__all__ = [
    "MAX_JSON_DEPTH",
    "MAX_SEARCH_CHARS",
    "MAX_TEXT_BYTES",
    "require_json",
    "require_json_object",
    "require_line",
    "require_no_controls",
    "require_no_nul",
    "require_optional_text",
    "require_search_text",
    "require_searchable_fields",
    "require_text",
    "require_texts",
    "well_formed",
    "well_formed_json",
]

MAX_JSON_DEPTH: Final = 100
"""How deep a JSON text may be nested. Python code that walks a value stops at about 1,000 calls."""
MAX_JSON_BRACKETS: Final = 100_000
"""How many opening brackets a JSON text may contain: each may be a list or an object, which take much more memory."""
MAX_SEARCH_CHARS: Final = 8_000
"""The most characters of a text that rows are searched for. SQLite refuses patterns of more than 50,000 bytes; a
character may become six bytes when its case is folded."""
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f]")
_CONTROL_IN_PROSE: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def require_no_nul(value: str, field: str) -> str:
    """Returns `value` if it contains no NUL character, which PostgreSQL cannot store.

    Raises:
        InvalidArgument: it contains one.
    """
    if "\0" in value:
        raise InvalidArgument(f"{field} must not contain NUL characters.", field=field)
    return value


def require_text(
    value: str,
    field: str,
    *,
    min_chars: int = 0,
    max_chars: int | None = None,
    max_bytes: int | None = None,
    allow_blank: bool = True,
) -> str:
    """Returns `value` if it has no NUL character and its length is within the limits.

    Args:
        value: the text.
        field: the path of the request field, for errors.
        min_chars: the least number of Unicode code points.
        max_chars: the largest number of code points.
        max_bytes: the largest number of bytes in UTF-8.
        allow_blank: False refuses an empty text and one of white space only.

    Raises:
        InvalidArgument: the text breaks one of these rules.
    """
    if not allow_blank and not value.strip():
        raise InvalidArgument(f"{field} must not be blank.", field=field)
    if len(value) < min_chars:
        problem = "is required" if not value and min_chars == 1 else f"must be at least {min_chars:,} characters"
        raise InvalidArgument(f"{field} {problem}.", field=field)
    if max_chars is not None and len(value) > max_chars:
        raise InvalidArgument(f"{field} must be at most {max_chars:,} characters.", field=field)
    if max_bytes is not None and (len(value) > max_bytes or len(value.encode(errors="replace")) > max_bytes):
        raise InvalidArgument(f"{field} must be at most {max_bytes:,} bytes in UTF-8.", field=field)
    return require_no_nul(value, field)


def require_search_text(value: str, field: str) -> str:
    """Returns a text that rows may be searched for. Raises InvalidArgument if it is too long or has a NUL character."""
    return require_text(value, field, max_chars=MAX_SEARCH_CHARS)


def require_optional_text(
    value: str | None,
    field: str,
    *,
    min_chars: int = 0,
    max_chars: int | None = None,
    max_bytes: int | None = None,
    allow_blank: bool = True,
) -> str | None:
    """Returns None for None; any other value as `require_text` does."""
    if value is None:
        return None
    return require_text(
        value, field, min_chars=min_chars, max_chars=max_chars, max_bytes=max_bytes, allow_blank=allow_blank
    )


def require_texts(
    values: Sequence[str],
    field: str,
    *,
    max_items: int | None = None,
    min_chars: int = 0,
    max_chars: int | None = None,
    distinct: bool = False,
) -> tuple[str, ...]:
    """Returns the texts of a repeated field, in order, if there are not too many and each keeps the limits.

    Args:
        values: the texts.
        field: the path of the repeated field, for errors.
        max_items: the largest number of texts.
        min_chars: the least number of code points of each.
        max_chars: the largest number of code points of each.
        distinct: True refuses repeated texts.

    Raises:
        InvalidArgument: one of these rules is broken.
    """
    if max_items is not None and len(values) > max_items:
        raise InvalidArgument(f"{field} must have at most {max_items:,} values.", field=field)
    for value in values:
        require_text(value, field, min_chars=min_chars, max_chars=max_chars)
    if distinct and len(set(values)) < len(values):
        raise InvalidArgument(f"{field} must not repeat a value.", field=field)
    return tuple(values)


def require_no_controls(value: str, field: str, *, max_chars: int | None = None) -> str:
    """Returns `value` if its only control characters are tabs and line ends, and it is not too long.

    Raises:
        InvalidArgument: it contains another control character, or has more than `max_chars` code points.
    """
    require_text(value, field, max_chars=max_chars)
    if _CONTROL_IN_PROSE.search(value):
        raise InvalidArgument(f"{field} must not contain control characters.", field=field)
    return value


def require_line(value: str, field: str, *, max_chars: int | None = None) -> str:
    """Returns `value` if it is a single line that is not blank, has no control character and is not too long.

    Raises:
        InvalidArgument: the text breaks one of these rules.
    """
    require_text(value, field, max_chars=max_chars, allow_blank=False)
    if _CONTROL.search(value):
        raise InvalidArgument(f"{field} must not contain control characters.", field=field)
    return value


def require_json(value: str, field: str, *, max_bytes: int | None = None) -> str:
    """Returns `value` if it is the text of a JSON value without lone surrogates. NaN and Infinity are no values.

    Raises:
        InvalidArgument: it is not, or has more than `max_bytes` bytes in UTF-8.
    """
    _decoded(value, field, "value", max_bytes)
    return value


def require_json_object(value: str, field: str, *, max_bytes: int | None = None) -> str:
    """Returns `value` if it is the text of a JSON object without lone surrogates. NaN and Infinity are no values.

    Raises:
        InvalidArgument: it is not, or has more than `max_bytes` bytes in UTF-8.
    """
    if not isinstance(_decoded(value, field, "object", max_bytes), dict):
        raise InvalidArgument(f"{field} must be the text of a JSON object.", field=field)
    return value


def _decoded(value: str, field: str, kind: str, max_bytes: int | None) -> object:
    require_text(value, field, max_bytes=max_bytes)
    brackets = value.count("[") + value.count("{")
    if brackets > MAX_JSON_BRACKETS:
        raise InvalidArgument(
            f"{field} must not contain more than {MAX_JSON_BRACKETS:,} lists and objects.", field=field
        )
    deep = f"{field} must not be nested deeper than {MAX_JSON_DEPTH} levels."
    try:
        decoded = msgspec.json.decode(value)
    except RecursionError:
        raise InvalidArgument(deep, field=field) from None
    except msgspec.ValidationError:
        # Any value is valid here, except a number that no float or no integer of 4,300 digits can hold.
        raise InvalidArgument(f"{field} must not contain a number that is out of range.", field=field) from None
    except ValueError:
        if has_lone_surrogate(value):
            raise InvalidArgument(
                f"{field} must not contain half of a character (a lone surrogate).", field=field
            ) from None
        raise InvalidArgument(f"{field} must be the text of a JSON {kind}.", field=field) from None
    if brackets > MAX_JSON_DEPTH and _is_deep(decoded):
        raise InvalidArgument(deep, field=field)
    return decoded


def _is_deep(value: object) -> bool:
    level: list[Any] = [value]
    for _ in range(MAX_JSON_DEPTH):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if type(outer) is dict else outer)
            if type(inner) is dict or type(inner) is list
        ]
        if not level:
            return False
    return True


def require_searchable_fields(filter_: F, prefix: str = "filter.") -> F:
    """Returns `filter_` if each of its texts can be searched for: it is not too long, and has no NUL character.

    Args:
        filter_: A dataclass. Fields that are neither texts nor tuples of texts are not checked.
        prefix: The path of the filter in the request.

    Raises:
        InvalidArgument: A text cannot. Metadata: field.
    """
    record: Any = filter_
    for field in fields(record):
        value = getattr(record, field.name)
        for text in value if isinstance(value, tuple) else (value,):
            if isinstance(text, str):
                require_search_text(text, f"{prefix}{field.name}")
    return filter_
