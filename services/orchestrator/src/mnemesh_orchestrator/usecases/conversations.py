"""Conversations beside the default one: made, forked, changed and deleted, so that nobody ever sees half of one."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta

from mnemesh_kit.clock import Clock
from mnemesh_kit.errors import (
    AlreadyExists,
    DeadlineExceeded,
    Internal,
    MnemeshError,
    NotFound,
    RequestIdReused,
    Unavailable,
)
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.ids import IdSource
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.principal import Principal, as_principal

from mnemesh_orchestrator.errors import ConversationBusy, LeaseLost
from mnemesh_orchestrator.llm.model_catalog import ModelCatalog
from mnemesh_orchestrator.loop.context_builder import ContextBuilder
from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.model.context_window import ContextWindow
from mnemesh_orchestrator.model.conversations import (
    Conversation,
    ConversationDraft,
    ConversationFilter,
    ConversationOrigin,
    UnfinishedConversation,
)
from mnemesh_orchestrator.model.run_config import OnBusy
from mnemesh_orchestrator.ports.blocks import CoreMemoryPort
from mnemesh_orchestrator.ports.recall import RecallPort
from mnemesh_orchestrator.runs.conversation_lock import ConversationLock
from mnemesh_orchestrator.store.base import AgentStore, ConversationStore
from mnemesh_orchestrator.usecases.context_windows import ContextWindowService
from mnemesh_orchestrator.usecases.first_messages import FirstWindow
from mnemesh_orchestrator.usecases.reconciliation import each

GRACE = timedelta(seconds=60)
"""A creation or deletion that is younger may still be under way elsewhere."""

_AWAY = (Unavailable, DeadlineExceeded, Internal)
_LATER = (*_AWAY, ConversationBusy, LeaseLost)
"""What a creation that was begun outlives."""


class ConversationService:
    """Conversations. Row and window cannot be one transaction: the row comes first and is seen last."""

    def __init__(
        self,
        store: ConversationStore,
        agents: AgentStore,
        recall: RecallPort,
        core_memory: CoreMemoryPort,
        windows: ContextWindowService,
        slots: ConversationLock,
        context: ContextBuilder,
        models: ModelCatalog,
        clock: Clock,
        ids: IdSource,
    ) -> None:
        self._store = store
        self._agents = agents
        self._recall = recall
        self._core_memory = core_memory
        self._windows = windows
        self._slots = slots
        self._context = context
        self._models = models
        self._clock = clock
        self._ids = ids

    async def create(self, caller: Principal, key: RequestKey | None, draft: ConversationDraft) -> Conversation:
        """A conversation whose window holds its freshly rendered system message alone.

        A repeat under the same key goes on where the first stopped.

        Raises:
            NotFound: the agent is not there, or has no block under a label that is to be isolated.
            ModelUnknown: nobody serves the model that the draft names.
            Unavailable: a tier is away. The creation goes on by itself; asking again under the same key gives its
                result.
        """
        if draft.model is not None:
            await self._models.resolve(caller.organization_id, draft.model)
        now = self._clock.now()
        conversation = Conversation(
            id=self._ids.new("conv"),
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
            created_by_id=caller.subject_id,
        )
        return await self._make(key, conversation, None)

    async def fork(
        self,
        caller: Principal,
        key: RequestKey | None,
        source_id: str,
        until_message_id: str | None,
        summary: str | None,
        on_busy: OnBusy = OnBusy.WAIT,
    ) -> Conversation:
        """A conversation that shares the messages of another, under a system message of its own.

        What describes the source, its model and settings, and copies of what it has for itself go along.

        Raises:
            NotFound: the source, or `until_message_id` in it, is not there.
            ConversationBusy: runs and other work that came before in the source are not done in time.
            Unavailable: as `create`.
        """
        source = await self._store.get(caller.organization_id, source_id)
        now = self._clock.now()
        conversation = replace(
            source,
            id=self._ids.new("conv"),
            is_default=False,
            created_at=now,
            updated_at=now,
            summary=source.summary if summary is None else summary,
            archived=False,
            forked_from_id=source_id,
            created_by_id=caller.subject_id,
            last_message_at=None,
        )
        return await self._make(key, conversation, until_message_id, on_busy)

    async def _make(
        self,
        key: RequestKey | None,
        conversation: Conversation,
        until_message_id: str | None,
        on_busy: OnBusy = OnBusy.WAIT,
    ) -> Conversation:
        origin = ConversationOrigin(until_message_id, *((key.method, key.request_id) if key is not None else ()))
        conversation_id, replayed = await self._store.begin_creation(key, conversation, origin)
        if not replayed:
            try:
                return await self._complete(conversation, origin, on_busy)
            except ConversationBusy:
                await self._undo(conversation, origin)
                raise
        for found in await self._store.unfinished(conversation_id):
            if found.origin is not None:
                return await self._complete(found.conversation, found.origin, on_busy)
        return await self._store.get(conversation.organization_id, conversation_id)

    async def _complete(
        self, conversation: Conversation, origin: ConversationOrigin, on_busy: OnBusy = OnBusy.REJECT
    ) -> Conversation:
        """Makes the window and shows the conversation. Every effect may be made again."""
        try:
            agent = await self._agents.get(conversation.organization_id, conversation.agent_id)
            own, window = await self._parts(agent, conversation, origin.until_message_id, on_busy)
        except _LATER:
            raise
        except MnemeshError:
            await self._undo(conversation, origin)
            raise
        await self._store.activate(replace(conversation, isolated_block_ids=own), _last_message_at(window))
        return await self._store.get(conversation.organization_id, conversation.id)

    async def _isolated(self, conversation: Conversation) -> tuple[str, ...]:
        """Gives it its own blocks; their ids."""
        labels = conversation.isolated_block_labels
        if not labels:
            return ()
        return await self._core_memory.isolate(
            f"{conversation.id}/isolate", conversation.agent_id, conversation.id, labels, conversation.forked_from_id
        )

    async def _parts(
        self, agent: Agent, conversation: Conversation, until_message_id: str | None, on_busy: OnBusy
    ) -> tuple[tuple[str, ...], ContextWindow]:
        """Gives it its own blocks and its window; those of a fork while no run can change the source's."""
        source = conversation.forked_from_id
        if source is None:
            return await self._isolated(conversation), await self._window(agent, conversation, None)
        async with self._slots.take(conversation.organization_id, agent.id, source, on_busy):
            return await self._isolated(conversation), await self._window(agent, conversation, until_message_id)

    async def _window(self, agent: Agent, conversation: Conversation, until_message_id: str | None) -> ContextWindow:
        source = await self._context.window(conversation.forked_from_id or agent.default_conversation_id)
        shown = source if conversation.forked_from_id else replace(source, messages=source.messages[:1])
        text = await self._windows.system_text(agent, conversation, shown)
        system = FirstWindow(agent, conversation.id, "0", conversation.created_at).system(text)
        # An earlier try that got through may have shown other memory, or may be forgotten as a request.
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

    async def _undo(self, conversation: Conversation, origin: ConversationOrigin) -> None:
        """Takes the conversation back, unless somebody made it ready. Where recall is away, the sweeper ends it."""
        key = None
        if origin.method is not None and origin.request_id is not None:
            key = RequestKey(conversation.organization_id, origin.method, origin.request_id, "")
        if await self._store.abandon(conversation.id, key):
            with suppress(*_AWAY):
                await self._remove(conversation)

    async def get(self, caller: Principal, conversation_id: str) -> Conversation:
        """A conversation, or NotFound."""
        return await self._store.get(caller.organization_id, conversation_id)

    async def message_ids(self, conversation_id: str) -> tuple[str, ...]:
        """The ids of the messages in its window, in their order."""
        return (await self._context.window_ids([conversation_id])).get(conversation_id, ())

    async def list(
        self, caller: Principal, where: ConversationFilter, order_by: str, page: PageQuery
    ) -> Page[Conversation]:
        """A page of conversations."""
        return await self._store.list(caller.organization_id, where, order_by, page)

    async def update(
        self,
        caller: Principal,
        key: RequestKey | None,
        conversation_id: str,
        change: Callable[[Conversation], Conversation],
    ) -> Conversation:
        """Applies a change to the record as it stands at that moment. Raises NotFound, ModelUnknown."""

        offer = await self._models.of(caller.organization_id)

        def stamped(conversation: Conversation) -> Conversation:
            changed = change(conversation)
            if changed.model is not None and changed.model != conversation.model:
                offer.resolve(changed.model)
            return replace(changed, updated_at=self._clock.now())

        return await self._store.update(key, caller.organization_id, conversation_id, stamped)

    async def delete(self, caller: Principal, key: RequestKey | None, conversation_id: str) -> None:
        """Deletes a conversation and its window. Its other messages stay in recall, and its runs on record.

        Raises:
            NotFound
            FailedPrecondition: it is its agent's default one.
            ConversationBusy: a run is under way in it, or waits; nothing of one is ever cut off by this.
            Unavailable: recall is away. The conversation is gone for everybody; the rest follows by itself.
        """
        conversation = await self._store.begin_deletion(key, caller.organization_id, conversation_id)
        if conversation is not None:
            await self._remove(conversation)

    async def _remove(self, conversation: Conversation) -> None:
        with suppress(NotFound):
            await self._recall.delete_context(f"{conversation.id}/delete", conversation.id)
        if conversation.isolated_block_labels:
            await self._core_memory.release(f"{conversation.id}/release", conversation.agent_id, conversation.id)
        await self._store.forget(conversation.id)

    async def finish_all(self) -> None:
        """Goes over the creations and deletions that are half done, and finishes those that can be."""
        await each("conversations", self._store.unfinished, self._finish, lambda found: found.conversation.id)

    async def _finish(self, found: UnfinishedConversation) -> None:
        conversation = found.conversation
        with as_principal(Principal(conversation.organization_id, conversation.created_by_id)):
            if found.origin is None:
                await self._remove(conversation)
            elif conversation.created_at < self._clock.now() - GRACE:
                await self._complete(conversation, found.origin)


def _last_message_at(window: ContextWindow) -> datetime | None:
    return max((message.created_at for message in window.messages[1:]), default=None)
