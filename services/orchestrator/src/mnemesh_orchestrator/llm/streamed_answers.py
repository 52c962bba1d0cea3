"""Streams the answer to one request: sends it through an SDK, and assembles the answer from its events."""

import json
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from typing import Any

from mnemesh_kit.failpoints import async_failpoint
from mnemesh_kit.unicode import well_formed
from mnemesh_types.usage import Usage

from mnemesh_orchestrator.llm.answers import UNREADABLE, unreadable, valid_usage
from mnemesh_orchestrator.llm.assembly import StreamedAnswer
from mnemesh_orchestrator.llm.errors import ProviderError
from mnemesh_orchestrator.llm.port import LlmAnswer, LlmEvent, LlmRequest
from mnemesh_orchestrator.llm.schemas import with_own_arguments
from mnemesh_orchestrator.llm.transport import DONE, SdkClient, read_events, translate_error


async def stream_answer(
    sdk_client: SdkClient, path: str, body: bytes, answer: StreamedAnswer, request: LlmRequest
) -> AsyncIterator[LlmEvent]:
    """Sends a request once. Yields the deltas of the answer as they arrive, and the whole answer at the end.

    Args:
        sdk_client: the client of the provider's SDK.
        path: the endpoint below the client's base URL.
        body: the body of the request.
        answer: an empty answer of the API that is called.
        request: the request that the body was rendered from.

    Raises:
        ProviderError: the call failed, before or after the first event. The error has the part that arrived.
    """
    provider = sdk_client.provider
    try:
        await async_failpoint("model.before_request", provider)
        response, is_done = await sdk_client.send(path, body), False
        received = read_events(sdk_client, response, answer)
        async with aclosing(response), aclosing(received) as events:
            async for event in events:
                if event is DONE:
                    is_done = True
                    continue
                for delta in _deltas(provider, answer, event):
                    yield delta
        for delta in answer.end(is_done=is_done):
            yield delta
        whole = _whole(provider, answer, request, body)
    except ProviderError as error:
        _add_partial_answer(error, answer)
        raise
    except sdk_client.errors as error:
        translated = translate_error(sdk_client.sdk, provider, error, sdk_client.secrets)
        _add_partial_answer(translated, answer)
        raise translated from error
    yield whole


def _deltas(provider: str, answer: StreamedAnswer, event: Any) -> list[LlmEvent]:
    try:
        return answer.add(event)
    except UNREADABLE as error:
        raise unreadable(provider, error) from error


def _whole(provider: str, answer: StreamedAnswer, request: LlmRequest, body: bytes) -> LlmAnswer:
    try:
        return LlmAnswer(
            content=answer.content,
            tool_calls=with_own_arguments(answer.tool_calls, request),
            finish_reason=answer.finish_reason,
            usage=answer.usage,
            carried=answer.carried,
            finish_word=answer.finish_word,
            request_body=body.decode(),
            response_body=json.dumps(answer.body, ensure_ascii=False),
        )
    except UNREADABLE as error:
        raise unreadable(provider, error) from error


def _add_partial_answer(error: ProviderError, answer: StreamedAnswer) -> None:
    """Adds to an error what arrived before it: the counted tokens, and the answer for the trace."""
    with suppress(*UNREADABLE):  # The pieces of a broken answer may not fit together.
        error.usage = valid_usage(answer.usage)
        if answer.content or answer.tool_calls or error.usage != Usage():
            error.response_body = well_formed(json.dumps(answer.body, ensure_ascii=False))
