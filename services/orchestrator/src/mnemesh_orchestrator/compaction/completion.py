"""The text that a model answers to a request of a compaction."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Final

import structlog
from mnemesh_kit.errors import MnemeshError
from mnemesh_kit.ids import derive_id
from mnemesh_kit.unicode import MAX_TEXT_BYTES, well_formed
from mnemesh_types.messages import Message, Role, TextPart
from mnemesh_types.usage import Usage

from mnemesh_orchestrator.compaction.port import SummaryCall, SummaryFailed
from mnemesh_orchestrator.compaction.transcript import without_middle
from mnemesh_orchestrator.llm.answers import failed_response, rendered, well_formed_events
from mnemesh_orchestrator.llm.errors import ContextOverflow, ProviderBadAnswer, ProviderContentFilter, ProviderError
from mnemesh_orchestrator.llm.history import arguments_object
from mnemesh_orchestrator.llm.port import AnsweredCall, AttemptBudget, LlmAnswer, LlmClient, LlmRequest

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
        answers = await _reported_answers(on_call, client, request, seconds, budget)
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


async def _reported_answers(
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
        request: the request.
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
