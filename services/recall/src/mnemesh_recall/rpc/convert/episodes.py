"""Episodes, facts and scopes between the wire and the domain."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from mnemesh.recall.v1 import episodes_pb2 as pb
from mnemesh.recall.v1 import episodes_service_pb2 as rpc
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import require_id

from mnemesh_recall.model.episode_operations import (
    Add,
    Confirm,
    Invalidate,
    NewEpisode,
    NewFact,
    Operation,
    ScopeSummary,
    Supersede,
)
from mnemesh_recall.model.episodes import Episode, Fact, Scope, ScopeKind, Source
from mnemesh_recall.model.message_rules import require_text
from mnemesh_recall.rpc.convert.messages import instant, timestamp

MAX_FACT_CHARACTERS: Final = 10_000
MAX_SHORT_CHARACTERS: Final = 255
MAX_TAGS: Final = 100
MAX_IDS: Final = 10_000

_KINDS: Final = {
    "agent_id": (ScopeKind.AGENT, "agent"),
    "conversation_id": (ScopeKind.CONVERSATION, "conv"),
    "identity_id": (ScopeKind.IDENTITY, "identity"),
    "group_id": (ScopeKind.GROUP, "group"),
}
_FIELDS: Final = {kind: field for field, (kind, _) in _KINDS.items()} | {ScopeKind.NAME: "name"}
_object: Final = msgspec.json.Decoder(dict[str, Any])


def scope_in(scope: pb.MemoryScope, field: str) -> Scope:
    """A scope that must be given."""
    which = scope.WhichOneof("scope")
    if which is None:
        raise InvalidArgument(f"{field} must name a scope.", field=field)
    value: str = getattr(scope, which)
    if which == "name":
        if not value:
            raise InvalidArgument(f"{field}.name must not be empty.", field=f"{field}.name")
        return Scope(ScopeKind.NAME, short(value, f"{field}.name"))
    kind, prefix = _KINDS[which]
    return Scope(kind, require_id(value, prefix, f"{field}.{which}"))


def scopes_in(scopes: Sequence[pb.MemoryScope], field: str) -> tuple[Scope, ...]:
    """Scopes of a filter, each once."""
    if len(scopes) > MAX_TAGS:
        raise InvalidArgument(f"{field} must be at most {MAX_TAGS}.", field=field)
    return tuple(dict.fromkeys(scope_in(scope, f"{field}[{index}]") for index, scope in enumerate(scopes)))


def scope_out(scope: Scope) -> pb.MemoryScope:
    """A scope for the wire."""
    named: Any = {_FIELDS[scope.kind]: scope.id}
    return pb.MemoryScope(**named)


def source_in(source: pb.MemorySource, field: str) -> Source:
    """Where something was learned."""
    if len(source.message_ids) > MAX_IDS:
        raise InvalidArgument(f"{field}.message_ids must be at most {MAX_IDS}.", field=f"{field}.message_ids")
    return Source(
        message_ids=tuple(
            dict.fromkeys(
                require_id(id_, "message", f"{field}.message_ids[{index}]")
                for index, id_ in enumerate(source.message_ids)
            )
        ),
        agent_id=require_id(source.agent_id, "agent", f"{field}.agent_id") if source.HasField("agent_id") else None,
        conversation_id=require_id(source.conversation_id, "conv", f"{field}.conversation_id")
        if source.HasField("conversation_id")
        else None,
        run_id=require_id(source.run_id, "run", f"{field}.run_id") if source.HasField("run_id") else None,
        episode_id=short(source.episode_id, f"{field}.episode_id") if source.HasField("episode_id") else None,
        model=short(source.model, f"{field}.model") if source.HasField("model") else None,
    )


def source_out(source: Source) -> pb.MemorySource:
    """Where something was learned, for the wire."""
    return pb.MemorySource(
        message_ids=source.message_ids,
        agent_id=source.agent_id,
        conversation_id=source.conversation_id,
        run_id=source.run_id,
        episode_id=source.episode_id,
        model=source.model,
    )


def new_episode(episode: pb.Episode, field: str) -> NewEpisode:
    """An episode to be kept."""
    if len(episode.turn_ids) > MAX_IDS:
        raise InvalidArgument(f"{field}.turn_ids must be at most {MAX_IDS}.", field=f"{field}.turn_ids")
    return NewEpisode(
        summary=summary_in(episode.summary, f"{field}.summary"),
        scope=scope_in(episode.scope, f"{field}.scope") if episode.HasField("scope") else None,
        turn_ids=tuple(
            dict.fromkeys(short(id_, f"{field}.turn_ids[{index}]") for index, id_ in enumerate(episode.turn_ids))
        ),
        started_at=instant(episode.start_time, f"{field}.start_time") if episode.HasField("start_time") else None,
        ended_at=instant(episode.end_time, f"{field}.end_time") if episode.HasField("end_time") else None,
        **_shared(episode, field),
    )


def new_fact(fact: pb.Fact, field: str) -> NewFact:
    """A fact to be kept."""
    require_text(fact.text, f"{field}.text")
    if not fact.text.strip():
        raise InvalidArgument(f"{field}.text is required.", field=f"{field}.text")
    if len(fact.text) > MAX_FACT_CHARACTERS:
        raise InvalidArgument(f"{field}.text must be at most {MAX_FACT_CHARACTERS} characters.", field=f"{field}.text")
    starts = instant(fact.valid_from_time, f"{field}.valid_from_time") if fact.HasField("valid_from_time") else None
    ends = instant(fact.invalid_time, f"{field}.invalid_time") if fact.HasField("invalid_time") else None
    if starts is not None and ends is not None and ends <= starts:
        raise InvalidArgument(f"{field}.invalid_time must lie after valid_from_time.", field=f"{field}.invalid_time")
    return NewFact(
        text=fact.text,
        scope=scope_in(fact.scope, f"{field}.scope") if fact.HasField("scope") else None,
        confidence=share_in(fact, "confidence", field),
        valid_from=starts,
        invalid_at=ends,
        **_shared(fact, field),
    )


def operation_in(operation: pb.FactOperation, field: str) -> Operation:
    """One operation on facts."""
    match operation.WhichOneof("operation"):
        case "add":
            return Add(new_fact(operation.add, f"{field}.add"))
        case "supersede":
            return supersede_in(operation.supersede, f"{field}.supersede")
        case "invalidate":
            return invalidate_in(operation.invalidate, f"{field}.invalidate")
        case "confirm":
            confirmed = operation.confirm
            return Confirm(
                fact_id=require_id(confirmed.fact_id, "fact", f"{field}.confirm.fact_id"),
                source=source_in(confirmed.source, f"{field}.confirm.source"),
                confidence=share_in(confirmed, "confidence", f"{field}.confirm"),
            )
        case _:
            raise InvalidArgument(f"{field} must be an operation.", field=field)


def supersede_in(operation: pb.SupersedeOperation, field: str) -> Supersede:
    """A fact that takes another's place."""
    return Supersede(
        fact_id=require_id(operation.fact_id, "fact", f"{field}.fact_id"),
        fact=new_fact(operation.fact, f"{field}.fact"),
    )


def invalidate_in(operation: pb.InvalidateOperation, field: str) -> Invalidate:
    """The end of a fact."""
    if operation.HasField("reason"):
        require_text(operation.reason, f"{field}.reason")
    return Invalidate(
        fact_id=require_id(operation.fact_id, "fact", f"{field}.fact_id"),
        invalid_at=instant(operation.invalid_time, f"{field}.invalid_time")
        if operation.HasField("invalid_time")
        else None,
        reason=operation.reason if operation.HasField("reason") else None,
        source=source_in(operation.source, f"{field}.source") if operation.HasField("source") else None,
    )


def episode_out(episode: Episode) -> pb.Episode:
    """An episode for the wire."""
    return pb.Episode(
        id=episode.id,
        scope=scope_out(episode.scope),
        turn_ids=episode.turn_ids,
        summary=episode.summary,
        tags=episode.tags,
        salience=episode.salience,
        source=source_out(episode.source),
        start_time=None if episode.started_at is None else timestamp(episode.started_at),
        end_time=None if episode.ended_at is None else timestamp(episode.ended_at),
        metadata=episode.metadata,
        extra=episode.extra,
        create_time=timestamp(episode.created_at),
        update_time=timestamp(episode.updated_at),
    )


def fact_out(fact: Fact) -> pb.Fact:
    """A fact for the wire."""
    return pb.Fact(
        id=fact.id,
        scope=scope_out(fact.scope),
        text=fact.text,
        tags=fact.tags,
        confidence=fact.confidence,
        salience=fact.salience,
        source=source_out(fact.source),
        metadata=fact.metadata,
        extra=fact.extra,
        valid_from_time=None if fact.valid_from is None else timestamp(fact.valid_from),
        invalid_time=None if fact.invalid_at is None else timestamp(fact.invalid_at),
        close_time=None if fact.closed_at is None else timestamp(fact.closed_at),
        superseded_by_id=fact.superseded_by_id,
        supersedes_id=fact.supersedes_id,
        invalid_reason=fact.invalid_reason,
        invalid_source=None if fact.invalid_source is None else source_out(fact.invalid_source),
        create_time=timestamp(fact.created_at),
        update_time=timestamp(fact.updated_at),
    )


def summary_out(summary: ScopeSummary) -> rpc.MemoryScopeSummary:
    """What a scope holds, for the wire."""
    return rpc.MemoryScopeSummary(
        scope=scope_out(summary.scope),
        episode_count=summary.episode_count,
        fact_count=summary.fact_count,
        update_time=timestamp(summary.updated_at),
    )


def short(text: str, field: str) -> str:
    """A short text: a tag, a name, an id of somebody else's making."""
    if not text or len(text) > MAX_SHORT_CHARACTERS or "\0" in text:
        raise InvalidArgument(f"{field} must be 1 to {MAX_SHORT_CHARACTERS} characters, none NUL.", field=field)
    return text


def tags_in(tags: Iterable[str], field: str) -> tuple[str, ...]:
    """Tags, each once."""
    found = tuple(dict.fromkeys(short(tag, f"{field}[{index}]") for index, tag in enumerate(tags)))
    if len(found) > MAX_TAGS:
        raise InvalidArgument(f"{field} must be at most {MAX_TAGS}.", field=field)
    return found


def summary_in(text: str, field: str) -> str:
    """The text of an episode."""
    require_text(text, field)
    if not text.strip():
        raise InvalidArgument(f"{field} is required.", field=field)
    return text


def metadata_in(message: Any, name: str, field: str) -> str | None:
    """A JSON object as text, where it is given."""
    if not message.HasField(name):
        return None
    text: str = getattr(message, name)
    require_text(text, f"{field}.{name}")
    try:
        _object.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidArgument(f"{field}.{name} is not a JSON object.", field=f"{field}.{name}") from error
    return text


def _shared(memory: pb.Episode | pb.Fact, field: str) -> dict[str, Any]:
    return {
        "tags": tags_in(memory.tags, f"{field}.tags"),
        "salience": share_in(memory, "salience", field),
        "source": source_in(memory.source, f"{field}.source"),
        "metadata": metadata_in(memory, "metadata", field),
        "extra": metadata_in(memory, "extra", field),
    }


def share_in(message: Any, name: str, field: str) -> float | None:
    """A number from 0 to 1, where it is given."""
    return share(getattr(message, name), f"{field}.{name}") if message.HasField(name) else None


def share(value: float, field: str) -> float:
    """A number from 0 to 1."""
    if not 0.0 <= value <= 1.0:
        raise InvalidArgument(f"{field} must be between 0 and 1.", field=field)
    return value
