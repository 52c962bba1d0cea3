"""Assembles the request of each step from what was read, and renders the system message."""

from dataclasses import dataclass
from zoneinfo import ZoneInfo

from mnemesh_kit.clock import Clock
from mnemesh_kit.ids import derive_id
from mnemesh_types.messages import Message, Role, TextPart

from mnemesh_orchestrator.llm.capabilities import reads_images
from mnemesh_orchestrator.llm.port import LlmRequest, ToolChoice, ToolChoiceKind
from mnemesh_orchestrator.loop.context_reader import ContextReader
from mnemesh_orchestrator.loop.request_images import RequestImages
from mnemesh_orchestrator.loop.state import TurnContext, TurnState
from mnemesh_orchestrator.model.agent_types import shows_line_numbers
from mnemesh_orchestrator.model.agents import Agent, PromptPolicy
from mnemesh_orchestrator.model.archival import ArchivalSummary
from mnemesh_orchestrator.model.context_window import ContextWindow
from mnemesh_orchestrator.model.core_memory import CoreMemory
from mnemesh_orchestrator.model.models import ResponseFormat, ToolSchema
from mnemesh_orchestrator.model.run_config import ClientSkill
from mnemesh_orchestrator.prompt.assembly import compose, identity_lines, memory_section, metadata_section, shows
from mnemesh_orchestrator.prompt.packaging import system_alert
from mnemesh_orchestrator.prompt.skills import skills_section

_TOOL_RETURN_FLOOR = 5_000
_TOOL_RETURN_SHARE = 0.2
_CHARACTERS_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class Assembled:
    """A request, and the new text of the system message or None if it did not change."""

    request: LlmRequest
    system_text: str | None


class RequestAssembler:
    """Assembles requests. Asks for the size of archival memory only if the system message changes."""

    def __init__(self, context: ContextReader, images: RequestImages, clock: Clock) -> None:
        self._context = context
        self._images = images
        self._clock = clock

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
        messages = await self._images.prepared(
            self._messages(context, state, system_text, notes),
            context.run.organization_id,
            reads_images=reads_images(state.model.info),
        )
        return Assembled(_request(context, state, schemas, messages), system_text)

    async def _changed_system_text(self, context: TurnContext, state: TurnState) -> tuple[str | None, str]:
        """Returns the new system message if the stored one does not show the current memory, and a note."""
        agent, override = context.agent, context.run.config.override_system
        template = override or agent.system
        memory = _memory_section(context, state)
        is_frozen = agent.prompt_policy is PromptPolicy.CACHE and override is None
        identity = identity_lines(agent, context.run.conversation_id)
        if is_frozen or shows(state.window.messages[0].text, template, memory, identity):
            return None, ""
        summary, note = await self._context.archival_summary(agent.id)
        return self.render_system(
            agent, context.run.conversation_id, template, memory, state.core, state.window, summary
        ), note

    async def new_system_text(self, context: TurnContext, state: TurnState, window: ContextWindow) -> str:
        """Returns the system message that is stored with another window of the turn's conversation."""
        agent = context.agent
        summary, _ = await self._context.archival_summary(agent.id)
        memory = _memory_section(context, state)
        return self.render_system(agent, context.run.conversation_id, agent.system, memory, state.core, window, summary)

    def render_system(
        self,
        agent: Agent,
        conversation_id: str,
        template: str,
        memory: str,
        core: CoreMemory,
        window: ContextWindow | None,
        summary: ArchivalSummary,
    ) -> str:
        """Returns a system message from its parts, dated now."""
        zone = ZoneInfo(agent.time_zone)
        previous = window.agent_message_count - len(window.messages) if window else 0
        metadata = metadata_section(
            identity_lines(agent, conversation_id),
            self._clock.now().astimezone(zone).date(),
            core.updated_at.astimezone(zone) if core.updated_at else None,
            max(previous, 0),
            summary.passage_count,
            summary.tags,
        )
        return compose(template, memory, metadata)

    def _messages(
        self, context: TurnContext, state: TurnState, system_text: str | None, notes: tuple[str, ...]
    ) -> tuple[Message, ...]:
        return (
            *_with_skills(state.window.with_system(system_text), context.run.config.client_skills).messages,
            *state.pending,
            *(self._note(context, state, note, index) for index, note in enumerate(notes)),
        )

    def _note(self, context: TurnContext, state: TurnState, text: str, index: int) -> Message:
        now = self._clock.now()
        return Message(
            id=derive_id("message", context.run.id, "note", str(state.step_number), str(index)),
            role=Role.USER,
            created_at=now,
            content=(TextPart(system_alert(text, now, context.agent.time_zone)),),
            is_event=True,
        )


def _request(
    context: TurnContext, state: TurnState, schemas: tuple[ToolSchema, ...], messages: tuple[Message, ...]
) -> LlmRequest:
    model, policy, format_ = state.model, context.policy, context.response_format
    settings = model.settings
    return LlmRequest(
        model=model.info,
        settings=settings,
        messages=messages,
        time_zone=context.agent.time_zone,
        tools=schemas,
        tool_choice=_tool_choice(context, state, schemas),
        parameters=context.run.config.parameters,
        parallel_tool_calls=bool(settings.parallel_tool_calls)
        and not policy.requires_tool_call
        and state.solver.permits_parallel_calls,
        inner_thoughts=bool(settings.inner_thoughts_in_kwargs),
        response_format=format_ if format_ and not policy.requires_tool_call else ResponseFormat(),
        tool_return_char_limit=return_limit(model.prompt_limit),
    )


def _with_skills(window: ContextWindow, skills: tuple[ClientSkill, ...]) -> ContextWindow:
    if not skills:
        return window
    return window.with_system(f"{window.messages[0].text}\n\n{skills_section(skills)}")


def _memory_section(context: TurnContext, state: TurnState) -> str:
    return memory_section(
        state.core,
        state.solver.prompt(),
        state.directories,
        numbered=shows_line_numbers(context.agent.type, state.model.info.provider),
        show_blocks=context.spec.shows_blocks,
    )


def return_limit(prompt_limit: int) -> int:
    """Returns the number of characters that a request contains of a tool return."""
    return max(_TOOL_RETURN_FLOOR, int(prompt_limit * _TOOL_RETURN_SHARE * _CHARACTERS_PER_TOKEN))


def _tool_choice(context: TurnContext, state: TurnState, schemas: tuple[ToolSchema, ...]) -> ToolChoice:
    if not schemas:
        return ToolChoice()
    is_forced = state.solver.must_call()
    if is_forced and len(schemas) == 1:
        return ToolChoice(ToolChoiceKind.NAMED, schemas[0].name)
    config = context.run.config
    if any(schema.name == config.forced_tool for schema in schemas):
        return ToolChoice(ToolChoiceKind.NAMED, config.forced_tool or "")
    is_required = is_forced or config.requires_tool or context.policy.requires_tool_call
    return ToolChoice(ToolChoiceKind.REQUIRED if is_required else ToolChoiceKind.AUTO)
