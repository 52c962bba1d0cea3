"""The sentences that the rehearsal understands: requests, and facts that a user states."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Final

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
class SetName:
    """ "My name is Ada." """

    name: str


@dataclass(frozen=True, slots=True)
class AskName:
    """ "What is my name?" """


@dataclass(frozen=True, slots=True)
class Remember:
    """ "Remember that the key is under the mat." """

    text: str


@dataclass(frozen=True, slots=True)
class AskConversation:
    """ "What did I say about the key?" """

    topic: str


@dataclass(frozen=True, slots=True)
class AskArchive:
    """ "What do you know about the key?", "Where is the key?" """

    topic: str


@dataclass(frozen=True, slots=True)
class AskAgent:
    """ "Ask agent-…: what is my name?" """

    agent_id: str
    text: str


Intent = SetName | AskName | Remember | AskConversation | AskArchive | AskAgent

_MAX_NAME_CHARACTERS: Final = 80
_QUOTES: Final = {'"': '"', "“": "”", "„": "“", "«": "»", "「": "」", "『": "』"}
_QUOTE_MARKS: Final = "\"“”„«»「」『』'‘’`"
_READ_CHARACTERS: Final = 4_000
_BLANKS: Final = re.compile(r"[^\S\n]{2,}")
_SENTENCE_END: Final = re.compile(r"[.!?…;]+(?=[\s\"”»」』)]|$)|[。！？；]+|\n+")
_ABBREVIATION: Final = re.compile(
    r"(?:^|[\s(])(?:\w|dr|mr|mrs|ms|st|prof|jr|sr|e\.g|i\.e|no|vs|approx)\.$", re.IGNORECASE
)
_INTENT_START: Final = (
    r"(?:please\s+)?(?:my\s+(?:\w+\s+)?name(?:'s|\s+is)|call\s+me\s|remember\s+(?:that|this|:)|what(?:'s|\s+is)\s+my\s+name"
    r"|what\s+(?:did|have)\s+(?:i|we)\s|what\s+do\s+you\s|who\s+am\s+i|do\s+you\s+(?:know|remember)\s|tell\s+me\s)"
)
_CONJUNCTION: Final = re.compile(
    rf"(?:\s*,)?\s+(?:and\s+then|and\s+also|and|then|also|but|so)\s*,?\s+(?={_INTENT_START})|\s*[,–—-]\s+(?={_INTENT_START})",
    re.IGNORECASE,
)
_PREAMBLE: Final = (
    r"^\W*(?:(?:hi|hello|hey|ok|okay|well|so|and|please|thanks|thank\s+you|also|then|now|oh|yes|no|just"
    r"|by\s+the\s+way|could\s+you|can\s+you|would\s+you|will\s+you|i\s+want\s+you\s+to|i'd\s+like\s+you\s+to)\b\W*)*"
)


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text, re.IGNORECASE | re.DOTALL)


_REMEMBER: Final = _pattern(
    _PREAMBLE + r"(?:(?:remember|memori[sz]e|don't\s+forget|do\s+not\s+forget)\b(?:\s+(?:this|that)\b)?"
    r"|(?:note|keep\s+in\s+mind)\s+(?:this|that)\b|(?:remember|note)\s*(?=:))\s*[:,]?\s*(?P<what>.+)$"
)
_ASK_CONVERSATION: Final = _pattern(
    r"\bwhat\s+(?:did|have|had)\s+(?:i|we)\s+(?:\w+\s+){0,2}?"
    r"(?:say|said|tell|told|mention|mentioned|talk|talked|discuss|discussed|write|written)"
    r"(?:\s+to)?(?:\s+you)?(?:\s+(?:about|on|of|regarding|concerning))?\s+(?P<topic>.+)$"
)
_ASK_ARCHIVE: Final = _pattern(
    r"\b(?:what(?:\s+all)?\s+(?:do|did)\s+you|(?:everything|all|anything|what)\s+you)\s+(?:\w+\s+)?"
    r"(?:know|remember|recall|stored?|noted?)\s+(?:about|of|on|regarding|concerning)\s+(?P<topic>.+)$"
)
_ASK_FACT: Final = _pattern(
    _PREAMBLE + r"(?:when|where)(?:'s|\s+(?:is|are|was|were|does|do|did|will))\s+(?!you\b)(?P<topic>[^?]+)\?"
)
_ASK_AGENT: Final = _pattern(r"^\W*(?:please\s+)?ask\s+(?P<agent>agent-[0-9a-f-]{36})\s*[,:]?\s*(?P<text>.+)$")
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


def parse_intents(text: str) -> tuple[Intent, ...]:
    """Returns the wishes in the text, sentence by sentence. Other sentences are left out."""
    return tuple(intent for sentence in sentences(text) if (intent := parse_intent(sentence)) is not None)


def parse_intent(sentence: str) -> Intent | None:
    """Returns the wish in a sentence, or None."""
    # Each character is replaced by one character, so positions stay the same.
    normalized = sentence.replace("’", "'").replace("‘", "'")
    if match := _ASK_AGENT.search(normalized):
        return AskAgent(match["agent"], sentence[match.start("text") :].strip())
    if (match := _REMEMBER.search(normalized)) and not normalized.rstrip().endswith("?"):
        text = sentence[match.start("what") :].strip().rstrip(";；, ")
        return Remember(_unquoted(text)) if _has_words(text) else None
    questions = ((_ASK_CONVERSATION, AskConversation), (_ASK_ARCHIVE, AskArchive), (_ASK_FACT, AskArchive))
    for pattern, kind in questions:
        if match := pattern.search(normalized):
            topic = _unquoted(sentence[match.start("topic") :].strip().rstrip("?!.。？！… "))
            return kind(topic) if _has_words(topic) else None
    if _ASK_NAME.search(normalized):
        return AskName()
    if match := _SET_NAME.search(normalized):
        name = _name(sentence[match.start(match.lastgroup or "name") :])
        return SetName(name) if name else None
    return None


def _name(text: str) -> str:
    text = text.strip()
    closing = _QUOTES.get(text[:1])
    name = text[1 : text.index(closing, 1)] if closing and closing in text[1:] else _AFTER_NAME.sub("", text)
    name = " ".join(name.strip(_QUOTE_MARKS + " ,;:!?。！？…").split())
    if name.endswith(".") and not _ABBREVIATION.search(name):
        name = name.rstrip(".")
    return "" if _NO_NAME.search(name) or not _has_words(name) else name[:_MAX_NAME_CHARACTERS]


def sentences(text: str) -> Iterator[str]:
    """Yields the sentences of the first 4,000 characters of a text. Quoted text is not divided."""
    text = _BLANKS.sub(" ", text[:_READ_CHARACTERS])
    quoted = _quoted_spans(text)
    start = 0
    for end in _SENTENCE_END.finditer(text):
        is_abbreviation = end[0] == "." and _ABBREVIATION.search(text[start : end.end()])
        if is_abbreviation or any(opening <= end.start() < closing for opening, closing in quoted):
            continue
        yield from _parts(text[start : end.end()])
        start = end.end()
    yield from _parts(text[start:])


def _parts(sentence: str) -> Iterator[str]:
    quoted = _quoted_spans(sentence)
    start = 0
    for conjunction in _CONJUNCTION.finditer(sentence.replace("’", "'")):
        if not any(opening <= conjunction.start() < closing for opening, closing in quoted):
            yield sentence[start : conjunction.start()]
            start = conjunction.end()
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
