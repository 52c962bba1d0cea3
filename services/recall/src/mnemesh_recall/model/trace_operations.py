"""Requests on turns and traces: filters, exports and imports, and their results."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from mnemesh_recall.model.episodes import Episode, Fact
from mnemesh_recall.model.tool_interactions import InteractionStatus
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
        """Returns whether the export includes records of that type."""
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
