"""The conversion of the requests of EpisodeService."""

from collections.abc import Container
from dataclasses import replace
from typing import Any, Final

from mnemesh.recall.v1 import episodes_service_pb2 as rpc
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.paging import PageQuery, page_query
from mnemesh_kit.time import date_range, optional_timestamp_from_proto, zone_from_name
from mnemesh_types.recall import WriterLease

from mnemesh_recall.model.episodes import (
    Episode,
    EpisodeCommit,
    EpisodeFilter,
    EpisodeOrder,
    Fact,
    FactFilter,
    FactOrder,
    MemorySearch,
    RestoreFact,
)
from mnemesh_recall.rpc.convert import episodes as convert
from mnemesh_recall.rpc.convert.messages import mode_from_proto

DEFAULT_EPISODE_HITS: Final = 10
DEFAULT_FACT_HITS: Final = 20
DEFAULT_BUNDLE_EPISODES: Final = 3
DEFAULT_BUNDLE_FACTS: Final = 20
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
"""New values by field name."""


def commit_from_proto(request: rpc.CommitEpisodeRequest) -> EpisodeCommit:
    """Converts a commit outside of a compaction."""
    return replace(
        convert.commit_from_proto(request),
        conversation_id=request.conversation_id if request.HasField("conversation_id") else None,
        lease=WriterLease.from_proto(request.lease, "lease") if request.HasField("lease") else None,
        requires_sources=request.require_source_messages,
    )


def restore_from_proto(request: rpc.RestoreFactRequest) -> RestoreFact:
    """Converts the restoration of a fact."""
    return RestoreFact(
        fact_id=request.fact_id,
        reason=request.reason if request.HasField("reason") else None,
        source=convert.source_from_proto(request.source),
    )


def episode_order_from_proto(order: int) -> EpisodeOrder:
    """Converts the order of a list of episodes. Raises InvalidArgument if it is unknown."""
    _require_order(_EPISODE_ORDERS, order)
    return _EPISODE_ORDERS[order]


def fact_order_from_proto(order: int) -> FactOrder:
    """Converts the order of a list of facts. Raises InvalidArgument if it is unknown."""
    _require_order(_FACT_ORDERS, order)
    return _FACT_ORDERS[order]


def page_from_proto(request: Any) -> PageQuery:
    """Converts the paging fields of a list. Raises InvalidArgument if its order is unknown."""
    _require_order(request.DESCRIPTOR.fields_by_name["order_by"].enum_type.values_by_number, request.order_by)
    return page_query(request)


def episode_filter_from_proto(filter_: rpc.EpisodeFilter) -> EpisodeFilter:
    """Converts a filter of episodes."""
    return EpisodeFilter(
        **_shared_filter(filter_),
        agent_id=filter_.agent_id if filter_.HasField("agent_id") else None,
        turn_id=filter_.turn_id if filter_.HasField("turn_id") else None,
        known_at=optional_timestamp_from_proto(filter_, "known_at_time", "filter.known_at_time"),
    )


def fact_filter_from_proto(filter_: rpc.FactFilter) -> FactFilter:
    """Converts a filter of facts."""
    return FactFilter(
        **_shared_filter(filter_),
        min_confidence=filter_.min_confidence if filter_.HasField("min_confidence") else None,
        episode_id=filter_.episode_id if filter_.HasField("episode_id") else None,
        valid_at=optional_timestamp_from_proto(filter_, "valid_at_time", "filter.valid_at_time"),
        known_at=optional_timestamp_from_proto(filter_, "known_at_time", "filter.known_at_time"),
        include_invalid=filter_.include_invalid,
        valid_since=optional_timestamp_from_proto(filter_, "valid_since_time", "filter.valid_since_time"),
    )


def episode_search_from_proto(request: rpc.SearchEpisodesRequest) -> MemorySearch[Episode]:
    """Converts a search of episodes."""
    dates = date_range(
        request.start_date if request.HasField("start_date") else None,
        request.end_date if request.HasField("end_date") else None,
        request.time_zone,
    )
    return MemorySearch(
        query=request.query,
        mode=mode_from_proto(request.mode),
        limit=request.limit or DEFAULT_EPISODE_HITS,
        filter=replace(episode_filter_from_proto(request.filter), from_time=dates.start, before_time=dates.end),
    )


def fact_search_from_proto(request: rpc.SearchFactsRequest) -> MemorySearch[Fact]:
    """Converts a search of facts."""
    return MemorySearch(
        query=request.query,
        mode=mode_from_proto(request.mode),
        limit=request.limit or DEFAULT_FACT_HITS,
        filter=fact_filter_from_proto(request.filter),
        reference_time=optional_timestamp_from_proto(request, "reference_time"),
        time_zone=zone_from_name(request.time_zone, "time_zone"),
    )


def episode_changes_from_proto(request: rpc.UpdateEpisodeRequest) -> Changes:
    """Converts the changes of an episode."""
    return _changes(request.episode, request.update_mask.paths)


def fact_changes_from_proto(request: rpc.UpdateFactRequest) -> Changes:
    """Converts the changes of a fact."""
    return _changes(request.fact, request.update_mask.paths)


def bundle_from_proto(request: rpc.GetMemoryBundleRequest) -> tuple[FactFilter, int, int]:
    """Converts a request for a bundle: the filter, and the largest numbers of episodes and facts."""
    filter_ = FactFilter(
        scopes=_scopes(request.scopes, "scopes"),
        valid_at=optional_timestamp_from_proto(request, "valid_at_time"),
        known_at=optional_timestamp_from_proto(request, "known_at_time"),
    )
    episodes = request.max_episodes if request.HasField("max_episodes") else DEFAULT_BUNDLE_EPISODES
    facts = request.max_facts if request.HasField("max_facts") else DEFAULT_BUNDLE_FACTS
    return filter_, episodes, facts


def _changes(memory: Any, paths: Any) -> Changes:
    changes: Changes = {}
    for path in paths:
        field = memory.DESCRIPTOR.fields_by_name.get(path)
        value = None if field is None else getattr(memory, path)
        if path == "tags":
            value = tuple(dict.fromkeys(memory.tags))
        elif field is not None and field.has_presence and not memory.HasField(path):
            value = None
        changes[path] = value
    return changes


def _shared_filter(filter_: rpc.EpisodeFilter | rpc.FactFilter) -> dict[str, Any]:
    return {
        "scopes": _scopes(filter_.scopes, "filter.scopes"),
        "tags_any": tuple(dict.fromkeys(filter_.tags_any)),
        "tags_all": tuple(dict.fromkeys(filter_.tags_all)),
        "message_id": filter_.message_id if filter_.HasField("message_id") else None,
    }


def _scopes(scopes: Any, field: str) -> tuple[Any, ...]:
    return tuple(
        dict.fromkeys(convert.scope_from_proto(scope, f"{field}[{index}]") for index, scope in enumerate(scopes))
    )


def _require_order(known: Container[int], order: int) -> None:
    if order not in known:
        raise InvalidArgument("order_by must be an order of this list.", field="order_by")
