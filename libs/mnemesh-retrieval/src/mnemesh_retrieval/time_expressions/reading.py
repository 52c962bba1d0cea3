"""Reading a query from left to right: the position in its tokens, and the time from which it is resolved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum

from mnemesh_retrieval.time_expressions.calendar import Recurring, day_of
from mnemesh_retrieval.time_expressions.tokens import Token


class Evidence(IntEnum):
    """How much the words before a period show that it is a time."""

    NONE = 0
    PREPOSITION = 1
    """One that also precedes things and persons, such as "before" or "of"."""
    TIME = 2
    """A word of time, such as "during" or "since"."""


OpenSpan = tuple[datetime | None, datetime | None]
"""A half-open span. None is no bound. A datetime without a zone is local."""


@dataclass(frozen=True, slots=True)
class Found:
    """A period at some tokens of a query."""

    spans: tuple[OpenSpan, ...]
    """Its readings, such as the two of 05/07/2023."""
    next: int
    """The token after it."""
    is_complete: bool = False
    """True if it names a day with its year, which needs no reference time."""
    recurring: Recurring | None = None
    """The period without its year, month or week, if the query does not name it."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The tokens of a query, with the reference time in UTC and as a local time."""

    tokens: Sequence[Token]
    now: datetime
    """The reference time, local and without a zone."""
    reference: datetime | None
    """The reference time; None if only complete dates are recognised."""

    @property
    def today(self) -> datetime:
        """The beginning of the local day of the reference time."""
        return day_of(self.now)

    def word(self, index: int) -> str:
        """Returns the word of a token; "" for a date, and outside of the query."""
        return self.tokens[index].word if 0 <= index < len(self.tokens) else ""

    def joined(self, index: int) -> str:
        """Returns the word of a token if no punctuation separates it from the token before."""
        return "" if index >= len(self.tokens) or self.tokens[index].begins_sentence else self.word(index)

    def is_capitalized(self, index: int) -> bool:
        """Returns whether a token exists and begins with a capital letter."""
        return 0 <= index < len(self.tokens) and self.tokens[index].is_capitalized

    def is_name(self, index: int) -> bool:
        """Returns whether the token continues the sentence and looks like a name."""
        return bool(self.joined(index)) and self.is_capitalized(index)
