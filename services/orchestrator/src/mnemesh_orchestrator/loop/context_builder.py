"""Gathers the window, core memory and tools of a turn from their services, and assembles the request of each step."""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar
from zoneinfo import ZoneInfo

from mnemesh_kit.clock import Clock
from mnemesh_kit.errors import MnemeshError
from mnemesh_kit.ids import derive_id
from mnemesh_types.messages import Message, Role, TextPart

from mnemesh_orchestrator.builtin.files import WHAT as FILES
from mnemesh_orchestrator.llm.capabilities import reads_images
from mnemesh_orchestrator.llm.port import LlmRequest, ToolChoice, ToolChoiceKind
from mnemesh_orchestrator.loop.optional_services import OptionalServices
from mnemesh_orchestrator.loop.request_images import RequestImages
from mnemesh_orchestrator.loop.state import TurnContext, TurnState
from mnemesh_orchestrator.model.agent_types import AGENT_TYPES, shows_line_numbers
from mnemesh_orchestrator.model.agents import Agent, PromptPolicy
from mnemesh_orchestrator.model.archival import ArchivalSummary
from mnemesh_orchestrator.model.context_window import ContextWindow
from mnemesh_orchestrator.model.conversations import Conversation
from mnemesh_orchestrator.model.core_memory import CoreMemory
from mnemesh_orchestrator.model.custom_tools import CustomTool
from mnemesh_orchestrator.model.files import Directories, wanted_limits
from mnemesh_orchestrator.model.models import ResponseFormat, ToolSchema
from mnemesh_orchestrator.ports import Services
from mnemesh_orchestrator.prompt.assembly import compose, memory_section, metadata_section, shows
from mnemesh_orchestrator.prompt.directories import directories_of, directories_section
from mnemesh_orchestrator.prompt.packaging import system_alert

T = TypeVar("T")

_KEPT_WINDOWS = 256
_TOOL_RETURN_FLOOR = 5_000
_TOOL_RETURN_SHARE = 0.2
_CHARACTERS_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class Gathered:
    """The data that a turn begins with. `notes` tell the model about unavailable services."""

    window: ContextWindow
    core: CoreMemory
    custom: tuple[CustomTool, ...]
    directories: str
    """The section of the system message about files."""
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Assembled:
    """A request, and the new text of the system message or None if it did not change."""

    request: LlmRequest
    system_text: str | None


class ContextBuilder:
    """Gathers and assembles. Caches windows, core memories and summaries, and validates them by their revision."""

    def __init__(
        self,
        services: Services,
        optional: OptionalServices,
        clock: Clock,
    ) -> None:
        self._recall = services.recall
        self._core_memory = services.core_memory
        self._archival = services.archival
        self._tools = services.tools
        self._files = services.files
        self._optional = optional
        self._clock = clock
        self._images = RequestImages(services.files, optional, clock)
        self._windows: OrderedDict[str, ContextWindow] = OrderedDict()
        self._memories: OrderedDict[str, CoreMemory] = OrderedDict()
        self._summaries: OrderedDict[str, ArchivalSummary] = OrderedDict()
        self._directories: OrderedDict[str, Directories] = OrderedDict()

    async def gather(
        self, conversation: Conversation, agent: Agent, *, whole: bool = False, context_window: int | None = None
    ) -> Gathered:
        """Returns the data that a turn begins with. The files service is asked only about an agent with folders.

        Args:
            conversation: the conversation.
            agent: its agent.
            context_window: see `directories`.
            whole: the turn needs its stored tools. Otherwise it begins without them if they are unavailable.

        Raises:
            Unavailable, DeadlineExceeded: recall or blocks is unavailable, or tools with `whole`.
        """
        holder_id, tool_ids = conversation.holder_id, stored_tool_ids(agent)
        needed = (self.window(conversation.id), self.core_memory(conversation.agent_id, holder_id))
        custom: tuple[CustomTool, ...] = ()
        if not tool_ids and not agent.holds_folders:
            window, core = await asyncio.gather(*needed)
            return Gathered(window, core, custom, "", ())
        window, core, (custom, note), (directories, files_note) = await asyncio.gather(
            *needed, self.custom_tools(tool_ids, whole=whole), self.directories(agent, context_window)
        )
        if directories is None:
            directories = directories_of(window.messages[0].text)
        return Gathered(window, core, custom, directories, tuple(filter(None, (note, files_note))))

    async def window(self, conversation_id: str) -> ContextWindow:
        """Returns the current window of a conversation."""
        known = self._windows.get(conversation_id)
        fresh = await self._recall.get_context(conversation_id, known.version if known else None)
        return self.remember(fresh or _kept(known))

    async def window_ids(self, conversation_ids: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Returns the ids of the messages in the current windows, by conversation."""
        return await self._recall.window_ids(conversation_ids) if conversation_ids else {}

    def remember(self, window: ContextWindow) -> ContextWindow:
        """Caches a window for the next turn of its conversation, and returns it."""
        return _keep(self._windows, window.conversation_id, window)

    async def core_memory(self, agent_id: str, holder_id: str | None = None) -> CoreMemory:
        """Returns the agent's current blocks. A holder id selects the view of a conversation with its own blocks."""
        known = self._memories.get(holder_id or agent_id)
        fresh = await self._core_memory.get(agent_id, known.revision if known else None, holder_id)
        return _keep(self._memories, holder_id or agent_id, fresh or _kept(known))

    async def custom_tools(
        self, tool_ids: tuple[str, ...], *, whole: bool = False
    ) -> tuple[tuple[CustomTool, ...], str]:
        """Returns stored tools. Without `whole`, returns none and a note for the model if they are unavailable."""
        if not tool_ids:
            return (), ""
        if whole:
            return await self._tools.definitions(ids=tool_ids), ""
        found, note = await self._optional.call(lambda: self._tools.definitions(ids=tool_ids), "Your custom tools")
        return found or (), note

    async def archival_summary(self, agent_id: str) -> tuple[ArchivalSummary, str]:
        """Returns the size of the agent's archival memory; the last known one and a note if it is unavailable."""
        known = self._summaries.get(agent_id)
        if_revision = known.revision if known else None
        fresh, note = await self._optional.call(
            lambda: self._archival.summary(agent_id, if_revision), "Your archival memory"
        )
        if fresh is not None:
            _keep(self._summaries, agent_id, fresh)
        return fresh or known or ArchivalSummary(), note

    async def directories(self, agent: Agent, context_window: int | None = None) -> tuple[str | None, str]:
        """Returns the section of the system message about files, and a note if the files service is unavailable.

        The last known section is returned then, or None if there is none.

        Args:
            agent: the agent.
            context_window: the tokens of the window of the agent's model, by which its limits are set; None leaves
                them as they are.
        """
        if not agent.holds_folders:
            return "", ""
        known = self._directories.get(agent.id)
        fresh, note = await self._optional.call(lambda: self._current_directories(agent, known, context_window), FILES)
        current = fresh or known
        if current is None:
            return None, note
        _keep(self._directories, agent.id, current)
        return directories_section(current, is_react=not AGENT_TYPES[agent.type].shows_blocks), note

    async def _current_directories(
        self, agent: Agent, known: Directories | None, context_window: int | None
    ) -> Directories:
        fresh = await self._files.directories(agent.id, known.revision if known else None)
        current = fresh or _kept(known)
        if context_window is None:
            return current
        settings = agent.max_files_open, agent.per_file_view_window_char_limit
        wanted = wanted_limits(current.limits, context_window, *settings)
        if wanted == current.limits:
            return current
        await self._files.set_limits(f"{agent.id}/limits/{current.revision}", agent.id, wanted)
        return await self._files.directories(agent.id) or current

    async def assemble(self, context: TurnContext, state: TurnState, notes: tuple[str, ...] = ()) -> Assembled:
        """Returns the request of the next step, whether or not it fits the model's window.

        Args:
            context: the turn.
            state: its state.
            notes: notes for the model in addition to those of the turn.
        """
        toolbox, solver = context.toolbox, state.solver
        schemas = toolbox.offered(solver.allowed(toolbox.names))
        system_text, note = await self._changed_system_text(context, state)
        notes = (*state.notes, *notes, *((note,) if note else ()))
        request = self._request(context, state, schemas, system_text, notes)
        messages = await self._images.prepared(
            request.messages, context.run.organization_id, reads_images=reads_images(request.model)
        )
        return Assembled(replace(request, messages=messages), system_text)

    async def _changed_system_text(self, context: TurnContext, state: TurnState) -> tuple[str | None, str]:
        """Returns the new system message if the stored one does not show the current memory, and a note."""
        agent, override = context.agent, context.run.config.override_system
        template = override or agent.system
        memory = _memory_section(context, state)
        is_frozen = agent.prompt_policy is PromptPolicy.CACHE and override is None
        if is_frozen or shows(state.window.messages[0].text, template, memory):
            return None, ""
        summary, note = await self.archival_summary(agent.id)
        return self.render_system(agent.time_zone, template, memory, state.core, state.window, summary), note

    async def new_system_text(self, context: TurnContext, state: TurnState, window: ContextWindow) -> str:
        """Returns the system message that is stored with another window of the turn's conversation."""
        agent = context.agent
        summary, _ = await self.archival_summary(agent.id)
        memory = _memory_section(context, state)
        return self.render_system(agent.time_zone, agent.system, memory, state.core, window, summary)

    def render_system(
        self,
        time_zone: str,
        template: str,
        memory: str,
        core: CoreMemory,
        window: ContextWindow | None,
        summary: ArchivalSummary,
    ) -> str:
        """Returns a system message from its parts, dated now."""
        zone = ZoneInfo(time_zone)
        previous = window.agent_message_count - len(window.messages) if window else 0
        metadata = metadata_section(
            self._clock.now().astimezone(zone).date(),
            core.updated_at.astimezone(zone) if core.updated_at else None,
            max(previous, 0),
            summary.passage_count,
            summary.tags,
        )
        return compose(template, memory, metadata)

    def _request(
        self,
        context: TurnContext,
        state: TurnState,
        schemas: tuple[ToolSchema, ...],
        system_text: str | None,
        notes: tuple[str, ...],
    ) -> LlmRequest:
        agent, model, policy, format_ = context.agent, state.model, context.policy, context.response_format
        settings = model.settings
        messages = (
            *with_system(state.window, system_text).messages,
            *state.pending,
            *(self._note(context, state, note, index) for index, note in enumerate(notes)),
        )
        return LlmRequest(
            model=model.info,
            settings=settings,
            messages=messages,
            time_zone=agent.time_zone,
            tools=schemas,
            tool_choice=_tool_choice(context, state, schemas),
            parallel_tool_calls=bool(settings.parallel_tool_calls)
            and not policy.requires_tool_call
            and state.solver.permits_parallel_calls,
            inner_thoughts=bool(settings.inner_thoughts_in_kwargs),
            response_format=format_ if format_ and not policy.requires_tool_call else ResponseFormat(),
            tool_return_char_limit=return_limit(model.prompt_limit),
        )

    def _note(self, context: TurnContext, state: TurnState, text: str, index: int) -> Message:
        now = self._clock.now()
        return Message(
            id=derive_id("message", context.run.id, "note", str(state.step_number), str(index)),
            role=Role.USER,
            created_at=now,
            content=(TextPart(system_alert(text, now, context.agent.time_zone)),),
        )


def _memory_section(context: TurnContext, state: TurnState) -> str:
    return memory_section(
        state.core,
        state.solver.prompt(),
        state.directories,
        numbered=shows_line_numbers(context.agent.type, state.model.info.provider),
        show_blocks=context.spec.shows_blocks,
    )


def stored_tool_ids(agent: Agent) -> tuple[str, ...]:
    """Returns the ids of the agent's stored tools."""
    return tuple(tool.tool_id for tool in agent.tools if tool.tool_id is not None)


def return_limit(prompt_limit: int) -> int:
    """Returns the number of characters that a request contains of a tool return."""
    return max(_TOOL_RETURN_FLOOR, int(prompt_limit * _TOOL_RETURN_SHARE * _CHARACTERS_PER_TOKEN))


def extended(
    window: ContextWindow, version: int, count: int, system_text: str | None, added: tuple[Message, ...]
) -> ContextWindow:
    """Returns the window as recall holds it after a commit that was not rebased."""
    base = with_system(window, system_text)
    return replace(base, version=version, agent_message_count=count, messages=(*base.messages, *added))


def with_system(window: ContextWindow, system_text: str | None) -> ContextWindow:
    """Returns the window with another text of its system message, or unchanged with None."""
    if system_text is None:
        return window
    head = replace(window.messages[0], content=(TextPart(system_text),))
    return replace(window, messages=(head, *window.messages[1:]))


def _tool_choice(context: TurnContext, state: TurnState, schemas: tuple[ToolSchema, ...]) -> ToolChoice:
    if not schemas:
        return ToolChoice()
    is_forced = state.solver.must_call()
    if is_forced and len(schemas) == 1:
        return ToolChoice(ToolChoiceKind.NAMED, schemas[0].name)
    is_required = is_forced or context.policy.requires_tool_call
    return ToolChoice(ToolChoiceKind.REQUIRED if is_required else ToolChoiceKind.AUTO)


def _kept(known: T | None) -> T:
    if known is None:
        raise MnemeshError("A service answered not_modified to a request without a revision.")
    return known


def _keep(kept: "OrderedDict[str, T]", key: str, value: T) -> T:
    kept[key] = value
    kept.move_to_end(key)
    while len(kept) > _KEPT_WINDOWS:
        kept.popitem(last=False)
    return value
