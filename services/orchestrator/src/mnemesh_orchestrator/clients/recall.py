"""The recall service over gRPC."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import grpc
from mnemesh.recall.v1 import contexts_pb2 as pb
from mnemesh.recall.v1 import episodes_pb2
from mnemesh.recall.v1 import episodes_service_pb2 as episodes_rpc
from mnemesh.recall.v1 import messages_service_pb2 as rpc
from mnemesh.recall.v1.episodes_service_pb2_grpc import EpisodeServiceStub
from mnemesh.recall.v1.messages_service_pb2_grpc import MessageServiceStub
from mnemesh.types.v1 import paging_pb2
from mnemesh_kit.errors import NotFound
from mnemesh_kit.ids import new_id
from mnemesh_kit.paging import whole_answer
from mnemesh_kit.time import optional_timestamp_to_proto, timestamp_to_proto
from mnemesh_types.convert import message_from_proto, message_to_proto
from mnemesh_types.messages import Message, Role
from mnemesh_types.recall import MemorySource
from mnemesh_types.twin import Conversion, number_of

from mnemesh_orchestrator.clients import deadlines
from mnemesh_orchestrator.model.conversations import (
    CommitOutcome,
    ContextWindow,
    MessageHit,
    MessageHits,
    MessagePage,
    MessageQuery,
    NamedTime,
    StepCommit,
)
from mnemesh_orchestrator.model.creation import Erased
from mnemesh_orchestrator.model.episodes import (
    Change,
    Episode,
    EpisodeCommit,
    Fact,
    FactChange,
    MemoryBundle,
    MemoryHits,
    MemoryScope,
)

_MOST_MESSAGES: Final = 10_000
"""The maximum number of ids that recall accepts as the source of one memory."""
_RETRACTED: Final = "retracted in the conversation"

_MODES: Final = {
    rpc.SEARCH_MODE_HYBRID: "hybrid",
    rpc.SEARCH_MODE_TEXT: "text",
    rpc.SEARCH_MODE_VECTOR: "vector",
}

_EPISODE: Final = Conversion(episodes_pb2.Episode, Episode)
_FACT: Final = Conversion(episodes_pb2.Fact, Fact)
_QUERY: Final = Conversion(rpc.ListMessagesRequest, MessageQuery, start_time="start_time", end_time="end_time")
_HIT: Final = Conversion(rpc.MessageHit, MessageHit, mode=None)
_NAMED_TIME: Final = Conversion(rpc.ResolvedTimeRange, NamedTime, start_time="start", end_time="end")


class EpisodesClient:
    """Episodes and facts. RecallClient.erase_agent erases an agent's own together with its messages."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = EpisodeServiceStub(channel)

    async def bundle(self, scopes: Sequence[MemoryScope], max_episodes: int, max_facts: int) -> MemoryBundle:
        """Returns the latest episodes and the most salient facts that are valid now, of all scopes together."""
        within = [_scope_to_proto(scope) for scope in scopes]
        request = episodes_rpc.GetMemoryBundleRequest(scopes=within, max_episodes=max_episodes, max_facts=max_facts)
        response = await self._stub.GetMemoryBundle(request, timeout=deadlines.READ)
        return MemoryBundle(
            tuple(_EPISODE.from_proto(episode) for episode in response.episodes),
            tuple(_FACT.from_proto(fact) for fact in response.facts),
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
        """Returns at most `limit` facts that are valid now or at `held_at`, and `limit` episodes that had started by
        then.

        With `asked_at`, expressions of time in the query are resolved from that time: facts that were valid then come
        first; or the facts that were known then are the only ones, if the query asks for knowledge.
        """
        within = [_scope_to_proto(scope) for scope in scopes]
        until, at = (None, None) if held_at is None else (held_at.isoformat(), timestamp_to_proto(held_at))
        request = episodes_rpc.SearchFactsRequest(
            query=query,
            limit=limit,
            filter=episodes_rpc.FactFilter(scopes=within, valid_at_time=at),
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
        episodes = episodes_rpc.SearchEpisodesRequest(
            query=query,
            limit=limit,
            filter=episodes_rpc.EpisodeFilter(scopes=within, known_at_time=known_at),
            end_date=until,
        )
        looked_back = await whole_answer(self._stub.SearchEpisodes, episodes, seconds=deadlines.READ)
        return MemoryHits(
            tuple(map(_FACT.from_proto, facts)),
            tuple(_EPISODE.from_proto(hit.episode) for hit in looked_back.hits),
            found.times.expression if found.HasField("times") else None,
            is_knowledge,
        )

    async def correct(
        self, request_id: str, scopes: Sequence[MemoryScope], fact_id: str, text: str, reason: str, source: MemorySource
    ) -> Fact:
        """Replaces a fact of one of the scopes from now on, and returns the new one. Raises NOT_FOUND, FACT_CLOSED."""
        await self._require_in(scopes, fact_id)
        fact = episodes_pb2.Fact(text=text, source=source.to_proto())
        operation = episodes_pb2.SupersedeOperation(fact_id=fact_id, fact=fact, reason=reason or None)
        request = episodes_rpc.SupersedeFactRequest(request_id=request_id, operation=operation)
        return _FACT.from_proto((await self._stub.SupersedeFact(request, timeout=deadlines.WRITE)).fact)

    async def forget(
        self, request_id: str, scopes: Sequence[MemoryScope], fact_id: str, reason: str, source: MemorySource
    ) -> Fact:
        """Closes a fact of one of the scopes, and returns it. Raises NOT_FOUND, FACT_CLOSED."""
        await self._require_in(scopes, fact_id)
        operation = episodes_pb2.InvalidateOperation(fact_id=fact_id, reason=reason or None, source=source.to_proto())
        request = episodes_rpc.InvalidateFactRequest(request_id=request_id, operation=operation)
        return _FACT.from_proto((await self._stub.InvalidateFact(request, timeout=deadlines.WRITE)).fact)

    async def _require_in(self, scopes: Sequence[MemoryScope], fact_id: str) -> None:
        """Raises NotFound if a fact does not exist, or is in another scope, of which the caller must not know."""
        found = await self._stub.GetFact(episodes_rpc.GetFactRequest(fact_id=fact_id), timeout=deadlines.READ)
        if found.fact.scope not in [_scope_to_proto(scope) for scope in scopes]:
            raise NotFound(f"No fact {fact_id}.", resource_id=fact_id)

    async def search_facts(self, scope: MemoryScope, query: str, limit: int) -> tuple[Fact, ...]:
        """Returns at most `limit` facts that are valid now, most similar to the query first."""
        facts = episodes_rpc.SearchFactsRequest(
            query=query, limit=limit, filter=episodes_rpc.FactFilter(scopes=[_scope_to_proto(scope)])
        )
        found = await whole_answer(self._stub.SearchFacts, facts, seconds=deadlines.READ)
        return tuple(_FACT.from_proto(hit.fact) for hit in found.hits)

    async def commit(self, request_id: str, commit: EpisodeCommit) -> None:
        """Stores an episode and changes of facts, all or none.

        Raises NOT_FOUND if a message that it names does not exist any more (metadata: resource_id), FACT_CLOSED
        (metadata: fact_id), and ERASED.
        """
        message = commit_to_proto(commit)
        request = episodes_rpc.CommitEpisodeRequest(
            request_id=request_id,
            scope=message.scope,
            operations=message.operations,
            require_source_messages=True,
        )
        if message.HasField("episode"):
            request.episode.CopyFrom(message.episode)
        await self._stub.CommitEpisode(request, timeout=deadlines.WRITE)


def commit_to_proto(commit: EpisodeCommit) -> episodes_pb2.EpisodeCommit:
    """Returns the message of an episode and its changes of facts."""
    episode = commit.episode
    return episodes_pb2.EpisodeCommit(
        scope=_scope_to_proto(commit.scope),
        episode=None
        if episode is None
        else episodes_pb2.Episode(
            turn_ids=episode.turn_ids[-_MOST_MESSAGES:],
            summary=episode.summary,
            tags=episode.tags,
            salience=episode.salience,
            source=_source_to_proto(commit, episode.message_ids),
        ),
        operations=[_change_to_proto(commit, change) for change in commit.changes],
    )


def _scope_to_proto(scope: MemoryScope) -> episodes_pb2.MemoryScope:
    fields = ("name", "identity_id", "group_id", "conversation_id")
    chosen = {field: value for field in fields if (value := getattr(scope, field)) is not None}
    return episodes_pb2.MemoryScope(**(chosen or {"agent_id": scope.agent_id}))


def _source_to_proto(commit: EpisodeCommit, message_ids: tuple[str, ...]) -> episodes_pb2.MemorySource:
    return episodes_pb2.MemorySource(
        message_ids=message_ids[-_MOST_MESSAGES:],
        agent_id=commit.scope.agent_id,
        conversation_id=commit.conversation_id,
        model=commit.model,
    )


def _change_to_proto(commit: EpisodeCommit, change: FactChange) -> episodes_pb2.FactOperation:
    source = _source_to_proto(commit, change.message_ids)
    fact_id = change.fact_id or ""
    if change.change is Change.CONFIRM:
        confirm = episodes_pb2.ConfirmOperation(fact_id=fact_id, source=source, confidence=change.confidence)
        return episodes_pb2.FactOperation(confirm=confirm)
    if change.change is Change.RETRACT:
        invalidate = episodes_pb2.InvalidateOperation(
            fact_id=fact_id, invalid_time=timestamp_to_proto(change.told_at), reason=_RETRACTED, source=source
        )
        return episodes_pb2.FactOperation(invalidate=invalidate)
    fact = episodes_pb2.Fact(
        text=change.text,
        tags=change.tags,
        confidence=change.confidence,
        salience=change.salience,
        source=source,
        valid_from_time=timestamp_to_proto(change.told_at),
        invalid_time=optional_timestamp_to_proto(change.ended_at),
    )
    if change.change is Change.SUPERSEDE:
        return episodes_pb2.FactOperation(supersede=episodes_pb2.SupersedeOperation(fact_id=fact_id, fact=fact))
    return episodes_pb2.FactOperation(add=fact)


class RecallClient:
    """Recall memory and context windows."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = MessageServiceStub(channel)

    async def create_context(
        self, request_id: str, agent_id: str, conversation_id: str, messages: Sequence[Message]
    ) -> None:
        """Creates the window of a conversation, system message first."""
        request = rpc.CreateContextRequest(
            request_id=request_id,
            agent_id=agent_id,
            conversation_id=conversation_id,
            messages=[message_to_proto(message, agent_id) for message in messages],
        )
        await self._stub.CreateContext(request, timeout=deadlines.WRITE)

    async def fork_context(
        self,
        request_id: str,
        agent_id: str,
        source_conversation_id: str,
        conversation_id: str,
        system: Message,
        until_message_id: str | None = None,
    ) -> ContextWindow:
        """Creates a window with its own system message that shares the messages of another window, all or up to one."""
        request = rpc.ForkContextRequest(
            request_id=request_id,
            source_conversation_id=source_conversation_id,
            conversation_id=conversation_id,
            system_message=message_to_proto(system, agent_id),
            until_message_id=until_message_id,
        )
        response = await self._stub.ForkContext(request, timeout=deadlines.WRITE)
        return window_from_proto(response.context)

    async def delete_context(self, request_id: str, conversation_id: str) -> None:
        """Deletes a window and its system message. The other messages stay in recall. Raises NotFound."""
        request = rpc.DeleteContextRequest(request_id=request_id, conversation_id=conversation_id)
        await self._stub.DeleteContext(request, timeout=deadlines.WRITE)

    async def get_context(self, conversation_id: str, if_version: int | None = None) -> ContextWindow | None:
        """Returns the window, or None if `if_version` is the current version."""
        request = rpc.GetContextRequest(conversation_id=conversation_id, if_version=if_version)
        response = await whole_answer(self._stub.GetContext, request, seconds=deadlines.READ, field="context.messages")
        return None if response.not_modified else window_from_proto(response.context)

    async def window_ids(self, conversation_ids: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Returns the ids of the messages in at most 1000 windows, by conversation.

        Unknown conversations are left out.
        """
        request = rpc.BatchGetContextIdsRequest(conversation_ids=conversation_ids)
        response = await whole_answer(self._stub.BatchGetContextIds, request, seconds=deadlines.READ, field="contexts")
        return {window.conversation_id: tuple(window.message_ids) for window in response.contexts}

    async def commit_step(self, commit: StepCommit) -> CommitOutcome:
        """Commits a step in one transaction, idempotent by its step id. Raises LEASE_LOST, STEP_CONFLICT.

        The channel sets the request id: after a takeover, another process commits the same step under another epoch.
        """
        request = rpc.CommitStepRequest(
            agent_id=commit.agent_id,
            conversation_id=commit.conversation_id,
            lease=pb.WriterLease(run_id=commit.run_id, epoch=commit.epoch),
            step_id=commit.step_id,
            base_version=commit.base_version,
            messages=[message_to_proto(message, commit.agent_id) for message in commit.messages],
            system_text=commit.system_text,
        )
        response = await self._stub.CommitStep(request, timeout=deadlines.WRITE)
        return CommitOutcome(
            version=response.version,
            agent_message_count=response.agent_message_count,
            sequence_ids=tuple(response.sequence_ids),
            replayed=response.replayed,
            window=window_from_proto(response.context) if response.HasField("context") else None,
        )

    async def replace_context(
        self,
        request_id: str,
        agent_id: str,
        conversation_id: str,
        base_version: int,
        message_ids: Sequence[str],
        new_messages: Sequence[Message] = (),
        system_text: str | None = None,
        run_id: str | None = None,
        epoch: int | None = None,
        memories: Sequence[EpisodeCommit] = (),
    ) -> ContextWindow:
        """Replaces the window and stores memories with it, completely or not at all.

        Without run and epoch, the owner replaces it. Raises WINDOW_MOVED, LEASE_LOST, and FACT_CLOSED (metadata:
        fact_id) if a fact that a memory supersedes or confirms was closed meanwhile.
        """
        lease = None if run_id is None or epoch is None else pb.WriterLease(run_id=run_id, epoch=epoch)
        request = rpc.ReplaceContextRequest(
            request_id=request_id,
            agent_id=agent_id,
            conversation_id=conversation_id,
            lease=lease,
            base_version=base_version,
            message_ids=message_ids,
            new_messages=[message_to_proto(message, agent_id) for message in new_messages],
            system_text=system_text,
            memories=[commit_to_proto(memory) for memory in memories],
        )
        response = await self._stub.ReplaceContext(request, timeout=deadlines.WRITE)
        return window_from_proto(response.context)

    async def append(self, request_id: str, agent_id: str, messages: Sequence[Message]) -> None:
        """Stores messages that belong to no window."""
        rows = [message_to_proto(message, agent_id) for message in messages]
        request = rpc.AppendMessagesRequest(request_id=request_id, agent_id=agent_id, messages=rows)
        await self._stub.AppendMessages(request, timeout=deadlines.WRITE)

    async def list_messages(self, query: MessageQuery) -> MessagePage:
        """Returns a page of stored messages.

        Raises INVALID_ARGUMENT, PAGE_TOKEN_INVALID, and NOT_FOUND if `after_id` or `before_id` names no message.
        """
        order = paging_pb2.SORT_ORDER_ASCENDING if query.ascending else paging_pb2.SORT_ORDER_DESCENDING
        request = _QUERY.to_proto(query, order=order)
        response = await self._stub.ListMessages(request, timeout=deadlines.READ)
        messages = tuple(message_from_proto(message) for message in response.messages)
        return MessagePage(messages, response.next_page_token)

    async def newest_sequence_id(self, agent_id: str) -> int:
        """Returns the highest sequence id of the agent's messages; 0 if it has none."""
        newest = await self.list_messages(MessageQuery(page_size=1, ascending=False, agent_ids=(agent_id,)))
        return max((message.sequence_id for message in newest.messages), default=0)

    async def search(
        self,
        agent_id: str,
        query: str,
        *,
        further_queries: Sequence[str] = (),
        roles: Sequence[str] = (),
        speakers: Sequence[str] = (),
        limit: int = 5,
        surrounding: int = 0,
        start_date: str | None = None,
        end_date: str | None = None,
        time_zone: str = "UTC",
        now: datetime | None = None,
    ) -> MessageHits:
        """Searches the agent's messages (hybrid) for one query or several.

        Args:
            further_queries: other queries. A message counts with its best score over all of them.
            roles: the roles of messages to find; empty for all.
            speakers: the names of speakers; empty for all.
            limit: the largest number of hits.
            surrounding: the number of messages to return before and after each hit.
            start_date: an ISO date or time from which on messages are found.
            end_date: one until which they are found, inclusive.
            time_zone: the zone of dates and of expressions of time.
            now: the time from which expressions such as "last week" in the queries are resolved.
        """
        request = rpc.SearchMessagesRequest(
            query=query,
            further_queries=further_queries,
            mode=rpc.SEARCH_MODE_HYBRID,
            limit=limit,
            agent_id=agent_id,
            roles=[number_of(Role(role)) for role in roles],
            speakers=speakers,
            messages_before=surrounding,
            messages_after=surrounding,
            start_date=start_date,
            end_date=end_date,
            time_zone=time_zone,
            reference_time=optional_timestamp_to_proto(now),
        )
        response = await whole_answer(self._stub.SearchMessages, request, seconds=deadlines.READ)
        return MessageHits(
            tuple(_HIT.from_proto(hit, mode=_MODES.get(hit.mode, "hybrid")) for hit in response.hits),
            tuple(map(_NAMED_TIME.from_proto, response.time_ranges)),
        )

    async def erase_agent(self, request_id: str, agent_id: str) -> Erased:
        """Erases the agent's windows, messages, episodes and facts."""
        request = rpc.EraseAgentRequest(request_id=request_id, agent_id=agent_id)
        done = await self._stub.EraseAgent(request, timeout=deadlines.WRITE)
        return Erased(
            messages=done.deleted_messages,
            contexts=done.deleted_contexts,
            episodes=done.deleted_episodes,
            facts=done.deleted_facts,
        )

    async def erase_sender(self, sender_id: str) -> Erased:
        """Erases the messages of a sender in all agents, with what derives from them."""
        erased = Erased()
        while True:
            request = rpc.EraseSenderRequest(request_id=new_id("request"), sender_id=sender_id)
            done = await self._stub.EraseSender(request, timeout=deadlines.WRITE)
            erased += Erased(messages=done.deleted_messages, episodes=done.deleted_episodes, facts=done.deleted_facts)
            if not done.remaining:
                return erased


def window_from_proto(context: pb.Context) -> ContextWindow:
    """Returns the context window of a message."""
    return ContextWindow(
        conversation_id=context.conversation_id,
        agent_id=context.agent_id,
        version=context.version,
        messages=tuple(message_from_proto(message) for message in context.messages),
        agent_message_count=context.agent_message_count,
        epoch=context.epoch,
    )
