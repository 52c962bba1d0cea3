"""What the model sees of a conversation: reported, rendered anew, and emptied."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mnemesh_kit.clock import Clock
from mnemesh_kit.errors import InvalidArgument, NotFound, RequestIdReused
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.ids import derive_id, new_id
from mnemesh_kit.principal import Principal
from mnemesh_types.messages import Message, Role

from mnemesh_orchestrator.builtin.executor import BuiltinTools
from mnemesh_orchestrator.compaction.token_estimator import TokenEstimator
from mnemesh_orchestrator.errors import PendingApproval
from mnemesh_orchestrator.loop.context_builder import ContextBuilder, return_limit, with_system
from mnemesh_orchestrator.loop.policy import POLICIES
from mnemesh_orchestrator.loop.rules import RulesSolver
from mnemesh_orchestrator.loop.state import prompt_limit
from mnemesh_orchestrator.loop.toolbox import make_toolbox
from mnemesh_orchestrator.model.agent_types import AGENT_TYPES, shows_line_numbers
from mnemesh_orchestrator.model.agents import Agent, Correction, PromptPolicy
from mnemesh_orchestrator.model.approvals import ApprovalFilter
from mnemesh_orchestrator.model.archival import ArchivalSummary
from mnemesh_orchestrator.model.context_window import ContextWindow
from mnemesh_orchestrator.model.conversations import Conversation
from mnemesh_orchestrator.model.core_memory import CoreMemory
from mnemesh_orchestrator.model.leases import Lease
from mnemesh_orchestrator.model.models import ModelSettings, ToolSchema
from mnemesh_orchestrator.model.run_config import OnBusy
from mnemesh_orchestrator.ports.recall import RecallPort
from mnemesh_orchestrator.prompt.assembly import memory_section, sections, shows
from mnemesh_orchestrator.runs.conversation_lock import ConversationLock
from mnemesh_orchestrator.store.base import AgentStore, ApprovalStore, ConversationStore
from mnemesh_orchestrator.usecases.first_messages import FirstWindow


@dataclass(frozen=True, slots=True)
class ContextWindowReport:
    """What the model sees: texts by section, messages and tools, with estimated tokens.

    `section_tokens` are those of the system prompt, core memory, tool rules
    and metadata, which add up to the system message's; `summary_tokens` those
    of the summary at the head, which `message_tokens` leaves out. All are
    corrected by `correction`.
    """

    size: int
    system: str
    core_memory: str
    tool_rules: str
    metadata: str
    window: ContextWindow
    schemas: tuple[ToolSchema, ...]
    passage_count: int
    section_tokens: tuple[int, int, int, int]
    summary_tokens: int
    message_tokens: int
    schema_tokens: int
    correction: Correction

    @property
    def summary(self) -> str | None:
        """The summary that stands for what left the window, or None."""
        head = self.window.messages[1:2]
        return head[0].text if head and head[0].role is Role.SUMMARY else None

    @property
    def total_tokens(self) -> int:
        """Of the whole request."""
        return sum(self.section_tokens) + self.summary_tokens + self.message_tokens + self.schema_tokens


class ContextWindowService:
    """The windows of agents' conversations."""

    def __init__(
        self,
        agents: AgentStore,
        conversations: ConversationStore,
        slots: ConversationLock,
        approvals: ApprovalStore,
        recall: RecallPort,
        builtin: BuiltinTools,
        context: ContextBuilder,
        gauge: TokenEstimator,
        clock: Clock,
    ) -> None:
        self._agents = agents
        self._conversations = conversations
        self._slots = slots
        self._approvals = approvals
        self._recall = recall
        self._builtin = builtin
        self._context = context
        self._gauge = gauge
        self._clock = clock

    async def place(self, caller: Principal, agent_id: str, conversation_id: str) -> tuple[Agent, Conversation]:
        """An agent and a conversation of it.

        Raises:
            NotFound: of either.
        """
        agent = await self._agents.get(caller.organization_id, agent_id)
        conversation = await self._conversations.get(caller.organization_id, conversation_id)
        if conversation.agent_id != agent_id:
            raise NotFound(f"The agent has no conversation {conversation_id}.", resource_id=conversation_id)
        return agent, conversation

    async def report(self, agent: Agent, conversation: Conversation, settings: ModelSettings) -> ContextWindowReport:
        """What the model would see of a conversation now; `settings` are the effective ones."""
        core, summary = await self._memory_of(agent, conversation), await self._summary(agent.id)
        window = self._as_seen(agent, conversation, core, await self._context.window(conversation.id), summary)
        schemas = await self._schemas(agent, settings)
        memory, rules, metadata = sections(window.messages[0].text)
        handle = conversation.model or agent.model
        limit = return_limit(prompt_limit(settings, settings.context_window or 0))
        tokens = self._gauge.messages(agent, handle, window.messages, limit)
        parts = [self._gauge.text(agent, handle, text) if text else 0 for text in (memory, rules, metadata)]
        has_summary = len(tokens) > 1 and window.messages[1].role is Role.SUMMARY
        return ContextWindowReport(
            size=settings.context_window or 0,
            system=agent.system,
            core_memory=memory,
            tool_rules=rules,
            metadata=metadata,
            window=window,
            schemas=schemas,
            passage_count=summary.passage_count,
            section_tokens=(tokens[0] - sum(parts), parts[0], parts[1], parts[2]),
            summary_tokens=tokens[1] if has_summary else 0,
            message_tokens=sum(tokens[2 if has_summary else 1 :]),
            schema_tokens=self._gauge.schemas(agent, handle, schemas),
            correction=self._gauge.correction(agent, handle),
        )

    def _as_seen(
        self,
        agent: Agent,
        conversation: Conversation,
        core: CoreMemory,
        window: ContextWindow,
        summary: ArchivalSummary,
    ) -> ContextWindow:
        """The window with the system message as the next step would send it."""
        memory = self._memory(agent, conversation, core)
        if agent.prompt_policy is PromptPolicy.CACHE or shows(window.messages[0].text, agent.system, memory):
            return window
        text = self._context.render_system(agent.time_zone, agent.system, memory, core, window, summary)
        return with_system(window, text)

    async def _schemas(self, agent: Agent, settings: ModelSettings) -> tuple[ToolSchema, ...]:
        custom, _ = await self._context.custom_tools(tuple(tool.tool_id for tool in agent.tools if tool.tool_id))
        toolbox = make_toolbox(
            agent,
            self._builtin,
            custom,
            RulesSolver(agent.tool_rules),
            heartbeat=POLICIES[AGENT_TYPES[agent.type].policy].injects_heartbeat,
            thinking=bool(settings.inner_thoughts_in_kwargs),
        )
        return toolbox.schemas

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
        """Renders a conversation's system message anew; the text, and whether it differs.

        Raises:
            NotFound: no such agent, or conversation of it.
            ConversationBusy: runs and other work that came before are not done in time.
        """
        agent, conversation = await self.place(caller, agent_id, conversation_id)
        if dry_run:
            _, text, changed = await self._rendered(agent, conversation)
            return text, changed
        async with self._slots.take(caller.organization_id, agent_id, conversation_id, on_busy) as lease:
            window, text, changed = await self._rendered(agent, conversation)
            if changed:
                repeated = await self._agents.once(key)
                await self._replace(key, lease, agent, window, (), text, keeps=_ids(window.messages), repeated=repeated)
        return text, changed

    async def _rendered(self, agent: Agent, conversation: Conversation) -> tuple[ContextWindow, str, bool]:
        """The window, its system message as it would be now, and whether that differs."""
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
    ) -> Agent:
        """Empties a conversation's window but for its system message, rendered anew. The rows stay in recall.

        An approval that the conversation waits for is withdrawn before that: a repeat under the same key goes on where
        the first stopped, and leaves alone what was asked since.

        Raises:
            NotFound: no such agent, or conversation of it.
            ConversationBusy: runs and other work that came before are not done in time.
        """
        agent, conversation = await self.place(caller, agent_id, conversation_id)
        async with self._slots.take(caller.organization_id, agent_id, conversation_id, on_busy) as lease:
            repeated = await self._withdrawn(caller, key, conversation_id)
            window = await self._context.window(conversation_id)
            first = FirstWindow(agent, conversation_id, str(window.version), self._clock.now())
            new = first.default() if add_default else ()
            text = await self.system_text(agent, conversation, replace(window, messages=window.messages[:1]))
            await self._replace(
                key, lease, agent, window, new, text, keeps=_ids(window.messages[:1]), repeated=repeated
            )
        return agent

    async def show(
        self, caller: Principal, key: RequestKey | None, agent_id: str, message_ids: tuple[str, ...]
    ) -> Agent:
        """Puts messages of the agent, in this order, into its default conversation's window.

        Raises:
            NotFound: of the agent or a message.
            InvalidArgument: the first is not the window's system message.
            PendingApproval: the conversation waits for an approval.
            ConversationBusy: runs and other work that came before are not done in time.
        """
        conversation_id = derive_id("conv", agent_id)
        agent, _ = await self.place(caller, agent_id, conversation_id)
        async with self._slots.take(caller.organization_id, agent_id, conversation_id) as lease:
            where = ApprovalFilter(caller.organization_id, conversation_id=conversation_id)
            for approval in await self._approvals.pending(where):
                raise PendingApproval("The conversation waits for an approval.", approval_request_id=approval.id)
            window = await self._context.window(conversation_id)
            system = window.messages[0]
            if message_ids[:1] != (system.id,):
                raise InvalidArgument(
                    "agent.message_ids must begin with the window's system message.", field="agent.message_ids"
                )
            repeated = await self._agents.once(key)
            await self._replace(key, lease, agent, window, (), system.text, keeps=message_ids, repeated=repeated)
        return agent

    async def _withdrawn(self, caller: Principal, key: RequestKey | None, conversation_id: str) -> bool:
        """Withdraws the approval that waited when the reset was asked for first; whether it was asked for before."""
        before = None if key is None else await self._agents.outcome(key)
        if before is None:
            where = ApprovalFilter(caller.organization_id, conversation_id=conversation_id)
            waiting = next((approval.id for approval in await self._approvals.pending(where)), "")
            noted = waiting if key is None else await self._agents.note_outcome(key, waiting)
        else:
            noted = before
        if noted:
            await self._approvals.withdraw(noted)
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
        """Puts another window in place once, however often it is asked for under one key."""
        request_id = new_id("request") if key is None else derive_id("request", key.method, key.request_id)
        try:
            replaced = await self._recall.replace_context(
                request_id,
                agent.id,
                window.conversation_id,
                window.version,
                [*keeps, *(message.id for message in new)],
                new,
                system_text=text,
                run_id=lease.run_id,
                epoch=lease.epoch,
            )
        except RequestIdReused:
            if not repeated:
                raise
            # The first try got through, and the window has changed since.
            return
        self._context.remember(replaced)

    async def system_text(self, agent: Agent, conversation: Conversation, window: ContextWindow) -> str:
        """The system message of a conversation that shows `window`, rendered now."""
        core, summary = await self._memory_of(agent, conversation), await self._summary(agent.id)
        memory = self._memory(agent, conversation, core)
        return self._context.render_system(agent.time_zone, agent.system, memory, core, window, summary)

    async def _memory_of(self, agent: Agent, conversation: Conversation) -> CoreMemory:
        return await self._context.core_memory(agent.id, conversation.holder_id)

    async def _summary(self, agent_id: str) -> ArchivalSummary:
        summary, _ = await self._context.archival_summary(agent_id)
        return summary

    def _memory(self, agent: Agent, conversation: Conversation, core: CoreMemory) -> str:
        return memory_section(
            core,
            RulesSolver(agent.tool_rules).prompt(),
            # By the handle: an agent whose model is not served any more can still be looked at.
            numbered=shows_line_numbers(agent.type, (conversation.model or agent.model).partition("/")[0]),
            show_blocks=AGENT_TYPES[agent.type].shows_blocks,
        )


def _ids(messages: Sequence[Message]) -> tuple[str, ...]:
    return tuple(message.id for message in messages)
