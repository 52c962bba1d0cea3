"""Asks OpenAI, or a server that speaks its chat completions, through the openai SDK."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING

from engram_orchestrator.llm.attempts import DEFAULT_LIMITS, CallLimits, Sleep, with_retries
from engram_orchestrator.llm.openai_chat.answer import ChatAnswer
from engram_orchestrator.llm.openai_chat.render import render_body
from engram_orchestrator.llm.port import LlmAnswer, LlmEvent, LlmRequest
from engram_orchestrator.llm.render_cache import RenderCache
from engram_orchestrator.llm.schemas import under_own_schemas
from engram_orchestrator.llm.transport import chunks, translated
from engram_orchestrator.llm.wire import encode_body

if TYPE_CHECKING:
    from openai import AsyncOpenAI

OFFICIAL_BASE_URL = "https://api.openai.com/v1"


class OpenAiChatClient:
    """An LlmClient on one endpoint. The SDK is imported at the first call."""

    def __init__(
        self,
        *,
        provider: str = "openai",
        api_key: str | None = None,
        base_url: str | None = None,
        limits: CallLimits = DEFAULT_LIMITS,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._provider = provider
        self._api_key = api_key
        self._base_url = base_url or OFFICIAL_BASE_URL
        self._limits = limits
        self._sleep = sleep
        self._cache = RenderCache()
        self._opened: AsyncOpenAI | None = None

    def render(self, request: LlmRequest) -> str:
        """The request body as JSON text."""
        return encode_body(render_body(request, self._cache)).decode()

    def stream(self, request: LlmRequest) -> AsyncIterator[LlmEvent]:
        """Asks the model; see the port."""
        body = encode_body(render_body(request, self._cache))
        return with_retries(lambda: self._ask(request, body), self._limits, self._sleep)

    async def list_models(self) -> tuple[str, ...]:
        """The models that the endpoint says it serves, in its own order.

        Raises:
            ProviderError: it could not be asked.
        """
        import openai

        try:
            page = await self._client().get("/models", cast_to=object)
        except (openai.APIError, ValueError) as error:
            raise translated(openai, self._provider, error) from error
        rows = page.get("data") if isinstance(page, dict) else None
        return tuple(row["id"] for row in rows or () if isinstance(row, dict) and isinstance(row.get("id"), str))

    def prepare(self) -> None:
        """Imports the SDK and opens the client, so that the first turn does not wait for it. May run in a thread."""
        self._client()

    async def close(self) -> None:
        """Closes the connection pool."""
        if self._opened is not None:
            await self._opened.close()
            self._opened = None

    async def _ask(self, request: LlmRequest, body: bytes) -> AsyncIterator[LlmEvent]:
        import openai

        answer = ChatAnswer(self._provider)
        came = chunks(openai, self._client(), "/chat/completions", body, provider=self._provider, limits=self._limits)
        async with aclosing(came):  # type: ignore[type-var]
            async for chunk in came:
                for event in answer.add(chunk):
                    yield event
        answer.check_complete()
        yield LlmAnswer(
            content=answer.content,
            tool_calls=under_own_schemas(answer.tool_calls, request),
            finish_reason=answer.finish_reason,
            usage=answer.usage,
            request_body=body.decode(),
            response_body=json.dumps(answer.body, ensure_ascii=False),
        )

    def _client(self) -> "AsyncOpenAI":
        if self._opened is None:
            import openai

            self._opened = openai.AsyncOpenAI(
                # A local server wants no key, the SDK does.
                api_key=self._api_key or "none",
                base_url=self._base_url,
                max_retries=0,  # with_retries asks again: it keeps to a budget and waits under a test's clock
                timeout=openai.Timeout(self._limits.idle_seconds, connect=self._limits.connect_seconds),
            )
        return self._opened
