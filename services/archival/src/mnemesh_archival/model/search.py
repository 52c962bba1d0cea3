"""Searches of passages: requests, limits and hits."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, tzinfo
from typing import Final
from uuid import UUID

from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.text import require_text
from mnemesh_retrieval.index import SearchMode
from mnemesh_retrieval.ranking.scores import normalized
from mnemesh_retrieval.time_expressions.resolver import TimeRange
from mnemesh_types.archival import PassageHit

from mnemesh_archival.model.passages import PassageFilter, validate_filter

MAX_QUERY_CHARS: Final = 10_000
MAX_FURTHER_QUERIES: Final = 9
MAX_HITS: Final = 100
DEFAULT_HITS: Final = 10
MAX_AROUND: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class PassageSearch:
    query: str
    """Blank for the newest passages."""
    further_queries: tuple[str, ...] = ()
    """Other wordings; blank ones are ignored."""
    kind: SearchMode = SearchMode.HYBRID
    filter: PassageFilter = field(default_factory=PassageFilter)
    limit: int = 0
    """The largest number of hits; 0 for the default."""
    offset: int = 0
    """The number of best hits to leave out, because earlier calls returned them."""
    before: int = 0
    """The number of passages of the same dialogue or document to return before each hit, and after it."""
    after: int = 0
    zone: tzinfo = UTC
    reference_time: datetime | None = None
    """The time from which expressions such as "last week" are resolved; None recognises complete dates only."""
    with_embedding: bool = False
    rerank: bool | None = None
    """Whether the reranker orders the best candidates; None means the default of the service."""

    @property
    def queries(self) -> list[str]:
        """The queries that are not blank, each once."""
        return list(dict.fromkeys(each for each in (self.query, *self.further_queries) if each.strip()))


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The hits of a search from its offset on, best first."""

    hits: tuple[PassageHit, ...]
    degraded: bool = False
    """True if an embedder was unavailable, so that a hybrid search used words only, or if the index was incomplete."""
    time_ranges: tuple[TimeRange, ...] = ()
    """The ranges of the expressions of time in the queries."""
    reranked: bool = False


def validate_search(search: PassageSearch) -> PassageSearch:
    """Returns the search with its default limit, and a valid filter.

    Raises:
        InvalidArgument: a query, the filter or a number is not valid.
    """
    validate_query(search.query, "query")
    if len(search.further_queries) > MAX_FURTHER_QUERIES:
        raise InvalidArgument(
            f"further_queries must have at most {MAX_FURTHER_QUERIES} values.", field="further_queries"
        )
    for index, query in enumerate(search.further_queries):
        validate_query(query, f"further_queries[{index}]")
    for value, name in ((search.before, "passages_before"), (search.after, "passages_after")):
        if not 0 <= value <= MAX_AROUND:
            raise InvalidArgument(f"{name} must be between 0 and {MAX_AROUND}.", field=name)
    return replace(search, filter=validate_filter(search.filter), limit=validate_limit(search.limit))


def validate_query(text: str, field: str) -> str:
    """Returns the query. Raises InvalidArgument if it is too long or has a NUL character."""
    return require_text(text, field, max_chars=MAX_QUERY_CHARS)


def validate_limit(limit: int) -> int:
    """Returns the number of hits to return, with 0 replaced by the default.

    Raises:
        InvalidArgument: the limit is negative or too large.
    """
    if not 0 <= limit <= MAX_HITS:
        raise InvalidArgument(f"limit must be between 0 and {MAX_HITS}.", field="limit")
    return limit or DEFAULT_HITS


def equal_to(query: str, texts: Mapping[UUID, str]) -> list[UUID]:
    """Returns the texts that equal a query most closely: as they are, else apart from case, else in their words."""
    ways: Sequence[Callable[[str], str]] = (str.strip, lambda text: " ".join(text.casefold().split()), normalized)
    for way in ways:
        wanted = way(query)
        if wanted and (found := [id_ for id_, text in texts.items() if way(text) == wanted]):
            return sorted(found)
    return []
