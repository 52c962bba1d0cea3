"""An OAuth authorization server on loopback, and the MCP server that it protects (RFC 8414, 9728, 7591, 7636)."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import mcp_types as types
import uvicorn
from mcp.server.lowlevel import Server
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route


@dataclass
class Protected:
    """An MCP server that asks for tokens of its authorization server."""

    clients: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The registered clients by id."""
    codes: dict[str, dict[str, str]] = field(default_factory=dict)
    access: set[str] = field(default_factory=set)
    """The valid access tokens."""
    refresh: set[str] = field(default_factory=set)
    """The valid refresh tokens; each works once."""
    grants: list[str] = field(default_factory=list)
    """The grants of the requests for tokens."""
    issued: list[str] = field(default_factory=list)
    """All tokens and secrets."""
    seconds: int = 3600
    """The time for which access tokens are valid."""
    first_seconds: int | None = None
    """The time for which those of an authorization by a person are; None for the same."""
    refuses: bool = False
    """Refuses every request for a token."""
    shows_tokens: bool = False
    """The tools return all tokens and secrets."""
    base: str = ""
    entered: asyncio.Event = field(default_factory=asyncio.Event)
    """A call of the tool `wait` has begun."""
    released: asyncio.Event = field(default_factory=asyncio.Event)
    """Calls of the tool `wait` may end."""

    @property
    def url(self) -> str:
        """The URL of the MCP server."""
        return f"{self.base}/mcp"

    def app(self) -> Starlette:
        """Returns both servers."""
        server = Server("protected", on_list_tools=_list, on_call_tool=self._call)
        inner = server.streamable_http_app(json_response=True)

        class Guarded:
            """Asks for a token."""

            async def __call__(guard, scope: Any, receive: Any, send: Any) -> None:  # noqa: N805
                token = dict(scope["headers"]).get(b"authorization", b"").decode().removeprefix("Bearer ")
                if token in self.access:
                    await inner(scope, receive, send)
                    return
                where = f"{self.base}/.well-known/oauth-protected-resource/mcp"
                header = {"www-authenticate": f'Bearer resource_metadata="{where}"'}
                await Response(status_code=401, headers=header)(scope, receive, send)

        return Starlette(
            routes=[
                Route("/.well-known/oauth-protected-resource/mcp", self._resource),
                Route("/.well-known/oauth-authorization-server", self._metadata),
                Route("/register", self._register, methods=["POST"]),
                Route("/authorize", self._authorize),
                Route("/token", self._token, methods=["POST"]),
                Route("/mcp", Guarded()),
            ],
            lifespan=inner.router.lifespan_context,
        )

    async def approve(self, url: str) -> dict[str, str]:
        """Opens the URL as a person who agrees; returns the parameters of the redirect."""
        parts = {key: values[0] for key, values in parse_qs(urlsplit(url).query).items()}
        code = secrets.token_hex(8)
        self.codes[code] = parts
        return {"code": code, "state": parts["state"]}

    async def _call(self, _: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        if params.name == "wait":
            self.entered.set()
            await self.released.wait()
        text = " ".join(self.issued) if self.shows_tokens else "you"
        return types.CallToolResult(content=[types.TextContent(text=text)])

    async def _resource(self, _: Request) -> Response:
        return JSONResponse({"resource": self.url, "authorization_servers": [self.base]})

    async def _metadata(self, _: Request) -> Response:
        return JSONResponse(
            {
                "issuer": self.base,
                **{f"{name}_endpoint": f"{self.base}/{path}" for name, path in _ENDPOINTS.items()},
                "response_types_supported": ["code"],
                "code_challenge_methods_supported": ["S256"],
                "grant_types_supported": ["authorization_code", "refresh_token", "client_credentials"],
                "token_endpoint_auth_methods_supported": ["client_secret_post", "client_secret_basic"],
            }
        )

    async def _register(self, request: Request) -> Response:
        wanted = await request.json()
        client = {**wanted, "client_id": secrets.token_hex(8), "client_secret": self._secret()}
        client["token_endpoint_auth_method"] = "client_secret_post"
        self.clients[client["client_id"]] = client
        return JSONResponse(client, status_code=201)

    async def _authorize(self, request: Request) -> Response:
        found = await self.approve(str(request.url))
        return RedirectResponse(f"{request.query_params['redirect_uri']}?{urlencode(found)}")

    async def _token(self, request: Request) -> Response:
        form = {key: str(value) for key, value in (await request.form()).items()}
        grant = form["grant_type"]
        self.grants.append(grant)
        client_id, secret = form.get("client_id"), form.get("client_secret")
        if "authorization" in request.headers:
            pair = base64.b64decode(request.headers["authorization"].removeprefix("Basic ")).decode()
            client_id, _, secret = pair.partition(":")
        client = self.clients.get(client_id or "")
        if self.refuses or client is None or client.get("client_secret") != secret:
            return JSONResponse({"error": "invalid_client"}, status_code=401)
        if not self._is_granted(grant, form):
            return JSONResponse({"error": "invalid_grant"}, status_code=400)
        access = self._secret()
        self.access.add(access)
        is_first = grant == "authorization_code" and self.first_seconds is not None
        seconds = self.first_seconds if is_first else self.seconds
        answer: dict[str, Any] = {"access_token": access, "token_type": "Bearer", "expires_in": seconds}
        if grant != "client_credentials":
            answer["refresh_token"] = self._secret()
            self.refresh.add(answer["refresh_token"])
        return JSONResponse(answer)

    def _is_granted(self, grant: str, form: dict[str, str]) -> bool:
        if grant == "authorization_code":
            begun = self.codes.pop(form["code"], None)
            digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
            challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
            return begun is not None and begun["code_challenge"] == challenge and begun.get("resource") == self.url
        if grant == "refresh_token":
            is_known = form["refresh_token"] in self.refresh
            self.refresh.discard(form["refresh_token"])
            return is_known
        return grant == "client_credentials"

    def _secret(self) -> str:
        self.issued.append(secrets.token_hex(16))
        return self.issued[-1]


_ENDPOINTS = {"authorization": "authorize", "token": "token", "registration": "register"}


async def _list(*_: Any) -> types.ListToolsResult:
    return types.ListToolsResult(
        tools=[types.Tool(name=name, input_schema={"type": "object"}) for name in ("whoami", "wait")]
    )


@asynccontextmanager
async def protected(**settings: Any) -> AsyncIterator[Protected]:
    """Runs both servers."""
    found = Protected(**settings)
    listener = socket.create_server(("127.0.0.1", 0))
    found.base = f"http://127.0.0.1:{listener.getsockname()[1]}"
    config = uvicorn.Config(found.app(), log_config=None, lifespan="on", timeout_graceful_shutdown=0)
    web = uvicorn.Server(config)
    web.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    task = asyncio.create_task(web.serve(sockets=[listener]))
    try:
        yield found
    finally:
        for connection in list(web.server_state.connections):
            connection.transport.abort()
        web.should_exit = web.force_exit = True
        await task
