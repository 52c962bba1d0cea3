"""Calls models through the openai SDK. A subclass chooses the API."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final
from urllib.parse import quote

from mnemesh_kit.unicode import well_formed_value

from mnemesh_orchestrator.llm.answers import stream_answer
from mnemesh_orchestrator.llm.assembly import StreamedAnswer
from mnemesh_orchestrator.llm.history import HistoryForm, HistoryForms
from mnemesh_orchestrator.llm.port import (
    DEFAULT_LIMITS,
    SHORT_SECONDS,
    AttemptBudget,
    CallLimits,
    LlmEvent,
    LlmRequest,
    Sleep,
    with_retries,
)
from mnemesh_orchestrator.llm.settings import ProviderSettings
from mnemesh_orchestrator.llm.transport import SdkClient, remove_environment, translate_error
from mnemesh_orchestrator.llm.wire import RenderCache, encode_body

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_SHORT: Final[Any] = {"timeout": SHORT_SECONDS}


class OpenAiEndpoint:
    """A base URL, its credentials and a connection pool. The SDK is imported when it is first needed."""

    def __init__(self, settings: ProviderSettings, limits: CallLimits) -> None:
        self._settings = settings
        self._limits = limits
        self._opened: SdkClient | None = None

    @property
    def name(self) -> str:
        """The name of the provider, for messages."""
        return self._settings.name

    @property
    def secrets(self) -> tuple[str, ...]:
        """The values that no message may quote."""
        return self._settings.secrets

    @property
    def client(self) -> "AsyncOpenAI":
        """The SDK's client. It is opened on first use."""
        opened: AsyncOpenAI = self.sdk_client.client
        return opened

    @property
    def sdk_client(self) -> SdkClient:
        """The SDK's client with its HTTP client. It is opened on first use."""
        if self._opened is None:
            import openai

            from mnemesh_orchestrator.llm.http_client import as_provider_errors, open_http_client

            settings, headers = self._settings, _headers(self._settings)
            http = open_http_client(settings, self._limits)
            with as_provider_errors(settings.name):
                client = openai.AsyncOpenAI(
                    # A local server needs no key, but the SDK requires one.
                    api_key=settings.api_key or "none",
                    base_url=settings.endpoint,
                    max_retries=0,  # with_retries retries: it has a budget and waits by the clock of the test.
                    http_client=http,
                    default_headers=headers,
                    default_query={"api-version": settings.api_version} if settings.api_version else None,
                )
            if settings.is_registered:
                remove_environment(client, headers or {})
            self._opened = SdkClient(openai, client, http, settings)
        return self._opened

    def path(self, path: str, model: str) -> str:
        """Returns the path of a call. Azure's dated API has the deployment in it."""
        is_dated = self._settings.type == "azure" and self._settings.api_version is not None
        return f"/deployments/{quote(model, safe='')}{path}" if is_dated and path == "/chat/completions" else path

    async def get(self, path: str) -> Any:
        """Returns the decoded answer to a GET below the base URL, or at an absolute URL.

        Raises:
            ProviderError: the endpoint could not be called.
        """
        import openai

        try:
            return well_formed_value(await self.client.get(path, cast_to=object, options=_SHORT))
        except (openai.APIError, ValueError) as error:
            raise translate_error(openai, self.name, error, self.secrets) from None

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Returns the decoded answer to a POST without streaming.

        Raises:
            ProviderError: the endpoint could not be called.
        """
        import openai

        try:
            return well_formed_value(await self.client.post(path, body=body, cast_to=object, options=_SHORT))
        except (openai.APIError, ValueError) as error:
            raise translate_error(openai, self.name, error, self.secrets) from None

    async def close(self) -> None:
        """Closes the connection pool."""
        if self._opened is not None:
            await self._opened.client.close()
            self._opened = None


def _headers(settings: ProviderSettings) -> dict[str, str] | None:
    headers = dict(settings.headers)
    if settings.type == "azure" and settings.api_key:
        headers.setdefault("api-key", settings.api_key)
    return headers or None


class OpenAiClient(ABC):
    """An LlmClient for one endpoint. The SDK is imported by the first call."""

    api_path: ClassVar[str]

    def __init__(
        self, settings: ProviderSettings, limits: CallLimits = DEFAULT_LIMITS, sleep: Sleep = asyncio.sleep
    ) -> None:
        self.endpoint = OpenAiEndpoint(settings, limits)
        self._limits = limits
        self._sleep = sleep
        self._cache = RenderCache()
        self._forms = HistoryForms()

    @abstractmethod
    def _body(self, request: LlmRequest, cache: RenderCache, form: HistoryForm) -> dict[str, Any]:
        """Renders the request for the API, in a form of history."""

    @abstractmethod
    def _answer(self, provider: str) -> StreamedAnswer:
        """Creates an empty answer."""

    def render(self, request: LlmRequest) -> str:
        """Returns the request body as JSON text."""
        return self._encoded(request, self._forms.form(request)).decode()

    def stream(self, request: LlmRequest, budget: AttemptBudget | None = None) -> AsyncIterator[LlmEvent]:
        """Calls the model; see the port."""
        secrets, spent = self.endpoint.secrets, budget or AttemptBudget()
        return with_retries(lambda: self._attempt(request, spent), self._limits, self._sleep, secrets, spent)

    def prepare(self) -> None:
        """Imports the SDK and opens the client, so that the first turn does not wait. May run in a thread."""
        _ = self.endpoint.client

    async def close(self) -> None:
        """Closes the connection pool."""
        await self.endpoint.close()

    def _encoded(self, request: LlmRequest, form: HistoryForm) -> bytes:
        return encode_body(self._body(request, self._cache, form))

    def _attempt(self, request: LlmRequest, budget: AttemptBudget) -> AsyncIterator[LlmEvent]:
        return self._forms.stream(
            request, lambda form: self._encoded(request, form), lambda body: self._send(request, body), budget
        )

    def _send(self, request: LlmRequest, body: bytes) -> AsyncIterator[LlmEvent]:
        endpoint = self.endpoint
        path = endpoint.path(self.api_path, request.model.provider_model)
        return stream_answer(endpoint.sdk_client, path, body, self._answer(endpoint.name), request)
