"""Episodes: long-term memory of an agent, or of a named scope that agents share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Any

from google.protobuf import field_mask_pb2
from mnemesh.recall.v1 import (
    episodes_pb2,
    episodes_service_pb2,
    episodes_service_pb2_grpc,
    messages_service_pb2,
)
from mnemesh_kit.errors import InvalidArgument

from mnemesh_client.inputs import SearchModeName, json_text, optional_timestamp, present_fields
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
        if "metadata" in fields:
            fields["metadata"] = json_text(fields["metadata"])
        request = episodes_service_pb2.UpdateEpisodeRequest(
            episode=episodes_pb2.Episode(id=episode_id, **present_fields(**fields)),
            update_mask=field_mask_pb2.FieldMask(paths=list(fields)),
        )
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
