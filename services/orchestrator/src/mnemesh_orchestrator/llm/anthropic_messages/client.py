"""Calls Anthropic, or a server with its messages API, through the anthropic SDK."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from mnemesh_kit.unicode import well_formed_value

from mnemesh_orchestrator.llm.anthropic_messages.answer import MessagesAnswer
from mnemesh_orchestrator.llm.anthropic_messages.render import render_body
from mnemesh_orchestrator.llm.attempts import (
    DEFAULT_LIMITS,
    SHORT_SECONDS,
    AttemptBudget,
    CallLimits,
    Sleep,
    with_retries,
)
from mnemesh_orchestrator.llm.dialects import DIALECTS
from mnemesh_orchestrator.llm.history_forms import HistoryForm, HistoryForms
from mnemesh_orchestrator.llm.port import LlmEvent, LlmRequest
from mnemesh_orchestrator.llm.render_cache import RenderCache
from mnemesh_orchestrator.llm.settings import ProviderSettings
from mnemesh_orchestrator.llm.streamed_answers import stream_answer
from mnemesh_orchestrator.llm.transport import SdkClient, remove_environment, translate_error
from mnemesh_orchestrator.llm.wire import encode_body


class AnthropicMessagesClient:
    """An LlmClient for one endpoint. The first call imports the SDK, which takes more than a second."""

    def __init__(
        self,
        settings: ProviderSettings,
        limits: CallLimits = DEFAULT_LIMITS,
        sleep: Sleep = asyncio.sleep,
        *,
        cache_breakpoints: bool = True,
    ) -> None:
        self._settings = settings
        self._provider = settings.name
        self._limits = limits
        self._sleep = sleep
        self._cache_breakpoints = cache_breakpoints
        self._cache = RenderCache()
        self._forms = HistoryForms()
        self._opened: SdkClient | None = None

    def render(self, request: LlmRequest) -> str:
        """Returns the request body as JSON text."""
        return self._encoded(request, self._forms.form(request)).decode()

    def stream(self, request: LlmRequest, budget: AttemptBudget | None = None) -> AsyncIterator[LlmEvent]:
        """Calls the model; see the port."""
        secrets, spent = self._settings.secrets, budget or AttemptBudget()
        return with_retries(lambda: self._attempt(request, spent), self._limits, self._sleep, secrets, spent)

    def prepare(self) -> None:
        """Imports the SDK and opens the client, so that the first turn does not wait. May run in a thread."""
        self._client()

    async def get(self, path: str) -> Any:
        """Returns the decoded answer to a GET below the base URL.

        Raises:
            ProviderError: the endpoint could not be called.
        """
        import anthropic

        try:
            found = await self._client().client.get(path, cast_to=object, options={"timeout": SHORT_SECONDS})
        except (anthropic.APIError, ValueError) as error:
            raise translate_error(anthropic, self._provider, error, self._settings.secrets) from None
        return well_formed_value(found)

    async def close(self) -> None:
        """Closes the connection pool."""
        if self._opened is not None:
            await self._opened.client.close()
            self._opened = None

    def _encoded(self, request: LlmRequest, form: HistoryForm) -> bytes:
        return encode_body(render_body(request, self._cache, form, cache_breakpoints=self._cache_breakpoints))

    def _attempt(self, request: LlmRequest, budget: AttemptBudget) -> AsyncIterator[LlmEvent]:
        return self._forms.stream(
            request, lambda form: self._encoded(request, form), lambda body: self._send(request, body), budget
        )

    def _send(self, request: LlmRequest, body: bytes) -> AsyncIterator[LlmEvent]:
        return stream_answer(self._client(), "/v1/messages", body, MessagesAnswer(self._provider), request)

    def _client(self) -> SdkClient:
        if self._opened is None:
            import anthropic

            from mnemesh_orchestrator.llm.connection_errors import as_provider_errors
            from mnemesh_orchestrator.llm.http_client import open_http_client

            key = self._settings.api_key or "none"
            with as_provider_errors(self._provider):
                endpoint = self._settings.endpoint
            is_official = endpoint == DIALECTS["anthropic"].base_url
            # The SDK sends a bearer token. Servers with an older form of the API know only this header.
            headers = {**({} if is_official else {"x-api-key": key}), **self._settings.headers}
            http = open_http_client(self._settings, self._limits)
            with as_provider_errors(self._provider):
                client = anthropic.AsyncAnthropic(
                    api_key=key,
                    base_url=endpoint,
                    default_headers=headers or None,
                    max_retries=0,  # with_retries retries: it has a budget and waits by the clock of the test.
                    http_client=http,
                )
            if self._settings.is_registered:
                remove_environment(client, headers)
            self._opened = SdkClient(anthropic, client, http, self._settings)
        return self._opened
