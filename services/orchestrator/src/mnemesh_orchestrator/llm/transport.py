"""Reads answers through the SDK of a provider, and converts its errors.

Both SDKs come from one generator: their clients, streams and errors have the same names and forms. A call sends a body
of bytes with the URL, the headers and the credentials of the SDK's client, and reads the answer with the SDK's stream.
The methods of the client compute URL and headers for every call, and its typed `create` converts the whole window,
which costs more CPU than the rest of a step.
"""

import json
from collections.abc import Collection, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from mnemesh_orchestrator.llm.errors import ProviderBadAnswer, ProviderError, ProviderTimeout, ProviderUnavailable
from mnemesh_orchestrator.llm.provider_errors import error_from_response, quote
from mnemesh_orchestrator.llm.settings import ProviderSettings

if TYPE_CHECKING:
    import httpx2

    from mnemesh_orchestrator.llm.http_client import ProviderHttpClient, Target

_MAX_TARGETS: Final = 64


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
        self.errors = (TimeoutError, sdk.APIError, httpx2.HTTPError, ValueError, RecursionError)
        """The exceptions of a call and of reading its answer; see `translate_error`."""
        self._http = http
        self._targets: dict[str, Target] = {}

    async def send(self, path: str, body: bytes) -> "httpx2.Response":
        """Posts a body of JSON to a path below the base URL. The body of the response is still to be read."""
        return await self._http.post_stream(self._target(path), body)

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


async def require_success(sdk_client: SdkClient, response: "httpx2.Response") -> None:
    """Raises the ProviderError of an answer whose status is no success, after it was read."""
    if response.is_success:
        return
    try:
        content = _redacted(_decoded(await response.aread()), sdk_client.secrets)
    finally:
        await response.aclose()
    raise error_from_response(sdk_client.provider, response.status_code, content, response.headers)


def is_whole(provider: str, response: "httpx2.Response") -> bool:
    """Returns whether an answer has one body, because the server does not stream. Refuses a page for people."""
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "text/html":
        raise ProviderBadAnswer(f"{provider} returned an HTML page.", provider=provider)
    return kind == "application/json"


async def read_whole(provider: str, response: "httpx2.Response") -> Any:
    """Returns the decoded body of a server that does not stream. Raises a ProviderError that it contains."""
    decoded = json.loads(await response.aread())
    if isinstance(decoded, dict) and decoded.get("error"):
        raise error_from_response(provider, None, decoded)
    return decoded


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
