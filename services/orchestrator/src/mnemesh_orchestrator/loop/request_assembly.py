"""The request of each step: its messages, tools and images, and the budget that they must fit into."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

import msgspec
import structlog
from mnemesh_kit.errors import NotFound
from mnemesh_kit.ids import derive_id
from mnemesh_kit.time import Clock
from mnemesh_types.agents import CompactionSettings
from mnemesh_types.archival import ArchivalSummary
from mnemesh_types.messages import ContentPart, ImagePart, Message, Role, TextPart, ToolReturn, ToolStatus

from mnemesh_orchestrator.clients.files import FilesClient
from mnemesh_orchestrator.compaction.compactor import MIN_GAIN
from mnemesh_orchestrator.compaction.planner import Measured, TokenEstimator, trigger_ratio, trigger_tokens, turn_start
from mnemesh_orchestrator.errors import ContextWindowOverflow, SystemPromptOverflow
from mnemesh_orchestrator.llm.errors import ProviderRefused
from mnemesh_orchestrator.llm.port import LlmRequest, ToolChoice, ToolChoiceKind
from mnemesh_orchestrator.llm.provider import reads_images
from mnemesh_orchestrator.loop.services import ContextReader, OptionalServices
from mnemesh_orchestrator.loop.state import StepState, TokenCounts, TurnContext, TurnState
from mnemesh_orchestrator.model.agents import Agent, PromptPolicy, shows_line_numbers
from mnemesh_orchestrator.model.conversations import ContextWindow, open_request
from mnemesh_orchestrator.model.core_memory import CoreMemory
from mnemesh_orchestrator.model.files import MAX_SHOWN_BYTES, MAX_SHOWN_IMAGES, ImageFile, refused_image
from mnemesh_orchestrator.model.inputs import ClientSkill
from mnemesh_orchestrator.model.models import ResponseFormat, ToolSchema
from mnemesh_orchestrator.model.runs import StopReason
from mnemesh_orchestrator.prompt.assembly import (
    compose,
    identity_lines,
    memory_section,
    metadata_section,
    shows,
    skills_section,
    system_alert,
)

IMAGES_OF_FILES: Final = "The images of your files"
_BLIND: Final = "[An image is not shown, because the model reads text only.]"
_FAILED: Final = "[An image is not shown, because the call failed.]"
_EARLIER: Final = "[An image was shown here. Only the latest images are shown: call the tool again to see it.]"
_GONE: Final = "[The image is not shown, because its file was deleted or changed.]"
_UNREACHABLE: Final = "[The image is not shown, because the files service cannot be reached.]"
_KEPT_BYTES: Final = 48_000_000
_KEPT_FOR: Final = timedelta(minutes=1)
"""The age at which an image is read again, so that a deleted or changed file is soon gone from requests too."""

_TOOL_RETURN_FLOOR = 5_000
_TOOL_RETURN_SHARE = 0.2
_CHARACTERS_PER_TOKEN = 4

_log = structlog.get_logger("mnemesh.loop")

MAX_COMPACTIONS: Final = 3
"""Compactions of the window for one request, and for requests that the provider refuses."""
SHORT_RETURN: Final = 600
"""The characters that remain of a return of the current turn if the turn alone does not fit."""
_SHARE_AFTER_REFUSAL: Final = 0.75
"""The share of a refused request that the next request may take."""
_NEAR_SHARE: Final = 0.7
"""The share of the window from which on a refusal without a known cause may be one for the length."""
_LEAST_GAIN_SHARE: Final = 0.01
"""The least gain of a compaction, as a share of the limit, if the request would also fit without it."""
_KEPT_CORRECTIONS: Final = 8
"""The number of models of one agent whose corrections are stored: those that it used last."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """An image as it was read; None if it cannot be shown."""

    image: ImageFile | None
    read_at: datetime


class RequestImages:
    """Prepares the images of tool returns for requests to models. Keeps the images of files that it read last."""

    def __init__(self, files: FilesClient, optional: OptionalServices, clock: Clock) -> None:
        self._files = files
        self._optional = optional
        self._clock = clock
        self._kept: OrderedDict[tuple[str, str], _Kept] = OrderedDict()
        self._size = 0

    async def prepare(
        self, messages: Sequence[Message], organization_id: str, *, reads_images: bool
    ) -> tuple[Message, ...]:
        """Returns the messages with inline images in their tool returns. Notes replace images that are not shown.

        Args:
            messages: the messages of a request.
            organization_id: the organization of the agent.
            reads_images: whether the model accepts images.
        """
        with_images = [
            index
            for index, message in enumerate(messages)
            if message.tool_returns and any(map(_has_images, message.tool_returns))
        ]
        prepared, room = list(messages), _Room()
        for index in reversed(with_images):
            message = prepared[index]
            shown = [
                await self._read_returned(returned, organization_id, room, reads_images=reads_images)
                for returned in reversed(message.tool_returns)
            ]
            prepared[index] = replace(message, tool_returns=tuple(reversed(shown)))
        return tuple(prepared)

    async def _read_returned(
        self, returned: ToolReturn, organization_id: str, room: "_Room", *, reads_images: bool
    ) -> ToolReturn:
        content: list[ContentPart] = []
        for part in reversed(returned.content):
            if not isinstance(part, ImagePart):
                content.append(part)
            elif not reads_images:
                content.append(TextPart(_BLIND))
            elif returned.status is ToolStatus.ERROR:
                content.append(TextPart(_FAILED))  # An API refuses images in the return of a call that failed.
            elif room.is_full:
                content.append(TextPart(_EARLIER))
            else:
                content.append(room.taken(await self._inline(part, organization_id)))
        return msgspec.structs.replace(returned, content=tuple(reversed(content)))

    async def _inline(self, part: ImagePart, organization_id: str) -> ImagePart | TextPart:
        if part.file_id is None:
            problem = None if part.data is None else refused_image(part.media_type or "", len(part.data))
            return part if problem is None else TextPart(problem)
        key, now = (organization_id, part.file_id), self._clock.now()
        known = self._kept.get(key)
        if known is None or now - known.read_at > _KEPT_FOR:
            file_id = part.file_id
            found, _ = await self._optional.call(lambda: self._read(file_id, now), IMAGES_OF_FILES)
            if found is None:
                return TextPart(_UNREACHABLE)
            self._keep(key, found)
            known = found
        image = known.image
        return TextPart(_GONE) if image is None else ImagePart(image.data, image.media_type, detail=part.detail)

    async def _read(self, file_id: str, now: datetime) -> _Kept:
        try:
            return _Kept(await self._files.image(file_id), now)
        except NotFound:
            return _Kept(None, now)

    def _keep(self, key: tuple[str, str], kept: _Kept) -> None:
        self._size += _size(kept) - (_size(self._kept.pop(key)) if key in self._kept else 0)
        self._kept[key] = kept
        while self._size > _KEPT_BYTES:
            _, dropped = self._kept.popitem(last=False)
            self._size -= _size(dropped)


class _Room:
    """The images that a request still has room for, latest first."""

    def __init__(self) -> None:
        self._count = 0
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        return self._count >= MAX_SHOWN_IMAGES or self._bytes >= MAX_SHOWN_BYTES

    def taken(self, part: ImagePart | TextPart) -> ImagePart | TextPart:
        """Returns a part whose image takes its room, or a note if it is too large for it."""
        size = len(part.data or b"") if isinstance(part, ImagePart) else 0
        if self._bytes + size > MAX_SHOWN_BYTES:
            self._bytes = MAX_SHOWN_BYTES
            return TextPart(_EARLIER)
        self._count += isinstance(part, ImagePart)
        self._bytes += size
        return part


def _has_images(returned: ToolReturn) -> bool:
    return ImagePart in map(type, returned.content)


def _size(kept: _Kept) -> int:
    return 1_000 + (0 if kept.image is None else len(kept.image.data))


@dataclass(frozen=True, slots=True)
class Assembled:
    """A request, and the new text of the system message or None if it did not change."""

    request: LlmRequest
    system_text: str | None


@dataclass(frozen=True, eq=False)
class RequestAssembler:
    """Assembles requests. Asks for the size of archival memory only if the system message changes."""

    context: ContextReader
    images: RequestImages
    clock: Clock

    async def assemble(self, context: TurnContext, state: TurnState, notes: tuple[str, ...] = ()) -> Assembled:
        """Returns the request of the next step, whether or not it fits the model's window.

        Args:
            notes: notes for the model in addition to those of the turn.
        """
        toolbox, solver = context.toolbox, state.solver
        schemas = toolbox.offered(solver.allowed(toolbox.names))
        system_text, note = await self._render_changed_system(context, state)
        notes = (*state.notes, *notes, *((note,) if note else ()))
        messages = await self.images.prepare(
            self._messages(context, state, system_text, notes),
            context.run.organization_id,
            reads_images=reads_images(state.model.info),
        )
        return Assembled(_request(context, state, schemas, messages), system_text)

    async def _render_changed_system(self, context: TurnContext, state: TurnState) -> tuple[str | None, str]:
        """Returns the new system message if the stored one does not show the current memory, and a note."""
        agent, override = context.agent, context.run.config.override_system
        template = override or agent.system
        memory = _memory_section(context, state)
        is_frozen = agent.prompt_policy is PromptPolicy.CACHE and override is None
        identity = identity_lines(agent, context.run.conversation_id)
        if is_frozen or shows(state.window.messages[0].text, template, memory, identity):
            return None, ""
        summary, note = await self.context.archival_summary(agent.id)
        return self.render_system(
            agent, context.run.conversation_id, template, memory, state.core, state.window, summary
        ), note

    async def new_system_text(self, context: TurnContext, state: TurnState, window: ContextWindow) -> str:
        """Returns the system message that is stored with another window of the turn's conversation."""
        agent = context.agent
        summary, _ = await self.context.archival_summary(agent.id)
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
            self.clock.now().astimezone(zone).date(),
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
        now = self.clock.now()
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


class ContextBudget:
    """Decides whether a turn's requests fit the window of its model."""

    def __init__(self, estimator: TokenEstimator) -> None:
        self._estimator = estimator

    def measure(self, context: TurnContext, request: LlmRequest) -> Measured:
        """Returns the estimated tokens of a request."""
        return self._estimator.request(context.agent, request)

    def is_within_trigger(self, context: TurnContext, state: TurnState, measured: Measured) -> bool:
        """Returns whether a request fits and does not ask for a compaction before it is sent."""
        fits = measured.total <= limit(state)
        return fits and (context.policy.compacts_late or measured.total < trigger(context, state))

    def is_due(self, context: TurnContext, state: TurnState, step: StepState, stop: StopReason | None) -> bool:
        """Returns whether a compaction follows this step, by the tokens that the provider counted.

        The answer is journalled first in that case, so that the compaction also takes place after a crash.
        """
        # The usage of a step whose model was called more than once is a sum.
        reported = state.tokens.reported or step.given.usage.prompt_tokens
        if reported is None or reported < trigger(context, state) or (stop is None and context.policy.compacts_late):
            return False
        entries = context.journal.entries.values()
        return not any(
            entry.compaction is not None and entry.compaction.after_step
            for entry in entries
            if entry.step_id == step.id
        )

    def learn(self, context: TurnContext, state: TurnState, reported: int | None) -> TokenCounts:
        """Returns the counts after the provider reported the tokens of the request that was measured last."""
        return self._learn(context, state, replace(state.tokens, reported=reported), reported)

    def _learn(self, context: TurnContext, state: TurnState, tokens: TokenCounts, counted: int | None) -> TokenCounts:
        agent, handle = context.agent, state.model.info.handle
        correction = self._estimator.update_correction(agent, handle, tokens.estimate, counted)
        if correction is None:
            return tokens
        known = {item.model: item for item in tokens.corrections or agent.corrections}
        known.pop(handle, None)
        return replace(tokens, corrections=(*known.values(), correction)[-_KEPT_CORRECTIONS:])

    def is_near_limit(self, context: TurnContext, state: TurnState) -> bool:
        """Returns whether the request that was measured last takes most of the model's window."""
        corrected = self._estimator.corrected(context.agent, state.model.info.handle, state.tokens.estimate)
        return corrected >= _NEAR_SHARE * state.model.prompt_limit

    def refuse(self, context: TurnContext, state: TurnState, error: ProviderRefused) -> TokenCounts:
        """Returns the counts after the provider refused a request as too long. The next requests stay well below it."""
        counts, share = state.tokens, _SHARE_AFTER_REFUSAL
        counted, allowed = (_number(error, name) for name in ("tokens", "limit"))
        if counted and allowed:
            counts = self._learn(context, state, counts, counted)
            share = min(share, 0.9 * allowed / counted)
        corrected = self._estimator.corrected(context.agent, state.model.info.handle, counts.estimate)
        counts = replace(counts, ceiling=int(corrected * share))
        _log.warning("request_refused_as_too_long", run_id=context.run.id, next_limit=counts.ceiling)
        return counts

    def clip_returns(
        self, context: TurnContext, state: TurnState, request: LlmRequest, measured: Measured
    ) -> LlmRequest:
        """Returns the request with returns of the current turn cut short: the oldest first, as many as necessary.

        Raises:
            ContextWindowOverflow: the request does not fit with short returns either.
        """
        messages, total, most = list(request.messages), measured.total, limit(state)
        for index in range(start_of_turn(context, state), len(state.window.messages)):
            if total <= most:
                break
            messages[index] = _with_short_returns(messages[index])
            clipped = self._estimator.messages(context.agent, state.model.info.handle, messages[index : index + 1])
            total += clipped[0] - measured.messages[index]
        # A request above the ceiling alone is sent: the provider that refused one may accept it now.
        if total > state.model.longest_prompt:
            raise _overflow(total, state.model.longest_prompt)
        return replace(request, messages=tuple(messages))


def limit(state: TurnState) -> int:
    """Returns the tokens that the next request may take."""
    ceiling, most = state.tokens.ceiling, state.model.prompt_limit
    return most if ceiling is None else min(most, ceiling)


def trigger(context: TurnContext, state: TurnState, settings: CompactionSettings | None = None) -> int:
    """Returns the tokens from which on a compaction starts: the settings' share of the limit."""
    return trigger_tokens(trigger_ratio(settings or context.agent.compaction_settings), limit(state))


def least_gain(state: TurnState, *, fits: bool) -> int | None:
    """Returns the tokens that a compaction before a request has to remove; None if any gain will do."""
    if state.tokens.ceiling is not None:
        return None
    return gain_worth_it(state) if fits else MIN_GAIN


def gain_worth_it(state: TurnState) -> int:
    """Returns the tokens that a compaction has to remove if the request fits without it."""
    return int(state.model.prompt_limit * _LEAST_GAIN_SHARE)


def start_of_turn(context: TurnContext, state: TurnState) -> int:
    """Returns the index of the first message in the window that belongs to the current turn."""
    runs, messages = {context.run.id, *context.run.retried_run_ids}, state.window.messages
    if context.run.resumes is not None and (asking := context.run.resumes.asked.message.run_id) is not None:
        runs.add(asking)  # the answer to an approval belongs to the turn that requested it
    if (waiting := open_request(messages)) is not None and waiting.caller.run_id is not None:
        runs.add(waiting.caller.run_id)
    return turn_start(messages, runs)


def require_space(state: TurnState, measured: Measured, most: int) -> None:
    """Refuses a request that no compaction can shorten to `most` tokens.

    Raises:
        SystemPromptOverflow: the system message and the tools alone do not fit.
        ContextWindowOverflow: they do not fit with the input.
    """
    count = len(state.window.messages)
    fixed = measured.tools + measured.messages[0]
    if fixed > most:
        raise SystemPromptOverflow(
            f"The system prompt and tools take about {fixed} tokens; the model's window leaves {most}.",
            tokens=str(fixed),
            limit=str(most),
        )
    least = fixed + sum(measured.messages[count:])
    if least > most:
        raise _overflow(least, most)


def _overflow(tokens: int, most: int) -> ContextWindowOverflow:
    return ContextWindowOverflow(
        f"The next request would take about {tokens} tokens; the model's window leaves {most}, and nothing more can "
        "be taken away. Send less at once, or give the agent a larger context_window.",
        tokens=str(tokens),
        limit=str(most),
    )


def _with_short_returns(message: Message) -> Message:
    returns = tuple(
        item.with_text(f"{item.text[:SHORT_RETURN]}… [{left} more characters are left out of this request]")
        if (left := len(item.text) - SHORT_RETURN) > 0
        else item
        for item in message.tool_returns
    )
    return replace(message, tool_returns=returns) if returns else message


def _number(error: ProviderRefused, name: str) -> int:
    text = error.metadata.get(name, "")
    return int(text) if text.isdigit() else 0
