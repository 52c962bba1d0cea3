"""Summarizers: a model that reads a transcript, or the agent's own model in its own context."""

import asyncio
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import urlsplit

import structlog
from mnemesh_kit.clock import Clock
from mnemesh_kit.errors import MnemeshError
from mnemesh_kit.ids import derive_id
from mnemesh_types.messages import Message, Role, TextPart

from mnemesh_orchestrator.compaction.chunked_summary import MIN_CAPACITY, MOST_PARTS, ChunkedReader, part_capacity
from mnemesh_orchestrator.compaction.port import (
    ModelCatalog,
    OrganizationModels,
    Summary,
    SummaryFailed,
    SummaryRequest,
)
from mnemesh_orchestrator.compaction.prompts import summary_prompt
from mnemesh_orchestrator.compaction.transcript import SUMMARY_NOTE, pieces, transcript, with_notes
from mnemesh_orchestrator.llm.errors import (
    ContextOverflow,
    ModelUnknown,
    ProviderBadAnswer,
    ProviderContentFilter,
    ProviderError,
)
from mnemesh_orchestrator.llm.history import arguments_object
from mnemesh_orchestrator.llm.port import AnsweredCall, LlmAnswer, LlmClient, LlmRequest, ToolChoice, ToolChoiceKind
from mnemesh_orchestrator.model.compaction import CompactionSettings
from mnemesh_orchestrator.model.models import ModelInfo, ModelSettings, ResponseFormat

_log = structlog.get_logger("mnemesh.compaction")

PROVIDER_DEFAULTS: Final = {
    "anthropic": "anthropic/claude-haiku-4-5",
    "openai": "openai/gpt-5-mini",
    "google_ai": "google_ai/gemini-2.5-flash",
}
"""The summary model of a provider's own service. A server that only speaks its API has no such model."""

_OWN_SERVICES: Final = (".anthropic.com", ".openai.com", ".googleapis.com")

CALL_SECONDS: Final = 120.0
_ROOM: Final = 0.8
_CHARACTERS_PER_TOKEN: Final = 3
"""The ratio for notes, which may be in any language."""
_SPEECH: Final = "send_message"
_PLAINLY: Final = "call no tool; answer with the notes as plain text."
_BY_TOOL: Final = f"give the notes to {_SPEECH}, as plain text, and call no other tool. Nobody else will read them."
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

    async def write(self, task: SummaryRequest, down: set[str]) -> Summary:
        """See Summarizer."""
        why = "no model can summarise"
        for summary_model in await summary_models(self.models, task):
            handle = summary_model.info.handle
            if handle in down:
                why = f"{handle} does not answer"
                continue
            try:
                return _written(await self._ask(task, summary_model))
            except SummaryFailed as error:
                why = str(error)
                if error.is_down:
                    down.add(handle)
        raise SummaryFailed(why)

    async def _ask(self, task: SummaryRequest, summary_model: SummaryModel) -> str:
        """Returns notes on all messages that leave.

        If they exceed one request, the notes on a part go into the next one.
        """
        capacity = transcript_capacity(task, summary_model, transcript(task.plan.evicted))
        lines = pieces(task.plan.evicted, max(MIN_CAPACITY, capacity // 4), MOST_PARTS * part_capacity(capacity))
        found = ""

        async def ask(start: int, end: int, limit: int) -> None:
            nonlocal found
            is_whole = (start, end) == (0, len(lines))
            # The notes must fit with the next part.
            asked = task if is_whole else replace(task, tokens=min(task.tokens, limit // 3 // _CHARACTERS_PER_TOKEN))
            text = with_notes(found, "\n".join(lines[start:end]), limit)
            request = summary_model_request(asked, summary_model, text)
            found = await said(summary_model.client, request, self.call_seconds)

        if not lines:
            raise SummaryFailed("the messages that leave contain no text")
        await ChunkedReader(self.clock, self.call_seconds).read([len(line) + 1 for line in lines], capacity, ask)
        return found


@dataclass(slots=True)
class SelfSummarizer:
    """Asks the agent's own model in the agent's own context, so that the provider has most of the request in its cache.

    System message, tools and history are those of the agent's requests, to the byte. The instruction follows as one
    more message. Providers drop cached messages if the tool choice changes, so an agent that must answer with a tool
    writes its notes with the tool that speaks to users.
    """

    models: ModelCatalog
    call_seconds: float = CALL_SECONDS

    async def write(self, task: SummaryRequest, down: set[str]) -> Summary:
        """See Summarizer."""
        occasion = task.occasion
        info, client = occasion.request.model, occasion.client
        if occasion.settings.model is not None and occasion.settings.model != info.handle:
            try:
                info, client = await self.models.resolve(occasion.organization_id, occasion.settings.model)
            except ModelUnknown as error:
                raise SummaryFailed(error.message) from error
        if info.handle in down or info.api == "rehearsal":
            raise SummaryFailed(f"{info.handle} cannot be called")
        request = self._request(task, info)
        if info == occasion.request.model and occasion.measure(request) > occasion.sizes.limit:
            raise SummaryFailed(f"{info.handle} does not accept the agent's context")
        try:
            return _written(await said(client, request, self.call_seconds))
        except ContextOverflow as error:
            raise SummaryFailed(error.message) from error
        except SummaryFailed as error:
            if error.is_down:
                down.add(info.handle)
            raise

    def _request(self, task: SummaryRequest, info: ModelInfo) -> LlmRequest:
        occasion = task.occasion
        settings = occasion.request.settings
        if occasion.settings.model_settings is not None:
            settings = occasion.settings.model_settings.over(settings)
        history, choice = occasion.request.messages[: task.plan.end], _choice(occasion.request)
        return replace(
            occasion.request,
            model=info,
            settings=settings,
            messages=(*history, aside(Role.SYSTEM, _told(task, choice), task)),
            tool_choice=choice,
            response_format=ResponseFormat(),
        )


def _choice(request: LlmRequest) -> ToolChoice:
    """Returns the tool choice of the agent's own requests if notes can be written with it, otherwise no tool."""
    choice = request.tool_choice
    can_speak = any(tool.name == _SPEECH for tool in request.tools)
    return choice if can_speak and choice.name in (None, _SPEECH) else ToolChoice()


def _told(task: SummaryRequest, choice: ToolChoice) -> str:
    """Returns the instruction, with the tool to answer with if one is required."""
    told = prompt_of(task)
    if choice.kind is ToolChoiceKind.AUTO:
        return told.replace("{ANSWER}", _PLAINLY)
    if task.occasion.settings.prompt:
        return f"{told}\n\nTo answer, {_BY_TOOL}"
    return told.replace("{ANSWER}", _BY_TOOL)


def require_summary_model(offer: OrganizationModels, settings: CompactionSettings | None) -> None:
    """Raises ModelUnknown if settings name a summary model that no provider serves."""
    if settings is not None and settings.model is not None:
        offer.resolve(settings.model)


async def summary_models(models: ModelCatalog, task: SummaryRequest) -> tuple[SummaryModel, ...]:
    """Returns the models that may be called: the configured one or the provider's default, then the agent's own."""
    request, given = task.occasion.request, task.occasion.settings.model_settings or ModelSettings()
    own = request.model
    handle = task.occasion.settings.model or _default_for(own)
    found: list[SummaryModel] = []
    if handle is not None and handle != own.handle:
        try:
            info, client = await models.resolve(task.occasion.organization_id, handle)
        except ModelUnknown:
            _log.warning("summary_model_unknown", model=handle)
        else:
            found.append(SummaryModel(info, given.over(info.defaults), client))
    if own.api != "rehearsal":
        # The model is called as the agent calls it: its window may be known to the agent only.
        found.append(SummaryModel(own, given.over(request.settings), task.occasion.client))
    return tuple(found)


def transcript_capacity(task: SummaryRequest, summary_model: SummaryModel, text: str) -> int:
    """Returns the maximum characters of a text for a summary model, from the estimated tokens of the text.

    A fifth of the space besides prompt and answer is reserved for errors of the estimate.
    """
    window = summary_model.settings.context_window or summary_model.info.context_window
    left = window - min(task.tokens, window // 2) - task.occasion.tokens(prompt_of(task))
    return max(MIN_CAPACITY, int(_ROOM * left * len(text) / max(1, task.occasion.tokens(text))))


def summary_model_request(task: SummaryRequest, summary_model: SummaryModel, text: str) -> LlmRequest:
    """Returns the request to a summary model: the prompt, and a text to read."""
    words = [aside(Role.USER, text, task)]
    if task.occasion.settings.prompt_acknowledgement:
        words.insert(0, aside(Role.ASSISTANT, _ACKNOWLEDGEMENT, task))
    return LlmRequest(
        model=summary_model.info,
        settings=summary_model.settings,
        messages=(aside(Role.SYSTEM, prompt_of(task), task), *words),
        time_zone=task.occasion.request.time_zone,
        is_verbatim=True,
    )


def _default_for(own: ModelInfo) -> str | None:
    host = urlsplit(own.endpoint).hostname or "" if own.endpoint is not None else None
    is_own_service = host is None or host.endswith(_OWN_SERVICES)
    return PROVIDER_DEFAULTS.get(own.provider) if is_own_service else None


def prompt_of(task: SummaryRequest) -> str:
    """Returns the prompt of the summary: the agent's own, or the mode's."""
    prompt = task.occasion.settings.prompt
    return prompt if prompt else summary_prompt(task.mode).replace("{WORDS}", str(max(40, task.tokens * 3 // 5)))


async def said(client: LlmClient, request: LlmRequest, seconds: float) -> str:
    """Returns the text that a model answers within a time limit.

    Raises:
        ContextOverflow: the request is too long for the model.
        SummaryFailed: the model did not answer, or returned no text.
    """
    handle = request.model.handle
    try:
        async with asyncio.timeout(seconds), aclosing(client.stream(request)) as events:  # type: ignore[type-var]
            answers = [event async for event in events if isinstance(event, LlmAnswer)]
    except ContextOverflow:
        raise
    except TimeoutError as error:
        raise SummaryFailed(f"{handle} took longer than {seconds:g} s", is_down=True) from error
    except (ProviderBadAnswer, ProviderContentFilter) as error:
        raise SummaryFailed(error.message) from error
    except (ProviderError, MnemeshError) as error:
        raise SummaryFailed(error.message, is_down=True) from error
    text = "\n".join(_words(answer) for answer in answers).replace("\0", "�").strip()
    if not text:
        raise SummaryFailed(f"{handle} returned no text")
    return text


def _words(answer: LlmAnswer) -> str:
    spoken = "\n".join(filter(None, map(_spoken, answer.tool_calls)))
    # If a tool speaks, plain text is a thought.
    return spoken or "\n".join(part.text for part in answer.content if isinstance(part, TextPart))


def _spoken(call: AnsweredCall) -> str:
    arguments = arguments_object(call.arguments)
    words = arguments.get("message") if call.name == _SPEECH else None
    return words if isinstance(words, str) else ""


def _written(summary: str) -> Summary:
    return Summary(SUMMARY_NOTE + summary, summary)


def aside(role: Role, text: str, task: SummaryRequest) -> Message:
    """Returns a message to a summary model. It is not stored."""
    newest = task.plan.evicted[-1]
    return Message(
        id=derive_id("message", newest.id, "summarise", role.value, text),
        role=role,
        created_at=newest.created_at,
        content=(TextPart(text),),
    )
