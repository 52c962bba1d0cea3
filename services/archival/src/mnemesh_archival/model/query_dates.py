"""Days, months and years that a query names, as far as passages have them: 'in May 2023', 'on 8 May'."""

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
"""Months that are verbs, too: they need their capital."""

Part = tuple[str, int]
"""What is said of a day, and its number: ('month', 5)."""


def named(query: str) -> tuple[Part, ...]:
    """The months and years of a query, and its days where it names a month."""
    words = _WORD.findall(query)
    months = [
        ("month", month)
        for word in words
        if (month := _MONTHS.get(word.lower())) and not (word in _VERBS and word.islower())
    ]
    years = [("year", int(word)) for word in words if _YEAR.fullmatch(word)]
    days = [("day", int(found[1])) for word in words if months and (found := _DAY.fullmatch(word.lower()))]
    return tuple(dict.fromkeys((*days, *months, *years)))


def matching(query: str, places: Iterable[PassagePosition]) -> dict[UUID, float]:
    """What the named parts of its day count for each passage that has any: more, the fewer of the places have them."""
    asked = named(query)
    if not asked:
        return {}
    held = {place.point_id: frozenset(asked).intersection(_parts(place.created_at)) for place in places}
    counts = {part: sum(part in parts for parts in held.values()) for part in asked}
    rarity = {part: math.log(1 + (len(held) - count + 0.5) / (count + 0.5)) for part, count in counts.items()}
    return {point: sum(rarity[part] for part in parts) for point, parts in held.items() if parts}


def _parts(time: datetime) -> Iterator[Part]:
    day = time.astimezone(UTC)
    yield from (("day", day.day), ("month", day.month), ("year", day.year))
