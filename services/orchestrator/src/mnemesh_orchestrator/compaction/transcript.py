"""Conversations as text for a summary model, and the text that the model answers."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Final

import structlog
from mnemesh_kit.errors import MnemeshError
from mnemesh_kit.ids import derive_id
from mnemesh_kit.unicode import MAX_TEXT_BYTES, well_formed
from mnemesh_types.messages import ImagePart, Message, Role, TextPart
from mnemesh_types.usage import Usage

from mnemesh_orchestrator.compaction.planner import SummaryCall, SummaryFailed
from mnemesh_orchestrator.llm.calls import failed_response, rendered, well_formed_events
from mnemesh_orchestrator.llm.errors import ContextOverflow, ProviderBadAnswer, ProviderContentFilter, ProviderError
from mnemesh_orchestrator.llm.history import arguments_object
from mnemesh_orchestrator.llm.port import AnsweredCall, AttemptBudget, LlmAnswer, LlmClient, LlmRequest

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
        stream = well_formed_events(client.stream(request, budget), request.model.provider)
        async with asyncio.timeout(seconds), aclosing(stream) as events:  # type: ignore[type-var]
            answers = [event async for event in events if isinstance(event, LlmAnswer)]
    except BaseException as error:
        usage = error.usage if isinstance(error, ProviderError) else Usage()
        bodies = rendered(client, request), failed_response(error)
        report(SummaryCall(request, *bodies, usage, clock() - began, error))
        raise
    for answer in answers:
        report(SummaryCall(request, answer.request_body, answer.response_body, answer.usage, clock() - began))
    return answers


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
