"""The sentences that the rehearsal understands."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class SetName:
    """ "My name is Ada." """

    name: str


@dataclass(frozen=True, slots=True)
class AskName:
    """ "What is my name?" """


@dataclass(frozen=True, slots=True)
class Remember:
    """ "Remember that the key is under the mat." """

    what: str


@dataclass(frozen=True, slots=True)
class AskSaid:
    """ "What did I say about the key?" """

    topic: str


@dataclass(frozen=True, slots=True)
class AskKnown:
    """ "What do you know about the key?" """

    topic: str


Wish = SetName | AskName | Remember | AskSaid | AskKnown

_LONGEST_NAME: Final = 80
_QUOTES: Final = {'"': '"', "“": "”", "„": "“", "«": "»", "「": "」", "『": "』"}
_QUOTE_MARKS: Final = "\"“”„«»「」『』'‘’`"
_ENDS: Final = re.compile(r"[.!?…;]+(?=[\s\"”»」』)]|$)|[。！？；]+|\n+")
_ABBREVIATION: Final = re.compile(
    r"(?:^|[\s(])(?:\w|dr|mr|mrs|ms|st|prof|jr|sr|e\.g|i\.e|no|vs|approx)\.$", re.IGNORECASE
)
_WISH_BEGINS: Final = (
    r"(?:please\s+)?(?:my\s+(?:\w+\s+)?name(?:'s|\s+is)|call\s+me\s|remember\s+(?:that|this|:)|what(?:'s|\s+is)\s+my\s+name"
    r"|what\s+(?:did|have)\s+(?:i|we)\s|what\s+do\s+you\s|who\s+am\s+i|do\s+you\s+(?:know|remember)\s|tell\s+me\s)"
)
_JOINT: Final = re.compile(
    rf"(?:\s*,)?\s+(?:and\s+then|and\s+also|and|then|also|but|so)\s*,?\s+(?={_WISH_BEGINS})|\s*[,–—-]\s+(?={_WISH_BEGINS})",
    re.IGNORECASE,
)
_LEAD: Final = (
    r"^\W*(?:(?:hi|hello|hey|ok|okay|well|so|and|please|thanks|thank\s+you|also|then|now|oh|yes|no|just"
    r"|by\s+the\s+way|could\s+you|can\s+you|would\s+you|will\s+you|i\s+want\s+you\s+to|i'd\s+like\s+you\s+to)\b\W*)*"
)


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text, re.IGNORECASE | re.DOTALL)


_REMEMBER: Final = _pattern(
    _LEAD + r"(?:(?:remember|memori[sz]e|don't\s+forget|do\s+not\s+forget)\b(?:\s+(?:this|that)\b)?"
    r"|(?:note|keep\s+in\s+mind)\s+(?:this|that)\b|(?:remember|note)\s*(?=:))\s*[:,]?\s*(?P<what>.+)$"
)
_ASK_SAID: Final = _pattern(
    r"\bwhat\s+(?:did|have|had)\s+(?:i|we)\s+(?:\w+\s+){0,2}?"
    r"(?:say|said|tell|told|mention|mentioned|talk|talked|discuss|discussed|write|written)"
    r"(?:\s+to)?(?:\s+you)?(?:\s+(?:about|on|of|regarding|concerning))?\s+(?P<topic>.+)$"
)
_ASK_KNOWN: Final = _pattern(
    r"\b(?:what(?:\s+all)?\s+(?:do|did)\s+you|(?:everything|all|anything|what)\s+you)\s+(?:\w+\s+)?"
    r"(?:know|remember|recall|stored?|noted?)\s+(?:about|of|on|regarding|concerning)\s+(?P<topic>.+)$"
)
_ASK_NAME: Final = _pattern(
    r"\bwhat(?:'s|\s+is|\s+was)\s+my\s+(?:\w+\s+)?name\b|\bwho\s+am\s+i\b|\bwhat\s+am\s+i\s+called\b"
    r"|\b(?:know|remember|recall|tell\s+me|say)\s+(?:what\s+)?my\s+(?:\w+\s+)?name\b"
)
_SET_NAME: Final = _pattern(
    r"\bmy\s+(?:(?:full|first|last|real|new|given)\s+)?name\s*(?:is\b|'s\b|:)\s*(?P<name>.+)$"
    r"|(?:^|[\s,])(?:call\s+me|i\s+am\s+called|i'm\s+called|i\s+am\s+named|i'm\s+named)\s+(?P<called>.+)$"
)
_AFTER_NAME: Final = _pattern(
    r"\s*[,;:(–—]\s.*$|\s*[,;]$|\s+(?:and|but|so|because|by\s+the\s+way|please|what|how|now|from\s+now\s+on|nice\s+to)\b.*$"
)
_NO_NAME: Final = _pattern(r"^(?:not|no|none|unknown|a\s+secret|what|who)\b")


def wishes(text: str) -> tuple[Wish, ...]:
    """Returns the wishes in the text, sentence by sentence. Other sentences are left out."""
    return tuple(wish for sentence in _sentences(text) if (wish := _wish(sentence)) is not None)


def _wish(sentence: str) -> Wish | None:
    # Each character is replaced by one character, so positions stay the same.
    plain = sentence.replace("’", "'").replace("‘", "'")
    if (found := _REMEMBER.search(plain)) and not plain.rstrip().endswith("?"):
        what = sentence[found.start("what") :].strip().rstrip(";；, ")
        return Remember(_unquoted(what)) if _has_words(what) else None
    for pattern, kind in ((_ASK_SAID, AskSaid), (_ASK_KNOWN, AskKnown)):
        if found := pattern.search(plain):
            topic = _unquoted(sentence[found.start("topic") :].strip().rstrip("?!.。？！… "))
            return kind(topic) if _has_words(topic) else None
    if _ASK_NAME.search(plain):
        return AskName()
    if found := _SET_NAME.search(plain):
        name = _name(sentence[found.start(found.lastgroup or "name") :])
        return SetName(name) if name else None
    return None


def _name(said: str) -> str:
    said = said.strip()
    closing = _QUOTES.get(said[:1])
    name = said[1 : said.index(closing, 1)] if closing and closing in said[1:] else _AFTER_NAME.sub("", said)
    name = " ".join(name.strip(_QUOTE_MARKS + " ,;:!?。！？…").split())
    if name.endswith(".") and not _ABBREVIATION.search(name):
        name = name.rstrip(".")
    return "" if _NO_NAME.search(name) or not _has_words(name) else name[:_LONGEST_NAME]


def _sentences(text: str) -> Iterator[str]:
    quoted = _quoted_spans(text)
    start = 0
    for end in _ENDS.finditer(text):
        is_abbreviation = end[0] == "." and _ABBREVIATION.search(text[start : end.end()])
        if is_abbreviation or any(begin <= end.start() < finish for begin, finish in quoted):
            continue
        yield from _parts(text[start : end.end()])
        start = end.end()
    yield from _parts(text[start:])


def _parts(sentence: str) -> Iterator[str]:
    quoted = _quoted_spans(sentence)
    start = 0
    for joint in _JOINT.finditer(sentence.replace("’", "'")):
        if not any(begin <= joint.start() < finish for begin, finish in quoted):
            yield sentence[start : joint.start()]
            start = joint.end()
    yield sentence[start:]


def _quoted_spans(text: str) -> list[tuple[int, int]]:
    """Returns the spans of the text in closed quotation marks."""
    spans: list[tuple[int, int]] = []
    position = 0
    while position < len(text):
        closing = _QUOTES.get(text[position])
        end = text.find(closing, position + 1) if closing else -1
        if end > 0:
            spans.append((position, end))
            position = end
        position += 1
    return spans


def _unquoted(text: str) -> str:
    closing = _QUOTES.get(text[:1])
    body = text.rstrip(".!?。！？ ")
    return body[1:-1].strip() if closing and len(body) > 1 and body.find(closing, 1) == len(body) - 1 else text


def _has_words(text: str) -> bool:
    return any(character.isalnum() for character in text)
