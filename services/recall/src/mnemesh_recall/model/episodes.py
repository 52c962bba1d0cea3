"""Episodes and facts: the memories that recall keeps of messages that left the window, and requests on them."""

from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, tzinfo
from enum import StrEnum
from typing import Any, Final, Generic, TypeVar

from mnemesh_retrieval.index import SearchMode
from mnemesh_types.recall import MemorySource, WriterLease


class ScopeKind(StrEnum):
    """The kind of owner of a memory."""

    AGENT = "agent"
    CONVERSATION = "conversation"
    GROUP = "group"
    IDENTITY = "identity"
    NAME = "name"


@dataclass(frozen=True, slots=True)
class Scope:
    """The owner of a memory. `id` is a free name for the kind NAME."""

    kind: ScopeKind
    id: str

    @property
    def key(self) -> str:
        return f"{self.kind.value}:{self.id}"


class Source(MemorySource):
    """The origin of a memory."""

    __slots__ = ()

    def merged(self, other: "Source") -> "Source":
        """Returns this source with the messages of both, and with the other fields of `other` that it lacks."""
        return Source(
            message_ids=tuple(dict.fromkeys((*self.message_ids, *other.message_ids))),
            agent_id=self.agent_id or other.agent_id,
            conversation_id=self.conversation_id or other.conversation_id,
            run_id=self.run_id or other.run_id,
            episode_id=self.episode_id or other.episode_id,
            model=self.model or other.model,
        )


UNKNOWN_SOURCE: Final = Source()


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEpisode:
    """An episode to store. Its times come from its messages and turns if recall has any of them."""

    summary: str
    scope: Scope | None = None
    turn_ids: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    salience: float | None = None
    source: Source = UNKNOWN_SOURCE
    started_at: datetime | None = None
    ended_at: datetime | None = None
    metadata: str | None = None
    extra: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode(NewEpisode):
    """A summary of some turns. `imported_id` is its id in the trace file that it was imported from."""

    id: str
    scope: Scope
    created_at: datetime
    updated_at: datetime
    imported_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFact:
    """A fact to store. The operation that stores it says where a value that is None or empty comes from."""

    text: str
    scope: Scope | None = None
    tags: tuple[str, ...] = ()
    confidence: float | None = None
    salience: float | None = None
    source: Source = UNKNOWN_SOURCE
    metadata: str | None = None
    extra: str | None = None
    valid_from: datetime | None = None
    invalid_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact(NewFact):
    """A statement that is valid from `valid_from` (inclusive) to `invalid_at` (exclusive). None means no bound.

    `closed_at` is the time at which its end was learned: a query for knowledge before that time sees the fact end at
    `first_invalid_at`, as it was first written. `imported_id` is its id in the trace file that it was imported from.
    """

    id: str
    scope: Scope
    created_at: datetime
    updated_at: datetime
    chain_id: str
    first_invalid_at: datetime | None = None
    closed_at: datetime | None = None
    superseded_by_id: str | None = None
    supersedes_id: str | None = None
    invalid_reason: str | None = None
    invalid_source: Source | None = None
    imported_id: str | None = None

    def is_valid(self, at: datetime) -> bool:
        """Returns whether the fact is valid at that time, by everything known today."""
        return (self.valid_from is None or self.valid_from <= at) and (self.invalid_at is None or self.invalid_at > at)

    def closed(self, *, invalid_at: datetime, now: datetime) -> "Fact":
        """Returns the fact with an end. A fact that starts after its end was never valid."""
        end = invalid_at if self.valid_from is None else max(invalid_at, self.valid_from)
        return replace(self, invalid_at=end, closed_at=now, updated_at=now)


M = TypeVar("M", Episode, Fact)
N = TypeVar("N", NewEpisode, NewFact, Episode, Fact)


def made_of(kind: type[N], given: NewEpisode | NewFact, **others: Any) -> N:
    """Returns a memory of a kind with the values of another one in the fields that both have, and with `others`."""
    shared = {field.name: getattr(given, field.name) for field in fields(kind) if hasattr(given, field.name)}
    return kind(**shared | others)


@dataclass(frozen=True, slots=True)
class FactTimes:
    """The words of a query, and the times to which they were resolved: of validity, or of knowledge."""

    expression: str
    valid_since: datetime | None = None
    valid_at: datetime | None = None
    known_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class AddFact:
    """Adds a fact, or confirms the valid fact with the same text."""

    fact: NewFact


@dataclass(frozen=True, slots=True)
class SupersedeFact:
    """Closes a fact and adds another one in its place."""

    fact_id: str
    fact: NewFact
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class RestoreFact:
    """States a closed fact again."""

    fact_id: str
    reason: str | None = None
    source: Source = UNKNOWN_SOURCE


@dataclass(frozen=True, slots=True)
class InvalidateFact:
    """Closes a fact. `invalid_at` is now if it is None. `successor_id` is an open fact that takes its place."""

    fact_id: str
    invalid_at: datetime | None = None
    reason: str | None = None
    source: Source | None = None
    successor_id: str | None = None


@dataclass(frozen=True, slots=True)
class ConfirmFact:
    """Confirms that a fact is still valid."""

    fact_id: str
    source: Source = UNKNOWN_SOURCE
    confidence: float | None = None


FactOperation = AddFact | SupersedeFact | InvalidateFact | ConfirmFact


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeCommit:
    """An episode and operations on facts. All of it is stored, or nothing.

    `lease` is the writer's lease on `conversation_id`. It is None for an owner that acts outside of a run.
    """

    scope: Scope | None = None
    episode: NewEpisode | None = None
    operations: tuple[FactOperation, ...] = ()
    conversation_id: str | None = None
    lease: WriterLease | None = None
    requires_sources: bool = False
    """Whether the messages that it names as sources must exist."""

    @property
    def source_message_ids(self) -> frozenset[str]:
        """The messages that it names as sources."""
        sources = [] if self.episode is None else [self.episode.source]
        for operation in self.operations:
            match operation:
                case AddFact(new) | SupersedeFact(_, new):
                    sources.append(new.source)
                case InvalidateFact(source=Source() as source) | ConfirmFact(source=source):
                    sources.append(source)
        return frozenset(message_id for source in sources for message_id in source.message_ids)


@dataclass(frozen=True, slots=True)
class EpisodeCommitResult:
    """The stored episode and one fact per operation, in order. A replay leaves out facts that were erased since."""

    episode: Episode | None
    facts: tuple[Fact, ...]


class EpisodeOrder(StrEnum):
    """The order of a list of episodes."""

    CREATED = "created_at"
    STARTED = "started_at"
    SALIENCE = "salience"


class FactOrder(StrEnum):
    """The order of a list of facts."""

    CREATED = "created_at"
    VALID_FROM = "valid_from"
    CONFIDENCE = "confidence"
    SALIENCE = "salience"


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeFilter:
    """The conditions on episodes. A condition that is None or empty does not apply."""

    scopes: tuple[Scope, ...] = ()
    tags_any: tuple[str, ...] = ()
    tags_all: tuple[str, ...] = ()
    agent_id: str | None = None
    turn_id: str | None = None
    message_id: str | None = None
    known_at: datetime | None = None
    from_time: datetime | None = None
    """The episode ended at this time or later."""
    before_time: datetime | None = None
    """The episode started before this time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FactFilter:
    """The conditions on facts. A condition that is None or empty does not apply.

    The exceptions are `valid_at` and `known_at`, for which None means now.
    """

    scopes: tuple[Scope, ...] = ()
    tags_any: tuple[str, ...] = ()
    tags_all: tuple[str, ...] = ()
    min_confidence: float | None = None
    episode_id: str | None = None
    message_id: str | None = None
    valid_at: datetime | None = None
    known_at: datetime | None = None
    include_invalid: bool = False
    valid_since: datetime | None = None
    """With `valid_at`: the start of a range, in which the fact was valid at any time."""


MemoryFilter = EpisodeFilter | FactFilter


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySearch(Generic[M]):
    """A search of episodes (with an EpisodeFilter) or of facts (with a FactFilter)."""

    query: str
    mode: SearchMode
    limit: int
    filter: MemoryFilter
    reference_time: datetime | None = None
    """The time from which expressions of time in the query are resolved; None resolves none."""
    time_zone: tzinfo = UTC


@dataclass(frozen=True, slots=True)
class MemoryHits(Generic[M]):
    """The hits with their scores, best first. `degraded` means that the vector index could not be searched."""

    hits: tuple[tuple[M, float], ...]
    degraded: bool = False
    times: FactTimes | None = None


@dataclass(frozen=True, slots=True)
class MemoryBundle:
    """The memories at the head of a compacted window. Each part is ordered oldest first."""

    episodes: tuple[Episode, ...]
    facts: tuple[Fact, ...]


@dataclass(frozen=True, slots=True)
class ScopeSummary:
    """The number of memories in a scope. Only facts that are valid now count."""

    scope: Scope
    episode_count: int
    fact_count: int
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class ScopeErasure:
    """The number of rows that the erasure of a scope deleted."""

    episodes: int
    facts: int


@dataclass(frozen=True, slots=True)
class MemoryText:
    """The part of an episode or a fact that the vector index holds."""

    id: str
    organization_id: str
    scope: Scope
    owner_agent_id: str | None
    text: str
