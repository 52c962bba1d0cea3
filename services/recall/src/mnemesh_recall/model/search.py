"""Searches of messages: the query, the scope, and the hits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from enum import StrEnum

from mnemesh_retrieval.time_expressions.resolver import TimeRange
from mnemesh_types.messages import Message, Role

from mnemesh_recall.model.candidates import Candidates, Key


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchScope:
    """The messages that a search considers. A condition that is None or empty does not apply."""

    agent_id: str | None = None
    conversation_id: str | None = None
    roles: tuple[Role, ...] = ()
    from_time: datetime | None = None
    """Inclusive."""
    before_time: datetime | None = None
    """Exclusive."""
    exclude_ids: tuple[str, ...] = ()
    speakers: tuple[str, ...] = ()
    """Names, compared without case; see `speaker_of`."""
    sender_ids: tuple[str, ...] = ()


class SearchMode(StrEnum):
    """The indexes that a search uses."""

    HYBRID = "hybrid"
    TEXT = "text"
    VECTOR = "vector"


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageSearch:
    """A search of messages. A search without a query that is not blank lists the newest ones."""

    query: str
    mode: SearchMode
    limit: int
    scope: SearchScope
    offset: int = 0
    """The number of best hits to leave out, because earlier calls returned them."""
    further_queries: tuple[str, ...] = ()
    time_zone: tzinfo = UTC
    reference_time: datetime | None = None
    """The time from which expressions such as "last week" are resolved; None recognises only complete dates."""
    messages_before: int = 0
    messages_after: int = 0
    rerank: bool | None = None
    """None means the default of the service."""

    @property
    def queries(self) -> tuple[str, ...]:
        """The different queries that are not blank, in order."""
        return tuple(dict.fromkeys(query for query in (self.query, *self.further_queries) if query.strip()))


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The messages of a dialogue before and after one of them, oldest first."""

    before: tuple[Message, ...] = ()
    after: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True)
class WordQuery:
    """A query as the full-text index selects candidates for it."""

    text: str
    """The words; "" if words do not count."""
    fingerprint: str
    """That of the whole query; see `ranking.exact.fingerprint`."""


ReadCandidates = Callable[[Sequence[Key], Sequence[Key]], Candidates]
FindRows = Callable[[Iterable[Key]], Mapping[Key, int]]


@dataclass(frozen=True, slots=True)
class WordCandidates:
    """The messages that match a query by words."""

    candidates: Candidates
    """Newest first."""
    rarities: Mapping[str, float]
    """The terms that are in any message of the scope or beside it, with their rarities."""
    read: ReadCandidates | None = None
    """Returns further candidates by their keys, and those that follow leaders; None if the store has to be asked."""
    row_ids: FindRows | None = None
    """Returns the row ids of messages by their keys, as far as they are known; None if none is."""
    is_complete: bool = True
    """False if messages of the scope were not indexed, or have the words of an earlier analysis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageHit:
    """A message that was found. Ranks start at 1. `mode` is None in a list of the newest messages."""

    message: Message
    text: str
    score: float = 0.0
    text_score: float | None = None
    text_rank: int | None = None
    vector_score: float | None = None
    vector_rank: int | None = None
    mode: SearchMode | None = None
    rerank_score: float | None = None
    before: tuple[Message, ...] = ()
    """The messages of the conversation before it, oldest first."""
    after: tuple[Message, ...] = ()
    question: Message | None = None
    """The message before it, if that asks a question which this one may answer."""


@dataclass(frozen=True, slots=True)
class MessageHits:
    """The result of a search from its offset on, best first."""

    hits: tuple[MessageHit, ...]
    degraded: bool = False
    """True if similar messages may be missing, because the vector index or the embedder was not available."""
    reranked: bool = False
    time_ranges: tuple[TimeRange, ...] = ()
    """The ranges of the expressions of time in the queries."""
