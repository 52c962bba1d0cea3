"""The text that a model answers to a request of a compaction."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Final

from mnemesh_kit.errors import MnemeshError
from mnemesh_kit.unicode import MAX_TEXT_BYTES, well_formed
from mnemesh_types.messages import TextPart
from mnemesh_types.usage import Usage

from mnemesh_orchestrator.compaction.port import SummaryCall, SummaryFailed
from mnemesh_orchestrator.llm.answers import well_formed_events
from mnemesh_orchestrator.llm.attempts import AttemptBudget
from mnemesh_orchestrator.llm.errors import ContextOverflow, ProviderBadAnswer, ProviderContentFilter, ProviderError
from mnemesh_orchestrator.llm.failed_traces import failed_response, rendered
from mnemesh_orchestrator.llm.history import (
    arguments_object,
)
from mnemesh_orchestrator.llm.port import AnsweredCall, LlmAnswer, LlmClient, LlmRequest

SEND_MESSAGE: Final = "send_message"
OnCall = Callable[[SummaryCall], None]
"""Receives every call of a model."""


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
