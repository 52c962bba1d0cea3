"""The words and numbers of a query, and its complete numeric dates, which are single tokens."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from mnemesh_retrieval.time_expressions.calendar import DAY, Span, local_day, month_of
from mnemesh_retrieval.time_expressions.vocabulary import SHORT_MONTHS

MAX_CHARACTERS: Final = 2_000
"""The length of the part of a query that is read."""
_TOKEN: Final = re.compile(
    r"""
    (?<![\d.,/-])(?P<ymd>\d{4}(?P<sep>[-/.])\d{1,2}(?P=sep)\d{1,2})
        (?:[T ]\d{1,2}:\d{2}[\d:.]*(?:Z|[+-]\d\d:?\d\d)?)?(?![\d/-]|[.,]\d)
  | (?<![\d.,/-])(?P<dmy>\d{1,2}(?P<sep2>[-/.])\d{1,2}(?P=sep2)\d{4})(?![\d/-]|[.,]\d)
  | (?<![\d.,/-])(?P<ym>\d{4}-\d{2})(?![\d/-]|[.,]\d)
  | (?P<cjk>\d{4}\s?[年년]\s?\d{1,2}\s?[月월](?:\s?\d{1,2}\s?[日号號일])?)
  | (?P<word>[Qq][1-4]\b|\d+[^\W\d_]*|[^\W\d_]+)(?P<own>['’]s\b)?
    """,
    re.VERBOSE,
)  # fmt: skip
_BREAK: Final = re.compile(r"[.?!;:()\n\"“”]")
_NUMBER: Final = re.compile(r"\d+")
_FIRST_YEAR: Final = 1000
"""Smaller numbers are no years."""


@dataclass(frozen=True, slots=True)
class Token:
    """A word, a number or a complete date of a query."""

    word: str
    """Case-folded and without a possessive s; empty for a date."""
    start: int
    end: int
    is_capitalized: bool = False
    begins_sentence: bool = False
    """True if punctuation separates it from the token before, so that they do not form one expression."""
    dates: tuple[Span, ...] = ()
    """The readings of a numeric date. `05/07/2023` has two."""
    is_day: bool = False
    """True if the date names a day."""


def tokens_of(text: str) -> list[Token]:
    """Returns the tokens of the beginning of a text, in order."""
    found: list[Token] = []
    text = text[:MAX_CHARACTERS]
    for match in _TOKEN.finditer(text):
        word = match["word"]
        gap = text[found[-1].end : match.start()] if found else "."
        begins = _BREAK.search(gap) is not None and not (
            gap.startswith(".") and found and found[-1].word in SHORT_MONTHS and not _BREAK.search(gap, 1)
        )
        if word is None:
            dates, is_day = _readings(match)
            found.append(Token("", match.start(), match.end(), False, begins, dates, is_day))
        else:
            found.append(Token(word.casefold(), match.start(), match.end("word"), word[0].isupper(), begins))
    return found


def _readings(match: re.Match[str]) -> tuple[tuple[Span, ...], bool]:
    """Returns the spans that a numeric date can mean, none if it is invalid, and whether it names a day."""
    numbers = [int(number) for number in _NUMBER.findall(match["ymd"] or match["dmy"] or match["ym"] or match["cjk"])]
    if len(numbers) == 2:
        year, month = numbers
        return ((month_of(month)(year),) if 1 <= month <= 12 and year >= _FIRST_YEAR else ()), False
    if match["dmy"] is None:
        year, month, day = numbers
        readings = [(month, day)]
    else:
        first, second, year = numbers
        readings = [(second, first)] if match["sep2"] == "." else [(first, second), (second, first)]
    days = (_day(year, month, day) for month, day in dict.fromkeys(readings))
    return tuple(span for span in days if span is not None), True


def _day(year: int, month: int, day: int) -> Span | None:
    try:
        return (start := local_day(year, month, day), start + DAY) if year >= _FIRST_YEAR else None
    except (ValueError, OverflowError):
        return None
