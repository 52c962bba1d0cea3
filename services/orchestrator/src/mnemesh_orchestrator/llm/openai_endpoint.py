"""One endpoint that is called through the openai SDK, for any of its APIs."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from mnemesh_orchestrator.llm.attempts import SHORT_SECONDS, CallLimits
from mnemesh_orchestrator.llm.settings import ProviderSettings
from mnemesh_orchestrator.llm.transport import remove_environment, translate_error

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_SHORT: Final[Any] = {"timeout": SHORT_SECONDS}


class OpenAiEndpoint:
    """A base URL, its credentials and a connection pool. The SDK is imported when it is first needed."""

    def __init__(self, settings: ProviderSettings, limits: CallLimits) -> None:
        self._settings = settings
        self._limits = limits
        self._opened: AsyncOpenAI | None = None

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
        if self._opened is None:
            import openai

            settings, headers = self._settings, _headers(self._settings)
            self._opened = openai.AsyncOpenAI(
                # A local server needs no key, but the SDK requires one.
                api_key=settings.api_key or "none",
                base_url=settings.endpoint,
                max_retries=0,  # with_retries retries: it has a budget and waits by the clock of the test.
                timeout=openai.Timeout(self._limits.idle_seconds, connect=self._limits.connect_seconds),
                default_headers=headers,
                default_query={"api-version": settings.api_version} if settings.api_version else None,
            )
            if settings.is_registered:
                remove_environment(self._opened, headers or {})
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
            return await self.client.get(path, cast_to=object, options=_SHORT)
        except (openai.APIError, ValueError) as error:
            raise translate_error(openai, self.name, error, self.secrets) from None

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Returns the decoded answer to a POST without streaming.

        Raises:
            ProviderError: the endpoint could not be called.
        """
        import openai

        try:
            return await self.client.post(path, body=body, cast_to=object, options=_SHORT)
        except (openai.APIError, ValueError) as error:
            raise translate_error(openai, self.name, error, self.secrets) from None

    async def close(self) -> None:
        """Closes the connection pool."""
        if self._opened is not None:
            await self._opened.close()
            self._opened = None


def _headers(settings: ProviderSettings) -> dict[str, str] | None:
    headers = dict(settings.headers)
    if settings.type == "azure" and settings.api_key:
        headers.setdefault("api-key", settings.api_key)
    return headers or None
