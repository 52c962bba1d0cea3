"""Reads answers through the SDK of a provider, and converts its errors.

Both SDKs come from one generator: their clients, streams and errors have the same names and forms. A call sends a body
of bytes with the URL, the headers and the credentials of the SDK's client, and reads the answer with the SDK's stream.
The methods of the client compute URL and headers for every call, and its typed `create` converts the whole window,
which costs more CPU than the rest of a step.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import suppress
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, Protocol

from mnemesh_kit.failpoints import async_failpoint
from mnemesh_kit.unicode import well_formed
from mnemesh_types.messages import ContentPart
from mnemesh_types.usage import Usage

from mnemesh_orchestrator.llm.answers import UNREADABLE, valid_usage
from mnemesh_orchestrator.llm.attempts import CallLimits, in_time
from mnemesh_orchestrator.llm.errors import ProviderBadAnswer, ProviderError, ProviderTimeout, ProviderUnavailable
from mnemesh_orchestrator.llm.port import AnsweredCall
from mnemesh_orchestrator.llm.provider_errors import error_from_response, quote

if TYPE_CHECKING:
    import httpx2

_MAX_TEMPLATES: Final = 64


class SdkClient:
    """The client of an SDK, and the HTTP client that it was created with."""

    def __init__(self, sdk: ModuleType, client: Any, http: "httpx2.AsyncClient") -> None:
        """Keeps the client. Its URL, headers and credentials must not change after the first request."""
        self.sdk = sdk
        self.client = client
        self._http = http
        self._templates: dict[str, httpx2.Request] = {}

    async def send(self, path: str, body: bytes) -> "httpx2.Response":
        """Posts a body of JSON to a path below the base URL. The body of the response is still to be read."""
        import httpx2

        template = self._template(path)
        request = httpx2.Request(
            "POST", template.url, headers=template.headers, content=body, extensions=dict(template.extensions)
        )
        return await self._http.send(request, stream=True)

    def _template(self, path: str) -> "httpx2.Request":
        """Returns a request to a path without a body."""
        import httpx2

        known = self._templates.get(path)
        if known is None:
            client, headers = self.client, httpx2.Headers()
            for name, value in (*client.auth_headers.items(), *client.default_headers.items()):
                if isinstance(value, str):  # an omitted header has a marker
                    headers[name] = value
            headers["Content-Type"] = "application/json"
            url = f"{str(client.base_url).rstrip('/')}{path}"
            known = self._http.build_request("POST", url, headers=headers, params=client.default_query or None)
            del known.headers["Content-Length"]
            if len(self._templates) >= _MAX_TEMPLATES:
                self._templates.clear()
            self._templates[path] = known
        return known


async def stream_events(
    sdk_client: SdkClient,
    path: str,
    body: bytes,
    *,
    provider: str,
    limits: CallLimits,
    secrets: Collection[str] = (),
) -> AsyncIterator[Any]:
    """Yields the decoded events of a streamed answer, or the one body of a server that does not stream.

    Args:
        sdk_client: the client of the provider's SDK.
        path: the endpoint below the client's base URL.
        body: the request body.
        provider: the name of the provider, for messages.
        limits: the time limits of the answer.
        secrets: the values that no error may quote.

    Raises:
        ProviderError: the call failed, before or after the first event.
    """
    import httpx2  # This is the transport of the SDKs. It is loaded with them, not before.

    sdk = sdk_client.sdk
    clock = asyncio.get_running_loop().time
    deadline = clock() + limits.total_seconds
    await async_failpoint("model.before_request", provider)
    try:
        async with asyncio.timeout_at(deadline):
            response = await sdk_client.send(path, body)
            if not response.is_success:
                try:
                    content = _redacted(_decoded(await response.aread()), secrets)
                finally:
                    await response.aclose()
                raise error_from_response(provider, response.status_code, content, response.headers)
        await async_failpoint("model.response_started", provider)
        async with sdk.AsyncStream(cast_to=object, response=response, client=sdk_client.client) as stream:
            kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind == "text/html":
                raise ProviderBadAnswer(f"{provider} returned an HTML page.", provider=provider)
            if kind == "application/json":
                async with asyncio.timeout_at(deadline):
                    body = await response.aread()
                yield _plain_body(provider, body)
                return
            async for event in in_time(stream, deadline - clock()):
                yield event
    except (TimeoutError, sdk.APIError, httpx2.HTTPError, ValueError, RecursionError) as error:
        raise translate_error(sdk, provider, error, secrets) from error


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


class PartialAnswer(Protocol):
    """An answer as far as it has arrived."""

    @property
    def content(self) -> tuple[ContentPart, ...]:
        """Reasoning and text."""
        ...

    @property
    def tool_calls(self) -> tuple[AnsweredCall, ...]:
        """The tool calls in order."""
        ...

    @property
    def usage(self) -> Usage:
        """The tokens that the provider has counted."""
        ...

    @property
    def body(self) -> Any:
        """The answer as a call without streaming would have returned it."""
        ...


def add_partial_answer(error: ProviderError, answer: PartialAnswer) -> None:
    """Adds to an error what arrived before it: the counted tokens, and the answer for the trace."""
    with suppress(*UNREADABLE):  # The pieces of a broken answer may not fit together.
        error.usage = valid_usage(answer.usage)
        if answer.content or answer.tool_calls or error.usage != Usage():
            error.response_body = well_formed(json.dumps(answer.body, ensure_ascii=False))


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


def _plain_body(provider: str, body: bytes) -> Any:
    decoded = json.loads(body)
    if isinstance(decoded, dict) and decoded.get("error"):
        raise error_from_response(provider, None, decoded)
    return decoded
