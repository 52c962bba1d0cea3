"""What callers ask of turns and traces: the filters of lists, the bounds of exports, imports, and their results."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from mnemesh_recall.model.episodes import Episode, Fact
from mnemesh_recall.model.traces import InteractionStatus, Snapshot, Trace

Record = Trace | Episode | Fact | Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFilter:
    """Which turns of an agent; what is None or empty does not narrow it."""

    agent_id: str
    conversation_id: str | None = None
    turn_ids: tuple[str, ...] = ()
    from_time: datetime | None = None
    before_time: datetime | None = None
    compacted: bool | None = None
    with_traces: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class InteractionFilter:
    """Which tool calls of an agent; what is None or empty does not narrow it."""

    agent_id: str
    conversation_id: str | None = None
    turn_id: str | None = None
    run_id: str | None = None
    tool_name: str | None = None
    statuses: tuple[InteractionStatus, ...] = ()


class RecordType(StrEnum):
    """Kinds of records in an export, in their order there."""

    TRACE = "trace"
    EPISODE = "episode"
    FACT = "fact"
    SNAPSHOT = "snapshot"


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """What of an agent goes out; what is None or empty does not narrow it."""

    agent_id: str
    conversation_id: str | None = None
    record_types: tuple[RecordType, ...] = ()
    from_time: datetime | None = None
    before_time: datetime | None = None
    archived: bool | None = None

    def wants(self, kind: RecordType) -> bool:
        """Whether records of that kind are asked for."""
        return not self.record_types or kind in self.record_types


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """Records for an agent, in the order of their stream; snapshots count and are not stored.

    `conversation_id` is where traces of no conversation of the agent's go; None is its default one.
    """

    agent_id: str
    conversation_id: str | None
    extend_window: bool
    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """How much of an import was new."""

    traces: int = 0
    episodes: int = 0
    facts: int = 0
    skipped: int = 0
    turns: int = 0
