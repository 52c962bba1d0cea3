"""The rules for requests on episodes and facts. Each violation names the field that causes it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, Final

from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import require_id
from mnemesh_kit.text import require_json_object, require_optional_text, require_text
from mnemesh_retrieval.time_expressions.resolver import resolve

from mnemesh_recall.errors import FactClosed
from mnemesh_recall.model.episodes import (
    AddFact,
    ConfirmFact,
    Episode,
    EpisodeCommit,
    EpisodeFilter,
    Fact,
    FactFilter,
    FactOperation,
    FactTimes,
    InvalidateFact,
    MemoryFilter,
    MemorySearch,
    NewEpisode,
    NewFact,
    RestoreFact,
    Scope,
    ScopeKind,
    Source,
    SupersedeFact,
    made_of,
)
from mnemesh_recall.model.messages import MAX_TEXT_BYTES
from mnemesh_recall.model.search import require_limit, require_query, require_short
from mnemesh_recall.model.writers import require_lease


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
    chain = {"chain_id": chain_id or fact_id, "supersedes_id": supersedes, "first_invalid_at": new.invalid_at}
    return made_of(Fact, new, id=fact_id, scope=scope, created_at=now, updated_at=now, **chain)


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
    new = made_of(
        NewFact,
        closed,
        source=closed.source.merged(request.source),
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


MAX_FACT_CHARACTERS: Final = 10_000
MAX_REASON_CHARACTERS: Final = 2_000
MAX_TAGS: Final = 100
MAX_IDS: Final = 10_000
MAX_OPERATIONS: Final = 1_000
MAX_MEMORIES: Final = 100
MAX_BUNDLE: Final = 1_000
EPISODE_FIELDS: Final = frozenset({"summary", "tags", "salience", "metadata"})
FACT_FIELDS: Final = frozenset({"confidence", "tags", "salience", "metadata"})
_SCOPE_FIELDS: Final = {
    ScopeKind.AGENT: ("agent_id", "agent"),
    ScopeKind.CONVERSATION: ("conversation_id", "conv"),
    ScopeKind.IDENTITY: ("identity_id", "identity"),
    ScopeKind.GROUP: ("group_id", "group"),
}


def require_scope(scope: Scope, field: str) -> None:
    """Refuses a scope whose id does not fit its kind. Raises InvalidArgument."""
    if scope.kind is ScopeKind.NAME:
        require_short(scope.id, f"{field}.name")
        return
    name, prefix = _SCOPE_FIELDS[scope.kind]
    require_id(scope.id, prefix, f"{field}.{name}")


def require_scopes(scopes: Sequence[Scope], field: str) -> None:
    """Refuses too many scopes, or one that is invalid. Raises InvalidArgument."""
    if len(scopes) > MAX_TAGS:
        raise InvalidArgument(f"{field} must be at most {MAX_TAGS}.", field=field)
    for index, scope in enumerate(scopes):
        require_scope(scope, f"{field}[{index}]")


def require_source(source: Source, field: str) -> None:
    """Refuses a source with an invalid id. Raises InvalidArgument."""
    if len(source.message_ids) > MAX_IDS:
        raise InvalidArgument(f"{field}.message_ids must be at most {MAX_IDS:,}.", field=f"{field}.message_ids")
    for index, message_id in enumerate(source.message_ids):
        require_id(message_id, "message", f"{field}.message_ids[{index}]")
    for name, prefix in (("agent_id", "agent"), ("conversation_id", "conv"), ("run_id", "run")):
        if (id_ := getattr(source, name)) is not None:
            require_id(id_, prefix, f"{field}.{name}")
    for name in ("episode_id", "model"):
        if (text := getattr(source, name)) is not None:
            require_short(text, f"{field}.{name}")


def require_new_episode(new: NewEpisode, field: str) -> None:
    """Refuses an episode that must not be stored. Raises InvalidArgument."""
    require_summary(new.summary, f"{field}.summary")
    if new.scope is not None:
        require_scope(new.scope, f"{field}.scope")
    if len(new.turn_ids) > MAX_IDS:
        raise InvalidArgument(f"{field}.turn_ids must be at most {MAX_IDS:,}.", field=f"{field}.turn_ids")
    for index, turn_id in enumerate(new.turn_ids):
        require_short(turn_id, f"{field}.turn_ids[{index}]")
    _require_shared(new, field)


def require_new_fact(new: NewFact, field: str) -> None:
    """Refuses a fact that must not be stored. Raises InvalidArgument."""
    require_text(new.text, f"{field}.text", max_chars=MAX_FACT_CHARACTERS, allow_blank=False)
    if new.valid_from is not None and new.invalid_at is not None and new.invalid_at <= new.valid_from:
        raise InvalidArgument(f"{field}.invalid_time must be after valid_from_time.", field=f"{field}.invalid_time")
    if new.scope is not None:
        require_scope(new.scope, f"{field}.scope")
    require_share(new.confidence, f"{field}.confidence")
    _require_shared(new, field)


def require_commit(commit: EpisodeCommit, prefix: str = "") -> None:
    """Refuses a commit that stores nothing, or of which a part is invalid.

    Args:
        commit: the commit.
        prefix: the start of the field names in the request, such as `memories[0].`.

    Raises:
        InvalidArgument: naming the field.
    """
    if commit.episode is None and not commit.operations:
        raise InvalidArgument("An episode or operations must be given.", field=f"{prefix}episode")
    if len(commit.operations) > MAX_OPERATIONS:
        raise InvalidArgument(f"{prefix}operations must be at most {MAX_OPERATIONS:,}.", field=f"{prefix}operations")
    if commit.lease is not None:
        require_lease(commit.lease, f"{prefix}lease")
        if commit.conversation_id is None:
            raise InvalidArgument("conversation_id is required with a lease.", field=f"{prefix}conversation_id")
    if commit.conversation_id is not None:
        require_id(commit.conversation_id, "conv", f"{prefix}conversation_id")
    if commit.scope is not None:
        require_scope(commit.scope, f"{prefix}scope")
    if commit.episode is not None:
        require_new_episode(commit.episode, f"{prefix}episode")
    for index, operation in enumerate(commit.operations):
        require_operation(operation, f"{prefix}operations[{index}]")


def require_memories(memories: Sequence[EpisodeCommit], field: str) -> None:
    """Refuses too many commits, or one that is invalid. Raises InvalidArgument."""
    if len(memories) > MAX_MEMORIES:
        raise InvalidArgument(f"{field} must be at most {MAX_MEMORIES}.", field=field)
    for index, commit in enumerate(memories):
        require_commit(commit, f"{field}[{index}].")


def require_operation(operation: FactOperation, field: str) -> None:
    """Refuses an operation on a fact that is invalid. Raises InvalidArgument."""
    match operation:
        case AddFact(new):
            require_new_fact(new, f"{field}.add")
        case SupersedeFact():
            require_supersede(operation, f"{field}.supersede")
        case InvalidateFact():
            require_invalidate(operation, f"{field}.invalidate")
        case ConfirmFact(fact_id, source, confidence):
            require_id(fact_id, "fact", f"{field}.confirm.fact_id")
            require_source(source, f"{field}.confirm.source")
            require_share(confidence, f"{field}.confirm.confidence")


def require_supersede(operation: SupersedeFact, field: str) -> None:
    """Refuses a supersede operation that is invalid. Raises InvalidArgument."""
    require_id(operation.fact_id, "fact", f"{field}.fact_id")
    require_new_fact(operation.fact, f"{field}.fact")
    require_optional_text(operation.reason, f"{field}.reason", max_chars=MAX_REASON_CHARACTERS)


def require_restore(operation: RestoreFact) -> None:
    """Refuses the restoration of a fact that is invalid. Raises InvalidArgument."""
    require_id(operation.fact_id, "fact", "fact_id")
    require_optional_text(operation.reason, "reason", max_chars=MAX_REASON_CHARACTERS)
    require_source(operation.source, "source")


def require_invalidate(operation: InvalidateFact, field: str) -> None:
    """Refuses an invalidate operation that is invalid. Raises InvalidArgument."""
    require_id(operation.fact_id, "fact", f"{field}.fact_id")
    require_optional_text(operation.reason, f"{field}.reason", max_bytes=MAX_TEXT_BYTES)
    if operation.source is not None:
        require_source(operation.source, f"{field}.source")
    if operation.successor_id is not None:
        require_id(operation.successor_id, "fact", f"{field}.superseded_by_id")


def require_changes(changes: Mapping[str, Any], allowed: frozenset[str], field: str) -> None:
    """Refuses an update that names no field or a field that cannot change, or with an invalid value.

    Raises:
        InvalidArgument: naming `update_mask` or the field under `field`.
    """
    if not changes or not set(changes) <= allowed:
        raise InvalidArgument(f"update_mask must name some of {', '.join(sorted(allowed))}.", field="update_mask")
    if "summary" in changes:
        require_summary(changes["summary"], f"{field}.summary")
    if "tags" in changes:
        require_tags(changes["tags"], f"{field}.tags")
    for name in ("salience", "confidence"):
        if name in changes:
            require_share(changes[name], f"{field}.{name}")
    if "metadata" in changes:
        _require_object(changes["metadata"], f"{field}.metadata")


def require_episode_filter(filter_: EpisodeFilter, field: str = "filter") -> None:
    """Refuses a filter with an invalid value, or with a turn but no agent. Raises InvalidArgument."""
    if filter_.turn_id is not None and filter_.agent_id is None:
        raise InvalidArgument(f"{field}.agent_id is required with a turn_id.", field=f"{field}.agent_id")
    if filter_.agent_id is not None:
        require_id(filter_.agent_id, "agent", f"{field}.agent_id")
    if filter_.turn_id is not None:
        require_short(filter_.turn_id, f"{field}.turn_id")
    _require_shared_filter(filter_, field)


def require_fact_filter(filter_: FactFilter, field: str = "filter") -> None:
    """Refuses a filter with an invalid value. Raises InvalidArgument."""
    require_share(filter_.min_confidence, f"{field}.min_confidence")
    if filter_.episode_id is not None:
        require_id(filter_.episode_id, "episode", f"{field}.episode_id")
    if filter_.valid_since is not None and (filter_.valid_at is None or filter_.valid_since > filter_.valid_at):
        raise InvalidArgument(
            f"{field}.valid_since_time requires a valid_at_time that is not before it.",
            field=f"{field}.valid_since_time",
        )
    _require_shared_filter(filter_, field)


def require_memory_search(search: MemorySearch[Any]) -> None:
    """Refuses a search with a query, a limit or a filter that is out of bounds. Raises InvalidArgument."""
    require_query(search.query, "query")
    require_limit(search.limit)
    if isinstance(search.filter, EpisodeFilter):
        require_episode_filter(search.filter)
    else:
        require_fact_filter(search.filter)


def require_bundle(filter_: FactFilter, max_episodes: int, max_facts: int) -> None:
    """Refuses a memory bundle without a scope, or with limits that are out of bounds. Raises InvalidArgument."""
    if not filter_.scopes:
        raise InvalidArgument("scopes must name at least one scope.", field="scopes")
    require_scopes(filter_.scopes, "scopes")
    for field, limit in (("max_episodes", max_episodes), ("max_facts", max_facts)):
        if not 0 <= limit <= MAX_BUNDLE:
            raise InvalidArgument(f"{field} must be between 0 and {MAX_BUNDLE:,}.", field=field)


def require_tags(tags: Sequence[str], field: str) -> None:
    """Refuses too many tags, or one that is empty or too long. Raises InvalidArgument."""
    for index, tag in enumerate(tags):
        require_short(tag, f"{field}[{index}]")
    if len(tags) > MAX_TAGS:
        raise InvalidArgument(f"{field} must be at most {MAX_TAGS}.", field=field)


def require_summary(text: str, field: str) -> None:
    """Refuses a blank or too long summary. Raises InvalidArgument."""
    require_text(text, field, max_bytes=MAX_TEXT_BYTES, allow_blank=False)


def require_share(value: float | None, field: str) -> None:
    """Refuses a number that is not between 0 and 1; None is accepted. Raises InvalidArgument."""
    if value is not None and not 0.0 <= value <= 1.0:
        raise InvalidArgument(f"{field} must be between 0 and 1.", field=field)


def _require_shared(new: NewEpisode | NewFact, field: str) -> None:
    require_tags(new.tags, f"{field}.tags")
    require_share(new.salience, f"{field}.salience")
    require_source(new.source, f"{field}.source")
    _require_object(new.metadata, f"{field}.metadata")
    _require_object(new.extra, f"{field}.extra")


def _require_shared_filter(filter_: MemoryFilter, field: str) -> None:
    require_scopes(filter_.scopes, f"{field}.scopes")
    require_tags(filter_.tags_any, f"{field}.tags_any")
    require_tags(filter_.tags_all, f"{field}.tags_all")
    if filter_.message_id is not None:
        require_id(filter_.message_id, "message", f"{field}.message_id")


def _require_object(text: str | None, field: str) -> None:
    if text is not None:
        require_json_object(text, field, max_bytes=MAX_TEXT_BYTES)
