"""The rules for requests on episodes and facts. Each violation names the field that causes it."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import require_id
from mnemesh_kit.text import require_json_object, require_optional_text, require_text

from mnemesh_recall.model.episodes import (
    AddFact,
    ConfirmFact,
    EpisodeCommit,
    EpisodeFilter,
    FactFilter,
    FactOperation,
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
)
from mnemesh_recall.model.messages import MAX_TEXT_BYTES
from mnemesh_recall.model.search import require_limit, require_query, require_short
from mnemesh_recall.model.writers import require_lease

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
