"""Requests on turns and traces: filters, exports and imports, their results, and their rules.

Each violation names the field that causes it.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import require_id
from mnemesh_kit.text import require_json, require_json_object, require_optional_text, require_text
from mnemesh_types.recall import InteractionStatus, Media

from mnemesh_recall.model.episode_rules import (
    require_new_episode,
    require_new_fact,
    require_scope,
    require_scopes,
    require_source,
    require_tags,
)
from mnemesh_recall.model.episodes import Episode, Fact, NewEpisode, NewFact, Scope, ScopeKind, made_of
from mnemesh_recall.model.messages import (
    MAX_IMAGE_BYTES,
    MAX_TEXT_BYTES,
    require_content_text,
    require_messages,
    require_name,
)
from mnemesh_recall.model.search import require_short
from mnemesh_recall.model.traces import Snapshot, Trace

Record = Trace | Episode | Fact | Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFilter:
    """The conditions on the turns of an agent. A condition that is None or empty does not apply."""

    agent_id: str
    conversation_id: str | None = None
    turn_ids: tuple[str, ...] = ()
    from_time: datetime | None = None
    before_time: datetime | None = None
    compacted: bool | None = None
    with_traces: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class InteractionFilter:
    """The conditions on the tool calls of an agent. A condition that is None or empty does not apply."""

    agent_id: str
    conversation_id: str | None = None
    turn_id: str | None = None
    run_id: str | None = None
    tool_name: str | None = None
    statuses: tuple[InteractionStatus, ...] = ()


class RecordType(StrEnum):
    """The kinds of records in an export, in their order there."""

    TRACE = "trace"
    EPISODE = "episode"
    FACT = "fact"
    SNAPSHOT = "snapshot"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceExport:
    """An export of an agent's records. A condition that is None or empty does not apply."""

    agent_id: str
    conversation_id: str | None = None
    record_types: tuple[RecordType, ...] = ()
    from_time: datetime | None = None
    before_time: datetime | None = None
    archived: bool | None = None
    scope_names: tuple[str, ...] = ()
    """Scopes whose memories are exported, too."""

    def includes_type(self, record_type: RecordType) -> bool:
        return not self.record_types or record_type in self.record_types

    def includes_time(self, time: datetime) -> bool:
        """Returns whether the export includes records of that time."""
        return (self.from_time is None or time >= self.from_time) and (
            self.before_time is None or time < self.before_time
        )

    def includes_memory(self, memory: Episode | Fact) -> bool:
        """Returns whether the export includes an episode or a fact, by its time, source and scope."""
        return self.includes_time(memory.created_at) and (
            self.conversation_id is None
            or memory.source.conversation_id == self.conversation_id
            or memory.scope.key == f"conversation:{self.conversation_id}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceImport:
    """Records to import for an agent, in stream order. Snapshots are counted but not stored.

    Traces whose conversation is not the agent's go to `conversation_id`; None is the agent's default conversation.
    """

    agent_id: str
    conversation_id: str | None
    extend_window: bool
    records: tuple[Record, ...]
    exact: bool = False
    """Whether memories keep ids that are free, scopes of conversations and identities, and links to others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportResult:
    """The number of new records of an import, of skipped ones, and of new turns."""

    traces: int = 0
    episodes: int = 0
    facts: int = 0
    skipped: int = 0
    turns: int = 0


MAX_TURN_IDS: Final = 1_000
MAX_URLS: Final = 100
MAX_MEDIA_BYTES: Final = MAX_IMAGE_BYTES * 4 // 3 + 1024
"""The length of the largest image as a data URL."""


def require_turn_filter(filter_: TurnFilter) -> None:
    """Refuses a filter with an invalid id. Raises InvalidArgument."""
    _require_owner(filter_.agent_id, filter_.conversation_id)
    if len(filter_.turn_ids) > MAX_TURN_IDS:
        raise InvalidArgument(f"turn_ids must be at most {MAX_TURN_IDS:,}.", field="turn_ids")
    for index, turn_id in enumerate(filter_.turn_ids):
        require_short(turn_id, f"turn_ids[{index}]")


def require_interaction_filter(filter_: InteractionFilter) -> None:
    """Refuses a filter with an invalid id. Raises InvalidArgument."""
    _require_owner(filter_.agent_id, filter_.conversation_id)
    for name in ("turn_id", "tool_name"):
        if (text := getattr(filter_, name)) is not None:
            require_short(text, name)
    if filter_.run_id is not None:
        require_id(filter_.run_id, "run", "run_id")


def require_export(export: TraceExport) -> None:
    """Refuses an export with an invalid id or scope. Raises InvalidArgument."""
    _require_owner(export.agent_id, export.conversation_id)
    require_scopes([Scope(ScopeKind.NAME, name) for name in export.scope_names], "scope_names")


def require_import(request: TraceImport) -> None:
    """Refuses an import with an invalid id or record.

    Raises:
        InvalidArgument: the metadata `record` is the position of an invalid record in the stream, counted from 1.
    """
    _require_owner(request.agent_id, request.conversation_id, "header.")
    for position, record in enumerate(request.records, start=1):
        try:
            _require_record(record)
        except InvalidArgument as error:
            raise InvalidArgument(error.message, field=error.field, record=str(position)) from error


def _require_record(record: Record) -> None:
    match record:
        case Trace():
            _require_trace(record, "record.raw_trace")
        case Episode():
            _require_episode(record, "record.episode")
        case Fact():
            _require_fact(record, "record.fact")
        case Snapshot():
            require_messages(record.messages, "record.snapshot.messages")


def _require_trace(trace: Trace, field: str) -> None:
    if trace.seq < 1:
        raise InvalidArgument(f"{field}.seq must be 1 or more.", field=f"{field}.seq")
    require_content_text(trace.content, f"{field}.content")
    require_short(trace.id, f"{field}.id")
    require_short(trace.turn_id, f"{field}.turn_id")
    if trace.tool_call_id is not None:
        require_short(trace.tool_call_id, f"{field}.tool_call_id")
    for name in ("source_event", "tool_name", "correlation_id"):
        if (text := getattr(trace, name)) is not None:
            require_name(text, f"{field}.{name}")
    for name in ("tool_args", "tool_result"):
        if (text := getattr(trace, name)) is not None:
            require_json(text, f"{field}.{name}", max_bytes=MAX_TEXT_BYTES)
    for name in ("tool_error", "tool_result_ref"):
        require_optional_text(getattr(trace, name), f"{field}.{name}", max_bytes=MAX_TEXT_BYTES)
    if trace.media is not None:
        _require_media(trace.media, f"{field}.media")
    require_tags(trace.tags, f"{field}.tags")
    if trace.extra is not None:
        require_json_object(trace.extra, f"{field}.extra", max_bytes=MAX_TEXT_BYTES)
    if trace.run_id is not None:
        require_id(trace.run_id, "run", f"{field}.run_id")


def _require_media(media: Media, field: str) -> None:
    for name in ("images", "audio", "video"):
        urls = getattr(media, name)
        if len(urls) > MAX_URLS:
            raise InvalidArgument(f"{field}.{name} must be at most {MAX_URLS}.", field=f"{field}.{name}")
        for index, url in enumerate(urls):
            require_text(url, f"{field}.{name}[{index}]", max_bytes=MAX_MEDIA_BYTES)


def _require_episode(episode: Episode, field: str) -> None:
    require_short(episode.id, f"{field}.id")
    _require_named_scope(episode.scope, field)
    require_new_episode(made_of(NewEpisode, episode, scope=None), field)


def _require_fact(fact: Fact, field: str) -> None:
    # An imported fact may end where it starts: such a fact was never valid.
    new = made_of(NewFact, fact, scope=None, valid_from=None, invalid_at=None)
    require_new_fact(new, field)
    require_short(fact.id, f"{field}.id")
    _require_named_scope(fact.scope, field)
    for name in ("superseded_by_id", "supersedes_id"):
        if (id_ := getattr(fact, name)) is not None:
            require_short(id_, f"{field}.{name}")
    require_optional_text(fact.invalid_reason, f"{field}.invalid_reason", max_bytes=MAX_TEXT_BYTES)
    if fact.invalid_source is not None:
        require_source(fact.invalid_source, f"{field}.invalid_source")


def _require_named_scope(scope: Scope, field: str) -> None:
    if scope.id:
        require_scope(scope, f"{field}.scope")


def _require_owner(agent_id: str, conversation_id: str | None, prefix: str = "") -> None:
    require_id(agent_id, "agent", f"{prefix}agent_id")
    if conversation_id is not None:
        require_id(conversation_id, "conv", f"{prefix}conversation_id")
