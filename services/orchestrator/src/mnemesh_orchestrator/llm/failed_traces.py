"""The traces of calls of models that gave no answer."""

import asyncio
import json

from mnemesh_kit.errors import MnemeshError, typed_error

from mnemesh_orchestrator.llm.errors import ProviderError
from mnemesh_orchestrator.llm.port import LlmClient, LlmRequest


def rendered(client: LlmClient, request: LlmRequest) -> str:
    """Returns the body of a request as JSON text; an empty object if it cannot be rendered."""
    try:
        return client.render(request)
    except MnemeshError:
        return "{}"


def failed_response(error: BaseException) -> str:
    """Returns what a trace shows in place of a response, as JSON text.

    `error` has the reason, the message and the metadata; `partial_response` is what arrived of the response, if any.
    """
    if isinstance(error, asyncio.CancelledError):
        return json.dumps({"error": {"reason": "CANCELLED", "message": "The call was cancelled.", "metadata": {}}})
    known = typed_error(error) if isinstance(error, Exception) else typed_error(Exception())
    document = json.dumps(
        {"error": {"reason": known.reason, "message": known.message, "metadata": known.metadata}}, ensure_ascii=False
    )
    partial = error.response_body if isinstance(error, ProviderError) else None
    return document if partial is None else f'{document[:-1]}, "partial_response": {partial}}}'
