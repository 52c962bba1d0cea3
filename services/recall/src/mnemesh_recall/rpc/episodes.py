"""The RPCs of EpisodeService: decode, call, encode."""

from __future__ import annotations

from typing import Any

from mnemesh.recall.v1 import episodes_service_pb2 as rpc
from mnemesh.recall.v1 import episodes_service_pb2_grpc
from mnemesh_kit.idempotency import request_key
from mnemesh_kit.ids import require_id
from mnemesh_kit.paging import next_page_token
from mnemesh_kit.principal import current_principal

from mnemesh_recall.rpc.convert import episode_requests as requests
from mnemesh_recall.rpc.convert import episodes as convert
from mnemesh_recall.usecases.episodes import EpisodeService

Call = Any
"""gRPC's context of a call; no RPC here needs it."""


class EpisodesServicer(episodes_service_pb2_grpc.EpisodeServiceServicer):
    """Answers all of EpisodeService."""

    def __init__(self, service: EpisodeService) -> None:
        self._service = service

    async def CommitEpisode(self, request: rpc.CommitEpisodeRequest, context: Call) -> rpc.CommitEpisodeResponse:
        """Takes in an episode and operations on facts."""
        key = request_key(request, "CommitEpisode")
        done = await self._service.commit_episode(_organization(), requests.commit(request), key)
        return rpc.CommitEpisodeResponse(
            episode=None if done.episode is None else convert.episode_out(done.episode),
            facts=[convert.fact_out(fact) for fact in done.facts],
        )

    async def GetEpisode(self, request: rpc.GetEpisodeRequest, context: Call) -> rpc.GetEpisodeResponse:
        """One episode."""
        episode_id = require_id(request.episode_id, "episode", "episode_id")
        episode = await self._service.get_episode(_organization(), episode_id)
        return rpc.GetEpisodeResponse(episode=convert.episode_out(episode))

    async def ListEpisodes(self, request: rpc.ListEpisodesRequest, context: Call) -> rpc.ListEpisodesResponse:
        """A page of episodes."""
        order, query = requests.episode_order(request.order_by), requests.page(request, "episode")
        wanted = requests.episode_filter(request.filter)
        page = await self._service.list_episodes(_organization(), wanted, order, query)
        return rpc.ListEpisodesResponse(
            episodes=[convert.episode_out(episode) for episode in page.items],
            next_page_token=next_page_token(query, page),
        )

    async def SearchEpisodes(self, request: rpc.SearchEpisodesRequest, context: Call) -> rpc.SearchEpisodesResponse:
        """Searches episodes."""
        found = await self._service.search(_organization(), requests.search_episodes(request))
        hits = [rpc.EpisodeHit(episode=convert.episode_out(episode), score=score) for episode, score in found.hits]
        return rpc.SearchEpisodesResponse(hits=hits, degraded=found.degraded)

    async def UpdateEpisode(self, request: rpc.UpdateEpisodeRequest, context: Call) -> rpc.UpdateEpisodeResponse:
        """Changes an episode."""
        key = request_key(request, "UpdateEpisode")
        episode_id, changes = requests.episode_changes(request)
        episode = await self._service.update_episode(_organization(), episode_id, changes, key)
        return rpc.UpdateEpisodeResponse(episode=convert.episode_out(episode))

    async def DeleteEpisode(self, request: rpc.DeleteEpisodeRequest, context: Call) -> rpc.DeleteEpisodeResponse:
        """Erases an episode."""
        episode_id = require_id(request.episode_id, "episode", "episode_id")
        await self._service.delete_episode(_organization(), episode_id, request_key(request, "DeleteEpisode"))
        return rpc.DeleteEpisodeResponse()

    async def CreateFact(self, request: rpc.CreateFactRequest, context: Call) -> rpc.CreateFactResponse:
        """Adds a fact."""
        key = request_key(request, "CreateFact")
        fact, held = await self._service.create_fact(_organization(), convert.new_fact(request.fact, "fact"), key)
        return rpc.CreateFactResponse(fact=convert.fact_out(fact), already_held=held)

    async def GetFact(self, request: rpc.GetFactRequest, context: Call) -> rpc.GetFactResponse:
        """One fact."""
        fact = await self._service.get_fact(_organization(), require_id(request.fact_id, "fact", "fact_id"))
        return rpc.GetFactResponse(fact=convert.fact_out(fact))

    async def ListFacts(self, request: rpc.ListFactsRequest, context: Call) -> rpc.ListFactsResponse:
        """A page of facts."""
        order, query = requests.fact_order(request.order_by), requests.page(request, "fact")
        page = await self._service.list_facts(_organization(), requests.fact_filter(request.filter), order, query)
        return rpc.ListFactsResponse(
            facts=[convert.fact_out(fact) for fact in page.items], next_page_token=next_page_token(query, page)
        )

    async def SearchFacts(self, request: rpc.SearchFactsRequest, context: Call) -> rpc.SearchFactsResponse:
        """Searches facts."""
        found = await self._service.search(_organization(), requests.search_facts(request))
        hits = [rpc.FactHit(fact=convert.fact_out(fact), score=score) for fact, score in found.hits]
        return rpc.SearchFactsResponse(hits=hits, degraded=found.degraded)

    async def UpdateFact(self, request: rpc.UpdateFactRequest, context: Call) -> rpc.UpdateFactResponse:
        """Changes what stands beside a fact's text."""
        key = request_key(request, "UpdateFact")
        fact_id, changes = requests.fact_changes(request)
        fact = await self._service.update_fact(_organization(), fact_id, changes, key)
        return rpc.UpdateFactResponse(fact=convert.fact_out(fact))

    async def SupersedeFact(self, request: rpc.SupersedeFactRequest, context: Call) -> rpc.SupersedeFactResponse:
        """Closes a fact in favour of a new one."""
        key = request_key(request, "SupersedeFact")
        wanted = convert.supersede_in(request.operation, "operation")
        new, old = await self._service.supersede_fact(_organization(), wanted, key)
        return rpc.SupersedeFactResponse(fact=convert.fact_out(new), superseded=convert.fact_out(old))

    async def InvalidateFact(self, request: rpc.InvalidateFactRequest, context: Call) -> rpc.InvalidateFactResponse:
        """Closes a fact."""
        key = request_key(request, "InvalidateFact")
        wanted = convert.invalidate_in(request.operation, "operation")
        fact = await self._service.invalidate_fact(_organization(), wanted, key)
        return rpc.InvalidateFactResponse(fact=convert.fact_out(fact))

    async def DeleteFact(self, request: rpc.DeleteFactRequest, context: Call) -> rpc.DeleteFactResponse:
        """Erases a fact."""
        fact_id = require_id(request.fact_id, "fact", "fact_id")
        await self._service.delete_fact(_organization(), fact_id, request_key(request, "DeleteFact"))
        return rpc.DeleteFactResponse()

    async def ListFactHistory(self, request: rpc.ListFactHistoryRequest, context: Call) -> rpc.ListFactHistoryResponse:
        """A page of a chain of facts."""
        query = requests.page(request, "fact")
        fact_id = require_id(request.fact_id, "fact", "fact_id")
        page = await self._service.list_fact_history(_organization(), fact_id, query)
        return rpc.ListFactHistoryResponse(
            facts=[convert.fact_out(fact) for fact in page.items], next_page_token=next_page_token(query, page)
        )

    async def GetMemoryBundle(self, request: rpc.GetMemoryBundleRequest, context: Call) -> rpc.GetMemoryBundleResponse:
        """The head of a compacted window."""
        bundle = await self._service.get_bundle(_organization(), *requests.bundle(request))
        return rpc.GetMemoryBundleResponse(
            episodes=[convert.episode_out(episode) for episode in bundle.episodes],
            facts=[convert.fact_out(fact) for fact in bundle.facts],
        )

    async def ListMemoryScopes(
        self, request: rpc.ListMemoryScopesRequest, context: Call
    ) -> rpc.ListMemoryScopesResponse:
        """A page of scopes."""
        query = requests.scope_page(request)
        page = await self._service.list_scopes(_organization(), requests.name_prefix(request), query)
        return rpc.ListMemoryScopesResponse(
            scopes=[convert.summary_out(summary) for summary in page.items],
            next_page_token=next_page_token(query, page),
        )

    async def EraseMemoryScope(
        self, request: rpc.EraseMemoryScopeRequest, context: Call
    ) -> rpc.EraseMemoryScopeResponse:
        """Erases a scope."""
        key = request_key(request, "EraseMemoryScope")
        gone = await self._service.erase_scope(_organization(), convert.scope_in(request.scope, "scope"), key)
        return rpc.EraseMemoryScopeResponse(erased_episodes=gone.episodes, erased_facts=gone.facts)


def _organization() -> str:
    return current_principal().organization_id
