"""The conversion of the requests of EpisodeService."""

from dataclasses import replace
from typing import Any, Final

from mnemesh.recall.v1 import episodes_service_pb2 as rpc
from mnemesh_kit.time import date_range, optional_timestamp_from_proto, zone_from_name
from mnemesh_types.recall import WriterLease
from mnemesh_types.twin import Conversion, enum_of

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
enum_of(rpc.EpisodeOrderBy, EpisodeOrder, "CREATED", CREATED="CREATE_TIME", STARTED="START_TIME")
enum_of(rpc.FactOrderBy, FactOrder, "CREATED", CREATED="CREATE_TIME")
_RESTORE: Final = Conversion(rpc.RestoreFactRequest, RestoreFact)
_EPISODE_FILTER: Final = Conversion(rpc.EpisodeFilter, EpisodeFilter)
_FACT_FILTER: Final = Conversion(rpc.FactFilter, FactFilter)

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
    return _RESTORE.from_proto(request)


def episode_filter_from_proto(filter_: rpc.EpisodeFilter) -> EpisodeFilter:
    return convert.each_once(_EPISODE_FILTER.from_proto(filter_, "filter"), "scopes", "tags_any", "tags_all")


def fact_filter_from_proto(filter_: rpc.FactFilter) -> FactFilter:
    return convert.each_once(_FACT_FILTER.from_proto(filter_, "filter"), "scopes", "tags_any", "tags_all")


def episode_search_from_proto(request: rpc.SearchEpisodesRequest) -> MemorySearch[Episode]:
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
    return MemorySearch(
        query=request.query,
        mode=mode_from_proto(request.mode),
        limit=request.limit or DEFAULT_FACT_HITS,
        filter=fact_filter_from_proto(request.filter),
        reference_time=optional_timestamp_from_proto(request, "reference_time"),
        time_zone=zone_from_name(request.time_zone, "time_zone"),
    )


def episode_changes_from_proto(request: rpc.UpdateEpisodeRequest) -> Changes:
    return _changes(request.episode, request.update_mask.paths)


def fact_changes_from_proto(request: rpc.UpdateFactRequest) -> Changes:
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


def _scopes(scopes: Any, field: str) -> tuple[Any, ...]:
    return tuple(
        dict.fromkeys(convert.scope_from_proto(scope, f"{field}[{index}]") for index, scope in enumerate(scopes))
    )
