"""Episodes and facts of the recall service over gRPC."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import grpc
from mnemesh.recall.v1 import episodes_pb2 as pb
from mnemesh.recall.v1 import episodes_service_pb2 as rpc
from mnemesh.recall.v1.episodes_service_pb2_grpc import EpisodeServiceStub
from mnemesh_kit.errors import NotFound
from mnemesh_kit.time import (
    optional_timestamp_from_proto,
    optional_timestamp_to_proto,
    timestamp_from_proto,
    timestamp_to_proto,
)
from mnemesh_kit.whole_answers import whole_answer

from mnemesh_orchestrator.clients import deadlines
from mnemesh_orchestrator.model.episodes import (
    Change,
    Episode,
    EpisodeCommit,
    Fact,
    FactChange,
    FactSource,
    MemoryBundle,
    MemoryHits,
    MemoryScope,
)

_MOST_MESSAGES: Final = 10_000
"""The maximum number of ids that recall accepts as the source of one memory."""
_RETRACTED: Final = "retracted in the conversation"


class EpisodesClient:
    """EpisodesPort over gRPC."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = EpisodeServiceStub(channel)

    async def bundle(self, scopes: Sequence[MemoryScope], max_episodes: int, max_facts: int) -> MemoryBundle:
        """See EpisodesPort."""
        within = [_scope_to_proto(scope) for scope in scopes]
        request = rpc.GetMemoryBundleRequest(scopes=within, max_episodes=max_episodes, max_facts=max_facts)
        response = await self._stub.GetMemoryBundle(request, timeout=deadlines.READ)
        return MemoryBundle(
            tuple(_episode_from_proto(episode) for episode in response.episodes),
            tuple(_fact_from_proto(fact) for fact in response.facts),
        )

    async def search(
        self,
        scopes: Sequence[MemoryScope],
        query: str,
        *,
        limit: int,
        held_at: datetime | None = None,
        asked_at: datetime | None = None,
        time_zone: str = "UTC",
    ) -> MemoryHits:
        """See EpisodesPort."""
        within = [_scope_to_proto(scope) for scope in scopes]
        until, at = (None, None) if held_at is None else (held_at.isoformat(), timestamp_to_proto(held_at))
        request = rpc.SearchFactsRequest(
            query=query,
            limit=limit,
            filter=rpc.FactFilter(scopes=within, valid_at_time=at),
            reference_time=None if asked_at is None else timestamp_to_proto(asked_at),
            time_zone=time_zone,
        )
        found = await whole_answer(self._stub.SearchFacts, request, seconds=deadlines.READ)
        facts = [hit.fact for hit in found.hits]
        is_knowledge = found.times.HasField("known_at_time")
        if found.HasField("times") and not is_knowledge and len(facts) < limit:
            # A fact about the period may have been learned, and count as valid, only later.
            request.ClearField("reference_time")
            known = {fact.id for fact in facts}
            others = (await whole_answer(self._stub.SearchFacts, request, seconds=deadlines.READ)).hits
            facts += [hit.fact for hit in others if hit.fact.id not in known][: limit - len(facts)]
        known_at = found.times.known_at_time if is_knowledge else None
        episodes = rpc.SearchEpisodesRequest(
            query=query, limit=limit, filter=rpc.EpisodeFilter(scopes=within, known_at_time=known_at), end_date=until
        )
        looked_back = await whole_answer(self._stub.SearchEpisodes, episodes, seconds=deadlines.READ)
        return MemoryHits(
            tuple(map(_fact_from_proto, facts)),
            tuple(_episode_from_proto(hit.episode) for hit in looked_back.hits),
            found.times.expression if found.HasField("times") else None,
            is_knowledge,
        )

    async def correct(
        self, request_id: str, scopes: Sequence[MemoryScope], fact_id: str, text: str, reason: str, source: FactSource
    ) -> Fact:
        """See EpisodesPort."""
        await self._require_in(scopes, fact_id)
        fact = pb.Fact(text=text, source=_fact_source_to_proto(source))
        operation = pb.SupersedeOperation(fact_id=fact_id, fact=fact, reason=reason or None)
        request = rpc.SupersedeFactRequest(request_id=request_id, operation=operation)
        return _fact_from_proto((await self._stub.SupersedeFact(request, timeout=deadlines.WRITE)).fact)

    async def forget(
        self, request_id: str, scopes: Sequence[MemoryScope], fact_id: str, reason: str, source: FactSource
    ) -> Fact:
        """See EpisodesPort."""
        await self._require_in(scopes, fact_id)
        operation = pb.InvalidateOperation(fact_id=fact_id, reason=reason or None, source=_fact_source_to_proto(source))
        request = rpc.InvalidateFactRequest(request_id=request_id, operation=operation)
        return _fact_from_proto((await self._stub.InvalidateFact(request, timeout=deadlines.WRITE)).fact)

    async def _require_in(self, scopes: Sequence[MemoryScope], fact_id: str) -> None:
        """Raises NotFound if a fact does not exist, or is in another scope, of which the caller must not know."""
        found = await self._stub.GetFact(rpc.GetFactRequest(fact_id=fact_id), timeout=deadlines.READ)
        if found.fact.scope not in [_scope_to_proto(scope) for scope in scopes]:
            raise NotFound(f"No fact {fact_id}.", resource_id=fact_id)

    async def search_facts(self, scope: MemoryScope, query: str, limit: int) -> tuple[Fact, ...]:
        """See EpisodesPort."""
        facts = rpc.SearchFactsRequest(query=query, limit=limit, filter=rpc.FactFilter(scopes=[_scope_to_proto(scope)]))
        found = await whole_answer(self._stub.SearchFacts, facts, seconds=deadlines.READ)
        return tuple(_fact_from_proto(hit.fact) for hit in found.hits)

    async def commit(self, request_id: str, commit: EpisodeCommit) -> None:
        """See EpisodesPort."""
        message = commit_to_proto(commit)
        request = rpc.CommitEpisodeRequest(
            request_id=request_id,
            scope=message.scope,
            operations=message.operations,
            require_source_messages=True,
        )
        if message.HasField("episode"):
            request.episode.CopyFrom(message.episode)
        await self._stub.CommitEpisode(request, timeout=deadlines.WRITE)


def commit_to_proto(commit: EpisodeCommit) -> pb.EpisodeCommit:
    """Returns the message of an episode and its changes of facts."""
    episode = commit.episode
    return pb.EpisodeCommit(
        scope=_scope_to_proto(commit.scope),
        episode=None
        if episode is None
        else pb.Episode(
            turn_ids=episode.turn_ids[-_MOST_MESSAGES:],
            summary=episode.summary,
            tags=episode.tags,
            salience=episode.salience,
            source=_source_to_proto(commit, episode.message_ids),
        ),
        operations=[_change_to_proto(commit, change) for change in commit.changes],
    )


def _scope_to_proto(scope: MemoryScope) -> pb.MemoryScope:
    fields = ("name", "identity_id", "group_id", "conversation_id")
    chosen = {field: value for field in fields if (value := getattr(scope, field)) is not None}
    return pb.MemoryScope(**(chosen or {"agent_id": scope.agent_id}))


def _source_to_proto(commit: EpisodeCommit, message_ids: tuple[str, ...]) -> pb.MemorySource:
    return pb.MemorySource(
        message_ids=message_ids[-_MOST_MESSAGES:],
        agent_id=commit.scope.agent_id,
        conversation_id=commit.conversation_id,
        model=commit.model,
    )


def _fact_source_to_proto(source: FactSource) -> pb.MemorySource:
    return pb.MemorySource(
        message_ids=source.message_ids,
        agent_id=source.agent_id,
        conversation_id=source.conversation_id,
        run_id=source.run_id,
    )


def _change_to_proto(commit: EpisodeCommit, change: FactChange) -> pb.FactOperation:
    source = _source_to_proto(commit, change.message_ids)
    fact_id = change.fact_id or ""
    if change.change is Change.CONFIRM:
        confirm = pb.ConfirmOperation(fact_id=fact_id, source=source, confidence=change.confidence)
        return pb.FactOperation(confirm=confirm)
    if change.change is Change.RETRACT:
        invalidate = pb.InvalidateOperation(
            fact_id=fact_id, invalid_time=timestamp_to_proto(change.told_at), reason=_RETRACTED, source=source
        )
        return pb.FactOperation(invalidate=invalidate)
    fact = pb.Fact(
        text=change.text,
        tags=change.tags,
        confidence=change.confidence,
        salience=change.salience,
        source=source,
        valid_from_time=timestamp_to_proto(change.told_at),
        invalid_time=optional_timestamp_to_proto(change.ended_at),
    )
    if change.change is Change.SUPERSEDE:
        return pb.FactOperation(supersede=pb.SupersedeOperation(fact_id=fact_id, fact=fact))
    return pb.FactOperation(add=fact)


def _episode_from_proto(episode: pb.Episode) -> Episode:
    return Episode(
        id=episode.id,
        summary=episode.summary,
        created_at=timestamp_from_proto(episode.create_time, "create_time"),
        tags=tuple(episode.tags),
        salience=episode.salience,
        started_at=optional_timestamp_from_proto(episode, "start_time", "start_time"),
        ended_at=optional_timestamp_from_proto(episode, "end_time", "end_time"),
    )


def _fact_from_proto(fact: pb.Fact) -> Fact:
    return Fact(
        id=fact.id,
        text=fact.text,
        created_at=timestamp_from_proto(fact.create_time, "create_time"),
        tags=tuple(fact.tags),
        salience=fact.salience,
        valid_from=optional_timestamp_from_proto(fact, "valid_from_time", "valid_from_time"),
        invalid_at=optional_timestamp_from_proto(fact, "invalid_time", "invalid_time"),
    )
