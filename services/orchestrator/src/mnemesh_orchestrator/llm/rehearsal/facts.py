"""Finds the facts that a user states about themselves, as absolute statements in the third person."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Final

from mnemesh_orchestrator.llm.rehearsal.sentences import Remember, SetName, parse_intent, sentences

_THIRD_PERSON: Final = {
    "live": "Lives",
    "work": "Works",
    "like": "Likes",
    "love": "Loves",
    "prefer": "Prefers",
    "hate": "Hates",
    "have": "Has",
    "own": "Owns",
    "speak": "Speaks",
    "study": "Studies",
    "play": "Plays",
    "drink": "Drinks",
    "eat": "Eats",
    "drive": "Drives",
    "need": "Needs",
    "am": "Is",
    "was": "Was",
}
_NEGATED: Final = re.compile(r"^i\s+(?:do\s+not|don't)\s+(?P<verb>\w+)\s+(?P<rest>.+)$", re.IGNORECASE | re.DOTALL)
_STATEMENT: Final = re.compile(
    r"^i(?:'m\s+|\s+(?:(?:really|also|now|currently|still)\s+)*)(?P<verb>\w+)\s+(?P<rest>.+)$",
    re.IGNORECASE | re.DOTALL,
)
_BEING: Final = re.compile(
    r"^i(?:'m|\s+am)\s+(?P<rest>(?:an?|from|allergic|married|vegetarian|vegan|\d+)\b.*)$", re.IGNORECASE | re.DOTALL
)
_ATTRIBUTE: Final = re.compile(
    r"^my\s+(?P<key>\w[\w' -]{0,40}?)\s+(?:is|are)\s+(?P<value>.+)$", re.IGNORECASE | re.DOTALL
)
_JOINT: Final = re.compile(r"(?:\s*,)?\s+(?:and|but)\s+(?=(?:i|my)\b)", re.IGNORECASE)
_LEAD: Final = re.compile(
    r"^\W*(?:(?:hi|hello|hey|ok|okay|well|so|and|also|by\s+the\s+way|oh|yes|no)\b\W*)*", re.IGNORECASE
)
_ONE_AT_A_TIME: Final = re.compile(r"^(?:Lives in|Works (?:at|for|as)|Is from|Was born in)\b")
_RELATIVE_DAYS: Final = {"yesterday": -1, "today": 0, "tonight": 0, "tomorrow": 1}
_DAY: Final = re.compile(r"\b(yesterday|today|tonight|tomorrow)\b", re.IGNORECASE)
_FIRST_PERSON: Final = re.compile(r"\b(?:i|me|we|us|our)\b", re.IGNORECASE)
_MY: Final = re.compile(r"\bmy\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Fact:
    """A line about the user.

    `key` is the beginning of the line that it replaces, as only one of them can be true; None if it replaces none.
    """

    line: str
    key: str | None = None


def stated_facts(text: str, day: str | None) -> Iterator[Fact | SetName]:
    """Yields the facts in a text that the user wrote, in order. `day` is the date on which they wrote it."""
    for sentence in sentences(text):
        for part in _JOINT.split(sentence.replace("’", "'")):
            intent = parse_intent(part)
            if isinstance(intent, SetName):
                yield intent
            elif isinstance(intent, Remember):
                yield _statement(intent.text, day) or _quotation(intent.text, day)
            elif intent is None and not part.rstrip().endswith("?") and (fact := _statement(part, day)) is not None:
                yield fact


def _statement(sentence: str, day: str | None) -> Fact | None:
    text = _LEAD.sub("", sentence).strip()
    if match := _ATTRIBUTE.match(text):
        key = match["key"][0].upper() + match["key"][1:]
        return Fact(_line(f"{key}: {match['value']}", day).removesuffix("."), f"{key}:")
    if match := _BEING.match(text):
        return _exclusive(_line(f"Is {match['rest']}", day))
    if (match := _NEGATED.match(text)) and match["verb"].lower() in _THIRD_PERSON:
        return Fact(_line(f"Does not {match['verb'].lower()} {match['rest']}", day))
    if (match := _STATEMENT.match(text)) and (verb := match["verb"].lower()) in _THIRD_PERSON and verb != "am":
        return _exclusive(_line(f"{_THIRD_PERSON[verb]} {match['rest']}", day))
    return None


def _quotation(text: str, day: str | None) -> Fact:
    return Fact(f"Said: {_line(text, day)}" if _FIRST_PERSON.search(text) else _line(text, day))


def _exclusive(line: str) -> Fact:
    match = _ONE_AT_A_TIME.match(line)
    return Fact(line, match[0] if match else None)


def _line(text: str, day: str | None) -> str:
    line = " ".join(_MY.sub("their", text).split()).rstrip(" .!;,")
    if day is not None:
        line = _DAY.sub(lambda match: _date(match[1], day), line)
    return f"{line[:1].upper()}{line[1:]}."


def _date(word: str, day: str) -> str:
    try:
        moved = date.fromisoformat(day) + timedelta(days=_RELATIVE_DAYS[word.lower()])
    except ValueError:
        return word
    return f"on {moved.isoformat()}"
