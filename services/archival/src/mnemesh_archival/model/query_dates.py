"""Dates in the text of a query, such as 'in May 2023' or 'on 8 May', and how well passages match them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

from mnemesh_archival.model.passages import PassagePosition

_NAMES: Final = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november",
    "december",
)  # fmt: skip
_MONTHS: Final = {name: number for number, name in enumerate(_NAMES, start=1)}
_WORD: Final = re.compile(r"[^\W_]+")
_YEAR: Final = re.compile(r"(?:19|20)\d\d")
_DAY: Final = re.compile(r"(\d{1,2})(?:st|nd|rd|th)?")
_VERBS: Final = frozenset({"may", "march"})
"""Months that are also verbs: they count only if capitalized."""

DatePart = tuple[str, int]
"""A unit and its number, such as ('month', 5)."""


def date_parts(query: str) -> tuple[DatePart, ...]:
    """Returns the months and years in a query, and its days if it names a month."""
    words = _WORD.findall(query)
    months = [
        ("month", month)
        for word in words
        if (month := _MONTHS.get(word.lower())) and not (word in _VERBS and word.islower())
    ]
    years = [("year", int(word)) for word in words if _YEAR.fullmatch(word)]
    days = [("day", int(found[1])) for word in words if months and (found := _DAY.fullmatch(word.lower()))]
    return tuple(dict.fromkeys((*days, *months, *years)))


def date_scores(query: str, positions: Iterable[PassagePosition]) -> dict[UUID, float]:
    """Returns a score for each passage whose date has parts that the query names. Rarer parts score higher."""
    parts = date_parts(query)
    if not parts:
        return {}
    held = {position.point_id: frozenset(parts).intersection(_parts_of(position.created_at)) for position in positions}
    counts = {part: sum(part in of_passage for of_passage in held.values()) for part in parts}
    rarity = {part: math.log(1 + (len(held) - count + 0.5) / (count + 0.5)) for part, count in counts.items()}
    return {point: sum(rarity[part] for part in of_passage) for point, of_passage in held.items() if of_passage}


def _parts_of(time: datetime) -> Iterator[DatePart]:
    day = time.astimezone(UTC)
    yield from (("day", day.day), ("month", day.month), ("year", day.year))
