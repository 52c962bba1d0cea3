"""The next request of a conversation: the rendered system message, and the report of its sections."""

from mnemesh_kit.errors import NotFound
from mnemesh_types.messages import Role

from mnemesh_orchestrator.builtin.executor import BuiltinTools
from mnemesh_orchestrator.compaction.tokens import TokenEstimator
from mnemesh_orchestrator.llm.model_catalog import ModelCatalog
from mnemesh_orchestrator.loop.call_plan import make_toolbox
from mnemesh_orchestrator.loop.context_reader import ContextReader, stored_tool_ids
from mnemesh_orchestrator.loop.request_assembly import RequestAssembler, return_limit
from mnemesh_orchestrator.loop.rules import POLICIES, RulesSolver
from mnemesh_orchestrator.loop.state import prompt_limit
from mnemesh_orchestrator.model.agent_types import AGENT_TYPES, shows_line_numbers
from mnemesh_orchestrator.model.agents import Agent, PromptPolicy
from mnemesh_orchestrator.model.archival import ArchivalSummary
from mnemesh_orchestrator.model.context_window import ContextWindow, ContextWindowReport
from mnemesh_orchestrator.model.conversations import Conversation
from mnemesh_orchestrator.model.core_memory import CoreMemory
from mnemesh_orchestrator.model.models import ModelSettings, ToolSchema
from mnemesh_orchestrator.prompt.assembly import directories_of, identity_lines, memory_section, sections, shows


class ContextWindowRenderer:
    """Renders system messages, and reports of the next request of a conversation."""

    def __init__(
        self,
        builtin: BuiltinTools,
        context: ContextReader,
        requests: RequestAssembler,
        estimator: TokenEstimator,
        models: ModelCatalog,
    ) -> None:
        self._builtin = builtin
        self._context = context
        self._requests = requests
        self._estimator = estimator
        self._models = models

    async def system_text(self, agent: Agent, conversation: Conversation, window: ContextWindow) -> str:
        """Returns the newly rendered system message of a conversation with this window."""
        core, summary = await self._memory_of(agent, conversation), await self._summary(agent.id)
        memory = await self._memory(agent, conversation, core)
        return self._requests.render_system(agent, conversation.id, agent.system, memory, core, window, summary)

    async def report(self, agent: Agent, conversation: Conversation, settings: ModelSettings) -> ContextWindowReport:
        """Returns the report of the next request of a conversation, whose effective settings are `settings`."""
        core, summary = await self._memory_of(agent, conversation), await self._summary(agent.id)
        window = await self._as_sent(agent, conversation, core, await self._context.window(conversation.id), summary)
        schemas = await self._schemas(agent, settings)
        memory, rules, metadata = sections(window.messages[0].text)
        directories = directories_of(window.messages[0].text)
        handle = conversation.model or agent.model
        limit = return_limit(prompt_limit(settings, settings.context_window or 0))
        tokens = self._estimator.messages(agent, handle, window.messages, limit)
        parts = [
            self._estimator.text(agent, handle, text) if text else 0 for text in (memory, rules, directories, metadata)
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
            schema_tokens=self._estimator.schemas(agent, handle, schemas),
            correction=self._estimator.correction(agent, handle),
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
        text = self._requests.render_system(agent, conversation.id, agent.system, memory, core, window, summary)
        return window.with_system(text)

    async def _schemas(self, agent: Agent, settings: ModelSettings) -> tuple[ToolSchema, ...]:
        custom, _ = await self._context.custom_tools(stored_tool_ids(agent))
        toolbox = make_toolbox(
            agent,
            self._builtin,
            custom,
            RulesSolver(agent.tool_rules),
            heartbeat=POLICIES[AGENT_TYPES[agent.type].policy].injects_heartbeat,
            thinking=bool(settings.inner_thoughts_in_kwargs),
        )
        return toolbox.schemas

    async def _memory_of(self, agent: Agent, conversation: Conversation) -> CoreMemory:
        return await self._context.core_memory(agent.id, conversation.holder_id)

    async def _summary(self, agent_id: str) -> ArchivalSummary:
        summary, _ = await self._context.archival_summary(agent_id)
        return summary

    async def _memory(self, agent: Agent, conversation: Conversation, core: CoreMemory) -> str:
        return memory_section(
            core,
            RulesSolver(agent.tool_rules).prompt(),
            (await self._context.directories(agent, await self._window_of_model(agent)))[0] or "",
            # The provider is read from the handle, so that an agent whose model is no longer served can be reported.
            numbered=shows_line_numbers(agent.type, (conversation.model or agent.model).partition("/")[0]),
            show_blocks=AGENT_TYPES[agent.type].shows_blocks,
        )

    async def _window_of_model(self, agent: Agent) -> int | None:
        """Returns the context window of the agent's own model; None if no provider serves it."""
        try:
            info, _ = await self._models.resolve(agent.organization_id, agent.model)
        except NotFound:
            return None
        return agent.model_settings.context_window or info.context_window
