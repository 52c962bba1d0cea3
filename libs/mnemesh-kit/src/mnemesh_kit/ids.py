"""Ids: a prefix that names the kind, a dash, and a version-4 UUID in lower-case hex: random, derived or counted."""

import hashlib
import re
import uuid
from itertools import count
from typing import Final, Protocol

from google.protobuf.message import Message

from mnemesh_kit.errors import InvalidArgument

_UUID4: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


def new_id(prefix: str) -> str:
    """Returns a new random id, such as `block-0b5c…`."""
    return f"{prefix}-{uuid.uuid4()}"


def derive_id(prefix: str, *parts: str) -> str:
    """Returns the id that belongs to these parts. The same parts have the same id in every process and release."""
    digest = hashlib.sha256("\x1f".join((prefix, *parts)).encode()).hexdigest()
    # As uuid.UUID formats it with version=4, in half the time: a turn derives a dozen ids.
    variant = "89ab"[int(digest[16], 16) & 3]
    return f"{prefix}-{digest[:8]}-{digest[8:12]}-4{digest[13:16]}-{variant}{digest[17:20]}-{digest[20:32]}"


def is_id(value: str, prefix: str) -> bool:
    """Returns whether `value` has the form of an id of this kind."""
    return value.startswith(prefix + "-") and _UUID4.fullmatch(value, len(prefix) + 1) is not None


def require_id(value: str, prefix: str, field: str) -> str:
    """Returns `value` if it is an id of this kind.

    Raises:
        InvalidArgument: it is not. The error names `field` and the expected form.
    """
    if is_id(value, prefix):
        return value
    problem = "is required" if not value else f"must be an id of the form {prefix}-<uuid4>"
    raise InvalidArgument(f"{field} {problem}.", field=field)


def require_ids(message: Message, path: str, **kinds: str) -> None:
    """Refuses a malformed id in the fields of a message that are set.

    Args:
        message: the message.
        path: its path in the request; "" for the request itself.
        kinds: the prefixes of the ids, by field.

    Raises:
        InvalidArgument: as `require_id`.
    """
    present = {field.name for field, _ in message.ListFields()}
    for name, prefix in kinds.items():
        value = getattr(message, name) if name in present else ()
        for each in (value,) if isinstance(value, str) else value:
            require_id(each, prefix, f"{path}.{name}" if path else name)


class IdSource(Protocol):
    """A source of new ids.

    Example:
        >>> SequentialIds().new("block")
        'block-00000000-0000-4000-8000-000000000001'
    """

    def new(self, prefix: str) -> str:
        """Returns an id of this kind that was never returned before."""
        ...


class RandomIds:
    """Random ids, which cannot be guessed."""

    def new(self, prefix: str) -> str:
        """Returns a new random id."""
        return new_id(prefix)


class SequentialIds:
    """Ids that count upwards, for tests that expect certain ids."""

    def __init__(self) -> None:
        self._numbers = count(1)

    def new(self, prefix: str) -> str:
        """Returns the next id. Its last digits are its number."""
        return f"{prefix}-00000000-0000-4000-8000-{next(self._numbers):012x}"
