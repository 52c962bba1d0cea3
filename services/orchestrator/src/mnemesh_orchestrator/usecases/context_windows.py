"""Context windows: reports, new renderings of the system message, resets, and windows that the owner sets."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from mnemesh_kit.clock import Clock
from mnemesh_kit.errors import InvalidArgument, NotFound, RequestIdReused
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.ids import derive_id, new_id
from mnemesh_kit.principal import Principal, as_principal
from mnemesh_types.messages import Message

from mnemesh_orchestrator.errors import PendingApproval
from mnemesh_orchestrator.loop.context_reader import ContextReader
from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.model.approvals import ApprovalFilter
from mnemesh_orchestrator.model.context_window import ContextWindow, ContextWindowReport
from mnemesh_orchestrator.model.conversations import Conversation, default_conversation_id
from mnemesh_orchestrator.model.leases import Lease
from mnemesh_orchestrator.model.models import ModelSettings
from mnemesh_orchestrator.model.run_config import OnBusy
from mnemesh_orchestrator.ports.recall import RecallPort
from mnemesh_orchestrator.ports.recall_writes import RecallWrites
from mnemesh_orchestrator.runs.conversation_lock import ConversationLock
from mnemesh_orchestrator.store.base import AgentStore, ApprovalStore, ConversationStore
from mnemesh_orchestrator.usecases.context_window_rendering import ContextWindowRenderer
from mnemesh_orchestrator.usecases.first_messages import FirstMessageFactory


class ContextWindowService:
    """Reports and changes the windows of conversations."""

    def __init__(
        self,
        agents: AgentStore,
        conversations: ConversationStore,
        lock: ConversationLock,
        approvals: ApprovalStore,
        recall: RecallPort,
        writes: RecallWrites,
        context: ContextReader,
        renderer: ContextWindowRenderer,
        clock: Clock,
    ) -> None:
        self._agents = agents
        self._conversations = conversations
        self._lock = lock
        self._approvals = approvals
        self._recall = recall
        self._writes = writes
        self._context = context
        self._renderer = renderer
        self._clock = clock

    async def resolve(self, caller: Principal, agent_id: str, conversation_id: str) -> tuple[Agent, Conversation]:
        """Returns an agent and one of its conversations.

        Raises:
            NotFound: The agent does not exist or does not have the conversation.
        """
        agent = await self._agents.get(caller.organization_id, agent_id)
        conversation = await self._conversations.get(caller.organization_id, conversation_id)
        if conversation.agent_id != agent_id:
            raise NotFound(f"The agent has no conversation {conversation_id}.", resource_id=conversation_id)
        return agent, conversation

    async def report(
        self, caller: Principal, agent: Agent, conversation: Conversation, settings: ModelSettings
    ) -> ContextWindowReport:
        """Returns the report of the next request of a conversation.

        Args:
            caller: The caller.
            agent: The agent.
            conversation: The conversation.
            settings: The effective settings of the conversation.
        """
        with as_principal(caller):
            return await self._renderer.report(agent, conversation, settings)

    async def recompile(
        self,
        caller: Principal,
        key: RequestKey | None,
        agent_id: str,
        conversation_id: str,
        *,
        dry_run: bool,
        on_busy: OnBusy = OnBusy.WAIT,
    ) -> tuple[str, bool]:
        """Renders the system message of a conversation again. Returns the text, and whether it changed.

        With `dry_run` nothing is stored.

        Raises:
            NotFound: The agent does not exist or does not have the conversation.
            ConversationBusy: Earlier runs and other work did not end in time.
        """
        agent, conversation = await self.resolve(caller, agent_id, conversation_id)
        if dry_run:
            _, text, changed = await self._rendered(agent, conversation)
            return text, changed
        async with self._lock.take(caller.organization_id, agent_id, conversation_id, on_busy) as lease:
            window, text, changed = await self._rendered(agent, conversation)
            if changed:
                repeated = await self._agents.record_request(key)
                await self._replace(key, lease, agent, window, (), text, keeps=_ids(window.messages), repeated=repeated)
        return text, changed

    async def _rendered(self, agent: Agent, conversation: Conversation) -> tuple[ContextWindow, str, bool]:
        """Returns the window, its newly rendered system message, and whether that differs from the stored one."""
        window = await self._context.window(conversation.id)
        text = await self.system_text(agent, conversation, window)
        return window, text, text != window.messages[0].text

    async def reset(
        self,
        caller: Principal,
        key: RequestKey | None,
        agent_id: str,
        conversation_id: str,
        *,
        add_default: bool,
        on_busy: OnBusy = OnBusy.WAIT,
        while_locked: Callable[[], Awaitable[None]] | None = None,
    ) -> Agent:
        """Removes all messages from a window except the system message, which is rendered again. Recall keeps them.

        A pending approval of the conversation is withdrawn first. A repeat under the same key continues the first
        request, and does not withdraw approvals that were requested since. `while_locked` is called before the next
        run of the conversation can begin.

        Raises:
            NotFound: The agent does not exist or does not have the conversation.
            ConversationBusy: Earlier runs and other work did not end in time.
        """
        agent, conversation = await self.resolve(caller, agent_id, conversation_id)
        async with self._lock.take(caller.organization_id, agent_id, conversation_id, on_busy) as lease:
            repeated = await self._withdraw_approval(caller, key, conversation_id)
            window = await self._context.window(conversation_id)
            first = FirstMessageFactory(agent, conversation_id, str(window.version), self._clock.now())
            new = first.default() if add_default else ()
            text = await self.system_text(agent, conversation, replace(window, messages=window.messages[:1]))
            await self._replace(
                key, lease, agent, window, new, text, keeps=_ids(window.messages[:1]), repeated=repeated
            )
            if while_locked is not None:
                await while_locked()
        return agent

    async def set_messages(
        self, caller: Principal, key: RequestKey | None, agent_id: str, message_ids: tuple[str, ...]
    ) -> Agent:
        """Replaces the window of the agent's default conversation by these messages of the agent, in this order.

        Raises:
            InvalidArgument: The first message is not the system message of the window, or a message is repeated.
            NotFound: The agent or a message does not exist.
            PendingApproval: The conversation waits for an approval.
            ConversationBusy: Earlier runs and other work did not end in time.
        """
        if len(set(message_ids)) != len(message_ids):
            raise InvalidArgument("agent.message_ids must not repeat a message.", field="agent.message_ids")
        conversation_id = default_conversation_id(agent_id)
        agent, _ = await self.resolve(caller, agent_id, conversation_id)
        async with self._lock.take(caller.organization_id, agent_id, conversation_id) as lease:
            filter_ = ApprovalFilter(caller.organization_id, conversation_id=conversation_id)
            for approval in await self._approvals.pending(filter_):
                raise PendingApproval(
                    "The conversation waits for an approval. Answer it first.", approval_request_id=approval.id
                )
            window = await self._context.window(conversation_id)
            system = window.messages[0]
            if message_ids[:1] != (system.id,):
                raise InvalidArgument(
                    "agent.message_ids must start with the system message of the window.", field="agent.message_ids"
                )
            repeated = await self._agents.record_request(key)
            await self._replace(key, lease, agent, window, (), system.text, keeps=message_ids, repeated=repeated)
        return agent

    async def _withdraw_approval(self, caller: Principal, key: RequestKey | None, conversation_id: str) -> bool:
        """Withdraws the approval that was pending at the first request. Returns whether the request is a repeat."""
        before = None if key is None else await self._agents.outcome(key)
        if before is None:
            filter_ = ApprovalFilter(caller.organization_id, conversation_id=conversation_id)
            pending = next((approval.id for approval in await self._approvals.pending(filter_)), "")
            approval_id = pending if key is None else await self._agents.record_outcome(key, pending)
        else:
            approval_id = before
        if approval_id:
            await self._approvals.withdraw(approval_id)
        return before is not None

    async def _replace(
        self,
        key: RequestKey | None,
        lease: Lease,
        agent: Agent,
        window: ContextWindow,
        new: tuple[Message, ...],
        text: str,
        *,
        keeps: Sequence[str],
        repeated: bool,
    ) -> None:
        """Replaces the window. Requests under the same key replace it once."""
        request_id = new_id("request") if key is None else derive_id("request", key.method, key.request_id)

        async def store(epoch: int) -> ContextWindow:
            return await self._recall.replace_context(
                request_id,
                agent.id,
                window.conversation_id,
                window.version,
                [*keeps, *(message.id for message in new)],
                new,
                system_text=text,
                run_id=lease.run_id,
                epoch=epoch,
            )

        try:
            replaced = await self._writes.write(lease, store)
        except RequestIdReused:
            if not repeated:
                raise
            # The first attempt took effect, and the window has changed since.
            return
        self._context.remember(replaced)

    async def system_text(self, agent: Agent, conversation: Conversation, window: ContextWindow) -> str:
        """Returns the newly rendered system message of a conversation with this window."""
        return await self._renderer.system_text(agent, conversation, window)


def _ids(messages: Sequence[Message]) -> tuple[str, ...]:
    return tuple(message.id for message in messages)
