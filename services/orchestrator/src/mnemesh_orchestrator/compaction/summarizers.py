"""Summarizers: a model that reads a transcript, or the agent's own model in its own context."""

from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import urlsplit

import structlog
from mnemesh_kit.clock import Clock
from mnemesh_kit.ids import derive_id
from mnemesh_types.messages import Message, Role, TextPart

from mnemesh_orchestrator.compaction.chunked_summary import MAX_PARTS, MIN_CAPACITY, ChunkedReader, part_capacity
from mnemesh_orchestrator.compaction.completion import SEND_MESSAGE, complete_text
from mnemesh_orchestrator.compaction.port import (
    ModelCatalog,
    OrganizationModels,
    Summary,
    SummaryFailed,
    SummaryRequest,
)
from mnemesh_orchestrator.compaction.prompts import summary_prompt
from mnemesh_orchestrator.compaction.transcript import SUMMARY_NOTE, transcript, transcript_lines, with_notes
from mnemesh_orchestrator.llm.errors import (
    ContextOverflow,
    ModelUnknown,
)
from mnemesh_orchestrator.llm.port import LlmClient, LlmRequest, ToolChoice, ToolChoiceKind
from mnemesh_orchestrator.model.compaction import CompactionSettings
from mnemesh_orchestrator.model.memory_extraction import MemoryExtractionSettings
from mnemesh_orchestrator.model.models import ModelInfo, ModelSettings, ResponseFormat

_log = structlog.get_logger("mnemesh.compaction")

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
        """See Summarizer."""
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
        """See Summarizer."""
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
            settings = compaction.settings.model_settings.over(settings)
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


def require_summary_model(
    models: OrganizationModels, settings: CompactionSettings | MemoryExtractionSettings | None
) -> None:
    """Raises ModelUnknown if settings name a model for summaries or facts that no provider serves."""
    if settings is not None and settings.model is not None:
        models.resolve(settings.model)


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
            candidates.append(SummaryModel(info, overrides.over(info.defaults), client))
    if own.api != "rehearsal":
        # The model is called as the agent calls it: its window may be known to the agent only.
        candidates.append(SummaryModel(own, overrides.over(compaction.llm_request.settings), compaction.client))
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
