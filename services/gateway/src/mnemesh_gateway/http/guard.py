"""The checks of every request: Host, Origin, credentials, open requests, correlation ids, logs, metrics."""

import asyncio
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import structlog
from mnemesh_kit.access import rule_of
from mnemesh_kit.auth import Authenticator
from mnemesh_kit.call_context import set_correlation_id, set_principal
from mnemesh_kit.errors import MnemeshError, PermissionDenied, ServerBusy, typed_error
from mnemesh_kit.metrics import Metrics
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mnemesh_gateway.config import Config
from mnemesh_gateway.http.console import CONSOLE_PATH, is_console
from mnemesh_gateway.http.errors import error_to_json, retry_headers, status_of
from mnemesh_gateway.http.mcp import MCP_PATH
from mnemesh_gateway.http.streams import encode

OPEN_PATHS: Final = ("/livez", "/readyz", "/v1/health", "/v1/health/", "/v1/ready", "/v1/ready/")
"""The paths that need no token and accept every Host: health checks use addresses."""
BROWSER_PATHS: Final = ("/v1/tools/mcp/oauth/callback",)
"""The paths that need no token: authorization servers send the browsers of persons there."""
_PASSWORD: Final = "password "  # noqa: S105 -- the scheme of a header
_HOST: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:\[\]/@?#\s]+))(?::\d{0,5})?")
_LOCAL: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_EXPOSED: Final = (
    "Retry-After, X-Request-Id, X-Mnemesh-Run-Id, X-Mnemesh-Ignored-Parameters, Mcp-Session-Id, "
    "Grpc-Status, Grpc-Message, Grpc-Status-Details-Bin"
)
"""The headers of answers that web pages may read."""
_log = structlog.get_logger("mnemesh.http")


class Guard:
    """An ASGI application around another one.

    Args:
        app: the application.
        config: the allowed hosts and origins.
        authenticator: of tokens.
        metrics: of requests.
        error_response: returns an error in the form of the API that a request belongs to; None is OpenAI's.
    """

    def __init__(
        self,
        app: ASGIApp,
        config: Config,
        authenticator: Authenticator,
        metrics: Metrics | None,
        error_response: Callable[[Scope, MnemeshError], Response | None],
    ) -> None:
        self._app = app
        self._error_response = error_response
        self._authenticator = authenticator
        self._metrics = metrics
        self._hosts = frozenset(config.allowed_hosts)
        # A page in a browser that reaches this machine under another name (DNS rebinding) has no token.
        self._any_host = not config.allowed_hosts and config.auth_key_file is not None
        self._origins = frozenset(config.allowed_origins)
        self._max_open = config.max_concurrent_calls
        self._open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves a request."""
        if scope["type"] != "http":
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        correlation_id = set_correlation_id(headers.get("x-request-id"))
        origin = headers.get("origin")
        started, status = time.perf_counter(), 0

        async def respond(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", correlation_id.encode())]
                if origin is not None and self._allows(origin):
                    message["headers"] += _cors(origin, headers.get("access-control-request-headers"))
            await send(message)

        self._open += 1
        try:
            await self._admit(scope, headers, origin)
            if scope["method"] == "OPTIONS" and origin is not None:
                await _answer(respond, 204, None)
            else:
                await self._app(scope, receive, respond)
        except asyncio.CancelledError:
            status = status or 499
            raise
        except Exception as error:
            failure = typed_error(error)
            if failure is not error:
                _log.exception("unexpected_error", path=scope["path"])
            if status:
                raise
            response = self._error_response(scope, failure)
            if response is not None:
                await response(scope, receive, respond)
            else:
                await _answer(respond, status_of(failure), failure)
        finally:
            self._open -= 1
            self._finish(scope, status, time.perf_counter() - started)

    async def _admit(self, scope: Scope, headers: Mapping[str, str], origin: str | None) -> None:
        if scope["path"] in OPEN_PATHS:
            return
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        host = _name(headers.get("host", "")) if len(hosts) == 1 else ""
        if host not in self._hosts and not self._any_host and (self._hosts or host not in _LOCAL):
            raise PermissionDenied(
                f"The host {host[:100]!r} is not allowed. Add it to MNEMESH_GATEWAY_ALLOWED_HOSTS.",
                code="host_not_allowed",
            )
        if origin is not None and not self._allows(origin) and not _is_same_origin(scope, headers, origin):
            raise PermissionDenied(
                f"The origin {origin[:100]!r} is not allowed. Add it to MNEMESH_GATEWAY_ALLOWED_ORIGINS.",
                code="origin_not_allowed",
            )
        if self._open > self._max_open:
            raise ServerBusy(f"{self._max_open} requests are open. Try again later.")
        if scope["method"] != "OPTIONS" and scope["path"] not in BROWSER_PATHS and not is_console(scope["path"]):
            metadata = _metadata(headers)
            set_principal(self._authenticator.known(metadata) or await self._authenticator.principal(metadata))

    def _allows(self, origin: str) -> bool:
        return origin in self._origins or "*" in self._origins

    def _finish(self, scope: Scope, status: int, seconds: float) -> None:
        route = scope.get("route")
        own = f"{MCP_PATH}/{{agent}}" if scope["path"].startswith(f"{MCP_PATH}/") else scope["path"]
        own = f"{CONSOLE_PATH}/" if is_console(scope["path"]) else own
        path = getattr(route, "path", None) or (
            own if own in (*OPEN_PATHS, MCP_PATH, f"{MCP_PATH}/{{agent}}", f"{CONSOLE_PATH}/") else "other"
        )
        method = f"{scope['method']} {path}"
        if path not in OPEN_PATHS:
            log = _log.debug if status == 200 and rule_of(path).is_polled else _log.info
            log("request", method=method, status=status, ms=round(seconds * 1000, 2))
        if self._metrics is not None:
            self._metrics.record(method, str(status), seconds)


def _is_same_origin(scope: Scope, headers: Mapping[str, str], origin: str) -> bool:
    """Returns whether a request is of a page that this gateway served, such as the console.

    The Host was checked before. A proxy that ends TLS calls this server over HTTP: then the origin is of HTTPS, which
    no one else on the way can serve under that name.
    """
    host = headers.get("host", "")
    return origin.lower() in {f"{scope['scheme']}://{host}".lower(), f"https://{host}".lower()}


def _metadata(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Returns the headers as the metadata that authenticators read.

    A key in `api-key`, and the password that clients of the Letta server send in `x-bare-password`, are bearer tokens.
    """
    if "authorization" in headers:
        return headers
    password = headers.get("x-bare-password", "")
    if "api-key" in headers:
        return {**headers, "authorization": f"Bearer {headers['api-key']}"}
    if password.startswith(_PASSWORD):
        return {**headers, "authorization": f"Bearer {password.removeprefix(_PASSWORD)}"}
    return headers


def _name(host: str) -> str:
    """Returns the name of a Host header without its port; "" if it is not a host."""
    found = _HOST.fullmatch(host)
    return (found[1] or found[2]).lower() if found is not None else ""


def _cors(origin: str, requested: str | None) -> list[tuple[bytes, bytes]]:
    """Returns the headers for a web page that is allowed. It may send any header: SDKs send many of their own."""
    found = {
        "Access-Control-Allow-Origin": origin,
        "Access-Control-Allow-Methods": "GET, POST, PUT, PATCH, DELETE, OPTIONS",
        "Access-Control-Allow-Headers": requested or "*",
        "Access-Control-Expose-Headers": _EXPOSED,
        "Access-Control-Max-Age": "600",
        "Vary": "Origin",
    }
    return [(name.lower().encode(), value.encode("latin-1", "replace")) for name, value in found.items()]


async def _answer(send: Send, status: int, error: MnemeshError | None) -> None:
    body = b"" if error is None else encode(error_to_json(error))
    headers: list[tuple[bytes, Any]] = [(b"content-length", str(len(body)).encode())]
    if body:
        headers.append((b"content-type", b"application/json"))
    if error is not None:
        headers += [(name.encode(), value.encode()) for name, value in retry_headers(error).items()]
    if error is not None and error.reason == "CANCELLED":
        # OpenAI's SDKs repeat a request that got 409, which would start the cancelled run again.
        headers.append((b"x-should-retry", b"false"))
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
