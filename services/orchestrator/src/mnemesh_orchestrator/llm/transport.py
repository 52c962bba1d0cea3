"""Reads answers through the SDK of a provider, and converts its errors.

Both SDKs come from one generator: their clients, decoders and errors have the same names and forms. A call sends a body
of bytes with the URL, the headers and the credentials of the SDK's client, and reads the answer with the SDK's decoder
of server-sent events. The methods of the client compute URL and headers for every call, and its typed `create` converts
the whole window, which costs more CPU than the rest of a step. Its stream leaves generators open, which the event loop
closes in tasks.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping
from contextlib import aclosing, suppress
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, cast

from mnemesh_kit.failpoints import async_failpoint

from mnemesh_orchestrator.llm.errors import ProviderBadAnswer, ProviderError, ProviderTimeout, ProviderUnavailable
from mnemesh_orchestrator.llm.provider_errors import error_from_response, quote
from mnemesh_orchestrator.llm.settings import ProviderSettings

if TYPE_CHECKING:
    import httpx2

    from mnemesh_orchestrator.llm.http_client import ProviderHttpClient, Target

_MAX_TARGETS: Final = 64
_REST_SECONDS: Final = 0.1
_NOTHING: Final = object()
DONE: Final = object()
"""The event that ends a stream of OpenAI's form."""


class SdkClient:
    """The client of an SDK, and the HTTP client that it was created with."""

    def __init__(self, sdk: ModuleType, client: Any, http: "ProviderHttpClient", settings: ProviderSettings) -> None:
        """Keeps the client. Its URL, headers and credentials must not change after the first request."""
        import httpx2  # This is the transport of the SDKs. It is loaded with them, not before.

        self.sdk = sdk
        self.client = client
        self.provider = settings.name
        self.secrets = settings.secrets
        """The values that no error may quote."""
        self.errors = (TimeoutError, httpx2.HTTPError, ValueError, RecursionError)
        """The exceptions of a call and of reading its answer; see `translate_error`."""
        self._names_events = sdk.__name__ == "anthropic"
        self._http = http
        self._targets: dict[str, Target] = {}

    async def send(self, path: str, body: bytes) -> "httpx2.Response":
        """Posts a body of JSON to a path below the base URL. The body of the response is still to be read."""
        return await self._http.post_stream(self._target(path), body)

    def decode(self, pieces: AsyncIterator[bytes]) -> AsyncGenerator[Any]:
        """Returns the events of a body of server-sent events, as the SDK's own objects."""
        events: AsyncGenerator[Any] = self.client._make_sse_decoder().aiter_bytes(pieces)
        return events

    def content(self, event: Any, headers: Mapping[str, str]) -> Any:
        """Returns the decoded content of an event, by the rules of the SDK's stream; _NOTHING if it has none.

        Raises:
            ProviderError: the event is an error.
        """
        if not self._names_events:
            found = event.json()
            if isinstance(found, dict) and (error := found.get("error")):
                raise error_from_response(self.provider, None, _redacted(error, self.secrets))
            return found
        if event.event == "error":
            body = _redacted(_decoded(event.data.encode()), self.secrets)
            raise error_from_response(self.provider, None, body, headers)
        is_empty = event.event in (None, "ping") or not event.data
        return _NOTHING if is_empty else event.json()

    def _target(self, path: str) -> "Target":
        """Returns the URL of a path, with the headers of the client."""
        import httpx2

        known = self._targets.get(path)
        if known is None:
            client, headers = self.client, httpx2.Headers()
            for name, value in (*client.auth_headers.items(), *client.default_headers.items()):
                if isinstance(value, str):  # an omitted header has a marker
                    headers[name] = value
            headers["Content-Type"] = "application/json"
            url = f"{str(client.base_url).rstrip('/')}{path}"
            known = self._http.target(url, headers, client.default_query or None)
            if len(self._targets) >= _MAX_TARGETS:
                self._targets.clear()
            self._targets[path] = known
        return known


async def read_events(sdk_client: SdkClient, response: "httpx2.Response") -> AsyncGenerator[Any]:
    """Yields the decoded events of an answer, or the one body of a server that does not stream. DONE is its last event
    if the provider marked the end.

    Raises:
        ProviderError: the status is no success, an event or the body is an error, or the body is a page for people.
    """
    provider = sdk_client.provider
    if not response.is_success:
        content = _redacted(_decoded(await response.aread()), sdk_client.secrets)
        raise error_from_response(provider, response.status_code, content, response.headers)
    await async_failpoint("model.response_started", provider)
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "text/html":
        raise ProviderBadAnswer(f"{provider} returned an HTML page.", provider=provider)
    if kind == "application/json":
        yield _whole_body(provider, await response.aread())
        return
    # The HTTP client has decompressed the stream, so it needs no decoders of the response.
    pieces = cast("AsyncGenerator[bytes]", aiter(cast("httpx2.AsyncByteStream", response.stream)))
    async with aclosing(pieces), aclosing(sdk_client.decode(pieces)) as events:
        async for event in events:
            if event.data.startswith("[DONE]"):
                await _read_rest(pieces)
                yield DONE
                return
            decoded = sdk_client.content(event, response.headers)
            if decoded is not _NOTHING:
                yield decoded


async def _read_rest(pieces: AsyncIterator[bytes]) -> None:
    """Reads the end of a body, which follows its content at once, so that the connection is used again."""
    import httpx2

    with suppress(TimeoutError, httpx2.HTTPError):
        async with asyncio.timeout(_REST_SECONDS):
            async for _ in pieces:
                pass


def translate_error(sdk: ModuleType, provider: str, error: Exception, secrets: Collection[str] = ()) -> ProviderError:
    """Returns the error for an exception of an SDK. It quotes none of the secrets."""
    import httpx2

    cause = error.__cause__ if isinstance(error, sdk.APIConnectionError) and error.__cause__ else error
    if isinstance(cause, ProviderError):
        return cause
    if isinstance(cause, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.ProxyError):
        detail = quote(str(cause)) or "no connection"
        return ProviderUnavailable(f"{provider} cannot be reached: {detail}.", provider=provider)
    if isinstance(cause, TimeoutError | httpx2.TimeoutException | sdk.APITimeoutError):
        return ProviderTimeout(f"{provider} did not answer within the configured time.", provider=provider)
    if isinstance(cause, httpx2.HTTPError | sdk.APIConnectionError):
        return ProviderUnavailable(f"The connection to {provider} broke before the answer's end.", provider=provider)
    if isinstance(error, sdk.APIStatusError):
        # An error event inside a stream has the status of the stream, which was good.
        status = error.status_code if error.status_code >= 300 else None
        return error_from_response(provider, status, _redacted(error.body, secrets), error.response.headers)
    if isinstance(error, sdk.APIError):
        return error_from_response(provider, None, _redacted(error.body or error.message, secrets))
    return ProviderBadAnswer(f"{provider} answered with something that is not JSON.", provider=provider)


def remove_environment(client: Any, headers: Mapping[str, str]) -> None:
    """Removes the process's environment from the requests of a client.

    The SDKs add the operator's account, project and headers. An organization's own provider must not receive them.
    """
    for name in ("organization", "project", "admin_api_key", "auth_token", "webhook_key", "webhook_secret"):
        if hasattr(client, name):
            setattr(client, name, None)
    client._custom_headers = dict(headers)


def _redacted(value: Any, secrets: Collection[str]) -> Any:
    """Returns a decoded body without the secrets. Some servers quote the key that they refuse."""
    match value:
        case str():
            for secret in secrets:
                value = value.replace(secret, "[key]")
            return value
        case dict():
            return {name: _redacted(item, secrets) for name, item in value.items()}
        case list():
            return [_redacted(item, secrets) for item in value]
        case _:
            return value


def _decoded(body: bytes) -> Any:
    """Returns the JSON of a body, or its text."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return body.decode(errors="replace")


def _whole_body(provider: str, body: bytes) -> Any:
    decoded = json.loads(body)
    if isinstance(decoded, dict) and decoded.get("error"):
        raise error_from_response(provider, None, decoded)
    return decoded
