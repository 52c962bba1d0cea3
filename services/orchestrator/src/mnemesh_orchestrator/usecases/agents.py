"""Agents: reads, updates, their tools, runs of a tool outside of a turn, and single answers of their models."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec
from mnemesh_kit.call_context import Principal, as_principal
from mnemesh_kit.errors import DeadlineExceeded, FailedPrecondition, Internal, InvalidArgument, NotFound, Unavailable
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.ids import IdSource, derive_id
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.secret_variables import SecretVariables
from mnemesh_kit.text import require_search_text, require_text
from mnemesh_kit.time import Clock
from mnemesh_kit.unicode import MAX_TEXT_BYTES, has_lone_surrogate, well_formed
from mnemesh_types.agents import ModelSettings
from mnemesh_types.messages import Message, Role, TextPart, ToolReturn
from mnemesh_types.usage import Usage

from mnemesh_orchestrator.builtin.arguments import ParseFailure, parse
from mnemesh_orchestrator.builtin.call import BuiltinCall
from mnemesh_orchestrator.builtin.executor import BuiltinTools
from mnemesh_orchestrator.builtin.schemas import BUILTIN_SCHEMAS
from mnemesh_orchestrator.clients.blocks import BlocksClient
from mnemesh_orchestrator.clients.tools import ToolsClient
from mnemesh_orchestrator.llm.calls import model_events
from mnemesh_orchestrator.llm.errors import ProviderBadAnswer, ProviderTimeout
from mnemesh_orchestrator.llm.model_catalog import ModelCatalog
from mnemesh_orchestrator.llm.port import LlmAnswer, LlmRequest
from mnemesh_orchestrator.llm.provider import cost_of
from mnemesh_orchestrator.loop.custom_tools import INTERRUPTED, run_custom
from mnemesh_orchestrator.loop.services import ContextReader
from mnemesh_orchestrator.loop.step_messages import call_id
from mnemesh_orchestrator.model.agents import (
    AGENT_TYPES,
    Agent,
    AgentFilter,
    AgentOrder,
    AttachedTool,
    require_valid_agent_filter,
)
from mnemesh_orchestrator.model.budgets import Payer, Spending
from mnemesh_orchestrator.model.conversations import ApprovalFilter, Conversation
from mnemesh_orchestrator.model.core_memory import AgentAuthor, CoreMemory, memory_access
from mnemesh_orchestrator.model.groups import require_valid_count
from mnemesh_orchestrator.model.models import ResponseFormat, ToolSchema, require_valid_format, settings_over
from mnemesh_orchestrator.model.rules import ToolResult
from mnemesh_orchestrator.store.agents import AgentStore
from mnemesh_orchestrator.store.approvals import ApprovalStore
from mnemesh_orchestrator.store.budgets import BudgetStore
from mnemesh_orchestrator.store.groups import GroupStore
from mnemesh_orchestrator.usecases.agent_creation import PartnerService
from mnemesh_orchestrator.usecases.agent_parts import AgentChanges, attached_tool, with_folders
from mnemesh_orchestrator.usecases.context_windows import ContextWindowRenderer

_TOOLS_AT_ONCE: Final = 1_000


@dataclass(frozen=True, eq=False)
class AgentService:
    """The records of agents."""

    store: AgentStore
    tools: ToolsClient
    builtin: BuiltinTools
    context: ContextReader
    models: ModelCatalog
    approvals: ApprovalStore
    groups: GroupStore
    changes: AgentChanges
    partners: PartnerService
    secrets: SecretVariables
    renderer: ContextWindowRenderer

    def fingerprint(self, value: str) -> str:
        """Returns a text that identifies the value of a secret and reveals nothing of it. Raises SecretsKeyMissing."""
        return self.secrets.fingerprint(value)

    async def get(self, caller: Principal, agent_id: str) -> Agent:
        """Returns an agent, without the tools that were deleted since. Raises NotFound."""
        # `effective_settings` needs the models of the organization, and cannot wait for them.
        await self.models.of(caller.organization_id)
        agent = await self.store.get(caller.organization_id, agent_id)
        return (await self._without_deleted_tools(caller, [agent]))[0]

    async def list(self, caller: Principal, filter_: AgentFilter, order_by: AgentOrder, page: PageQuery) -> Page[Agent]:
        """Returns a page of agents, without the tools that were deleted since."""
        await self.models.of(caller.organization_id)
        found = await self.store.list(caller.organization_id, require_valid_agent_filter(filter_), order_by, page)
        return replace(found, items=tuple(await self._without_deleted_tools(caller, found.items)))

    async def _without_deleted_tools(self, caller: Principal, agents: Sequence[Agent]) -> Sequence[Agent]:
        """Returns the agents with the tools that turns give them. All, if the tools service does not answer."""
        ids = sorted({tool.tool_id for agent in agents for tool in agent.tools if tool.tool_id is not None})
        existing: set[str] = set()
        try:
            with as_principal(caller):
                for start in range(0, len(ids), _TOOLS_AT_ONCE):
                    found = await self.tools.definitions(ids[start : start + _TOOLS_AT_ONCE])
                    existing |= {tool.id for tool in found}
        except (Unavailable, DeadlineExceeded, Internal):
            return agents
        if existing >= set(ids):
            return agents
        return [
            replace(
                agent, tools=tuple(tool for tool in agent.tools if tool.tool_id is None or tool.tool_id in existing)
            )
            for agent in agents
        ]

    async def count(self, caller: Principal, filter_: AgentFilter) -> int:
        """Returns the number of agents. Raises InvalidArgument if the filter breaks a rule."""
        return await self.store.count(caller.organization_id, require_valid_agent_filter(filter_))

    async def tags(self, caller: Principal, page: PageQuery, text_search: str | None) -> Page[str]:
        """Returns a page of the tags of agents, in alphabetical order. Raises InvalidArgument."""
        if text_search is not None:
            require_search_text(text_search, "text_search")
        return await self.store.tags(caller.organization_id, page, text_search)

    async def core_memory(self, caller: Principal, agent_id: str) -> CoreMemory:
        """Returns the blocks of an agent, as the blocks service shows them to the caller."""
        with as_principal(caller):
            return await self.context.core_memory(agent_id)

    async def message_ids(self, caller: Principal, agents: Sequence[Agent]) -> dict[str, tuple[str, ...]]:
        """Returns, by agent, the ids of the messages in the window of its default conversation.

        An agent whose window does not exist yet is left out.
        """
        windows = {agent.default_conversation_id: agent.id for agent in agents}
        with as_principal(caller):
            message_ids = await self.context.window_ids(list(windows))
        return {windows[conversation_id]: ids for conversation_id, ids in message_ids.items()}

    async def list_pending_approvals(self, caller: Principal, agents: Sequence[Agent]) -> dict[str, str]:
        """Returns, by agent, the id of the oldest approval that it waits for."""
        ids = tuple(agent.id for agent in agents)
        approvals = await self.approvals.list_pending(ApprovalFilter(caller.organization_id, ids)) if ids else ()
        return {approval.agent_id: approval.id for approval in reversed(approvals)}

    async def group_ids(self, caller: Principal, agents: Sequence[Agent]) -> dict[str, tuple[str, ...]]:
        """Returns, by agent, the ids of the groups of which it is a member or the manager."""
        return await self.groups.of_agents(caller.organization_id, [agent.id for agent in agents])

    async def cost(self, caller: Principal, agent_id: str) -> int | None:
        """Returns the cost of an agent's ended runs in billionths of a US dollar; None if no run has a known cost."""
        return await self.store.cost(caller.organization_id, agent_id)

    def effective_settings(self, agent: Agent, conversation: Conversation | None = None) -> ModelSettings:
        """Returns the settings of an agent's model calls, with the defaults of its model.

        The settings of the conversation override the agent's. If no provider serves the model, there are no defaults.
        """
        settings = agent.model_settings
        if conversation is not None and conversation.model_settings is not None:
            settings = settings_over(conversation.model_settings, settings)
        try:
            models = self.models.cached(agent.organization_id)
            info, _ = models.resolve((conversation and conversation.model) or agent.model)
        except NotFound:
            return settings
        effective = info.effective(settings)
        if effective.inner_thoughts_in_kwargs is None:
            return replace(effective, inner_thoughts_in_kwargs=AGENT_TYPES[agent.type].inner_thoughts)
        return effective

    async def update(
        self,
        caller: Principal,
        key: RequestKey | None,
        agent_id: str,
        changes: Mapping[str, Any],
        *,
        system_prompt_key: str | None = None,
        if_revision: int | None = None,
        sleeptime_turns_counter: int | None = None,
    ) -> Agent:
        """Changes fields of an agent, and returns the agent. One that gets enable_sleeptime also gets a partner.

        Args:
            key: Identifies the request.
            changes: New values by the field names of `Agent`. The value of `provenance` is a mapping of those of its
                fields that change.
            system_prompt_key: The key of the system prompt that becomes the agent's `system`.
            if_revision: The revision that the agent must have; None changes any.
            sleeptime_turns_counter: The count of turns with which a group that is created begins; None is 0.

        Raises:
            AgentRevisionMismatch: The agent has another revision.
            ModelUnknown: No provider serves the model, the fallback model or the model of summaries.
            EmbedderUnknown: No service is configured for the embedder.
            Unavailable: A service that the partner needs cannot be reached. The update is finished later.
            SecretsKeyMissing: This server has no key to store secrets with.
        """
        count = require_valid_count(sleeptime_turns_counter, "sleeptime_turns_counter") or 0
        values = await self.changes.values(agent_id, changes, system_prompt_key)
        change = await self.changes.of_values(caller, agent_id, values, if_revision)
        if "model_settings" in values:
            await self._require_space(caller, agent_id, change)
        if values.get("enable_sleeptime"):
            return await self.partners.update(caller, key, agent_id, values, if_revision, count)
        return await self.store.update(key, caller.organization_id, agent_id, change)

    async def _require_space(self, caller: Principal, agent_id: str, change: Callable[[Agent], Agent]) -> None:
        """Refuses a change to a context window that has no space for the system message and the tools."""
        agent = await self.store.get(caller.organization_id, agent_id)
        changed = change(agent)
        if changed.model_settings.context_window not in (None, agent.model_settings.context_window):
            with as_principal(caller):
                window = await self.context.window(agent.default_conversation_id)
                await self.renderer.require_space(changed, window.messages[0].text)

    async def _change(
        self, caller: Principal, key: RequestKey | None, agent_id: str, change: Callable[[Agent], Agent]
    ) -> Agent:
        complete = await self.changes.complete(caller, change)
        return await self.store.update(key, caller.organization_id, agent_id, complete)

    async def attach_tool(
        self, caller: Principal, key: RequestKey | None, agent_id: str, tool_id: str | None, name: str | None
    ) -> Agent:
        """Attaches a tool, and returns the agent. A tool with the same name is replaced.

        A built-in tool is found by its name, a custom tool by its id or its name.
        """
        if tool_id is None and name in self.builtin.names:
            tool = AttachedTool(str(name))
        else:
            definitions = await self.tools.definitions((tool_id,) if tool_id else (), (name,) if name else ())
            if not definitions:
                raise NotFound(f"There is no tool {tool_id or name}.", resource_id=tool_id or name or "")
            tool = attached_tool(definitions[0])

        def change(agent: Agent) -> Agent:
            current = agent.tool(tool.name)
            if current is not None and current.tool_id == tool.tool_id:
                return agent
            return replace(agent, tools=(*(other for other in agent.tools if other.name != tool.name), tool))

        return await self._change(caller, key, agent_id, change)

    async def detach_tool(
        self, caller: Principal, key: RequestKey | None, agent_id: str, tool_id: str | None, name: str | None
    ) -> Agent:
        """Detaches a tool, and returns the agent."""
        attached = (await self.store.get(caller.organization_id, agent_id)).tools
        if tool_id is not None and all(tool.tool_id != tool_id for tool in attached):
            # A built-in tool is listed under an id, but attached by its name.
            name = next((tool.name for tool in await self.tools.definitions((tool_id,)) if tool.builtin), name)
            tool_id = tool_id if name is None else None

        def change(agent: Agent) -> Agent:
            kept = tuple(t for t in agent.tools if not (t.tool_id == tool_id if tool_id else t.name == name))
            if len(kept) == len(agent.tools):
                raise NotFound(f"The agent has no tool {tool_id or name}.", resource_id=tool_id or name or "")
            return replace(agent, tools=kept)

        return await self._change(caller, key, agent_id, change)

    async def record_folders(self, caller: Principal, agent_id: str, revision: int, *, holds_folders: bool) -> None:
        """Records whether an agent holds folders, as of a revision of its directories.

        Raises:
            FailedPrecondition: The agent is being created.
        """

        def change(agent: Agent) -> Agent:
            return with_folders(agent, revision, holds_folders=holds_folders)

        try:
            await self.store.update(None, caller.organization_id, agent_id, change)
        except NotFound:
            if await self.store.creation(caller.organization_id, agent_id) is None:
                raise
            raise FailedPrecondition(f"Agent {agent_id} is being created. Try again.", resource_id=agent_id) from None

    async def set_tool_approval(
        self, caller: Principal, key: RequestKey | None, agent_id: str, name: str, *, requires: bool
    ) -> Agent:
        """Sets whether calls of a tool wait for approval, and returns the agent.

        The setting overrides the tool rules of the agent and the default of the tool.
        """
        if not name:
            raise InvalidArgument("tool_name is required.", field="tool_name")

        def change(agent: Agent) -> Agent:
            tool = agent.tool(name)
            if tool is None:
                raise NotFound(f"The agent has no tool {name}.", field="tool_name", resource_id=name)
            changed = replace(tool, requires_approval=requires)
            return replace(agent, tools=tuple(changed if item == tool else item for item in agent.tools))

        return await self._change(caller, key, agent_id, change)


@dataclass(frozen=True, eq=False)
class ToolRunner:
    """Runs tools of agents on behalf of their owner. Tool rules and approvals do not apply."""

    agents: AgentStore
    builtin: BuiltinTools
    tools: ToolsClient
    secrets: SecretVariables
    core_memory: BlocksClient
    context: ContextReader
    ids: IdSource

    async def run(
        self, caller: Principal, key: RequestKey | None, agent_id: str, name: str, arguments: str
    ) -> ToolReturn:
        """Runs a tool and returns its result. A refusal by the tool is returned as an error result.

        Under the same key, a built-in tool has its effect once and returns the same result again. A custom tool is
        not run again.

        Args:
            caller: the owner of the agent.
            key: identifies the request; None if it cannot be repeated.
            name: the name of an attached tool.
            arguments: a JSON object as text.

        Raises:
            InvalidArgument: the arguments are not a JSON object, or do not match the schema of the tool.
            Unavailable, DeadlineExceeded: the service of the tool cannot be reached.
        """
        if not name:
            raise InvalidArgument("tool_name is required.", field="tool_name")
        agent = await self.agents.get(caller.organization_id, agent_id)
        attached = agent.tool(name)
        if attached is None or (attached.tool_id is None and name not in self.builtin.names):
            raise NotFound(f"The agent has no tool {name}.", field="tool_name", resource_id=name)
        identity = (key.organization_id, key.method, key.request_id) if key is not None else (self.ids.new("request"),)
        step = derive_id("step", *identity)
        call = call_id(step, 0)
        if attached.tool_id is None:
            values = _values(arguments, BUILTIN_SCHEMAS[name])
            await self.agents.record_request(key)
            built_in = BuiltinCall(
                name,
                values,
                agent_id,
                agent.time_zone,
                call,
                None,
                f"{step}/0",
                memory=memory_access(agent.id, agent.memory_scope, agent.memory_extraction),
                agent_name=agent.name,
                embedder=agent.embedder,
            )
            result = await self.builtin.execute(built_in)
        else:
            result = await self._custom(key, agent, attached.tool_id, arguments, step)
        return result.to_return(call, name)

    async def _custom(
        self, key: RequestKey | None, agent: Agent, tool_id: str, arguments: str, step: str
    ) -> ToolResult:
        definitions = await self.tools.definitions(ids=(tool_id,))
        if not definitions:
            raise NotFound(f"Tool {tool_id} was deleted.", field="tool_name", resource_id=tool_id)
        values = _values(arguments, msgspec.json.decode(definitions[0].json_schema, type=ToolSchema))
        core = await self.context.core_memory(agent.id)
        if await self.agents.record_request(key) and not definitions[0].idempotent:
            return ToolResult(ok=False, text=INTERRUPTED)
        author, prefix = AgentAuthor(agent.id, call_id(step, 0)), f"{step}/0"
        edit = self.core_memory.edit
        return await run_custom(self.tools, self.secrets, edit, agent, core, definitions[0], values, author, prefix)


def _values(arguments: str, schema: ToolSchema) -> Mapping[str, Any]:
    if has_lone_surrogate(arguments):
        raise InvalidArgument("arguments must not contain half of a character (a lone surrogate).", field="arguments")
    parsed = parse(arguments, schema)
    if isinstance(parsed, ParseFailure):
        raise InvalidArgument(parsed.text.removeprefix("Error: "), field="arguments")
    return parsed.values


CALL_SECONDS: Final = 300.0
_MAX_PROMPT_CHARS: Final = 1_000_000
_SYSTEM: Final = "You are a helpful assistant."


@dataclass(frozen=True, slots=True)
class GeneratedText:
    """The answer of a model, its handle, and the tokens of the call."""

    text: str
    model: str
    usage: Usage


@dataclass(frozen=True, eq=False)
class TextGenerationService:
    """Asks models once. Nothing is stored."""

    agents: AgentStore
    models: ModelCatalog
    budgets: BudgetStore
    clock: Clock
    ids: IdSource

    async def generate(
        self,
        caller: Principal,
        agent_id: str,
        prompt: str,
        *,
        system: str | None = None,
        model: str | None = None,
        response_format: ResponseFormat | None = None,
    ) -> GeneratedText:
        """Returns the text that a model answers to a prompt.

        Args:
            caller: the owner of the agent.
            agent_id: the agent whose model and settings are used.
            prompt: the only message of the user.
            system: the system message; None or "" is a short default.
            model: the handle of another model, which has its own settings; None is the agent's.
            response_format: the format of the answer; None is text.

        Raises:
            ModelUnknown: no provider serves the model.
            ProviderError: the model did not answer.
            BudgetExceeded: a budget of the organization or the agent is used up.
        """
        if not prompt.strip():
            raise InvalidArgument("prompt must not be blank.", field="prompt")
        for name, text in (("prompt", prompt), ("system", system or "")):
            require_text(text, name, max_chars=_MAX_PROMPT_CHARS)
        if response_format is not None:
            require_valid_format(response_format, "response_format")
        agent = await self.agents.get(caller.organization_id, agent_id)
        payer = Payer(caller.organization_id, agent_id)
        await self.budgets.require(payer)
        info, client = await self.models.resolve_for_turn(caller.organization_id, model or agent.model)
        settings = info.defaults if model else info.effective(agent.model_settings)
        request = LlmRequest(
            model=info,
            settings=settings,
            messages=(self._message(Role.SYSTEM, system or _SYSTEM), self._message(Role.USER, prompt)),
            time_zone=agent.time_zone,
            response_format=response_format or ResponseFormat(),
            is_verbatim=True,
        )
        answers: list[LlmAnswer] = []
        try:
            stream = model_events(client, request)
            async with asyncio.timeout(CALL_SECONDS), aclosing(stream) as events:  # type: ignore[type-var]
                answers = [event async for event in events if isinstance(event, LlmAnswer)]
        except TimeoutError as error:
            raise ProviderTimeout(
                f"{info.handle} took longer than {CALL_SECONDS:g} s.", provider=info.provider
            ) from error
        priced = (replace(answer.usage, cost_nano_usd=cost_of(answer.usage, info.price)) for answer in answers)
        await self.budgets.count(payer, sum(map(Spending.of, priced), Spending()))
        parts = [part.text for answer in answers for part in answer.content if isinstance(part, TextPart)]
        if not "".join(parts).strip():
            raise ProviderBadAnswer(f"{info.handle} returned no text.", provider=info.provider)
        return GeneratedText(well_formed("".join(parts), MAX_TEXT_BYTES), info.handle, answers[-1].usage)

    def _message(self, role: Role, text: str) -> Message:
        return Message(id=self.ids.new("message"), role=role, created_at=self.clock.now(), content=(TextPart(text),))
