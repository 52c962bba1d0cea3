"""The English words of dates, and how far each is also another word or a name."""

from __future__ import annotations

from typing import Final

MONTHS: Final = {
    name: number
    for number, names in enumerate(
        (
            "january jan", "february feb", "march mar", "april apr", "may", "june jun", "july jul", "august aug",
            "september sept sep", "october oct", "november nov", "december dec",
        ),
        start=1,
    )
    for name in names.split()
}  # fmt: skip
SHORT_MONTHS: Final = frozenset(name for name in MONTHS if len(name) <= 4) - {"may", "june", "july"}
"""Abbreviations are months only beside a number: "Jan", "Mar" and "Dec" are other words and names."""
AMBIGUOUS_MONTHS: Final = frozenset({"march", "april", "may", "june", "august"})
"""Months that are also words or names. They are months only after a word of time, or beside a number."""
VERBS: Final = frozenset({"march", "may"})
"""Months that are words in lower case."""

WEEKDAYS: Final = {
    name: number
    for number, name in enumerate(("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"))
}
SHORT_WEEKDAYS: Final = {"mon": 0, "tue": 1, "tues": 1, "wed": 2, "thu": 3, "thur": 3, "thurs": 3, "fri": 4, "sat": 5}
"""Abbreviations are weekdays only after "last", "next", "this" or a preposition."""
NOT_AFTER_WEEKDAY: Final = frozenset({"best", "school", "roast", "times", "club", "addams", "league", "blues"})
NOT_BEFORE_WEEKDAY: Final = frozenset(
    {"black", "ash", "palm", "taco", "cyber", "freaky", "bloody", "every", "each", "any", "a"}
)
"""Words up to two before a weekday after which it is not one day: "a dry Tuesday"."""

SEASONS: Final = {"spring": 3, "summer": 6, "autumn": 9, "fall": 9, "winter": 12}
"""The first months of the seasons, in the northern hemisphere."""

PARTS_OF_DAY: Final = {"morning": (4, 12), "afternoon": (12, 18), "evening": (18, 24), "night": (18, 30)}
"""The first hour and the hour after the last one."""

NUMBERS: Final = {
    word: number
    for number, word in enumerate(
        ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"], start=1
    )
} | {"a": 1, "an": 1}  # fmt: skip
VAGUE_NUMBERS: Final = {"few": (2, 6), "several": (3, 10), "couple": (2, 3)}
"""The smallest and the largest number that each can mean."""
ORDINALS: Final = {"first": 1, "second": 2, "third": 3, "fourth": 4, "1st": 1, "2nd": 2, "3rd": 3, "4th": 4}

UNITS: Final = {
    form: unit
    for unit, forms in {
        "minute": "minute minutes min mins",
        "hour": "hour hours hr hrs",
        "day": "day days night nights",
        "week": "week weeks",
        "fortnight": "fortnight fortnights",
        "month": "month months",
        "quarter": "quarter quarters",
        "year": "year years yr yrs",
        "decade": "decade decades",
    }.items()
    for form in forms.split()
}
CALENDAR_UNITS: Final = frozenset({"week", "month", "quarter", "year"})
"""The units that "last", "this" and "next" select."""

PLURALS_OF_THINGS: Final = frozenset({"people", "men", "women", "children", "percent", "euro", "km", "kg"})
"""Words without a final s after which a number is no year."""
VERBS_IN_S: Final = frozenset({"was", "is", "has", "does", "as", "this", "its"})

POSSESSIVES: Final = frozenset({"the", "my", "your", "his", "her", "its", "our", "their"})
TRUSTING: Final = frozenset(
    {"believe", "believes", "believed", "confide", "confides", "confided", "interest", "interested", "trust", "faith",
     "confidence"}
)  # fmt: skip
"""Words after which "in April" is about a person."""
