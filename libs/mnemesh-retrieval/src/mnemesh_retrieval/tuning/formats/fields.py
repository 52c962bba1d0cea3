"""Access to JSON data whose errors name the field."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from mnemesh_retrieval.tuning.dialogues import DatasetInvalid

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Field:
    """A value of a JSON document and its place. Every method raises DatasetInvalid if the value has another type."""

    value: Any
    place: str
    """File and path, such as `talks.json: dialogues[0].sessions[2]`."""

    def invalid(self, problem: str) -> DatasetInvalid:
        """Returns the error that this field has a problem."""
        return DatasetInvalid(f"{self.place} {problem}.")

    def __getitem__(self, key: str) -> Field:
        """Returns a required member of an object."""
        found = self.get(key)
        if found is None:
            raise DatasetInvalid(f"{self._place_of(key)} is missing.")
        return found

    def get(self, key: str) -> Field | None:
        """Returns a member of an object, None if it is absent or null."""
        if not isinstance(self.value, dict):
            raise self.invalid(f"is {_kind(self.value)}, not an object")
        value = self.value.get(key)
        return None if value is None else Field(value, self._place_of(key))

    def items(self) -> Iterator[Field]:
        """Yields the elements of a list."""
        if not isinstance(self.value, list):
            raise self.invalid(f"is {_kind(self.value)}, not a list")
        return (Field(value, f"{self.place}[{number}]") for number, value in enumerate(self.value))

    def text(self) -> str:
        """Returns a string."""
        if not isinstance(self.value, str):
            raise self.invalid(f"is {_kind(self.value)}, not a string")
        return self.value

    def filled_text(self) -> str:
        """Returns a string that is not blank."""
        if not self.text().strip():
            raise self.invalid("is blank")
        return self.text()

    def plain(self) -> str:
        """Returns a string or a number as a string."""
        if isinstance(self.value, bool) or not isinstance(self.value, str | int | float):
            raise self.invalid(f"is {_kind(self.value)}, not a string or a number")
        return str(self.value)

    def truth(self) -> bool:
        """Returns a Boolean."""
        if not isinstance(self.value, bool):
            raise self.invalid(f"is {_kind(self.value)}, not true or false")
        return self.value

    def time(self, parse: Callable[[str], datetime], example: str) -> datetime:
        """Returns a time. Without an offset it is in UTC."""
        try:
            time = parse(self.text().strip())
        except ValueError:
            raise self.invalid(f"is {self.value!r}, not a time such as {example!r}") from None
        return time if time.tzinfo else time.replace(tzinfo=UTC)

    def _place_of(self, key: str) -> str:
        return f"{self.place}.{key}" if self.place.endswith("]") or ": " in self.place else f"{self.place}: {key}"


def _kind(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "a Boolean", type(None): "null"}
    return kinds.get(type(value), "a number")
