"""The check that every filter of a list shares."""

from dataclasses import fields
from typing import Any, TypeVar

from mnemesh_kit.text import require_search_text

F = TypeVar("F")


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
