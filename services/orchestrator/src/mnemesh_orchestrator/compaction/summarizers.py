"""Who writes summaries: a model that reads a transcript, or the agent's own model in its own context."""

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

from mnemesh_orchestrator.compaction.chunked_summary import LEAST_ROOM, MOST_PARTS, Stages, capacity_of
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
"""The summariser of a provider's own service; a server that merely speaks its language has no such model."""

_OWN_SERVICES: Final = (".anthropic.com", ".openai.com", ".googleapis.com")

CALL_SECONDS: Final = 120.0
_ROOM: Final = 0.8
_CHARACTERS_PER_TOKEN: Final = 3
"""Of notes, which may be in any language."""
_SPEECH: Final = "send_message"
_PLAINLY: Final = "call no tool; answer with the notes as plain text."
_BY_TOOL: Final = f"give the notes to {_SPEECH}, as plain text, and call no other tool. Nobody else will read them."
_ACKNOWLEDGEMENT: Final = "Understood. I will answer with the notes alone."


@dataclass(frozen=True, slots=True)
class SummaryModel:
    """A model that reads a transcript, with the settings that it is called by, and who asks it."""

    info: ModelInfo
    settings: ModelSettings
    client: LlmClient


@dataclass(slots=True)
class TranscriptSummarizer:
    """Shows a transcript of what leaves to a summariser: the one that is set, else the provider's, else the agent's."""

    models: ModelCatalog
    clock: Clock
    call_seconds: float = CALL_SECONDS

    async def write(self, task: SummaryRequest, down: set[str]) -> Summary:
        """See Writer."""
        why = "no model can summarise"
        for summariser in await summarisers(self.models, task):
            handle = summariser.info.handle
            if handle in down:
                why = f"{handle} does not answer"
                continue
            try:
                return _written(await self._ask(task, summariser))
            except SummaryFailed as error:
                why = str(error)
                if error.is_down:
                    down.add(handle)
        raise SummaryFailed(why)

    async def _ask(self, task: SummaryRequest, summariser: SummaryModel) -> str:
        """Notes on all that leaves. Where it is too much for one request, those on a part go with the next one."""
        room = room_of(task, summariser, transcript(task.plan.evicted))
        lines = pieces(task.plan.evicted, max(LEAST_ROOM, room // 4), MOST_PARTS * capacity_of(room))
        found = ""

        async def ask(start: int, end: int, limit: int) -> None:
            nonlocal found
            is_whole = (start, end) == (0, len(lines))
            # The notes have to fit beside the next part.
            asked = task if is_whole else replace(task, tokens=min(task.tokens, limit // 3 // _CHARACTERS_PER_TOKEN))
            text = with_notes(found, "\n".join(lines[start:end]), limit)
            request = summariser_request(asked, summariser, text)
            found = await said(summariser.client, request, self.call_seconds)

        if not lines:
            raise SummaryFailed("nothing that leaves has any words")
        await Stages(self.clock, self.call_seconds).read([len(line) + 1 for line in lines], room, ask)
        return found


@dataclass(slots=True)
class SelfSummarizer:
    """Asks the agent's own model in the agent's own context, so that its provider has most of the request cached.

    System message, tools and history are those of the agent's requests, byte for byte; what is asked stands behind
    them as one more message. Providers forget what they have cached of messages where another choice of tools is
    asked for: an agent that has to answer by a tool says its notes by the one that speaks to users.
    """

    models: ModelCatalog
    call_seconds: float = CALL_SECONDS

    async def write(self, task: SummaryRequest, down: set[str]) -> Summary:
        """See Writer."""
        occasion = task.occasion
        info, client = occasion.request.model, occasion.client
        if occasion.settings.model is not None and occasion.settings.model != info.handle:
            try:
                info, client = await self.models.resolve(occasion.organization_id, occasion.settings.model)
            except ModelUnknown as error:
                raise SummaryFailed(error.message) from error
        if info.handle in down or info.api == "rehearsal":
            raise SummaryFailed(f"{info.handle} cannot be asked")
        request = self._request(task, info)
        if info == occasion.request.model and occasion.measure(request) > occasion.sizes.limit:
            raise SummaryFailed(f"{info.handle} does not take the agent's context")
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
    """What the agent's own requests demand, where notes can be said by it; else no tool is."""
    choice = request.tool_choice
    can_speak = any(tool.name == _SPEECH for tool in request.tools)
    return choice if can_speak and choice.name in (None, _SPEECH) else ToolChoice()


def _told(task: SummaryRequest, choice: ToolChoice) -> str:
    """The instruction, with the tool to answer by where one is demanded."""
    told = prompt_of(task)
    if choice.kind is ToolChoiceKind.AUTO:
        return told.replace("{ANSWER}", _PLAINLY)
    if task.occasion.settings.prompt:
        return f"{told}\n\nTo answer, {_BY_TOOL}"
    return told.replace("{ANSWER}", _BY_TOOL)


def require_summariser(offer: OrganizationModels, settings: CompactionSettings | None) -> None:
    """Raises ModelUnknown where settings name a summariser that nobody serves."""
    if settings is not None and settings.model is not None:
        offer.resolve(settings.model)


async def summarisers(models: ModelCatalog, task: SummaryRequest) -> tuple[SummaryModel, ...]:
    """Who may be asked: the one that is set or else the provider's, then the agent's own model."""
    request, given = task.occasion.request, task.occasion.settings.model_settings or ModelSettings()
    own = request.model
    handle = task.occasion.settings.model or _default_for(own)
    found: list[SummaryModel] = []
    if handle is not None and handle != own.handle:
        try:
            info, client = await models.resolve(task.occasion.organization_id, handle)
        except ModelUnknown:
            _log.warning("nobody serves the summariser; the agent's own model is asked", model=handle)
        else:
            found.append(SummaryModel(info, given.over(info.defaults), client))
    if own.api != "rehearsal":
        # It is called as the agent calls it: it may have a window that nobody else knows.
        found.append(SummaryModel(own, given.over(request.settings), task.occasion.client))
    return tuple(found)


def room_of(task: SummaryRequest, summariser: SummaryModel, text: str) -> int:
    """How many characters of a text a summariser is shown at most, by what the text is estimated at.

    A fifth of what its window leaves beside prompt and answer is for what estimates miss.
    """
    window = summariser.settings.context_window or summariser.info.context_window
    left = window - min(task.tokens, window // 2) - task.occasion.tokens(prompt_of(task))
    return max(LEAST_ROOM, int(_ROOM * left * len(text) / max(1, task.occasion.tokens(text))))


def summariser_request(task: SummaryRequest, summariser: SummaryModel, text: str) -> LlmRequest:
    """What a summariser is asked: the prompt, and a text to read."""
    words = [aside(Role.USER, text, task)]
    if task.occasion.settings.prompt_acknowledgement:
        words.insert(0, aside(Role.ASSISTANT, _ACKNOWLEDGEMENT, task))
    return LlmRequest(
        model=summariser.info,
        settings=summariser.settings,
        messages=(aside(Role.SYSTEM, prompt_of(task), task), *words),
        time_zone=task.occasion.request.time_zone,
        is_verbatim=True,
    )


def _default_for(own: ModelInfo) -> str | None:
    host = urlsplit(own.endpoint).hostname or "" if own.endpoint is not None else None
    is_own_service = host is None or host.endswith(_OWN_SERVICES)
    return PROVIDER_DEFAULTS.get(own.provider) if is_own_service else None


def prompt_of(task: SummaryRequest) -> str:
    """What the summariser is told: the agent's own prompt, or the mode's."""
    prompt = task.occasion.settings.prompt
    return prompt if prompt else summary_prompt(task.mode).replace("{WORDS}", str(max(40, task.tokens * 3 // 5)))


async def said(client: LlmClient, request: LlmRequest, seconds: float) -> str:
    """The words that a model answers with, within a time.

    Raises:
        ContextOverflow: the request is too long for the model.
        SummaryFailed: it did not answer, or said nothing.
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
        raise SummaryFailed(f"{handle} said nothing")
    return text


def _words(answer: LlmAnswer) -> str:
    spoken = "\n".join(filter(None, map(_spoken, answer.tool_calls)))
    # Beside a tool that speaks, plain text is a thought.
    return spoken or "\n".join(part.text for part in answer.content if isinstance(part, TextPart))


def _spoken(call: AnsweredCall) -> str:
    arguments = arguments_object(call.arguments)
    words = arguments.get("message") if call.name == _SPEECH else None
    return words if isinstance(words, str) else ""


def _written(summary: str) -> Summary:
    return Summary(SUMMARY_NOTE + summary, summary)


def aside(role: Role, text: str, task: SummaryRequest) -> Message:
    """A message to a summariser, which nobody keeps."""
    newest = task.plan.evicted[-1]
    return Message(
        id=derive_id("message", newest.id, "summarise", role.value, text),
        role=role,
        created_at=newest.created_at,
        content=(TextPart(text),),
    )
