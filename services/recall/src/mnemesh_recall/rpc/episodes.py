"""The RPCs of EpisodeService, with the conversion of its messages."""

from dataclasses import replace
from typing import Any, Final

from mnemesh.recall.v1 import episodes_service_pb2 as rpc
from mnemesh.recall.v1 import episodes_service_pb2_grpc
from mnemesh_kit.call_context import current_principal
from mnemesh_kit.idempotency import request_key
from mnemesh_kit.paging import bounded, bounded_hits, next_page_token, offset_from_token, page_query
from mnemesh_kit.time import date_range, optional_timestamp_from_proto, zone_from_name
from mnemesh_types.recall import WriterLease
from mnemesh_types.twin import Conversion, enum_from_proto, enum_of

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
from mnemesh_recall.usecases.episodes import EpisodeService, MemoryAuditService

Call = Any
"""The gRPC context of a call, which no RPC here uses."""

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


class EpisodesServicer(episodes_service_pb2_grpc.EpisodeServiceServicer):
    def __init__(self, service: EpisodeService, audits: MemoryAuditService) -> None:
        self._service = service
        self._audits = audits

    async def CommitEpisode(self, request: rpc.CommitEpisodeRequest, context: Call) -> rpc.CommitEpisodeResponse:
        key = request_key(request, "CommitEpisode")
        result = await self._service.commit_episode(current_principal(), commit_from_proto(request), key)
        return rpc.CommitEpisodeResponse(
            episode=None if result.episode is None else convert.EPISODE.to_proto(result.episode),
            facts=[convert.FACT.to_proto(fact) for fact in result.facts],
        )

    async def GetEpisode(self, request: rpc.GetEpisodeRequest, context: Call) -> rpc.GetEpisodeResponse:
        episode = await self._service.get_episode(current_principal(), request.episode_id)
        return rpc.GetEpisodeResponse(episode=convert.EPISODE.to_proto(episode))

    async def ListEpisodes(self, request: rpc.ListEpisodesRequest, context: Call) -> rpc.ListEpisodesResponse:
        order, query = enum_from_proto(EpisodeOrder, request.order_by, "order_by"), page_query(request)
        filter_ = episode_filter_from_proto(request.filter)
        found = await self._service.list_episodes(current_principal(), filter_, order, query)
        page = bounded(query, found.map(convert.EPISODE.to_proto))
        return rpc.ListEpisodesResponse(episodes=page.items, next_page_token=next_page_token(query, page))

    async def SearchEpisodes(self, request: rpc.SearchEpisodesRequest, context: Call) -> rpc.SearchEpisodesResponse:
        offset = offset_from_token(request)
        found = await self._service.search(current_principal(), episode_search_from_proto(request))
        left = [
            rpc.EpisodeHit(episode=convert.EPISODE.to_proto(episode), score=score)
            for episode, score in found.hits[offset:]
        ]
        hits, token = bounded_hits(request, left)
        return rpc.SearchEpisodesResponse(hits=hits, degraded=found.degraded, next_page_token=token)

    async def UpdateEpisode(self, request: rpc.UpdateEpisodeRequest, context: Call) -> rpc.UpdateEpisodeResponse:
        key = request_key(request, "UpdateEpisode")
        changes = _changes(request.episode, request.update_mask.paths)
        episode = await self._service.update_episode(current_principal(), request.episode.id, changes, key)
        return rpc.UpdateEpisodeResponse(episode=convert.EPISODE.to_proto(episode))

    async def DeleteEpisode(self, request: rpc.DeleteEpisodeRequest, context: Call) -> rpc.DeleteEpisodeResponse:
        await self._service.delete_episode(
            current_principal(), request.episode_id, request_key(request, "DeleteEpisode")
        )
        return rpc.DeleteEpisodeResponse()

    async def CreateFact(self, request: rpc.CreateFactRequest, context: Call) -> rpc.CreateFactResponse:
        key = request_key(request, "CreateFact")
        fact, existed = await self._service.create_fact(
            current_principal(), convert.new_fact_from_proto(request.fact, "fact"), key
        )
        return rpc.CreateFactResponse(fact=convert.FACT.to_proto(fact), already_held=existed)

    async def GetFact(self, request: rpc.GetFactRequest, context: Call) -> rpc.GetFactResponse:
        fact = await self._service.get_fact(current_principal(), request.fact_id)
        return rpc.GetFactResponse(fact=convert.FACT.to_proto(fact))

    async def ListFacts(self, request: rpc.ListFactsRequest, context: Call) -> rpc.ListFactsResponse:
        order, query = enum_from_proto(FactOrder, request.order_by, "order_by"), page_query(request)
        found = await self._service.list_facts(
            current_principal(), fact_filter_from_proto(request.filter), order, query
        )
        page = bounded(query, found.map(convert.FACT.to_proto))
        return rpc.ListFactsResponse(facts=page.items, next_page_token=next_page_token(query, page))

    async def SearchFacts(self, request: rpc.SearchFactsRequest, context: Call) -> rpc.SearchFactsResponse:
        offset = offset_from_token(request)
        found = await self._service.search(current_principal(), fact_search_from_proto(request))
        left = [rpc.FactHit(fact=convert.FACT.to_proto(fact), score=score) for fact, score in found.hits[offset:]]
        hits, token = bounded_hits(request, left)
        return rpc.SearchFactsResponse(
            hits=hits,
            degraded=found.degraded,
            times=None if found.times is None else convert.FACT_TIMES.to_proto(found.times),
            next_page_token=token,
        )

    async def UpdateFact(self, request: rpc.UpdateFactRequest, context: Call) -> rpc.UpdateFactResponse:
        key = request_key(request, "UpdateFact")
        changes = _changes(request.fact, request.update_mask.paths)
        fact = await self._service.update_fact(current_principal(), request.fact.id, changes, key)
        return rpc.UpdateFactResponse(fact=convert.FACT.to_proto(fact))

    async def SupersedeFact(self, request: rpc.SupersedeFactRequest, context: Call) -> rpc.SupersedeFactResponse:
        key = request_key(request, "SupersedeFact")
        operation = convert.supersede_from_proto(request.operation, "operation")
        new, old = await self._service.supersede_fact(current_principal(), operation, key)
        return rpc.SupersedeFactResponse(fact=convert.FACT.to_proto(new), superseded=convert.FACT.to_proto(old))

    async def InvalidateFact(self, request: rpc.InvalidateFactRequest, context: Call) -> rpc.InvalidateFactResponse:
        key = request_key(request, "InvalidateFact")
        operation = convert.INVALIDATE.from_proto(request.operation, "operation")
        fact = await self._service.invalidate_fact(current_principal(), operation, key)
        return rpc.InvalidateFactResponse(fact=convert.FACT.to_proto(fact))

    async def RestoreFact(self, request: rpc.RestoreFactRequest, context: Call) -> rpc.RestoreFactResponse:
        key = request_key(request, "RestoreFact")
        fact, old = await self._service.restore_fact(current_principal(), _RESTORE.from_proto(request), key)
        superseded = None if old is None else convert.FACT.to_proto(old)
        return rpc.RestoreFactResponse(fact=convert.FACT.to_proto(fact), superseded=superseded)

    async def AuditMemory(self, request: rpc.AuditMemoryRequest, context: Call) -> rpc.AuditMemoryResponse:
        page = await self._audits.audit(current_principal(), convert.audit_from_proto(request))
        return convert.audit_to_proto(request, page)

    async def DeleteFact(self, request: rpc.DeleteFactRequest, context: Call) -> rpc.DeleteFactResponse:
        await self._service.delete_fact(current_principal(), request.fact_id, request_key(request, "DeleteFact"))
        return rpc.DeleteFactResponse()

    async def ListFactHistory(self, request: rpc.ListFactHistoryRequest, context: Call) -> rpc.ListFactHistoryResponse:
        query = page_query(request)
        found = await self._service.list_fact_history(current_principal(), request.fact_id, query)
        page = bounded(query, found.map(convert.FACT.to_proto))
        return rpc.ListFactHistoryResponse(facts=page.items, next_page_token=next_page_token(query, page))

    async def GetMemoryBundle(self, request: rpc.GetMemoryBundleRequest, context: Call) -> rpc.GetMemoryBundleResponse:
        bundle = await self._service.get_bundle(current_principal(), *bundle_from_proto(request))
        return rpc.GetMemoryBundleResponse(
            episodes=[convert.EPISODE.to_proto(episode) for episode in bundle.episodes],
            facts=[convert.FACT.to_proto(fact) for fact in bundle.facts],
        )

    async def ListMemoryScopes(
        self, request: rpc.ListMemoryScopesRequest, context: Call
    ) -> rpc.ListMemoryScopesResponse:
        query = page_query(request)
        name_prefix = request.name_prefix if request.HasField("name_prefix") else None
        found = await self._service.list_scopes(current_principal(), name_prefix, query)
        page = bounded(query, found.map(convert.SCOPE_SUMMARY.to_proto))
        return rpc.ListMemoryScopesResponse(scopes=page.items, next_page_token=next_page_token(query, page))

    async def EraseMemoryScope(
        self, request: rpc.EraseMemoryScopeRequest, context: Call
    ) -> rpc.EraseMemoryScopeResponse:
        key = request_key(request, "EraseMemoryScope")
        erasure = await self._service.erase_scope(
            current_principal(), convert.scope_from_proto(request.scope, "scope"), key
        )
        return rpc.EraseMemoryScopeResponse(erased_episodes=erasure.episodes, erased_facts=erasure.facts)
