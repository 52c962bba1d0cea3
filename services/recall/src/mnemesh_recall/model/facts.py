"""The life of a fact: created, confirmed, superseded or invalidated; and the times that a query about facts names."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, Final

from mnemesh_kit.errors import InvalidArgument
from mnemesh_retrieval.time_expressions.resolver import resolve

from mnemesh_recall.errors import FactClosed
from mnemesh_recall.model.episodes import (
    AddFact,
    Episode,
    Fact,
    FactFilter,
    FactOperation,
    FactTimes,
    InvalidateFact,
    MemorySearch,
    NewFact,
    RestoreFact,
    Scope,
    Source,
    SupersedeFact,
)


def created_fact(
    new: NewFact,
    scope: Scope,
    fact_id: str,
    now: datetime,
    *,
    chain_id: str | None = None,
    supersedes: str | None = None,
) -> Fact:
    """Returns a new fact. It starts a chain of its own unless `chain_id` is set."""
    return Fact(
        id=fact_id,
        scope=scope,
        text=new.text,
        created_at=now,
        updated_at=now,
        chain_id=chain_id or fact_id,
        tags=new.tags,
        confidence=new.confidence,
        salience=new.salience,
        source=new.source,
        metadata=new.metadata,
        extra=new.extra,
        valid_from=new.valid_from,
        invalid_at=new.invalid_at,
        first_invalid_at=new.invalid_at,
        supersedes_id=supersedes,
    )


def superseded_fact(
    old: Fact, new: NewFact, fact_id: str, now: datetime, field: str, reason: str | None = None
) -> tuple[Fact, Fact]:
    """Returns the fact that replaces `old`, and `old` closed at the start of its successor.

    Values that `new` leaves out are those of `old`.

    Raises:
        FactClosed: `old` is closed.
        InvalidArgument: `new` is in another scope, or ends before it starts.
    """
    require_open(old)
    if new.scope not in (None, old.scope):
        raise InvalidArgument(f"{field}.fact.scope must be the scope of the old fact.", field=f"{field}.fact.scope")
    start = new.valid_from or now
    if new.invalid_at is not None and new.invalid_at <= start:
        raise InvalidArgument(
            f"{field}.fact.invalid_time must be after the start of the fact.", field=f"{field}.fact.invalid_time"
        )
    complete = replace(
        new,
        valid_from=start,
        tags=new.tags or old.tags,
        confidence=old.confidence if new.confidence is None else new.confidence,
        salience=old.salience if new.salience is None else new.salience,
        metadata=old.metadata if new.metadata is None else new.metadata,
        extra=old.extra if new.extra is None else new.extra,
    )
    fact = created_fact(complete, old.scope, fact_id, now, chain_id=old.chain_id, supersedes=old.id)
    end = start if old.invalid_at is None else min(start, old.invalid_at)
    return fact, replace(old.closed(invalid_at=end, now=now), superseded_by_id=fact_id, invalid_reason=reason)


def invalidated_fact(old: Fact, request: InvalidateFact, now: datetime) -> Fact:
    """Returns the closed fact; `old` itself if it is closed for the same time.

    Raises:
        FactClosed: it is closed for another time.
    """
    end = request.invalid_at or now
    if old.closed_at is not None and old.invalid_at == end:
        return old
    require_open(old)
    return replace(old.closed(invalid_at=end, now=now), invalid_reason=request.reason, invalid_source=request.source)


def replaced_fact(old: Fact, successor: Fact, request: InvalidateFact, now: datetime) -> tuple[Fact, Fact]:
    """Returns a fact that is closed in favour of one that exists, and that one as the next of the chain.

    Without a time in the request, the old fact ends where the successor starts.

    Raises:
        FactClosed: one of them is closed.
        InvalidArgument: the successor is the fact itself, is in another scope, or supersedes another fact.
    """
    require_open(old)
    require_open(successor)
    if successor.id == old.id or successor.scope != old.scope or successor.supersedes_id not in (None, old.id):
        raise InvalidArgument(
            "operation.superseded_by_id must be another fact of the same scope that supersedes no other fact.",
            field="operation.superseded_by_id",
        )
    end = request.invalid_at or successor.valid_from or now
    closed = replace(
        old.closed(invalid_at=min(end, now) if request.invalid_at is None else end, now=now),
        invalid_reason=request.reason,
        invalid_source=request.source,
        superseded_by_id=successor.id,
    )
    return closed, replace(successor, supersedes_id=old.id, chain_id=old.chain_id, updated_at=now)


def restored_fact(
    closed: Fact, newest: Fact, request: RestoreFact, fact_id: str, now: datetime
) -> tuple[Fact, Fact | None]:
    """Returns a closed fact stated again, and the newest fact of its chain if that is closed by it.

    The restored fact holds from the start of an open fact that it supersedes, or from the end of a closed one. If the
    newest fact is open and says the same, it is returned, and nothing changes.
    """
    if newest.closed_at is None and newest.text == closed.text:
        return newest, None
    start = newest.invalid_at if newest.closed_at is not None else newest.valid_from
    end = closed.first_invalid_at
    new = NewFact(
        text=closed.text,
        tags=closed.tags,
        confidence=closed.confidence,
        salience=closed.salience,
        source=closed.source.merged(request.source),
        metadata=closed.metadata,
        extra=closed.extra,
        valid_from=start,
        invalid_at=None if end is None or (start is not None and end <= start) else end,
    )
    fact = created_fact(new, closed.scope, fact_id, now, chain_id=closed.chain_id, supersedes=newest.id)
    if newest.closed_at is not None:
        return fact, None
    superseded = newest.closed(invalid_at=start or now, now=now)
    return fact, replace(superseded, superseded_by_id=fact_id, invalid_reason=request.reason)


def confirmed_fact(fact: Fact, source: Source, confidence: float | None, now: datetime) -> Fact:
    """Returns the fact with a further source, and with another confidence unless that is None."""
    return replace(
        fact,
        source=fact.source.merged(source),
        confidence=fact.confidence if confidence is None else confidence,
        updated_at=now,
    )


def require_open(fact: Fact) -> None:
    """Refuses a fact that was superseded or invalidated. Raises FactClosed."""
    if fact.closed_at is not None:
        raise FactClosed(fact.id, fact.superseded_by_id)


def required_scope(scope: Scope | None, field: str) -> Scope:
    """Returns the scope of a memory. Raises InvalidArgument if neither the memory nor its request names one."""
    if scope is None:
        raise InvalidArgument(f"{field} is required if the request names no scope.", field=field)
    return scope


def with_source_episode(operation: FactOperation, episode: Episode) -> FactOperation:
    """Returns the operation with the episode as the source of the fact that it adds, unless that names another."""
    if isinstance(operation, AddFact | SupersedeFact) and operation.fact.source.episode_id is None:
        source = replace(operation.fact.source, episode_id=episode.id)
        return replace(operation, fact=replace(operation.fact, source=source))
    return operation


_INSTANT: Final = timedelta(microseconds=1)
_EARLIEST: Final = datetime.min.replace(tzinfo=UTC)
_KNOWLEDGE: Final = re.compile(
    r"(?i)\b(?:did|had|have|has) (?:you|we|i|they|he|she|it) (?:already |ever |really )?"
    r"(?:know|known|think|thought|believe|believed|learn|learned|learnt|assume|assumed|remember|remembered)\b"
    r"|\b(?:you|we|i) (?:already |really )?(?:knew|thought|believed|assumed|had learned)\b"
    r"|\b(?:was|were|is|are) (?:already )?known\b|\bknowledge (?:of|from|in|at|as of)\b|\bas of\b"
)


def fact_times(query: str, zone: tzinfo, reference: datetime) -> FactTimes | None:
    """Returns the times that a query names; None if it names none.

    The first expression counts. A query that asks what was known then ("what did you know in May") names a time of
    knowledge: the end of the period, or the reference if that is later. Any other names a period of validity.
    """
    ranges = resolve(query, zone, reference)
    if not ranges:
        return None
    first = ranges[0]
    end = reference if first.end is None else max(_EARLIEST, first.end - _INSTANT)
    if _KNOWLEDGE.search(query):
        return FactTimes(first.expression, known_at=min(end, reference))
    since = _EARLIEST if first.start is None else first.start
    return FactTimes(first.expression, valid_since=min(since, end), valid_at=end)


def with_times(search: MemorySearch[Any]) -> tuple[MemorySearch[Any], FactTimes | None]:
    """Returns a search with the times that its query names, and these; None if they are not to be resolved."""
    filter_, reference = search.filter, search.reference_time
    if reference is None or not isinstance(filter_, FactFilter):
        return search, None
    if filter_.valid_at is not None or filter_.known_at is not None or filter_.include_invalid:
        return search, None
    times = fact_times(search.query, search.time_zone, reference)
    if times is None:
        return search, None
    # What was known then is what was held to be true then.
    valid_at = times.valid_at or times.known_at
    timed = replace(filter_, valid_since=times.valid_since, valid_at=valid_at, known_at=times.known_at)
    return replace(search, filter=timed), times
