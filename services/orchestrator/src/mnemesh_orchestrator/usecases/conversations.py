"""Creates, forks, changes and deletes conversations, so that no client ever sees an incomplete one."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any

from mnemesh_kit.call_context import Principal, as_principal
from mnemesh_kit.errors import (
    AlreadyExists,
    NotFound,
    RequestIdReused,
)
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.ids import IdSource
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.text import require_searchable_fields
from mnemesh_kit.time import Clock

from mnemesh_orchestrator.clients.blocks import BlocksClient
from mnemesh_orchestrator.clients.recall import RecallClient
from mnemesh_orchestrator.errors import ConversationBusy, LeaseLost
from mnemesh_orchestrator.llm.model_catalog import ModelCatalog, require_served, require_usable_settings
from mnemesh_orchestrator.loop.services import ContextReader
from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.model.conversations import (
    ContextWindow,
    Conversation,
    ConversationDraft,
    ConversationFilter,
    ConversationOrder,
    ConversationOrigin,
    UnfinishedConversation,
    require_summary,
    require_valid_conversation,
)
from mnemesh_orchestrator.model.inputs import OnBusy
from mnemesh_orchestrator.runs.leases import ConversationLock
from mnemesh_orchestrator.store.agents import AgentStore
from mnemesh_orchestrator.store.conversations import ConversationStore
from mnemesh_orchestrator.usecases.context_windows import ContextWindowService, FirstMessageFactory
from mnemesh_orchestrator.usecases.sagas import UNAVAILABLE, Saga, WorkOrigin, reconcile


@dataclass(frozen=True, eq=False)
class ConversationParts:
    """Creates and deletes the parts of a conversation that other services store: its window and its isolated blocks."""

    recall: RecallClient
    core_memory: BlocksClient
    windows: ContextWindowService
    lock: ConversationLock
    context: ContextReader

    async def create(
        self, agent: Agent, conversation: Conversation, origin: ConversationOrigin, on_busy: OnBusy
    ) -> tuple[tuple[str, ...], ContextWindow]:
        """Creates isolated blocks and the window. The source of a fork is locked, so that no run changes it."""
        source = conversation.forked_from_id
        if source is None:
            blocks = await self._isolate_blocks(conversation, create_missing=origin.create_missing_blocks)
            return blocks, await self._create_window(agent, conversation, None)
        async with self.lock.take(conversation.organization_id, agent.id, source, on_busy):
            return await self._isolate_blocks(conversation), await self._create_window(
                agent, conversation, origin.until_message_id
            )

    async def delete(self, conversation: Conversation) -> None:
        """Deletes the window and the isolated blocks. Every effect can be repeated."""
        with suppress(NotFound):
            await self.recall.delete_context(f"{conversation.id}/delete", conversation.id)
        if conversation.isolated_block_labels:
            await self.core_memory.release(f"{conversation.id}/release", conversation.agent_id, conversation.id)

    async def _isolate_blocks(self, conversation: Conversation, *, create_missing: bool = False) -> tuple[str, ...]:
        """Creates the isolated blocks of a conversation, and returns their ids."""
        labels = conversation.isolated_block_labels
        if not labels:
            return ()
        return await self.core_memory.isolate(
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
        source = await self.context.window(conversation.forked_from_id or agent.default_conversation_id)
        window = source if conversation.forked_from_id else replace(source, messages=source.messages[:1])
        text = await self.windows.system_text(agent, conversation, window)
        system = FirstMessageFactory(agent, conversation.id, "0", conversation.created_at).system(text)
        # An earlier attempt may have rendered other memory, or its request id may have expired.
        with suppress(RequestIdReused, AlreadyExists):
            if conversation.forked_from_id is None:
                await self.recall.create_context(f"{conversation.id}/context", agent.id, conversation.id, [system])
            else:
                await self.recall.fork_context(
                    f"{conversation.id}/context",
                    agent.id,
                    conversation.forked_from_id,
                    conversation.id,
                    system,
                    until_message_id,
                )
        return await self.context.window(conversation.id)


@dataclass(frozen=True, eq=False)
class ConversationService(Saga[UnfinishedConversation, None]):
    """The conversations of agents.

    A row and its window are in two services. The row is stored first, and becomes visible after the window exists.
    """

    resource = "conversation"
    deferring = (*UNAVAILABLE, ConversationBusy, LeaseLost)

    store: ConversationStore
    agents: AgentStore
    parts: ConversationParts
    context: ContextReader
    models: ModelCatalog
    clock: Clock
    ids: IdSource

    async def create(self, caller: Principal, key: RequestKey | None, draft: ConversationDraft) -> Conversation:
        """Creates a conversation, whose window has only a system message, and returns it.

        A repeat under the same key, or with the same `draft.key`, continues the creation or returns its result.

        Raises:
            NotFound: The agent does not exist, or has no block under a label that is to be isolated.
            ModelUnknown: No provider serves the model of the draft.
            Unavailable: A service cannot be reached. The creation is finished later; a repeat under the same key
                returns its result.
        """
        require_valid_conversation({field.name: getattr(draft, field.name) for field in fields(draft)})
        models = await self.models.of(caller.organization_id)
        model = None if draft.model is None else require_served(models, draft.model, "conversation.model")
        require_usable_settings(models, model, draft.model_settings, "conversation.model_settings")
        now = self.clock.now()
        conversation = Conversation(
            id=self.ids.new("conv"),
            organization_id=caller.organization_id,
            agent_id=draft.agent_id,
            is_default=False,
            created_at=now,
            updated_at=now,
            summary=draft.summary,
            description=draft.description,
            archived=draft.archived,
            model=draft.model,
            model_settings=draft.model_settings,
            isolated_block_labels=draft.isolated_block_labels,
            key=draft.key,
            created_by_id=caller.subject_id,
        )
        return await self._create(key, conversation, create_missing_blocks=draft.create_missing_blocks)

    async def fork(
        self,
        caller: Principal,
        key: RequestKey | None,
        source_id: str,
        until_message_id: str | None,
        summary: str | None,
        on_busy: OnBusy = OnBusy.WAIT,
    ) -> Conversation:
        """Creates a conversation that shares the messages of another one, with its own system message, and returns it.

        The fork has the description, the model and the settings of its source, and copies of its isolated blocks.

        Args:
            key: Identifies the request.
            source_id: The conversation to fork.
            until_message_id: The last message to share; None shares all.
            summary: The summary of the fork; None takes that of the source.
            on_busy: The reaction to runs that hold the source.

        Raises:
            InvalidArgument: The summary is too long.
            ConversationBusy: Earlier runs and other work in the source did not end in time.
            Unavailable: As for `create`.
        """
        require_summary(summary)
        source = await self.store.get(caller.organization_id, source_id)
        now = self.clock.now()
        conversation = replace(
            source,
            id=self.ids.new("conv"),
            is_default=False,
            created_at=now,
            updated_at=now,
            summary=source.summary if summary is None else summary,
            archived=False,
            forked_from_id=source_id,
            key=None,
            created_by_id=caller.subject_id,
            last_message_at=None,
        )
        return await self._create(key, conversation, until_message_id, on_busy)

    async def _create(
        self,
        key: RequestKey | None,
        conversation: Conversation,
        until_message_id: str | None = None,
        on_busy: OnBusy = OnBusy.WAIT,
        *,
        create_missing_blocks: bool = False,
    ) -> Conversation:
        method, request_id = (key.method, key.request_id) if key is not None else (None, None)
        origin = ConversationOrigin(until_message_id, method, request_id, create_missing_blocks)
        conversation_id, replayed = await self.store.begin_creation(key, conversation, origin)
        if not replayed:
            work = UnfinishedConversation(conversation, origin, on_busy)
            try:
                await self.run(work)
            except ConversationBusy:
                await self.undo(work)
                raise
        else:
            for unfinished in await self.store.list_unfinished(conversation_id):
                if unfinished.origin is not None:
                    await self.run(replace(unfinished, on_busy=on_busy))
        return await self.store.get(conversation.organization_id, conversation_id)

    def origin(self, work: UnfinishedConversation) -> WorkOrigin:
        conversation, origin = work.conversation, work.origin
        return WorkOrigin(
            conversation.id,
            conversation.organization_id,
            conversation.created_by_id,
            conversation.created_at,
            method=None if origin is None else origin.method,
            request_id=None if origin is None else origin.request_id,
            is_removal=origin is None,
        )

    async def take_effect(self, work: UnfinishedConversation) -> None:
        """See Saga. Creates the parts of a conversation and makes it visible, or deletes them."""
        conversation = work.conversation
        if work.origin is None:
            await self.remove_effects(work)
            return
        agent = await self.agents.get(conversation.organization_id, conversation.agent_id)
        block_ids, window = await self.parts.create(agent, conversation, work.origin, work.on_busy)
        await self.store.activate(replace(conversation, isolated_block_ids=block_ids), _last_message_at(window))

    async def begin_undo(self, work: UnfinishedConversation, key: RequestKey | None) -> bool:
        return await self.store.abandon(work.conversation.id, key)

    async def remove_effects(self, work: UnfinishedConversation) -> None:
        await self.parts.delete(work.conversation)
        await self.store.remove(work.conversation.id)

    async def get(self, caller: Principal, conversation_id: str) -> Conversation:
        """Returns a conversation. Raises NotFound."""
        return await self.store.get(caller.organization_id, conversation_id)

    async def message_ids(self, caller: Principal, conversation_id: str) -> tuple[str, ...]:
        """Returns the ids of the messages in the window of a conversation, in order."""
        with as_principal(caller):
            return (await self.context.window_ids([conversation_id])).get(conversation_id, ())

    async def list(
        self, caller: Principal, filter_: ConversationFilter, order_by: ConversationOrder, page: PageQuery
    ) -> Page[Conversation]:
        """Returns a page of conversations. Raises InvalidArgument if the filter breaks a rule."""
        require_searchable_fields(filter_, "")
        return await self.store.list(caller.organization_id, filter_, order_by, page)

    async def update(
        self,
        caller: Principal,
        key: RequestKey | None,
        conversation_id: str,
        changes: Mapping[str, Any],
    ) -> Conversation:
        """Changes fields of a conversation, and returns the conversation.

        Args:
            key: Identifies the request.
            changes: New values by the field names of `Conversation`.

        Raises:
            ModelUnknown: No provider serves the new model.
        """
        require_valid_conversation(changes)
        models = await self.models.of(caller.organization_id)

        def change(conversation: Conversation) -> Conversation:
            changed = replace(conversation, **changes)
            if (changed.model, changed.model_settings) != (conversation.model, conversation.model_settings):
                model = None if changed.model is None else require_served(models, changed.model, "conversation.model")
                require_usable_settings(models, model, changed.model_settings, "conversation.model_settings")
            return replace(changed, updated_at=self.clock.now())

        return await self.store.update(key, caller.organization_id, conversation_id, change)

    async def delete(self, caller: Principal, key: RequestKey | None, conversation_id: str) -> None:
        """Deletes a conversation and its window. Recall keeps its other messages, and its runs are kept.

        Raises:
            FailedPrecondition: It is the default conversation of its agent.
            ConversationBusy: A run of the conversation has not ended. No run is interrupted.
            Unavailable: A service cannot be reached. The conversation is invisible, and the rest is deleted later.
        """
        conversation = await self.store.begin_deletion(key, caller.organization_id, conversation_id)
        if conversation is not None:
            await self.run(UnfinishedConversation(conversation, None))

    async def finish_all(self) -> None:
        """Finishes the creations and deletions that were interrupted."""
        await reconcile("conversations", self.store.list_unfinished, self.reconcile, lambda item: item.conversation.id)


def _last_message_at(window: ContextWindow) -> datetime | None:
    return max((message.created_at for message in window.messages[1:]), default=None)
