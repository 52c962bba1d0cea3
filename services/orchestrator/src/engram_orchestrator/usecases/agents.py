"""Reading and changing agents."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from engram_kit.clock import Clock
from engram_kit.errors import EngramError, InvalidArgument, NotFound
from engram_kit.idempotency import RequestKey
from engram_kit.paging import Page, PageQuery
from engram_kit.principal import Principal

from engram_orchestrator.builtin.executor import BuiltinTools
from engram_orchestrator.compaction.tokens import message_tokens, schema_tokens, text_tokens
from engram_orchestrator.errors import ConversationBusy
from engram_orchestrator.llm.registry import Providers
from engram_orchestrator.loop.context import ContextBuilder
from engram_orchestrator.loop.policy import POLICIES
from engram_orchestrator.loop.rules import RulesSolver
from engram_orchestrator.loop.toolbox import make_toolbox
from engram_orchestrator.model.agent_types import AGENT_TYPES, shows_line_numbers
from engram_orchestrator.model.agents import Agent, AttachedTool
from engram_orchestrator.model.memory import CoreMemory, Window
from engram_orchestrator.model.models import ModelSettings, ToolSchema
from engram_orchestrator.ports import ArchivalPort, RecallPort, ToolsPort
from engram_orchestrator.prompt.assembly import memory_section
from engram_orchestrator.store.base import AgentFilter, AgentStore, RunFilter, RunStore
from engram_orchestrator.usecases.first_messages import FirstWindow


@dataclass(frozen=True, slots=True)
class WindowReport:
    """What the model sees: texts by section, messages and tools, with estimated tokens."""

    size: int
    system: str
    core_memory: str
    tool_rules: str
    metadata: str
    window: Window
    schemas: tuple[ToolSchema, ...]
    passage_count: int
    message_tokens: int
    schema_tokens: int

    @property
    def section_tokens(self) -> tuple[int, int, int, int]:
        """Of the system prompt, core memory, tool rules and metadata; they add up to the system message's."""
        parts = [text_tokens(text) if text else 0 for text in (self.core_memory, self.tool_rules, self.metadata)]
        whole = message_tokens(self.window.messages[0])
        return (whole - sum(parts), parts[0], parts[1], parts[2])

    @property
    def total_tokens(self) -> int:
        """Of the whole request."""
        return sum(self.section_tokens) + self.message_tokens + self.schema_tokens


class AgentService:
    """Agents' records, and what the model sees of them."""

    def __init__(
        self,
        store: AgentStore,
        runs: RunStore,
        recall: RecallPort,
        archival: ArchivalPort,
        tools: ToolsPort,
        builtin: BuiltinTools,
        context: ContextBuilder,
        models: Providers,
        clock: Clock,
    ) -> None:
        self._store = store
        self._runs = runs
        self._recall = recall
        self._archival = archival
        self._tools = tools
        self._builtin = builtin
        self._context = context
        self._models = models
        self._clock = clock

    async def get(self, principal: Principal, agent_id: str) -> Agent:
        """An agent, or NotFound."""
        return await self._store.get(principal.organization_id, agent_id)

    async def list(self, principal: Principal, where: AgentFilter, order_by: str, page: PageQuery) -> Page[Agent]:
        """A page of agents."""
        return await self._store.list(principal.organization_id, where, order_by, page)

    async def count(self, principal: Principal, where: AgentFilter) -> int:
        """How many agents match."""
        return await self._store.count(principal.organization_id, where)

    async def tags(self, principal: Principal, page: PageQuery, text_search: str | None) -> Page[str]:
        """Tags in use."""
        return await self._store.tags(principal.organization_id, page, text_search)

    async def core_memory(self, agent_id: str) -> CoreMemory:
        """The agent's blocks."""
        return await self._context.core_memory(agent_id)

    async def window(self, agent: Agent) -> Window:
        """The default conversation's window."""
        return await self._context.window(agent.default_conversation_id)

    def effective_settings(self, agent: Agent) -> ModelSettings:
        """The settings that hold; the agent's own where its model is not served any more."""
        try:
            info, _ = self._models.resolve(agent.model)
        except NotFound:
            return agent.model_settings
        settings = agent.model_settings.over(info.defaults)
        if settings.inner_thoughts_in_kwargs is None:
            return replace(settings, inner_thoughts_in_kwargs=AGENT_TYPES[agent.type].inner_thoughts)
        return settings

    async def update(
        self, principal: Principal, key: RequestKey | None, agent_id: str, change: Callable[[Agent], Agent]
    ) -> Agent:
        """Applies a change to the agent's record as it stands at that moment.

        Raises:
            NotFound, ModelUnknown
        """

        def stamped(agent: Agent) -> Agent:
            changed = change(agent)
            self._models.resolve(changed.model)
            provenance = replace(changed.provenance, last_updated_by_id=principal.subject_id)
            return replace(changed, provenance=provenance, updated_at=self._clock.now())

        return await self._store.update(key, principal.organization_id, agent_id, stamped)

    async def attach_tool(
        self, principal: Principal, key: RequestKey | None, agent_id: str, tool_id: str | None, name: str | None
    ) -> Agent:
        """Gives a tool to the agent: a built-in one by name, a stored one by id or name.

        Raises:
            NotFound: of the agent or the tool.
        """
        if tool_id is None and name in self._builtin.names:
            attached = AttachedTool(str(name))
        else:
            found = await self._tools.definitions((tool_id,) if tool_id else (), (name,) if name else ())
            if not found:
                raise NotFound(f"There is no tool {tool_id or name}.", resource_id=tool_id or name or "")
            attached = AttachedTool(found[0].name, found[0].id)

        def change(agent: Agent) -> Agent:
            others = tuple(tool for tool in agent.tools if tool.name != attached.name)
            return agent if attached in agent.tools else replace(agent, tools=(*others, attached))

        return await self.update(principal, key, agent_id, change)

    async def detach_tool(
        self, principal: Principal, key: RequestKey | None, agent_id: str, tool_id: str | None, name: str | None
    ) -> Agent:
        """Takes a tool from the agent; one that it does not have is NotFound."""

        def change(agent: Agent) -> Agent:
            kept = tuple(t for t in agent.tools if not (t.tool_id == tool_id if tool_id else t.name == name))
            if len(kept) == len(agent.tools):
                raise NotFound(f"The agent has no tool {tool_id or name}.", resource_id=tool_id or name or "")
            return replace(agent, tools=kept)

        return await self.update(principal, key, agent_id, change)

    async def recompile(
        self, principal: Principal, request_id: str, agent_id: str, *, dry_run: bool
    ) -> tuple[str, bool]:
        """Renders the default conversation's system message anew; the text, and whether it differs."""
        agent = await self.get(principal, agent_id)
        window = await self.window(agent)
        text = await self._system_text(agent, window)
        changed = text != window.messages[0].text
        if changed and not dry_run:
            await self._require_idle(principal, agent.default_conversation_id)
            ids = [message.id for message in window.messages]
            self._context.remember(
                await self._recall.replace_context(
                    request_id, agent.id, agent.default_conversation_id, window.version, ids, system_text=text
                )
            )
        return text, changed

    async def reset_messages(self, principal: Principal, request_id: str, agent_id: str, *, add_default: bool) -> Agent:
        """Empties the default conversation's window but for its system message, rendered anew. The rows stay in recall.

        Raises:
            ConversationBusy: a run is under way in it.
        """
        agent = await self.get(principal, agent_id)
        conversation_id = agent.default_conversation_id
        await self._require_idle(principal, conversation_id)
        window = await self.window(agent)
        first = FirstWindow(agent, conversation_id, str(window.version), self._clock.now())
        new = first.default() if add_default else ()
        text = await self._system_text(agent, replace(window, messages=window.messages[:1]))
        self._context.remember(
            await self._recall.replace_context(
                request_id,
                agent.id,
                conversation_id,
                window.version,
                [window.messages[0].id, *(message.id for message in new)],
                new,
                system_text=text,
            )
        )
        return agent

    async def _require_idle(self, principal: Principal, conversation_id: str) -> None:
        where = RunFilter(conversation_id=conversation_id, active=True)
        busy = await self._runs.list(principal.organization_id, where, PageQuery(1, ascending=True))
        if busy.items:
            raise ConversationBusy(f"Run {busy.items[0].id} holds the conversation.", run_id=busy.items[0].id)

    async def _system_text(self, agent: Agent, window: Window) -> str:
        core = await self.core_memory(agent.id)
        summary = await self._archival.summary(agent.id)
        memory = self._memory(agent, core)
        if summary is None:
            raise EngramError("archival answered not_modified to a question without a revision")
        return self._context.render_system(agent.time_zone, agent.system, memory, core, window, summary)

    def _memory(self, agent: Agent, core: CoreMemory, *, rules: bool = True) -> str:
        info, _ = self._models.resolve(agent.model)
        return memory_section(
            core,
            RulesSolver(agent.tool_rules).prompt() if rules else "",
            numbered=shows_line_numbers(agent.type, info.provider),
            show_blocks=AGENT_TYPES[agent.type].shows_blocks,
        )

    async def report_window(self, principal: Principal, agent_id: str, conversation_id: str) -> WindowReport:
        """What the model sees of a conversation."""
        agent = await self.get(principal, agent_id)
        if conversation_id != agent.default_conversation_id:
            raise InvalidArgument("conversation_id names no conversation of the agent.", field="conversation_id")
        core, window = await self.core_memory(agent_id), await self.window(agent)
        summary = await self._archival.summary(agent_id)
        ids = tuple(tool.tool_id for tool in agent.tools if tool.tool_id)
        custom = await self._tools.definitions(ids) if ids else ()
        policy = POLICIES[AGENT_TYPES[agent.type].policy]
        settings = self.effective_settings(agent)
        toolbox = make_toolbox(
            agent,
            self._builtin,
            custom,
            RulesSolver(agent.tool_rules),
            heartbeat=policy.injects_heartbeat,
            thinking=bool(settings.inner_thoughts_in_kwargs),
        )
        blocks = self._memory(agent, core, rules=False)
        system = window.messages[0].text
        opening = system.rfind("<memory_metadata>")
        closing = system.find("</memory_metadata>", opening) + len("</memory_metadata>")
        return WindowReport(
            size=settings.context_window or 0,
            system=agent.system,
            core_memory=blocks,
            tool_rules=self._memory(agent, core).removeprefix(blocks).lstrip(),
            metadata=system[opening:closing] if opening >= 0 else "",
            window=window,
            schemas=toolbox.schemas,
            passage_count=summary.passage_count if summary else 0,
            message_tokens=sum(message_tokens(message) for message in window.messages[1:]),
            schema_tokens=sum(schema_tokens(schema) for schema in toolbox.schemas),
        )
