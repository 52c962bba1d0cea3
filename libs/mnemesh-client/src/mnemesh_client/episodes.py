"""Episodes, and the facts that are extracted from messages."""

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from mnemesh.recall.v1 import (
    episodes_pb2,
    episodes_service_pb2,
    episodes_service_pb2_grpc,
    memory_findings_pb2,
    messages_service_pb2,
)
from mnemesh_kit.errors import InvalidArgument

from mnemesh_client.inputs import SearchModeName, json_text, optional_timestamp, present_fields, update_request
from mnemesh_client.paging import Order, paginate, sort_order, whole_answer
from mnemesh_client.transport import Channel


def memory_scope(
    agent_id: str | None = None, name: str | None = None, *, identity_id: str | None = None
) -> episodes_pb2.MemoryScope:
    """Returns the scope of an agent, the scope with a name, or that of an identity.

    Raises:
        InvalidArgument: not exactly one argument is set.
    """
    if sum(value is not None for value in (agent_id, name, identity_id)) != 1:
        raise InvalidArgument("Set exactly one of agent_id, name and identity_id.", field="scope")
    return episodes_pb2.MemoryScope(**present_fields(agent_id=agent_id, name=name, identity_id=identity_id))


def memory_scopes(
    agent_id: str | None, names: Sequence[str], identity_ids: Sequence[str] = ()
) -> list[episodes_pb2.MemoryScope]:
    """Returns the scope of an agent, if any, and those of names and identities."""
    own = [] if agent_id is None else [memory_scope(agent_id)]
    named = [memory_scope(name=name) for name in names]
    return own + named + [memory_scope(identity_id=identity_id) for identity_id in identity_ids]


class EpisodesClient:
    """Calls of EpisodeService about episodes, as `client.episodes`.

    Errors: NotFound; Unavailable EMBEDDER_UNAVAILABLE; FailedPrecondition ERASED.
    """

    def __init__(self, channel: Channel) -> None:
        self.stub = episodes_service_pb2_grpc.EpisodeServiceStub(channel)

    async def commit(
        self,
        scope: episodes_pb2.MemoryScope,
        summary: str = "",
        *,
        turn_ids: Sequence[str] = (),
        tags: Sequence[str] = (),
        salience: float | None = None,
        source: episodes_pb2.MemorySource | None = None,
        operations: Sequence[episodes_pb2.FactOperation] = (),
        request_id: str = "",
    ) -> episodes_service_pb2.CommitEpisodeResponse:
        """Stores an episode, if `summary` is not empty, and applies operations on facts. Commits all or nothing."""
        episode = None
        if summary:
            episode = episodes_pb2.Episode(
                summary=summary, turn_ids=turn_ids, tags=tags, salience=salience, source=source
            )
        request = episodes_service_pb2.CommitEpisodeRequest(
            request_id=request_id, scope=scope, episode=episode, operations=operations
        )
        return await self.stub.CommitEpisode(request)

    async def get(self, episode_id: str) -> episodes_pb2.Episode:
        """Returns an episode."""
        request = episodes_service_pb2.GetEpisodeRequest(episode_id=episode_id)
        return (await self.stub.GetEpisode(request)).episode

    def list(
        self,
        *,
        agent_id: str | None = None,
        names: Sequence[str] = (),
        tags: Sequence[str] = (),
        known_at: datetime | None = None,
        order: Order | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[episodes_pb2.Episode]:
        """Yields the episodes of an agent and of named scopes, oldest first unless `order` is "desc"."""
        criteria = episodes_service_pb2.EpisodeFilter(
            scopes=memory_scopes(agent_id, names), tags_any=tags, known_at_time=optional_timestamp(known_at)
        )
        request = episodes_service_pb2.ListEpisodesRequest(order=sort_order(order), filter=criteria)
        return paginate(self.stub.ListEpisodes, request, "episodes", limit)

    async def search(
        self,
        query: str,
        *,
        agent_id: str | None = None,
        names: Sequence[str] = (),
        tags: Sequence[str] = (),
        start_date: str | None = None,
        end_date: str | None = None,
        time_zone: str | None = None,
        mode: SearchModeName = "hybrid",
        limit: int = 0,
    ) -> Sequence[episodes_service_pb2.EpisodeHit]:
        """Searches episodes by words and meaning, best first.

        Dates are as in `MessagesClient.search`. A `limit` of 0 is 10.
        """
        request = episodes_service_pb2.SearchEpisodesRequest(
            query=query,
            mode=messages_service_pb2.SearchMode.Value(f"SEARCH_MODE_{mode.upper()}"),
            limit=limit,
            filter=episodes_service_pb2.EpisodeFilter(scopes=memory_scopes(agent_id, names), tags_any=tags),
            start_date=start_date,
            end_date=end_date,
            time_zone=time_zone,
        )
        return list((await whole_answer(self.stub.SearchEpisodes, request)).hits)

    async def update(self, episode_id: str, **fields: Any) -> episodes_pb2.Episode:
        """Updates the summary, tags, salience or metadata of an episode."""
        request = update_request(episodes_service_pb2.UpdateEpisodeRequest, "episode", episode_id, fields)
        return (await self.stub.UpdateEpisode(request)).episode

    async def delete(self, episode_id: str) -> None:
        """Erases an episode. The facts from it are kept."""
        await self.stub.DeleteEpisode(episodes_service_pb2.DeleteEpisodeRequest(episode_id=episode_id))

    async def bundle(
        self,
        scopes: Sequence[episodes_pb2.MemoryScope],
        *,
        max_episodes: int | None = None,
        max_facts: int | None = None,
        valid_at: datetime | None = None,
        known_at: datetime | None = None,
    ) -> episodes_service_pb2.GetMemoryBundleResponse:
        """Returns the newest episodes and the valid facts of scopes: what a compacted window begins with.

        `memory_scope` makes a scope. Both times default to now.
        """
        request = episodes_service_pb2.GetMemoryBundleRequest(
            scopes=scopes,
            max_episodes=max_episodes,
            max_facts=max_facts,
            valid_at_time=optional_timestamp(valid_at),
            known_at_time=optional_timestamp(known_at),
        )
        return await self.stub.GetMemoryBundle(request)

    def scopes(self) -> AsyncIterator[episodes_service_pb2.MemoryScopeSummary]:
        """Yields the scopes that contain memories, with their numbers."""
        request = episodes_service_pb2.ListMemoryScopesRequest()
        return paginate(self.stub.ListMemoryScopes, request, "scopes")

    async def erase_scope(self, scope: episodes_pb2.MemoryScope) -> episodes_service_pb2.EraseMemoryScopeResponse:
        """Erases all episodes and facts of a scope."""
        return await self.stub.EraseMemoryScope(episodes_service_pb2.EraseMemoryScopeRequest(scope=scope))


class FactsClient:
    """Calls of EpisodeService about facts, as `client.facts`.

    Errors: NotFound; FailedPrecondition FACT_CLOSED and ERASED; Unavailable EMBEDDER_UNAVAILABLE.
    """

    def __init__(self, channel: Channel) -> None:
        self.stub = episodes_service_pb2_grpc.EpisodeServiceStub(channel)

    async def create(
        self,
        text: str,
        *,
        agent_id: str | None = None,
        name: str | None = None,
        identity_id: str | None = None,
        tags: Sequence[str] = (),
        confidence: float | None = None,
        salience: float | None = None,
        valid_from: datetime | None = None,
        source: episodes_pb2.MemorySource | None = None,
        metadata: Mapping[str, Any] | str | None = None,
    ) -> episodes_service_pb2.CreateFactResponse:
        """Adds a fact to the scope of an agent, a name or an identity. An open fact with the same text is confirmed."""
        fact = episodes_pb2.Fact(
            scope=memory_scope(agent_id, name, identity_id=identity_id),
            text=text,
            tags=tags,
            confidence=confidence,
            salience=salience,
            valid_from_time=optional_timestamp(valid_from),
            source=source,
            metadata=json_text(metadata),
        )
        return await self.stub.CreateFact(episodes_service_pb2.CreateFactRequest(fact=fact))

    async def get(self, fact_id: str) -> episodes_pb2.Fact:
        """Returns a fact, closed or not."""
        return (await self.stub.GetFact(episodes_service_pb2.GetFactRequest(fact_id=fact_id))).fact

    def list(
        self,
        *,
        agent_id: str | None = None,
        names: Sequence[str] = (),
        identity_ids: Sequence[str] = (),
        tags: Sequence[str] = (),
        valid_at: datetime | None = None,
        known_at: datetime | None = None,
        include_invalid: bool = False,
        order: Order | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[episodes_pb2.Fact]:
        """Yields facts, oldest first unless `order` is "desc".

        They were valid at `valid_at` according to the knowledge at `known_at`. Both times default to now.
        """
        criteria = episodes_service_pb2.FactFilter(
            scopes=memory_scopes(agent_id, names, identity_ids),
            tags_any=tags,
            valid_at_time=optional_timestamp(valid_at),
            known_at_time=optional_timestamp(known_at),
            include_invalid=include_invalid,
        )
        request = episodes_service_pb2.ListFactsRequest(order=sort_order(order), filter=criteria)
        return paginate(self.stub.ListFacts, request, "facts", limit)

    async def search(
        self,
        query: str,
        *,
        agent_id: str | None = None,
        names: Sequence[str] = (),
        identity_ids: Sequence[str] = (),
        tags: Sequence[str] = (),
        valid_at: datetime | None = None,
        known_at: datetime | None = None,
        reference_time: datetime | None = None,
        time_zone: str | None = None,
        mode: SearchModeName = "hybrid",
        limit: int = 0,
    ) -> Sequence[episodes_service_pb2.FactHit]:
        """Searches the facts that `list` yields, by words and meaning, best first. A `limit` of 0 is 20.

        With `reference_time`, times in the query ("last year", "what did you know in May") select the facts that were
        valid or known then.
        """
        criteria = episodes_service_pb2.FactFilter(
            scopes=memory_scopes(agent_id, names, identity_ids),
            tags_any=tags,
            valid_at_time=optional_timestamp(valid_at),
            known_at_time=optional_timestamp(known_at),
        )
        request = episodes_service_pb2.SearchFactsRequest(
            query=query,
            mode=messages_service_pb2.SearchMode.Value(f"SEARCH_MODE_{mode.upper()}"),
            limit=limit,
            filter=criteria,
            reference_time=optional_timestamp(reference_time),
            time_zone=time_zone,
        )
        return list((await whole_answer(self.stub.SearchFacts, request)).hits)

    async def update(self, fact_id: str, **fields: Any) -> episodes_pb2.Fact:
        """Updates the tags, salience, confidence or metadata of a fact. For another text, use `supersede`."""
        request = update_request(episodes_service_pb2.UpdateFactRequest, "fact", fact_id, fields)
        return (await self.stub.UpdateFact(request)).fact

    async def supersede(
        self,
        fact_id: str,
        text: str,
        *,
        valid_from: datetime | None = None,
        reason: str | None = None,
        request_id: str = "",
        **fields: Any,
    ) -> episodes_pb2.Fact:
        """Replaces a fact with a new one, which is valid from `valid_from` or from now. Returns the new fact."""
        fact = episodes_pb2.Fact(text=text, valid_from_time=optional_timestamp(valid_from), **present_fields(**fields))
        operation = episodes_pb2.SupersedeOperation(fact_id=fact_id, fact=fact, reason=reason)
        request = episodes_service_pb2.SupersedeFactRequest(request_id=request_id, operation=operation)
        return (await self.stub.SupersedeFact(request)).fact

    async def invalidate(
        self,
        fact_id: str,
        *,
        invalid_at: datetime | None = None,
        reason: str | None = None,
        superseded_by: str | None = None,
        request_id: str = "",
    ) -> episodes_pb2.Fact:
        """Closes a fact as of `invalid_at` or of now, in favour of the fact `superseded_by` if that is set."""
        operation = episodes_pb2.InvalidateOperation(
            fact_id=fact_id,
            invalid_time=optional_timestamp(invalid_at),
            reason=reason,
            superseded_by_id=superseded_by,
        )
        request = episodes_service_pb2.InvalidateFactRequest(request_id=request_id, operation=operation)
        return (await self.stub.InvalidateFact(request)).fact

    async def restore(self, fact_id: str, *, reason: str | None = None) -> episodes_pb2.Fact:
        """States a closed fact again, in place of the fact that superseded it. Returns the restored fact."""
        request = episodes_service_pb2.RestoreFactRequest(fact_id=fact_id, reason=reason)
        return (await self.stub.RestoreFact(request)).fact

    def audit(
        self,
        *,
        agent_id: str | None = None,
        names: Sequence[str] = (),
        identity_ids: Sequence[str] = (),
        stale_days: int | None = None,
    ) -> AsyncIterator[memory_findings_pb2.MemoryFinding]:
        """Yields problems of the facts and episodes of the scopes; of the organization if none is given.

        See `mnemesh_client.memory_audit` for blocks and passages as well, and for what to do about a finding.
        """
        request = episodes_service_pb2.AuditMemoryRequest(
            scopes=memory_scopes(agent_id, names, identity_ids), stale_days=stale_days
        )
        return paginate(self.stub.AuditMemory, request, "findings")

    def history(self, fact_id: str) -> AsyncIterator[episodes_pb2.Fact]:
        """Yields the facts that superseded one another, oldest first."""
        request = episodes_service_pb2.ListFactHistoryRequest(fact_id=fact_id)
        return paginate(self.stub.ListFactHistory, request, "facts")

    async def delete(self, fact_id: str) -> None:
        """Erases a fact and its content permanently."""
        await self.stub.DeleteFact(episodes_service_pb2.DeleteFactRequest(fact_id=fact_id))
