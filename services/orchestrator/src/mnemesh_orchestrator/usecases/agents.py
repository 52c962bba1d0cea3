"""Reading and changing agents."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from mnemesh_kit.clock import Clock
from mnemesh_kit.errors import NotFound
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.principal import Principal

from mnemesh_orchestrator.builtin.executor import BuiltinTools
from mnemesh_orchestrator.compaction.modes import mode_of
from mnemesh_orchestrator.compaction.summarizers import require_summary_model
from mnemesh_orchestrator.llm.model_catalog import ModelCatalog
from mnemesh_orchestrator.loop.context_builder import ContextBuilder
from mnemesh_orchestrator.model.agent_types import AGENT_TYPES, require_continuation
from mnemesh_orchestrator.model.agents import Agent, AgentFilter, AttachedTool
from mnemesh_orchestrator.model.approvals import ApprovalFilter
from mnemesh_orchestrator.model.conversations import Conversation
from mnemesh_orchestrator.model.core_memory import CoreMemory
from mnemesh_orchestrator.model.models import ModelSettings
from mnemesh_orchestrator.ports.tools import ToolsPort
from mnemesh_orchestrator.store.base import AgentStore, ApprovalStore
from mnemesh_orchestrator.usecases.tool_attachments import attachment, searching_episodes


class AgentService:
    """Agents' records."""

    def __init__(
        self,
        store: AgentStore,
        tools: ToolsPort,
        builtin: BuiltinTools,
        context: ContextBuilder,
        models: ModelCatalog,
        clock: Clock,
        approvals: ApprovalStore,
    ) -> None:
        self._store = store
        self._approvals = approvals
        self._tools = tools
        self._builtin = builtin
        self._context = context
        self._models = models
        self._clock = clock

    async def get(self, caller: Principal, agent_id: str) -> Agent:
        """An agent, or NotFound."""
        await self._models.of(caller.organization_id)
        return await self._store.get(caller.organization_id, agent_id)

    async def list(self, caller: Principal, where: AgentFilter, order_by: str, page: PageQuery) -> Page[Agent]:
        """A page of agents."""
        await self._models.of(caller.organization_id)
        return await self._store.list(caller.organization_id, where, order_by, page)

    async def count(self, caller: Principal, where: AgentFilter) -> int:
        """How many agents match."""
        return await self._store.count(caller.organization_id, where)

    async def tags(self, caller: Principal, page: PageQuery, text_search: str | None) -> Page[str]:
        """Tags in use."""
        return await self._store.tags(caller.organization_id, page, text_search)

    async def core_memory(self, agent_id: str) -> CoreMemory:
        """The agent's blocks."""
        return await self._context.core_memory(agent_id)

    async def message_ids(self, agents: Sequence[Agent]) -> dict[str, tuple[str, ...]]:
        """By agent, the ids of the messages in its default conversation's window; one being made may have none."""
        windows = {agent.default_conversation_id: agent.id for agent in agents}
        found = await self._context.window_ids(list(windows))
        return {windows[conversation_id]: ids for conversation_id, ids in found.items()}

    def effective_settings(self, agent: Agent, conversation: Conversation | None = None) -> ModelSettings:
        """The settings that hold, in a conversation its own first; those given where nobody serves the model."""
        given = agent.model_settings
        if conversation is not None and conversation.model_settings is not None:
            given = conversation.model_settings.over(given)
        try:
            offer = self._models.held(agent.organization_id)
            info, _ = offer.resolve((conversation and conversation.model) or agent.model)
        except NotFound:
            return given
        settings = given.over(info.defaults)
        if settings.inner_thoughts_in_kwargs is None:
            return replace(settings, inner_thoughts_in_kwargs=AGENT_TYPES[agent.type].inner_thoughts)
        return settings

    async def update(
        self, caller: Principal, key: RequestKey | None, agent_id: str, change: Callable[[Agent], Agent]
    ) -> Agent:
        """Applies a change to the agent's record as it stands at that moment.

        Raises:
            NotFound, ModelUnknown
        """

        offer = await self._models.of(caller.organization_id)

        def stamped(agent: Agent) -> Agent:
            changed = change(agent)
            offer.resolve(changed.model)
            if changed.model_settings.fallback_model:
                offer.resolve(changed.model_settings.fallback_model)
            if changed.compaction_settings != agent.compaction_settings:
                require_summary_model(offer, changed.compaction_settings)
            if mode_of(changed.compaction_settings) is not mode_of(agent.compaction_settings):
                changed = searching_episodes(changed)
            require_continuation(changed.type, changed.continuation_message)
            return replace(
                changed,
                message_buffer_autoclear=changed.message_buffer_autoclear or AGENT_TYPES[changed.type].forces_autoclear,
                provenance=replace(changed.provenance, last_updated_by_id=caller.subject_id),
                updated_at=self._clock.now(),
            )

        return await self._store.update(key, caller.organization_id, agent_id, stamped)

    async def attach_tool(
        self, caller: Principal, key: RequestKey | None, agent_id: str, tool_id: str | None, name: str | None
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
            attached = attachment(found[0])

        def change(agent: Agent) -> Agent:
            others = tuple(tool for tool in agent.tools if tool.name != attached.name)
            known = agent.tool(attached.name)
            return (
                agent
                if known is not None and known.tool_id == attached.tool_id
                else replace(agent, tools=(*others, attached))
            )

        return await self.update(caller, key, agent_id, change)

    async def set_tool_approval(
        self, caller: Principal, key: RequestKey | None, agent_id: str, name: str, *, requires: bool
    ) -> Agent:
        """Whether calls of a tool by this agent wait for a person; overrides rules and the tool's own default.

        Raises:
            NotFound: of the agent, or of the tool among its tools.
        """

        def change(agent: Agent) -> Agent:
            tool = agent.tool(name)
            if tool is None:
                raise NotFound(f"The agent has no tool {name}.", field="tool_name", resource_id=name)
            switched = replace(tool, requires_approval=requires)
            return replace(agent, tools=tuple(switched if item == tool else item for item in agent.tools))

        return await self.update(caller, key, agent_id, change)

    async def pending_approvals(self, caller: Principal, agents: Sequence[Agent]) -> dict[str, str]:
        """By agent, the approval that it has been waiting for the longest."""
        ids = tuple(agent.id for agent in agents)
        found = await self._approvals.pending(ApprovalFilter(caller.organization_id, ids)) if ids else ()
        return {approval.agent_id: approval.id for approval in reversed(found)}

    async def detach_tool(
        self, caller: Principal, key: RequestKey | None, agent_id: str, tool_id: str | None, name: str | None
    ) -> Agent:
        """Takes a tool from the agent; one that it does not have is NotFound."""
        held = (await self._store.get(caller.organization_id, agent_id)).tools
        if tool_id is not None and all(tool.tool_id != tool_id for tool in held):
            # It may be the id that a built-in one is listed under.
            name = next((tool.name for tool in await self._tools.definitions((tool_id,)) if tool.builtin), name)
            tool_id = tool_id if name is None else None

        def change(agent: Agent) -> Agent:
            kept = tuple(t for t in agent.tools if not (t.tool_id == tool_id if tool_id else t.name == name))
            if len(kept) == len(agent.tools):
                raise NotFound(f"The agent has no tool {tool_id or name}.", resource_id=tool_id or name or "")
            return replace(agent, tools=kept)

        return await self.update(caller, key, agent_id, change)
