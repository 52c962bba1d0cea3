"""Summaries by models: the transcript that they read, their calls with retries, and the summarizers of the modes."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import urlsplit

import structlog
from mnemesh_kit.errors import MnemeshError
from mnemesh_kit.ids import derive_id
from mnemesh_kit.time import Clock
from mnemesh_kit.unicode import MAX_TEXT_BYTES, well_formed
from mnemesh_types.agents import ModelSettings
from mnemesh_types.messages import ImagePart, Message, Role, TextPart
from mnemesh_types.usage import Usage

from mnemesh_orchestrator.compaction.planner import Summary, SummaryCall, SummaryFailed, SummaryRequest
from mnemesh_orchestrator.compaction.prompts import summary_prompt
from mnemesh_orchestrator.llm.calls import failed_response, model_events, rendered
from mnemesh_orchestrator.llm.errors import (
    ContextOverflow,
    ModelUnknown,
    ProviderBadAnswer,
    ProviderContentFilter,
    ProviderError,
)
from mnemesh_orchestrator.llm.history import arguments_object
from mnemesh_orchestrator.llm.model_catalog import ModelCatalog
from mnemesh_orchestrator.llm.port import (
    AnsweredCall,
    AttemptBudget,
    LlmAnswer,
    LlmClient,
    LlmRequest,
    ToolChoice,
    ToolChoiceKind,
)
from mnemesh_orchestrator.llm.provider import cost_of
from mnemesh_orchestrator.model.models import ModelInfo, ResponseFormat, settings_over

CLIPPED: Final = "... [summary truncated to fit]"
SUMMARY_NOTE: Final = (
    "Note: prior messages have been hidden from view due to conversation memory constraints.\n"
    "The following is a summary of the previous messages:\n "
)
_EARLIER_NOTES: Final = "earlier notes"
_MAX_LINE_CHARACTERS: Final = 6_000
_LINE_LIMITS: Final = (_MAX_LINE_CHARACTERS, 2_000, 600)
_DIGEST_LINE: Final = 240
_DIGEST_HEAD: Final = "No model could be asked for a summary; these are excerpts. Search your messages for the rest."
_LEFT_OUT: Final = "\n[... {} characters are left out here ...]\n"


def transcript(messages: Sequence[Message], limit: int | None = None) -> str:
    """Returns the messages as lines, oldest first, in about `limit` characters. The middle is left out if needed."""
    text = "\n".join(_lines(messages, _MAX_LINE_CHARACTERS))
    return text if limit is None else without_middle(text, limit)


def transcript_lines(messages: Sequence[Message], max_characters: int, limit: int) -> list[str]:
    """Returns the messages as lines of at most `longest` characters. Longer ones are split.

    If all of them exceed `limit` characters, each is shortened before any is left out.
    """
    for line_limit in _LINE_LIMITS:
        lines = list(_lines(messages, line_limit))
        if sum(map(len, lines)) <= limit:
            break
    return [line[start : start + max_characters] for line in lines for start in range(0, len(line), max_characters)]


def with_notes(notes: str, text: str, limit: int) -> str:
    """Returns a part of a transcript after the notes on what precedes it, in about `limit` characters.

    The notes use at most a third of them.
    """
    if not notes:
        return without_middle(text, limit)
    head = f"{_EARLIER_NOTES}: {without_middle(notes, limit // 3)}"
    return f"{head}\n{without_middle(text, max(1, limit - len(head)))}"


def without_middle(text: str, limit: int) -> str:
    """Returns the text, or its beginning and end if it is longer than `limit`."""
    if len(text) <= limit:
        return text
    head, tail = limit // 3, limit - limit // 3
    return text[:head] + _LEFT_OUT.format(len(text) - limit) + text[-tail:]


def digest(messages: Sequence[Message], limit: int) -> str:
    """Returns excerpts that replace a summary if no model writes one. The same messages give the same text.

    Earlier notes keep up to half of the `limit` in characters. The latest lines fill the rest.
    """
    earlier = [summary_text(message) for message in messages if message.role is Role.SUMMARY]
    lines = list(_lines([message for message in messages if message.role is not Role.SUMMARY], _DIGEST_LINE))
    head = [_DIGEST_HEAD]
    if earlier:
        text = earlier[-1].removeprefix(_DIGEST_HEAD).lstrip("\n")
        head.append(without_middle(text, limit // 2))
    capacity = limit - sum(len(part) + 1 for part in head)
    kept: list[str] = []
    for line in reversed(lines):
        capacity -= len(line) + 1
        if capacity < 0:
            break
        kept.append(line)
    return "\n".join((*head, *reversed(kept)))[:limit]


def summary_text(message: Message) -> str:
    """Returns the text of a summary message, without the note that introduces it."""
    return message.text.removeprefix(SUMMARY_NOTE)


def clipped(text: str, characters: int) -> str:
    """Returns the text, or its first characters and a mark that it was longer."""
    return text if len(text) <= characters else text[:characters] + CLIPPED


def _lines(messages: Sequence[Message], max_characters: int) -> Iterator[str]:
    for message in messages:
        speaker = _EARLIER_NOTES if message.role is Role.SUMMARY else message.name or message.role.value
        text = summary_text(message) if message.role is Role.SUMMARY else message.text
        if text.strip():
            limit = max_characters if message.role is not Role.SUMMARY else max(max_characters, len(text))
            yield f"{speaker}: {_short(text, limit)}"
        for part in message.content:
            if isinstance(part, ImagePart):
                yield f"{speaker}: [a picture]"
        for call in message.tool_calls:
            yield f"{speaker} calls {call.name}({_short(call.arguments, max_characters)})"
        for returned in message.tool_returns:
            yield f"{returned.name} returned ({returned.status.value}): {_short(returned.text, max_characters)}"


def _short(text: str, max_characters: int) -> str:
    return text if len(text) <= max_characters else f"{text[:max_characters]}…"


SEND_MESSAGE: Final = "send_message"
OnCall = Callable[[SummaryCall], None]
"""Receives every call of a model."""

_log = structlog.get_logger("mnemesh.compaction")

_MAX_ATTEMPTS: Final = 3
_RETRY_INSTRUCTION: Final = (
    "That answer cannot be used: {problem}\n"
    "Answer again with the whole JSON object, and nothing else. Labels are those of the material: m1, f1."
)


async def complete_text(
    on_call: OnCall, client: LlmClient, request: LlmRequest, seconds: float, budget: AttemptBudget | None = None
) -> str:
    """Returns the text that a model answers within a time limit. The call is reported to `on_call`.

    Calls with one purpose share a budget of requests.

    Raises:
        ContextOverflow: the request is too long for the model.
        SummaryFailed: the model did not answer, or returned no text.
    """
    handle = request.model.handle
    try:
        answers = await _report_answers(on_call, client, request, seconds, budget)
    except ContextOverflow:
        raise
    except TimeoutError as error:
        raise SummaryFailed(f"{handle} took longer than {seconds:g} s", is_down=True) from error
    except (ProviderBadAnswer, ProviderContentFilter) as error:
        raise SummaryFailed(error.message) from error
    except (ProviderError, MnemeshError) as error:
        raise SummaryFailed(error.message, is_down=True) from error
    text = well_formed("\n".join(map(_answer_text, answers)), MAX_TEXT_BYTES // 2).strip()
    if not text:
        raise SummaryFailed(f"{handle} returned no text")
    return text


async def _report_answers(
    report: OnCall, client: LlmClient, request: LlmRequest, seconds: float, budget: AttemptBudget | None
) -> list[LlmAnswer]:
    clock = asyncio.get_running_loop().time
    began = clock()
    try:
        stream = model_events(client, request, budget)
        async with asyncio.timeout(seconds), aclosing(stream) as events:  # type: ignore[type-var]
            answers = [event async for event in events if isinstance(event, LlmAnswer)]
    except BaseException as error:
        usage = _priced(error.usage if isinstance(error, ProviderError) else Usage(), request)
        bodies = rendered(client, request), failed_response(error)
        report(SummaryCall(request, *bodies, usage, clock() - began, error))
        raise
    for answer in answers:
        report(
            SummaryCall(
                request, answer.request_body, answer.response_body, _priced(answer.usage, request), clock() - began
            )
        )
    return answers


def _priced(usage: Usage, request: LlmRequest) -> Usage:
    """Returns the tokens of a call with their cost, if the price of the model is known."""
    return replace(usage, cost_nano_usd=cost_of(usage, request.model.price))


def _answer_text(answer: LlmAnswer) -> str:
    sent = "\n".join(filter(None, map(_sent_message, answer.tool_calls)))
    # If the answer uses the tool, its plain text is a thought.
    return sent or "\n".join(part.text for part in answer.content if isinstance(part, TextPart))


def _sent_message(call: AnsweredCall) -> str:
    arguments = arguments_object(call.arguments)
    text = arguments.get("message") if call.name == SEND_MESSAGE else None
    return text if isinstance(text, str) else ""


async def usable_answer(
    on_call: OnCall,
    client: LlmClient,
    request: LlmRequest,
    seconds: float,
    problem_of: Callable[[str], str | None],
    quoted_characters: int,
) -> str:
    """Returns the answer of a model, or the last one if none of three can be used.

    An unusable answer is returned to the model with its problem, in at most `quoted_characters`: a very long answer
    would not fit with the material, and neither would two answers.

    Args:
        on_call: receives every call of the model.
        client: calls the model.
        seconds: the time limit of a call.
        problem_of: returns why an answer cannot be used, or None.
        quoted_characters: the length of the part of an unusable answer that the model sees.

    Raises:
        ContextOverflow, SummaryFailed: the first call failed; see complete_text.
    """
    first_messages, budget = request.messages, AttemptBudget()
    answer = await complete_text(on_call, client, request, seconds, budget)
    for _ in range(_MAX_ATTEMPTS - 1):
        problem = problem_of(answer)
        if problem is None:
            break
        _log.warning("memory_extraction_unusable", model=request.model.handle, problem=problem)
        retry = (
            _message(Role.ASSISTANT, without_middle(answer, quoted_characters), first_messages[-1]),
            _message(Role.USER, _RETRY_INSTRUCTION.format(problem=problem), first_messages[-1]),
        )
        request = replace(request, messages=(*first_messages, *retry))
        try:
            answer = await complete_text(on_call, client, request, seconds, budget)
        except (SummaryFailed, ContextOverflow):
            break
    return answer


def _message(role: Role, text: str, newest: Message) -> Message:
    id_ = derive_id("message", newest.id, "summarise", role.value, text)
    return Message(id=id_, role=role, created_at=newest.created_at, content=(TextPart(text),))


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
