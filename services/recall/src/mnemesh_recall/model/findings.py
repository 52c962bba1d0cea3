"""The findings of a memory audit: rules on episodes and facts. Pure functions without storage."""

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import derive_id
from mnemesh_kit.secret_patterns import find_secrets, mask_secrets

from mnemesh_recall.model.episode_rules import require_scopes
from mnemesh_recall.model.episodes import Episode, Fact, Scope
from mnemesh_recall.model.statements import Relation, related, statement_of

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
