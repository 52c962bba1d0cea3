"""Context windows: reports, new renderings of the system message, resets, and windows that the owner sets."""

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from mnemesh_kit.call_context import Principal, as_principal
from mnemesh_kit.errors import InvalidArgument, NotFound, RequestIdReused
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.ids import IdSource, derive_id, new_id
from mnemesh_kit.time import Clock
from mnemesh_types.agents import ModelSettings, SystemPrompt
from mnemesh_types.archival import ArchivalSummary
from mnemesh_types.messages import ContentPart, Message, ReasoningPart, Role, TextPart, ToolCall, ToolReturn, ToolStatus

from mnemesh_orchestrator.builtin.executor import BuiltinTools
from mnemesh_orchestrator.clients.recall import RecallClient
from mnemesh_orchestrator.compaction.planner import TokenEstimator
from mnemesh_orchestrator.errors import PendingApproval
from mnemesh_orchestrator.llm.model_catalog import ModelCatalog
from mnemesh_orchestrator.loop.request_assembly import RequestAssembler, return_limit
from mnemesh_orchestrator.loop.rules import POLICIES, RulesSolver, make_toolbox
from mnemesh_orchestrator.loop.services import ContextReader, RecallWrites, stored_tool_ids
from mnemesh_orchestrator.loop.state import Turn, longest_prompt, prompt_limit
from mnemesh_orchestrator.model.agents import (
    AGENT_TYPES,
    Agent,
    AgentType,
    FirstMessages,
    MessageBuffer,
    PromptPolicy,
    require_prompt_key,
    shows_line_numbers,
)
from mnemesh_orchestrator.model.conversations import (
    ApprovalFilter,
    ContextWindow,
    ContextWindowReport,
    Conversation,
    default_conversation_id,
)
from mnemesh_orchestrator.model.core_memory import CoreMemory
from mnemesh_orchestrator.model.events import Lease, TurnClaim
from mnemesh_orchestrator.model.groups import ManagerType, buffer_of
from mnemesh_orchestrator.model.inputs import InputMessage, OnBusy, RunConfig, require_valid_inputs, valid_config
from mnemesh_orchestrator.model.models import ToolSchema
from mnemesh_orchestrator.model.runs import Run
from mnemesh_orchestrator.prompt.assembly import (
    Prompts,
    directories_of,
    identity_lines,
    login_event,
    memory_section,
    sections,
    shows,
)
from mnemesh_orchestrator.runs.leases import ConversationLock
from mnemesh_orchestrator.runs.turn_builder import TurnBuilder
from mnemesh_orchestrator.store.agents import AgentStore
from mnemesh_orchestrator.store.approvals import ApprovalStore
from mnemesh_orchestrator.store.conversations import ConversationStore
from mnemesh_orchestrator.store.groups import GroupStore

_BOOT_THOUGHT = "My memory is loaded and my persona is in place. I check that my messages arrive."
_BOOT_THOUGHT_IN_SHORT = "Nobody has spoken yet. I say a word by calling the function."
"""For models that imitate their first message."""
_COPYING_MODELS = "gpt-3.5"
_BOOT_MESSAGE = "I am awake, and I remember."
_SENT = "Sent message successfully."
_SHORT_ID = 9
"""The length of a call id that every local model server accepts."""


@dataclass(frozen=True, eq=False)
class ContextWindowRenderer:
    """Renders system messages, and reports of the next request of a conversation."""

    builtin: BuiltinTools
    context: ContextReader
    requests: RequestAssembler
    estimator: TokenEstimator
    models: ModelCatalog

    async def system_text(self, agent: Agent, conversation: Conversation, window: ContextWindow) -> str:
        """Returns the newly rendered system message of a conversation with this window."""
        core, summary = await self._memory_of(agent, conversation), await self._summary(agent.id)
        memory = await self._memory(agent, conversation, core)
        return self.requests.render_system(agent, conversation.id, agent.system, memory, core, window, summary)

    async def report(self, agent: Agent, conversation: Conversation, settings: ModelSettings) -> ContextWindowReport:
        """Returns the report of the next request of a conversation, whose effective settings are `settings`."""
        core, summary = await self._memory_of(agent, conversation), await self._summary(agent.id)
        window = await self._as_sent(agent, conversation, core, await self.context.window(conversation.id), summary)
        schemas = await self._schemas(agent, settings)
        memory, rules, metadata = sections(window.messages[0].text)
        directories = directories_of(window.messages[0].text)
        handle = conversation.model or agent.model
        limit = return_limit(prompt_limit(settings, settings.context_window or 0))
        tokens = self.estimator.messages(agent, handle, window.messages, limit)
        parts = [
            self.estimator.text(agent, handle, text) if text else 0 for text in (memory, rules, directories, metadata)
        ]
        has_summary = len(tokens) > 1 and window.messages[1].role is Role.SUMMARY
        return ContextWindowReport(
            size=settings.context_window or 0,
            system=agent.system,
            core_memory=memory,
            tool_rules=rules,
            directories=directories,
            metadata=metadata,
            window=window,
            schemas=schemas,
            passage_count=summary.passage_count,
            section_tokens=(tokens[0] - sum(parts), *parts),
            summary_tokens=tokens[1] if has_summary else 0,
            message_tokens=sum(tokens[2 if has_summary else 1 :]),
            schema_tokens=self.estimator.schemas(agent, handle, schemas),
            correction=self.estimator.correction(agent, handle),
        )

    async def require_space(self, agent: Agent, system_text: str) -> None:
        """Refuses an agent whose system message and tools alone do not fit into its context window.

        Raises:
            InvalidArgument: They do not fit, so that no turn would succeed.
        """
        info, _ = await self.models.resolve(agent.organization_id, agent.model)
        settings = info.effective(agent.model_settings)
        if settings.inner_thoughts_in_kwargs is None:
            settings = replace(settings, inner_thoughts_in_kwargs=AGENT_TYPES[agent.type].inner_thoughts)
        tokens = self.estimator.text(agent, agent.model, system_text)
        tokens += self.estimator.schemas(agent, agent.model, await self._schemas(agent, settings))
        most = longest_prompt(settings, info.context_window)
        if tokens > most:
            field = "agent.model_settings.context_window"
            raise InvalidArgument(
                f"{field} must be larger: the system prompt and the tools take about {tokens:,} tokens, and the window "
                f"of {settings.context_window or info.context_window:,} leaves {most:,}.",
                field=field,
            )

    async def _as_sent(
        self,
        agent: Agent,
        conversation: Conversation,
        core: CoreMemory,
        window: ContextWindow,
        summary: ArchivalSummary,
    ) -> ContextWindow:
        """Returns the window with the system message that the next step would send."""
        memory = await self._memory(agent, conversation, core)
        if agent.prompt_policy is PromptPolicy.CACHE or shows(
            window.messages[0].text, agent.system, memory, identity_lines(agent, conversation.id)
        ):
            return window
        text = self.requests.render_system(agent, conversation.id, agent.system, memory, core, window, summary)
        return window.with_system(text)

    async def _schemas(self, agent: Agent, settings: ModelSettings) -> tuple[ToolSchema, ...]:
        custom, _ = await self.context.custom_tools(stored_tool_ids(agent))
        toolbox = make_toolbox(
            agent,
            self.builtin,
            custom,
            RulesSolver(agent.tool_rules),
            heartbeat=POLICIES[AGENT_TYPES[agent.type].policy].injects_heartbeat,
            thinking=bool(settings.inner_thoughts_in_kwargs),
        )
        return toolbox.schemas

    async def _memory_of(self, agent: Agent, conversation: Conversation) -> CoreMemory:
        return await self.context.core_memory(agent.id, conversation.holder_id)

    async def _summary(self, agent_id: str) -> ArchivalSummary:
        summary, _ = await self.context.archival_summary(agent_id)
        return summary

    async def _memory(self, agent: Agent, conversation: Conversation, core: CoreMemory) -> str:
        return memory_section(
            core,
            RulesSolver(agent.tool_rules).prompt(),
            (await self.context.directories(agent, await self._window_of_model(agent)))[0] or "",
            # The provider is read from the handle, so that an agent whose model is no longer served can be reported.
            numbered=shows_line_numbers(agent.type, (conversation.model or agent.model).partition("/")[0]),
            show_blocks=AGENT_TYPES[agent.type].shows_blocks,
        )

    async def _window_of_model(self, agent: Agent) -> int | None:
        """Returns the context window of the agent's own model; None if no provider serves it."""
        try:
            info, _ = await self.models.resolve(agent.organization_id, agent.model)
        except NotFound:
            return None
        return agent.model_settings.context_window or info.context_window


class FirstMessageFactory:
    """Creates the messages of one new window. Their ids are derived from the window and their index."""

    def __init__(self, agent: Agent, conversation_id: str, epoch: str, now: datetime) -> None:
        """`epoch` distinguishes the windows that the conversation has had, such as before and after a reset."""
        self._agent = agent
        self._conversation_id = conversation_id
        self._key = (conversation_id, epoch)
        self._now = now
        self._messages: list[Message] = []
        self._speaks_by_tool = AGENT_TYPES[agent.type].policy == "v2"

    def system(self, text: str) -> Message:
        return Message(
            id=derive_id("message", *self._key, "system"),
            role=Role.SYSTEM,
            created_at=self._now,
            content=(TextPart(text),),
            conversation_id=self._conversation_id,
        )

    def default(self) -> tuple[Message, ...]:
        """Returns the first messages of the agent's type. Models of LM Studio require that the user speaks first."""
        kind = AGENT_TYPES[self._agent.type].first_messages
        if kind is FirstMessages.NONE:
            return ()
        login = TextPart(login_event(self._now, self._agent.time_zone))
        thought = _BOOT_THOUGHT_IN_SHORT if _COPYING_MODELS in self._agent.model else _BOOT_THOUGHT
        if kind is FirstMessages.LOGIN:
            self._add(Role.USER, (login,), is_event=True)
        elif self._agent.model.startswith(("lmstudio/", "lmstudio_openai/")):
            self._add(Role.USER, (login,), is_event=True)
            self._speak(_BOOT_MESSAGE, thought, _SHORT_ID)
        else:
            self._speak(_BOOT_MESSAGE, thought)
            self._add(Role.USER, (login,), is_event=True)
        return tuple(self._messages)

    def from_inputs(self, messages: Sequence[InputMessage]) -> tuple[Message, ...]:
        """Returns the client's first messages. Those of the agent become calls if its type speaks with a tool."""
        for message in messages:
            text = "\n".join(part.text for part in message.content if isinstance(part, TextPart))
            if message.role is Role.ASSISTANT and self._speaks_by_tool:
                self._speak(text, None)
            else:
                self._add(message.role, message.content, source=message)
        return tuple(self._messages)

    def _speak(self, text: str, thought: str | None, id_length: int = 29) -> None:
        call_id = "call_" + derive_id("call", *self._key, str(len(self._messages))).removeprefix("call-").replace(
            "-", ""
        )
        call = ToolCall(call_id[:id_length], "send_message", json.dumps({"message": text}, ensure_ascii=False))
        self._add(Role.ASSISTANT, (ReasoningPart(thought),) if thought else (), calls=(call,))
        self._add(Role.TOOL, (), returns=(ToolReturn.from_text(call.id, call.name, ToolStatus.SUCCESS, _SENT),))

    def _add(
        self,
        role: Role,
        content: tuple[ContentPart, ...],
        calls: tuple[ToolCall, ...] = (),
        returns: tuple[ToolReturn, ...] = (),
        source: InputMessage | None = None,
        is_event: bool | None = None,
    ) -> None:
        self._messages.append(
            Message(
                id=derive_id("message", *self._key, str(len(self._messages))),
                role=role,
                created_at=self._now,
                content=content,
                tool_calls=calls,
                tool_returns=returns,
                name=source.name if source else None,
                otid=source.otid if source else None,
                sender_id=source.sender_id if source else None,
                group_id=source.group_id if source else None,
                is_event=is_event,
                conversation_id=self._conversation_id,
            )
        )


@dataclass(frozen=True, eq=False)
class ContextWindowService:
    """Reports and changes the windows of conversations."""

    agents: AgentStore
    conversations: ConversationStore
    lock: ConversationLock
    approvals: ApprovalStore
    recall: RecallClient
    writes: RecallWrites
    context: ContextReader
    renderer: ContextWindowRenderer
    clock: Clock

    async def resolve(self, caller: Principal, agent_id: str, conversation_id: str) -> tuple[Agent, Conversation]:
        """Returns an agent and one of its conversations."""
        agent = await self.agents.get(caller.organization_id, agent_id)
        conversation = await self.conversations.get(caller.organization_id, conversation_id)
        if conversation.agent_id != agent_id:
            raise NotFound(f"The agent has no conversation {conversation_id}.", resource_id=conversation_id)
        return agent, conversation

    async def report(
        self, caller: Principal, agent: Agent, conversation: Conversation, settings: ModelSettings
    ) -> ContextWindowReport:
        """Returns the report of the next request of a conversation.

        Args:
            settings: The effective settings of the conversation.
        """
        with as_principal(caller):
            return await self.renderer.report(agent, conversation, settings)

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
            ConversationBusy: Earlier runs and other work did not end in time.
        """
        agent, conversation = await self.resolve(caller, agent_id, conversation_id)
        if dry_run:
            _, text, changed = await self._render(agent, conversation)
            return text, changed
        async with self.lock.take(caller.organization_id, agent_id, conversation_id, on_busy) as lease:
            window, text, changed = await self._render(agent, conversation)
            if changed:
                repeated = await self.agents.record_request(key)
                await self._replace(key, lease, agent, window, (), text, keeps=_ids(window.messages), repeated=repeated)
        return text, changed

    async def _render(self, agent: Agent, conversation: Conversation) -> tuple[ContextWindow, str, bool]:
        """Returns the window, its newly rendered system message, and whether that differs from the stored one."""
        window = await self.context.window(conversation.id)
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
            ConversationBusy: Earlier runs and other work did not end in time.
        """
        agent, conversation = await self.resolve(caller, agent_id, conversation_id)
        async with self.lock.take(caller.organization_id, agent_id, conversation_id, on_busy) as lease:
            repeated = await self._withdraw_approval(caller, key, conversation_id)
            window = await self.context.window(conversation_id)
            first = FirstMessageFactory(agent, conversation_id, str(window.version), self.clock.now())
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
            PendingApproval: The conversation waits for an approval.
            ConversationBusy: Earlier runs and other work did not end in time.
        """
        if len(set(message_ids)) != len(message_ids):
            raise InvalidArgument("agent.message_ids must not repeat a message.", field="agent.message_ids")
        conversation_id = default_conversation_id(agent_id)
        agent, _ = await self.resolve(caller, agent_id, conversation_id)
        async with self.lock.take(caller.organization_id, agent_id, conversation_id) as lease:
            filter_ = ApprovalFilter(caller.organization_id, conversation_id=conversation_id)
            for approval in await self.approvals.list_pending(filter_):
                raise PendingApproval(
                    "The conversation waits for an approval. Answer it first.", approval_request_id=approval.id
                )
            window = await self.context.window(conversation_id)
            system = window.messages[0]
            if message_ids[:1] != (system.id,):
                raise InvalidArgument(
                    "agent.message_ids must start with the system message of the window.", field="agent.message_ids"
                )
            repeated = await self.agents.record_request(key)
            await self._replace(key, lease, agent, window, (), system.text, keeps=message_ids, repeated=repeated)
        return agent

    async def _withdraw_approval(self, caller: Principal, key: RequestKey | None, conversation_id: str) -> bool:
        """Withdraws the approval that was pending at the first request. Returns whether the request is a repeat."""
        before = await self.agents.outcome(key)
        if before is None:
            filter_ = ApprovalFilter(caller.organization_id, conversation_id=conversation_id)
            pending = next((approval.id for approval in await self.approvals.list_pending(filter_)), "")
            approval_id = await self.agents.record_outcome(key, pending)
        else:
            approval_id = before
        if approval_id:
            await self.approvals.withdraw(approval_id)
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
            return await self.recall.replace_context(
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
            replaced = await self.writes.write(lease, store)
        except RequestIdReused:
            if not repeated:
                raise
            # The first attempt took effect, and the window has changed since.
            return
        self.context.remember(replaced)

    async def system_text(self, agent: Agent, conversation: Conversation, window: ContextWindow) -> str:
        """Returns the newly rendered system message of a conversation with this window."""
        return await self.renderer.system_text(agent, conversation, window)


def _ids(messages: Sequence[Message]) -> tuple[str, ...]:
    return tuple(message.id for message in messages)


@dataclass(frozen=True, eq=False)
class PreviewService:
    """Renders requests without sending them."""

    windows: ContextWindowService
    turns: TurnBuilder
    requests: RequestAssembler
    groups: GroupStore
    clock: Clock
    ids: IdSource

    async def render(
        self,
        caller: Principal,
        agent_id: str,
        conversation_id: str,
        messages: Sequence[InputMessage],
        config: RunConfig,
    ) -> str:
        """Returns the body of the first request that these messages would cause, as JSON text without keys.

        Nothing is stored.

        Raises:
            ModelUnknown: no provider serves the model.
            Unavailable, DeadlineExceeded: recall or blocks cannot be reached.
        """
        messages, config = require_valid_inputs(messages), valid_config(config)
        turn = await self.turn(caller, agent_id, conversation_id, messages, config)
        assembled = await self.requests.assemble(turn.context, turn.state)
        return turn.state.model.client.render(assembled.request)

    async def turn(
        self,
        caller: Principal,
        agent_id: str,
        conversation_id: str,
        messages: Sequence[InputMessage],
        config: RunConfig,
    ) -> Turn:
        """Returns the turn that these messages would start. Its run is not stored. Raises the errors of `render`."""
        agent, conversation = await self.windows.resolve(caller, agent_id, conversation_id)
        now, run_id = self.clock.now(), self.ids.new("run")
        run = Run(
            id=run_id,
            organization_id=caller.organization_id,
            subject_id=caller.subject_id,
            agent_id=agent_id,
            conversation_id=conversation_id,
            created_at=now,
            updated_at=now,
            input=tuple(messages),
            config=config,
        )
        lease = Lease(run_id, conversation_id, "", 0)
        claim = TurnClaim(
            run=run, agent=agent, conversation=conversation, lease=lease, buffer=await self._buffer(agent)
        )
        return await self.turns.preview(claim)

    async def _buffer(self, agent: Agent) -> MessageBuffer | None:
        """Returns the limits on the window of a voice agent with partners. A claim reads them with the agent."""
        if agent.type is not AgentType.VOICE_CONVO:
            return None
        types = (ManagerType.VOICE_SLEEPTIME,)
        managed = await self.groups.of_manager(agent.organization_id, agent.id, types)
        return buffer_of(managed[0].manager) if managed else None


class SystemPromptService:
    """System prompts. Every organization can use all of them."""

    def __init__(self, prompts: Prompts) -> None:
        self._prompts = prompts

    def get(self, caller: Principal, key: str) -> SystemPrompt:  # noqa: ARG002
        """Returns the prompt under a key. Raises InvalidArgument for a malformed key, and NotFound."""
        return self._prompts.get(require_prompt_key(key, "key"))

    def list(self, caller: Principal) -> tuple[SystemPrompt, ...]:  # noqa: ARG002
        """Returns all prompts ordered by key."""
        return self._prompts.all()
