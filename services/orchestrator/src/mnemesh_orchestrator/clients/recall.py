"""The recall service over gRPC."""

from collections.abc import Sequence
from typing import Final

import grpc
from mnemesh.recall.v1 import contexts_pb2 as pb
from mnemesh.recall.v1 import messages_service_pb2 as rpc
from mnemesh.recall.v1.messages_service_pb2_grpc import MessageServiceStub
from mnemesh_kit.ids import new_id
from mnemesh_types.convert import message_from_proto, message_to_proto, role_to_proto
from mnemesh_types.messages import Message, Role

from mnemesh_orchestrator.clients import deadlines
from mnemesh_orchestrator.clients.episodes import commit_to_proto
from mnemesh_orchestrator.model.context_window import CommitOutcome, ContextWindow, MessageHit, StepCommit
from mnemesh_orchestrator.model.episodes import EpisodeCommit
from mnemesh_orchestrator.model.erasure import Erased

_MODES: Final = {
    rpc.SEARCH_MODE_HYBRID: "hybrid",
    rpc.SEARCH_MODE_TEXT: "text",
    rpc.SEARCH_MODE_VECTOR: "vector",
}


class RecallClient:
    """RecallPort over gRPC."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = MessageServiceStub(channel)

    async def create_context(
        self, request_id: str, agent_id: str, conversation_id: str, messages: Sequence[Message]
    ) -> ContextWindow:
        """See RecallPort."""
        request = rpc.CreateContextRequest(
            request_id=request_id,
            agent_id=agent_id,
            conversation_id=conversation_id,
            messages=[message_to_proto(message, agent_id) for message in messages],
        )
        response = await self._stub.CreateContext(request, timeout=deadlines.WRITE)
        return window_from_proto(response.context)

    async def fork_context(
        self,
        request_id: str,
        agent_id: str,
        source_conversation_id: str,
        conversation_id: str,
        system: Message,
        until_message_id: str | None = None,
    ) -> ContextWindow:
        """See RecallPort."""
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
        """See RecallPort."""
        request = rpc.DeleteContextRequest(request_id=request_id, conversation_id=conversation_id)
        await self._stub.DeleteContext(request, timeout=deadlines.WRITE)

    async def get_context(self, conversation_id: str, if_version: int | None = None) -> ContextWindow | None:
        """See RecallPort."""
        request = rpc.GetContextRequest(conversation_id=conversation_id, if_version=if_version)
        response = await self._stub.GetContext(request, timeout=deadlines.READ)
        return None if response.not_modified else window_from_proto(response.context)

    async def window_ids(self, conversation_ids: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """See RecallPort."""
        request = rpc.BatchGetContextIdsRequest(conversation_ids=conversation_ids)
        response = await self._stub.BatchGetContextIds(request, timeout=deadlines.READ)
        return {window.conversation_id: tuple(window.message_ids) for window in response.contexts}

    async def commit_step(self, commit: StepCommit) -> CommitOutcome:
        """See RecallPort.

        The step id is the idempotency key, and the channel sets the request id: after a takeover, another process
        commits the same step under another epoch.
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
        """See RecallPort."""
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
        """See RecallPort."""
        rows = [message_to_proto(message, agent_id) for message in messages]
        request = rpc.AppendMessagesRequest(request_id=request_id, agent_id=agent_id, messages=rows)
        await self._stub.AppendMessages(request, timeout=deadlines.WRITE)

    async def search(
        self,
        agent_id: str,
        query: str,
        *,
        roles: Sequence[str] = (),
        limit: int = 5,
        start_date: str | None = None,
        end_date: str | None = None,
        time_zone: str = "UTC",
    ) -> tuple[MessageHit, ...]:
        """See RecallPort."""
        request = rpc.SearchMessagesRequest(
            query=query,
            mode=rpc.SEARCH_MODE_HYBRID,
            limit=limit,
            agent_id=agent_id,
            roles=[role_to_proto(Role(role)) for role in roles],
            start_date=start_date,
            end_date=end_date,
            time_zone=time_zone,
        )
        response = await self._stub.SearchMessages(request, timeout=deadlines.READ)
        return tuple(_hit_from_proto(hit) for hit in response.hits)

    async def erase_agent(self, request_id: str, agent_id: str) -> Erased:
        """See RecallPort."""
        request = rpc.EraseAgentRequest(request_id=request_id, agent_id=agent_id)
        done = await self._stub.EraseAgent(request, timeout=deadlines.WRITE)
        return Erased(
            messages=done.deleted_messages,
            contexts=done.deleted_contexts,
            episodes=done.deleted_episodes,
            facts=done.deleted_facts,
        )

    async def erase_sender(self, sender_id: str) -> Erased:
        """See RecallPort."""
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


def _hit_from_proto(hit: rpc.MessageHit) -> MessageHit:
    return MessageHit(
        message=message_from_proto(hit.message),
        text=hit.text,
        score=hit.score,
        vector_rank=hit.vector_rank if hit.HasField("vector_rank") else None,
        text_rank=hit.text_rank if hit.HasField("text_rank") else None,
        mode=_MODES.get(hit.mode, "hybrid"),
    )
