"""What requests on episodes and facts ask of the service: ids, bounds and sizes are checked here."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from typing import Any, Final

from mnemesh.recall.v1 import episodes_service_pb2 as rpc
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import require_id
from mnemesh_kit.paging import PageQuery, page_query

from mnemesh_recall.model.dates import end_bound, start_bound, time_zone
from mnemesh_recall.model.episode_operations import (
    EpisodeCommit,
    EpisodeFilter,
    EpisodeOrder,
    FactFilter,
    FactOrder,
    MemorySearch,
)
from mnemesh_recall.model.episodes import Episode, Fact
from mnemesh_recall.rpc.convert import episodes as convert
from mnemesh_recall.rpc.convert.episode_commits import commit_in
from mnemesh_recall.rpc.convert.message_requests import MAX_HITS, MAX_QUERY_CHARACTERS
from mnemesh_recall.rpc.convert.messages import instant, mode_in

MAX_BUNDLE: Final = 1_000
_EPISODE_ORDERS: Final[dict[int, EpisodeOrder]] = {
    rpc.EPISODE_ORDER_BY_UNSPECIFIED: EpisodeOrder.CREATED,
    rpc.EPISODE_ORDER_BY_CREATE_TIME: EpisodeOrder.CREATED,
    rpc.EPISODE_ORDER_BY_START_TIME: EpisodeOrder.STARTED,
    rpc.EPISODE_ORDER_BY_SALIENCE: EpisodeOrder.SALIENCE,
}
_FACT_ORDERS: Final[dict[int, FactOrder]] = {
    rpc.FACT_ORDER_BY_UNSPECIFIED: FactOrder.CREATED,
    rpc.FACT_ORDER_BY_CREATE_TIME: FactOrder.CREATED,
    rpc.FACT_ORDER_BY_VALID_FROM_TIME: FactOrder.VALID_FROM,
    rpc.FACT_ORDER_BY_CONFIDENCE: FactOrder.CONFIDENCE,
    rpc.FACT_ORDER_BY_SALIENCE: FactOrder.SALIENCE,
}

Changes = dict[str, Any]
"""New values by the names of fields."""
Readers = dict[str, Callable[[], Any]]


def commit(request: rpc.CommitEpisodeRequest) -> EpisodeCommit:
    """What CommitEpisode asks."""
    epoch = None
    if request.HasField("lease"):
        require_id(request.lease.run_id, "run", "lease.run_id")
        epoch = request.lease.epoch
        if epoch < 0:
            raise InvalidArgument("lease.epoch must not be negative.", field="lease.epoch")
    return replace(
        commit_in(request),
        conversation_id=require_id(request.conversation_id, "conv", "conversation_id")
        if request.HasField("conversation_id")
        else None,
        epoch=epoch,
    )


def episode_order(order: int) -> EpisodeOrder:
    """What episodes are listed by."""
    _require_order(_EPISODE_ORDERS, order)
    return _EPISODE_ORDERS[order]


def fact_order(order: int) -> FactOrder:
    """What facts are listed by."""
    _require_order(_FACT_ORDERS, order)
    return _FACT_ORDERS[order]


def page(request: Any, prefix: str) -> PageQuery:
    """Which page a list asks for; its rows have ids of `prefix`."""
    for field in ("after_id", "before_id"):
        if request.HasField(field):
            require_id(getattr(request, field), prefix, field)
    _require_order(request.DESCRIPTOR.fields_by_name["order_by"].enum_type.values_by_number, request.order_by)
    return page_query(request)


def scope_page(request: rpc.ListMemoryScopesRequest) -> PageQuery:
    """Which page of scopes is asked for."""
    for field in ("after_id", "before_id"):
        if request.HasField(field):
            convert.short(getattr(request, field), field)
    _require_order(rpc.MemoryScopeOrderBy.values(), request.order_by)
    return page_query(request)


def name_prefix(request: rpc.ListMemoryScopesRequest) -> str | None:
    """How names are to begin; None where scopes of every kind are asked for."""
    if not request.HasField("name_prefix"):
        return None
    return convert.short(request.name_prefix, "name_prefix") if request.name_prefix else ""


def episode_filter(given: rpc.EpisodeFilter) -> EpisodeFilter:
    """Which episodes are asked for."""
    if given.HasField("turn_id") and not given.HasField("agent_id"):
        raise InvalidArgument("A turn is an agent's: filter.agent_id is required.", field="filter.agent_id")
    return EpisodeFilter(
        **_shared(given),
        agent_id=require_id(given.agent_id, "agent", "filter.agent_id") if given.HasField("agent_id") else None,
        turn_id=convert.short(given.turn_id, "filter.turn_id") if given.HasField("turn_id") else None,
        known_at=instant(given.known_at_time, "filter.known_at_time") if given.HasField("known_at_time") else None,
    )


def fact_filter(given: rpc.FactFilter) -> FactFilter:
    """Which facts are asked for."""
    return FactFilter(
        **_shared(given),
        min_confidence=convert.share(given.min_confidence, "filter.min_confidence")
        if given.HasField("min_confidence")
        else None,
        episode_id=require_id(given.episode_id, "episode", "filter.episode_id")
        if given.HasField("episode_id")
        else None,
        valid_at=instant(given.valid_at_time, "filter.valid_at_time") if given.HasField("valid_at_time") else None,
        known_at=instant(given.known_at_time, "filter.known_at_time") if given.HasField("known_at_time") else None,
        include_invalid=given.include_invalid,
    )


def search_episodes(request: rpc.SearchEpisodesRequest) -> MemorySearch[Episode]:
    """What SearchEpisodes asks."""
    zone = time_zone(request.time_zone)
    where = episode_filter(request.filter)
    bounded = replace(
        where,
        from_time=start_bound(request.start_date, zone) if request.HasField("start_date") else None,
        before_time=end_bound(request.end_date, zone) if request.HasField("end_date") else None,
    )
    return MemorySearch(query=_query(request), mode=mode_in(request.mode), limit=_limit(request, 10), where=bounded)


def search_facts(request: rpc.SearchFactsRequest) -> MemorySearch[Fact]:
    """What SearchFacts asks."""
    where = fact_filter(request.filter)
    return MemorySearch(query=_query(request), mode=mode_in(request.mode), limit=_limit(request, 20), where=where)


def episode_changes(request: rpc.UpdateEpisodeRequest) -> tuple[str, Changes]:
    """Which episode changes, and the new values of its fields."""
    given = request.episode
    return require_id(given.id, "episode", "episode.id"), _changes(
        request.update_mask.paths,
        {"summary": lambda: convert.summary_in(given.summary, "episode.summary"), **_beside(given, "episode")},
    )


def fact_changes(request: rpc.UpdateFactRequest) -> tuple[str, Changes]:
    """Which fact changes, and the new values of its fields."""
    given = request.fact
    return require_id(given.id, "fact", "fact.id"), _changes(
        request.update_mask.paths,
        {"confidence": lambda: convert.share_in(given, "confidence", "fact"), **_beside(given, "fact")},
    )


def bundle(request: rpc.GetMemoryBundleRequest) -> tuple[FactFilter, int, int]:
    """What a bundle is made of, and how many episodes and facts it has at most."""
    where = FactFilter(
        scopes=convert.scopes_in(request.scopes, "scopes"),
        valid_at=instant(request.valid_at_time, "valid_at_time") if request.HasField("valid_at_time") else None,
        known_at=instant(request.known_at_time, "known_at_time") if request.HasField("known_at_time") else None,
    )
    episodes = request.max_episodes if request.HasField("max_episodes") else 3
    facts = request.max_facts if request.HasField("max_facts") else 20
    for field, most in (("max_episodes", episodes), ("max_facts", facts)):
        if not 0 <= most <= MAX_BUNDLE:
            raise InvalidArgument(f"{field} must be between 0 and {MAX_BUNDLE}.", field=field)
    return where, episodes, facts


def _shared(given: rpc.EpisodeFilter | rpc.FactFilter) -> dict[str, Any]:
    return {
        "scopes": convert.scopes_in(given.scopes, "filter.scopes"),
        "tags_any": convert.tags_in(given.tags_any, "filter.tags_any"),
        "tags_all": convert.tags_in(given.tags_all, "filter.tags_all"),
        "message_id": require_id(given.message_id, "message", "filter.message_id")
        if given.HasField("message_id")
        else None,
    }


def _beside(given: Any, field: str) -> Readers:
    return {
        "tags": lambda: convert.tags_in(given.tags, f"{field}.tags"),
        "salience": lambda: convert.share_in(given, "salience", field),
        "metadata": lambda: convert.metadata_in(given, "metadata", field),
    }


def _changes(paths: Sequence[str], readers: Readers) -> Changes:
    if not paths or not set(paths) <= set(readers):
        raise InvalidArgument(f"update_mask must name some of {', '.join(sorted(readers))}.", field="update_mask")
    return {path: readers[path]() for path in paths}


def _query(request: rpc.SearchEpisodesRequest | rpc.SearchFactsRequest) -> str:
    if len(request.query) > MAX_QUERY_CHARACTERS or "\0" in request.query:
        raise InvalidArgument(f"query must be at most {MAX_QUERY_CHARACTERS} characters, none NUL.", field="query")
    return request.query


def _limit(request: rpc.SearchEpisodesRequest | rpc.SearchFactsRequest, default: int) -> int:
    if not 0 <= request.limit <= MAX_HITS:
        raise InvalidArgument(f"limit must be between 0 and {MAX_HITS}.", field="limit")
    return request.limit or default


def _require_order(known: Container[int], order: int) -> None:
    if order not in known:
        raise InvalidArgument("order_by is not an order of this list.", field="order_by")
