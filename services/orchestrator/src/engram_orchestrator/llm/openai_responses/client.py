"""Asks OpenAI, or a server that speaks its Responses API, through the openai SDK."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing

from engram_orchestrator.llm.attempts import DEFAULT_LIMITS, CallLimits, Sleep, with_retries
from engram_orchestrator.llm.openai_endpoint import OpenAiEndpoint
from engram_orchestrator.llm.openai_responses.answer import ResponsesAnswer
from engram_orchestrator.llm.openai_responses.render import render_body
from engram_orchestrator.llm.port import LlmAnswer, LlmEvent, LlmRequest
from engram_orchestrator.llm.render_cache import RenderCache
from engram_orchestrator.llm.schemas import under_own_schemas
from engram_orchestrator.llm.settings import ProviderSettings
from engram_orchestrator.llm.transport import chunks
from engram_orchestrator.llm.wire import encode_body


class OpenAiResponsesClient:
    """An LlmClient on one endpoint. The SDK is imported at the first call."""

    def __init__(
        self, settings: ProviderSettings, limits: CallLimits = DEFAULT_LIMITS, sleep: Sleep = asyncio.sleep
    ) -> None:
        self.endpoint = OpenAiEndpoint(settings, limits)
        self._limits = limits
        self._sleep = sleep
        self._cache = RenderCache()

    def render(self, request: LlmRequest) -> str:
        """The request body as JSON text."""
        return encode_body(render_body(request, self._cache)).decode()

    def stream(self, request: LlmRequest) -> AsyncIterator[LlmEvent]:
        """Asks the model; see the port."""
        body = encode_body(render_body(request, self._cache))
        return with_retries(lambda: self._ask(request, body), self._limits, self._sleep, self.endpoint.secrets)

    def prepare(self) -> None:
        """Imports the SDK and opens the client, so that the first turn does not wait for it. May run in a thread."""
        _ = self.endpoint.client

    async def close(self) -> None:
        """Closes the connection pool."""
        await self.endpoint.close()

    async def _ask(self, request: LlmRequest, body: bytes) -> AsyncIterator[LlmEvent]:
        import openai

        provider = self.endpoint.name
        answer = ResponsesAnswer(provider)
        path = self.endpoint.path("/responses", request.model.provider_model)
        secrets = self.endpoint.secrets
        came = chunks(openai, self.endpoint.client, path, body, provider=provider, limits=self._limits, secrets=secrets)
        async with aclosing(came):  # type: ignore[type-var]
            async for event in came:
                for shown in answer.add(event):
                    yield shown
        answer.check_complete()
        yield LlmAnswer(
            content=answer.content,
            tool_calls=under_own_schemas(answer.tool_calls, request),
            finish_reason=answer.finish_reason,
            usage=answer.usage,
            request_body=body.decode(),
            response_body=json.dumps(answer.body, ensure_ascii=False),
        )
