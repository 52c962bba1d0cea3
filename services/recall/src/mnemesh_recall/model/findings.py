"""What an audit of memory reports: statements of facts, and what is wrong with them."""

import hashlib
import re
import tomllib
import unicodedata
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from importlib import resources
from math import ceil
from typing import Any, Final

from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import derive_id
from mnemesh_kit.secret_patterns import find_secrets, mask_secrets
from mnemesh_retrieval.words.analysis import indexed

from mnemesh_recall.model.episode_rules import require_scopes
from mnemesh_recall.model.episodes import Episode, Fact, Scope

MIN_SIMILARITY: Final = 0.8
"""The share of common words from which two statements are nearly equal."""

_CLOSING: Final = ".,;:!?…\"'“”‘’«»()[]"
_ARTICLES: Final = frozenset({"a", "an", "the"})
_TOKEN: Final = re.compile(r"[^\W_]+(?:[.,:/-][0-9]+)*")
_WORDS: Final[dict[str, Any]] = tomllib.loads(
    (resources.files("mnemesh_recall.model") / "statement_words.toml").read_text(encoding="utf-8")
)
_NEGATIONS: Final = frozenset(_WORDS["negations"].split())
_UNIMPORTANT: Final = frozenset(_WORDS["unimportant"].split())
_PAST: Final = frozenset(_WORDS["past"].split())
_ONE_VALUE: Final = frozenset(indexed(_WORDS["one_value"]).split())
_ATTRIBUTES: Final = frozenset(indexed(_WORDS["attributes"]).split())
_CALENDAR: Final = frozenset(indexed(_WORDS["calendar"]).split())
_SAME: Final = {indexed(word): indexed(other) for word, other in _WORDS["same"].items()}
_MAX_VALUE_WORDS: Final = 5
_MIN_SHARE: Final = 1 / 6
"""No pair with a smaller share of common words has a relation: two common words, and five others of either."""
_YEAR: Final = re.compile(r"(?:19|20)\d\d")


class Relation(StrEnum):
    """The relation of two statements."""

    EQUAL = "equal"
    NEAR = "near"
    CONTRADICTORY = "contradictory"


@dataclass(frozen=True, slots=True)
class Statement:
    """The words of a statement that matter, stemmed, in order.

    `numbers` and `names` are the words that must not differ between statements that say the same. Names are
    capitalised words other than the first one. `past` is true for what is no longer so. `raw_positions` has the
    position of each word among all words.
    """

    key: str
    words: tuple[str, ...]
    numbers: frozenset[str]
    names: frozenset[str]
    negated: bool
    past: bool
    raw_positions: tuple[int, ...]
    word_set: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "word_set", frozenset(self.words))


def text_key(text: str) -> str:
    """Returns a key that is equal for texts that differ only in case, white space, articles and outer punctuation.

    Tense, numbers, signs within words and the order of words make a difference.
    """
    words = unicodedata.normalize("NFKC", text).casefold().replace("’", "'").replace("n't", " not").split()
    bare = [bare for word in words if (bare := word.strip(_CLOSING))]
    kept = [word for word in bare if word not in _ARTICLES] or bare or words
    return hashlib.sha256(" ".join(kept).encode()).hexdigest()[:32]


@lru_cache(maxsize=20_000)
def statement_of(text: str) -> Statement:
    """Returns the words of a text that matter."""
    plain = text.replace("’", "'").replace("n't ", " not ").replace("n't.", " not.")
    words: list[str] = []
    positions: list[int] = []
    numbers, names, negated, past = set(), set(), False, False
    for position, token in enumerate(_TOKEN.findall(plain)):
        lowered = token.casefold()
        past |= lowered in _PAST
        if lowered in _NEGATIONS:
            negated = not negated
            continue
        if lowered in _UNIMPORTANT and not (token.isupper() and len(token) > 1):
            continue
        is_number = any(character.isdigit() for character in token)
        for stem in [lowered] if is_number else indexed(token).split():
            word = _SAME.get(stem, stem)
            words.append(word)
            positions.append(position)
            if is_number:
                numbers.add(word)
            elif position and token[0].isupper():
                names.add(word)
    is_past = past and "born" not in words
    return Statement(
        text_key(text), tuple(words), frozenset(numbers), frozenset(names), negated, is_past, tuple(positions)
    )


def similarity(one: Statement, other: Statement) -> float:
    """Returns the share of common words among all words of two statements, from 0 to 1."""
    common = len(one.word_set & other.word_set)
    return common / (len(one.word_set) + len(other.word_set) - common) if common else 0.0


def relation(one: str, other: str) -> tuple[Relation, float] | None:
    """Returns how two texts relate and how similar they are; None if they say different things."""
    return related(statement_of(one), statement_of(other))


def related(first: Statement, second: Statement) -> tuple[Relation, float] | None:
    """Returns how two statements relate and how similar they are; None if they say different things."""
    if first.key == second.key:
        return Relation.EQUAL, 1.0
    share = similarity(first, second)
    if share < _MIN_SHARE or first.past != second.past:
        return None
    if _contradict(first, second):
        return Relation.CONTRADICTORY, share
    if share >= MIN_SIMILARITY and _same_values(first, second) and _same_order(first, second):
        return Relation.NEAR, share
    return None


def statement_keys(statement: Statement, frequency: Mapping[str, int]) -> frozenset[Hashable]:
    """Returns keys of which two related statements have one in common.

    Statements with a share of common words of at least MIN_SIMILARITY have one of their rarest words in common. The
    other relations are between equal words, equal words but for numbers, or an equal matter.

    Args:
        statement: the statement.
        frequency: the number of statements with each word, the same for all statements.
    """
    words = statement.words
    rarest = sorted(statement.word_set, key=lambda word: (frequency.get(word, 0), word))
    needed = len(rarest) - ceil(MIN_SIMILARITY * len(rarest)) + 1
    keys: set[Hashable] = {statement.key, words, tuple("0" if word in statement.numbers else word for word in words)}
    keys.update(("word", word) for word in rarest[:needed])
    matter = next((words[: index + 1] for index, word in enumerate(words) if index and word in _ONE_VALUE), None)
    attribute = next((words[: index + 2] for index, word in enumerate(words) if word in _ATTRIBUTES), None)
    keys.update(("matter", part) for part in (matter, attribute) if part is not None)
    return frozenset(keys)


def _same_values(one: Statement, other: Statement) -> bool:
    """Returns whether what a statement has and the other lacks is neither a number nor a name nor a negation."""
    return (
        one.negated == other.negated
        and one.numbers == other.numbers
        and not (one.names | other.names) & (one.word_set ^ other.word_set)
    )


def _same_order(one: Statement, other: Statement) -> bool:
    """Returns whether the statements are about the same: "Ana likes Bo" is not "Bo likes Ana" or "Cy likes Bo".

    The first word of a sentence may be a name.
    """
    if one.words[0] not in other.words or other.words[0] not in one.words:
        return False
    common = one.word_set & other.word_set
    first = [word for word in one.words if word in common and word in one.names | {one.words[0]}]
    second = [word for word in other.words if word in common and word in other.names | {other.words[0]}]
    return first[:1] == second[:1] or not (first and second)


def _contradict(one: Statement, other: Statement) -> bool:
    if one.negated != other.negated:
        return len(one.words) > 1 and one.words == other.words
    return _other_number(one, other) or _other_value(one, other)


def _other_number(one: Statement, other: Statement) -> bool:
    """Returns whether the statements differ in numbers only, and these are values rather than parts of a name."""
    if len(one.words) != len(other.words):
        return False
    differing = [index for index, pair in enumerate(zip(one.words, other.words, strict=True)) if pair[0] != pair[1]]
    if not differing or differing[0] == 0 or len(one.words) < 2:
        return False
    if not all(one.words[index] in one.numbers and other.words[index] in other.numbers for index in differing):
        return False
    if one.raw_positions[differing[0]] < 2:
        return False  # "Room 12 has a projector": the number is a part of the subject
    has_one_value = not _ONE_VALUE.isdisjoint(one.words)
    return has_one_value or not all(_YEAR.fullmatch(one.words[index]) for index in differing)


def _other_value(one: Statement, other: Statement) -> bool:
    """Returns whether the statements begin alike, up to a word such as "lives", and continue with different values."""
    length = 0
    for first, second in zip(one.words, other.words, strict=False):
        if first != second:
            break
        length += 1
    prefix, values = one.words[:length], (one.words[length:], other.words[length:])
    has_one_value = not _ONE_VALUE.isdisjoint(prefix[1:])
    has_attribute = any(word in _ATTRIBUTES and index + 1 < length for index, word in enumerate(prefix))
    return (
        length > 1
        and (has_one_value or has_attribute)
        and all(0 < len(value) <= _MAX_VALUE_WORDS for value in values)
        and values[0][0] not in values[1]
        and values[1][0] not in values[0]
        # "works on Mondays" and "works at Acme" say different things.
        and _kind(one, values[0][0]) == _kind(other, values[1][0])
    )


def _kind(statement: Statement, word: str) -> str:
    if word in _CALENDAR:
        return "calendar"
    return "name" if word in statement.names or word in statement.numbers else "word"


MAX_AUDIT_PAGE: Final = 1_000
DEFAULT_AUDIT_PAGE: Final = 200
DEFAULT_STALE_DAYS: Final = 365
MAX_STALE_DAYS: Final = 36_500
MAX_COMPARED: Final = 5_000
"""The number of newest valid facts of a scope with which a fact is compared."""
_SHOWN_CHARACTERS: Final = 500
_RELATIVE: Final = re.compile(
    r"(?i)\b(today|tonight|tomorrow|yesterday|(?:this|next|last|past|coming) (?:week(?:end)?|month|year|summer|winter|"
    r"spring|autumn|fall|monday|tuesday|wednesday|thursday|friday|saturday|sunday)|(?:a|one|two|three|few|\d+) "
    r"(?:days?|weeks?|months?|years?) ago|in (?:a|one|two|three|a few|\d+) (?:days?|weeks?|months?|years?)|right now|"
    r"at the moment|recently|soon)\b"
)


class FindingKind(StrEnum):
    """The problem of a memory."""

    DUPLICATE = "duplicate"
    NEAR_DUPLICATE = "near_duplicate"
    CONTRADICTION = "contradiction"
    STALE = "stale"
    SECRET = "secret"  # noqa: S105
    ORPHAN = "orphan"


class FindingAction(StrEnum):
    """The action that corrects a finding."""

    MERGE = "merge"
    SUPERSEDE = "supersede"
    INVALIDATE = "invalidate"
    DELETE = "delete"
    REDACT = "redact"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A problem of one memory or of two. The texts have no secrets."""

    kind: FindingKind
    scope: Scope
    memory_ids: tuple[str, ...]
    texts: tuple[str, ...]
    detail: str
    action: FindingAction
    kept_id: str | None = None
    similarity: float | None = None

    @property
    def id(self) -> str:
        """An id that is the same in every audit."""
        return derive_id("finding", self.kind.value, *self.memory_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryAudit:
    """A page of an audit. `position` is the end of the page before, and 0 at the start."""

    scopes: tuple[Scope, ...] = ()
    kinds: frozenset[FindingKind] = frozenset(FindingKind)
    stale_days: int = DEFAULT_STALE_DAYS
    page_size: int = DEFAULT_AUDIT_PAGE
    position: int = 0


@dataclass(frozen=True, slots=True)
class AuditPage:
    """The findings of a page, the number of examined memories, and the end of the page; None if it is the last."""

    findings: tuple[Finding, ...]
    examined: int
    position: int | None


def require_audit(audit: MemoryAudit) -> None:
    """Refuses an audit whose values are out of bounds. Raises InvalidArgument."""
    require_scopes(audit.scopes, "scopes")
    if not 1 <= audit.page_size <= MAX_AUDIT_PAGE:
        raise InvalidArgument(f"page_size must be between 0 and {MAX_AUDIT_PAGE:,}.", field="page_size")
    if not 1 <= audit.stale_days <= MAX_STALE_DAYS:
        raise InvalidArgument(f"stale_days must be between 1 and {MAX_STALE_DAYS:,}.", field="stale_days")


def pair_findings(fact: Fact, others: Iterable[Fact], kinds: Collection[FindingKind]) -> Iterator[Finding]:
    """Yields the findings of a valid fact and older valid facts of its scope."""
    own = statement_of(fact.text)
    for other in others:
        found = related(statement_of(other.text), own)
        if found is not None and (finding := _pair(other, fact, *found)).kind in kinds:
            yield finding


def _pair(older: Fact, newer: Fact, relation: Relation, similarity: float) -> Finding:
    match relation:
        case Relation.EQUAL:
            kind, detail, action = FindingKind.DUPLICATE, "Both facts have the same text.", FindingAction.MERGE
        case Relation.NEAR:
            kind, detail = FindingKind.NEAR_DUPLICATE, "The facts say the same in nearly the same words."
            action = FindingAction.MERGE
        case Relation.CONTRADICTORY:
            kind, detail = FindingKind.CONTRADICTION, "The facts say the same of different values."
            action = FindingAction.SUPERSEDE
    # Of two texts that say the same, the longer one says more. Of two values, the one that was learned later holds.
    keeps_older = action is FindingAction.MERGE and len(older.text) >= len(newer.text)
    # A fact that supersedes another has a history of its own and cannot continue a second one.
    kept, other = (older, newer) if keeps_older else (newer, older)
    if kept.supersedes_id is not None and other.supersedes_id is None and action is FindingAction.MERGE:
        kept, other = other, kept
    return Finding(
        kind=kind,
        scope=newer.scope,
        memory_ids=(older.id, newer.id),
        texts=(_shown(older.text), _shown(newer.text)),
        detail=detail,
        action=action,
        kept_id=kept.id,
        similarity=similarity,
    )


def stale_finding(fact: Fact, now: datetime, days: int) -> Finding | None:
    """Returns the finding of an open fact that may hold no longer; None if it is current."""
    relative = _RELATIVE.search(fact.text)
    if fact.closed_at is not None:
        return None
    if fact.invalid_at is not None and fact.invalid_at <= now:
        detail = f"Its validity ended on {fact.invalid_at:%Y-%m-%d}."
    elif relative is not None and now - fact.updated_at > timedelta(days=1):
        detail = f"It says {relative[0]!r}, and was written on {fact.created_at:%Y-%m-%d}."
    elif now - fact.updated_at > timedelta(days=days):
        detail = f"Nothing confirmed it since {fact.updated_at:%Y-%m-%d}."
    else:
        return None
    return _single(FindingKind.STALE, fact, fact.text, detail, FindingAction.INVALIDATE)


def secret_finding(memory: Episode | Fact) -> Finding | None:
    """Returns the finding of a memory whose text has a secret; None if it has none."""
    text = memory.summary if isinstance(memory, Episode) else memory.text
    found = find_secrets(text)
    if not found:
        return None
    kinds = ", ".join(dict.fromkeys(secret.kind for secret in found))
    # The text of a closed fact cannot be replaced.
    is_closed = isinstance(memory, Fact) and memory.closed_at is not None
    action = FindingAction.DELETE if is_closed else FindingAction.REDACT
    return _single(FindingKind.SECRET, memory, text, f"It contains what looks like a secret: {kinds}.", action)


def orphan_finding(fact: Fact, existing: Collection[str]) -> Finding | None:
    """Returns the finding of a fact of whose messages none is in `existing`; None if one is, or if it names none."""
    sources = fact.source.message_ids
    if fact.closed_at is not None or not sources or any(message_id in existing for message_id in sources):
        return None
    detail = "The messages that it was learned from do not exist any more."
    return _single(FindingKind.ORPHAN, fact, fact.text, detail, FindingAction.INVALIDATE)


def _single(kind: FindingKind, memory: Episode | Fact, text: str, detail: str, action: FindingAction) -> Finding:
    return Finding(
        kind=kind, scope=memory.scope, memory_ids=(memory.id,), texts=(_shown(text),), detail=detail, action=action
    )


def _shown(text: str) -> str:
    masked = mask_secrets(text)
    return masked if len(masked) <= _SHOWN_CHARACTERS else f"{masked[:_SHOWN_CHARACTERS]}…"


def comparable(fact: Fact, now: datetime) -> bool:
    """Returns whether a fact is compared with others: it is open, and valid now."""
    return fact.closed_at is None and fact.is_valid(now)
