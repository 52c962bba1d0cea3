"""The parts of a conversation that other services store."""

from contextlib import suppress
from dataclasses import replace

from mnemesh_kit.errors import (
    AlreadyExists,
    NotFound,
    RequestIdReused,
)

from mnemesh_orchestrator.loop.context_reader import ContextReader
from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.model.context_window import ContextWindow
from mnemesh_orchestrator.model.conversations import Conversation, ConversationOrigin
from mnemesh_orchestrator.model.run_config import OnBusy
from mnemesh_orchestrator.ports.blocks import CoreMemoryPort
from mnemesh_orchestrator.ports.recall import RecallPort
from mnemesh_orchestrator.runs.conversation_lock import ConversationLock
from mnemesh_orchestrator.usecases.context_windows import ContextWindowService
from mnemesh_orchestrator.usecases.first_messages import FirstMessageFactory


class ConversationParts:
    """Creates and deletes the parts of a conversation that other services store: its window and its isolated blocks."""

    def __init__(
        self,
        recall: RecallPort,
        core_memory: CoreMemoryPort,
        windows: ContextWindowService,
        lock: ConversationLock,
        context: ContextReader,
    ) -> None:
        self._recall = recall
        self._core_memory = core_memory
        self._windows = windows
        self._lock = lock
        self._context = context

    async def create(
        self, agent: Agent, conversation: Conversation, origin: ConversationOrigin, on_busy: OnBusy
    ) -> tuple[tuple[str, ...], ContextWindow]:
        """Creates isolated blocks and the window. The source of a fork is locked, so that no run changes it."""
        source = conversation.forked_from_id
        if source is None:
            blocks = await self._isolate_blocks(conversation, create_missing=origin.create_missing_blocks)
            return blocks, await self._create_window(agent, conversation, None)
        async with self._lock.take(conversation.organization_id, agent.id, source, on_busy):
            return await self._isolate_blocks(conversation), await self._create_window(
                agent, conversation, origin.until_message_id
            )

    async def delete(self, conversation: Conversation) -> None:
        """Deletes the window and the isolated blocks. Every effect can be repeated."""
        with suppress(NotFound):
            await self._recall.delete_context(f"{conversation.id}/delete", conversation.id)
        if conversation.isolated_block_labels:
            await self._core_memory.release(f"{conversation.id}/release", conversation.agent_id, conversation.id)

    async def _isolate_blocks(self, conversation: Conversation, *, create_missing: bool = False) -> tuple[str, ...]:
        """Creates the isolated blocks of a conversation, and returns their ids."""
        labels = conversation.isolated_block_labels
        if not labels:
            return ()
        return await self._core_memory.isolate(
            f"{conversation.id}/isolate",
            conversation.agent_id,
            conversation.id,
            labels,
            conversation.forked_from_id,
            create_missing=create_missing,
        )

    async def _create_window(
        self, agent: Agent, conversation: Conversation, until_message_id: str | None
    ) -> ContextWindow:
        source = await self._context.window(conversation.forked_from_id or agent.default_conversation_id)
        window = source if conversation.forked_from_id else replace(source, messages=source.messages[:1])
        text = await self._windows.system_text(agent, conversation, window)
        system = FirstMessageFactory(agent, conversation.id, "0", conversation.created_at).system(text)
        # An earlier attempt may have rendered other memory, or its request id may have expired.
        with suppress(RequestIdReused, AlreadyExists):
            if conversation.forked_from_id is None:
                await self._recall.create_context(f"{conversation.id}/context", agent.id, conversation.id, [system])
            else:
                await self._recall.fork_context(
                    f"{conversation.id}/context",
                    agent.id,
                    conversation.forked_from_id,
                    conversation.id,
                    system,
                    until_message_id,
                )
        return await self._context.window(conversation.id)
