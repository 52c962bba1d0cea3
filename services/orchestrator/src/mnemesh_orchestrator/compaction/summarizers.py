"""Summarizers: a model that reads a transcript, or the agent's own model in its own context."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import urlsplit

import structlog
from mnemesh_kit.ids import derive_id
from mnemesh_kit.time import Clock
from mnemesh_types.agents import ModelSettings
from mnemesh_types.messages import Message, Role, TextPart

from mnemesh_orchestrator.compaction.planner import Summary, SummaryFailed, SummaryRequest
from mnemesh_orchestrator.compaction.prompts import summary_prompt
from mnemesh_orchestrator.compaction.transcript import (
    SEND_MESSAGE,
    SUMMARY_NOTE,
    complete_text,
    transcript,
    transcript_lines,
    with_notes,
)
from mnemesh_orchestrator.llm.errors import ContextOverflow, ModelUnknown
from mnemesh_orchestrator.llm.model_catalog import ModelCatalog
from mnemesh_orchestrator.llm.port import LlmClient, LlmRequest, ToolChoice, ToolChoiceKind
from mnemesh_orchestrator.model.models import ModelInfo, ResponseFormat, settings_over

_log = structlog.get_logger("mnemesh.compaction")

MAX_PARTS: Final = 8
MIN_CAPACITY: Final = 2_000
"""The number of characters that any summary model is assumed to accept."""
_MAX_HALVINGS: Final = 3

ReadPart = Callable[[int, int, int], Awaitable[None]]
"""Reads one part: the items from one index to another, in at most so many characters."""

PROVIDER_DEFAULTS: Final = {
    "anthropic": "anthropic/claude-haiku-5-5",
    "openai": "openai/gpt-6-luna",
    "google_ai": "google_ai/gemini-2.5-flash",
}
"""The summary model of a provider's own service. A server that only speaks its API has no such model."""

_OWN_SERVICES: Final = (".anthropic.com", ".openai.com", ".googleapis.com")

CALL_SECONDS: Final = 120.0
_USABLE_SHARE: Final = 0.8
_CHARACTERS_PER_TOKEN: Final = 3
"""The ratio for notes, which may be in any language."""
_ANSWER_AS_TEXT: Final = "call no tool; answer with the notes as plain text."
_ANSWER_BY_TOOL: Final = (
    f"give the notes to {SEND_MESSAGE}, as plain text, and call no other tool. The user does not see them."
)
_ACKNOWLEDGEMENT: Final = "Understood. I will answer with the notes alone."


@dataclass(frozen=True, slots=True)
class ChunkedReader:
    """The time limit of reading. No part is started that could not finish, with the rest, within two calls."""

    clock: Clock
    call_seconds: float

    async def read(self, sizes: Sequence[int], capacity: int, read_part: ReadPart) -> None:
        """Reads items of these sizes (in characters) in order, all at once if they fit into `capacity`.

        Each part is requested once. If the provider finds it too long, it and the rest are cut smaller. If a part
        returns nothing, or time is short, the rest is one part, from which `ask` leaves out what is too much.

        Raises:
            SummaryFailed: the last part returned nothing, the provider accepts no part however short, or the model is
                down.
        """
        started_at, slowest = self.clock.monotonic(), 0.0
        done = parts = overflows = 0
        is_hurried = False
        while done < len(sizes):
            end = len(sizes) if is_hurried else _end(sizes, done, capacity)
            part_started_at = self.clock.monotonic()
            try:
                await read_part(done, end, capacity)
            except ContextOverflow as error:
                overflows += 1
                if overflows == _MAX_HALVINGS:
                    raise SummaryFailed("the provider accepts no transcript, however short") from error
                capacity = max(MIN_CAPACITY, min(capacity, sum(sizes[done:end])) // 2)
                continue
            except SummaryFailed as error:
                if error.is_down or end == len(sizes):
                    raise
                _log.warning("summary_part_failed", why=str(error))
                is_hurried = True
                continue
            now = self.clock.monotonic()
            done, parts, slowest = end, parts + 1, max(slowest, now - part_started_at)
            is_late = now - started_at + 2 * slowest > 2 * self.call_seconds
            is_hurried = is_hurried or is_late or parts == MAX_PARTS - 1


def part_capacity(capacity: int) -> int:
    """Returns the number of characters of a part that leaves space for notes on the parts before it."""
    return capacity * 3 // 5


def _end(sizes: Sequence[int], start: int, capacity: int) -> int:
    """Returns the end index of the part that starts at `start`: as much of the rest as fits.

    If there would be too many parts, each is larger than `capacity`.
    """
    part = part_capacity(capacity)
    if sum(sizes[start:]) <= (part if start else capacity):
        return len(sizes)
    part = max(part, sum(sizes) // MAX_PARTS + 1)
    end, size = start + 1, sizes[start]
    while end < len(sizes) and size + sizes[end] <= part:
        size += sizes[end]
        end += 1
    return end


@dataclass(frozen=True, slots=True)
class SummaryModel:
    """A model that reads a transcript, with its settings and client."""

    info: ModelInfo
    settings: ModelSettings
    client: LlmClient


@dataclass(slots=True)
class TranscriptSummarizer:
    """Summarizes a transcript with the configured model, the provider's default, or the agent's own, in this order."""

    models: ModelCatalog
    clock: Clock
    call_seconds: float = CALL_SECONDS

    async def summarize(self, request: SummaryRequest, down: set[str]) -> Summary:
        problem = "no model can write a summary"
        for summary_model in await summary_models(self.models, request):
            handle = summary_model.info.handle
            if handle in down:
                problem = f"{handle} does not answer"
                continue
            try:
                return _summary(await self._summarize_with(request, summary_model))
            except SummaryFailed as error:
                problem = str(error)
                if error.is_down:
                    down.add(handle)
        raise SummaryFailed(problem)

    async def _summarize_with(self, request: SummaryRequest, summary_model: SummaryModel) -> str:
        """Returns notes on all messages that leave.

        If they exceed one request, the notes on a part go into the next one.
        """
        capacity = transcript_capacity(request, summary_model, transcript(request.cut.evicted))
        lines = transcript_lines(
            request.cut.evicted, max(MIN_CAPACITY, capacity // 4), MAX_PARTS * part_capacity(capacity)
        )
        notes = ""

        async def read_part(start: int, end: int, limit: int) -> None:
            nonlocal notes
            is_whole = (start, end) == (0, len(lines))
            # The notes must fit with the next part.
            tokens = request.tokens if is_whole else min(request.tokens, limit // 3 // _CHARACTERS_PER_TOKEN)
            text = with_notes(notes, "\n".join(lines[start:end]), limit)
            llm_request = summary_model_request(replace(request, tokens=tokens), summary_model, text)
            notes = await complete_text(
                request.compaction.on_call, summary_model.client, llm_request, self.call_seconds
            )

        if not lines:
            raise SummaryFailed("the messages that leave contain no text")
        await ChunkedReader(self.clock, self.call_seconds).read([len(line) + 1 for line in lines], capacity, read_part)
        return notes


@dataclass(slots=True)
class SelfSummarizer:
    """Asks the agent's own model in the agent's own context, so that the provider has most of the request in its cache.

    System message, tools and history are those of the agent's requests, to the byte. The instruction follows as one
    more message. Providers drop cached messages if the tool choice changes, so an agent that must answer with a tool
    writes its notes with the tool that speaks to users.
    """

    models: ModelCatalog
    call_seconds: float = CALL_SECONDS

    async def summarize(self, request: SummaryRequest, down: set[str]) -> Summary:
        compaction = request.compaction
        info, client = compaction.llm_request.model, compaction.client
        if compaction.settings.model is not None and compaction.settings.model != info.handle:
            try:
                info, client = await self.models.resolve(compaction.organization_id, compaction.settings.model)
            except ModelUnknown as error:
                raise SummaryFailed(error.message) from error
        if info.handle in down or info.api == "rehearsal":
            raise SummaryFailed(f"{info.handle} cannot be called")
        llm_request = self._llm_request(request, info)
        if info == compaction.llm_request.model and compaction.request_tokens(llm_request) > compaction.sizes.limit:
            raise SummaryFailed(f"{info.handle} does not accept the agent's context")
        try:
            return _summary(await complete_text(compaction.on_call, client, llm_request, self.call_seconds))
        except ContextOverflow as error:
            raise SummaryFailed(error.message) from error
        except SummaryFailed as error:
            if error.is_down:
                down.add(info.handle)
            raise

    def _llm_request(self, request: SummaryRequest, info: ModelInfo) -> LlmRequest:
        compaction = request.compaction
        settings = compaction.llm_request.settings
        if compaction.settings.model_settings is not None:
            settings = settings_over(compaction.settings.model_settings, settings)
        history, choice = compaction.llm_request.messages[: request.cut.end], _tool_choice(compaction.llm_request)
        return replace(
            compaction.llm_request,
            model=info,
            settings=settings,
            messages=(*history, instruction_message(Role.SYSTEM, _instruction(request, choice), request)),
            tool_choice=choice,
            response_format=ResponseFormat(),
        )


def _tool_choice(request: LlmRequest) -> ToolChoice:
    """Returns the tool choice of the agent's own requests if notes can be written with it, otherwise no tool."""
    choice = request.tool_choice
    can_speak = any(tool.name == SEND_MESSAGE for tool in request.tools)
    return choice if can_speak and choice.name in (None, SEND_MESSAGE) else ToolChoice()


def _instruction(request: SummaryRequest, choice: ToolChoice) -> str:
    """Returns the instruction, with the tool to answer with if one is required."""
    instruction = prompt_for(request)
    if choice.kind is ToolChoiceKind.AUTO:
        return instruction.replace("{ANSWER}", _ANSWER_AS_TEXT)
    if request.compaction.settings.prompt:
        return f"{instruction}\n\nTo answer, {_ANSWER_BY_TOOL}"
    return instruction.replace("{ANSWER}", _ANSWER_BY_TOOL)


async def summary_models(models: ModelCatalog, request: SummaryRequest) -> tuple[SummaryModel, ...]:
    """Returns the models that may be called: the configured one or the provider's default, then the agent's own."""
    compaction = request.compaction
    overrides = compaction.settings.model_settings or ModelSettings()
    own = compaction.llm_request.model
    handle = compaction.settings.model or default_summary_model(own)
    candidates: list[SummaryModel] = []
    if handle is not None and handle != own.handle:
        try:
            info, client = await models.resolve(compaction.organization_id, handle)
        except ModelUnknown:
            _log.warning("summary_model_unknown", model=handle)
        else:
            candidates.append(SummaryModel(info, info.effective(overrides), client))
    if own.api != "rehearsal":
        # The model is called as the agent calls it: its window may be known to the agent only.
        candidates.append(
            SummaryModel(own, settings_over(overrides, compaction.llm_request.settings), compaction.client)
        )
    return tuple(candidates)


def transcript_capacity(request: SummaryRequest, summary_model: SummaryModel, text: str) -> int:
    """Returns the maximum characters of a text for a summary model, from the estimated tokens of the text.

    A fifth of the window that prompt and answer leave is reserved for errors of the estimate.
    """
    window = summary_model.settings.context_window or summary_model.info.context_window
    available = window - min(request.tokens, window // 2) - request.compaction.text_tokens(prompt_for(request))
    return max(MIN_CAPACITY, int(_USABLE_SHARE * available * len(text) / max(1, request.compaction.text_tokens(text))))


def summary_model_request(request: SummaryRequest, summary_model: SummaryModel, text: str) -> LlmRequest:
    """Returns the request to a summary model: the prompt, and a text to read."""
    messages = [instruction_message(Role.USER, text, request)]
    if request.compaction.settings.prompt_acknowledgement:
        messages.insert(0, instruction_message(Role.ASSISTANT, _ACKNOWLEDGEMENT, request))
    return LlmRequest(
        model=summary_model.info,
        settings=summary_model.settings,
        messages=(instruction_message(Role.SYSTEM, prompt_for(request), request), *messages),
        time_zone=request.compaction.llm_request.time_zone,
        is_verbatim=True,
    )


def default_summary_model(own: ModelInfo) -> str | None:
    """Returns the small model of the provider that serves a model itself; None for other servers."""
    host = urlsplit(own.endpoint).hostname or "" if own.endpoint is not None else None
    is_own_service = host is None or host.endswith(_OWN_SERVICES)
    return PROVIDER_DEFAULTS.get(own.provider) if is_own_service else None


def prompt_for(request: SummaryRequest) -> str:
    """Returns the prompt of the summary: the agent's own, or the mode's."""
    prompt = request.compaction.settings.prompt
    return prompt if prompt else summary_prompt(request.mode).replace("{WORDS}", str(max(40, request.tokens * 3 // 5)))


def _summary(text: str) -> Summary:
    return Summary(SUMMARY_NOTE + text, text)


def instruction_message(role: Role, text: str, request: SummaryRequest) -> Message:
    """Returns a message of a request for a summary. It is not stored."""
    newest = request.cut.evicted[-1]
    return Message(
        id=derive_id("message", newest.id, "summarise", role.value, text),
        role=role,
        created_at=newest.created_at,
        content=(TextPart(text),),
    )
