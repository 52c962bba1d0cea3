"""An MCP server over HTTP, and the authorization server that protects it."""

import asyncio
import base64
import hashlib
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.sse import SseServerTransport
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Mount, Route

from mnemesh_testkit.fakes.served_app import ServedApp, listen


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
                Route("/token", self._issue_token, methods=["POST"]),
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

    async def _issue_token(self, request: Request) -> Response:
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
    listener, found.base = listen()
    served = ServedApp(found.app(), listener, lifespan=True, grace_seconds=0)
    try:
        yield found
    finally:
        await served.abort()


PNG = base64.b64decode("iVBORw0KGgo=")
ECHO = {
    "type": "object",
    "properties": {"text": {"type": "string"}},
    "required": ["text"],
    "additionalProperties": False,
}


@dataclass
class Remote:
    """A server whose tools and faults a test sets."""

    tools: dict[str, dict[str, Any]] = field(default_factory=lambda: {"echo": ECHO})
    token: str | None = None
    location: str | None = None
    """Answers every request with a redirect to this URL."""
    hangs: bool = False
    """Lists of tools do not end."""
    cursors: Iterator[str] = field(default_factory=lambda: iter(()))
    """Each page of tools names the next of them as the cursor of another page."""
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    connections: int = 0
    """The number of sessions that began."""
    entered: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    proceed: asyncio.Event = field(default_factory=asyncio.Event)
    """The tool "steps" reports half of its progress, and waits for this."""
    url: str = ""
    _served: ServedApp | None = None

    async def start(self, kind: str = "streamable_http") -> None:
        """Serves at the port of before, or at a free one."""
        port = int(self.url.split(":")[2].split("/")[0]) if self.url else 0
        listener, url = listen(port)
        self.url = f"{url}/{'sse' if kind == 'sse' else 'mcp'}"
        server = Server("remote", on_list_tools=self._list, on_call_tool=self._call)
        app = _sse_app(server) if kind == "sse" else server.streamable_http_app()
        self._served = ServedApp(self._guarded(app), listener, lifespan=True, grace_seconds=0)

    async def stop(self) -> None:
        """Ends every connection and the server."""
        assert self._served is not None
        await self._served.abort()

    def drop(self) -> None:
        """Breaks every connection."""
        assert self._served is not None
        self._served.drop()

    async def _list(self, *_: Any) -> types.ListToolsResult:
        if self.hangs:
            await asyncio.Event().wait()
        return types.ListToolsResult(
            tools=[
                types.Tool(name=name, description=f"Runs {name}.", input_schema=schema)
                for name, schema in self.tools.items()
            ],
            next_cursor=next(self.cursors, None),
        )

    async def _call(self, context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        arguments = params.arguments or {}
        self.calls.append((params.name, arguments))
        self.entered.set()
        match params.name:
            case "hang":
                try:
                    await asyncio.Event().wait()
                finally:
                    self.cancelled.set()
            case "die":
                self.drop()
                await asyncio.Event().wait()
            case "steps":
                await context.session.report_progress(1, 2, "half of it")
                await self.proceed.wait()
                await context.session.report_progress(2, 2)
            case "fail":
                return types.CallToolResult(content=[types.TextContent(text="It failed.")], is_error=True)
            case "long":
                return types.CallToolResult(content=[types.TextContent(text="x" * 200_000)])
            case "picture":
                image = types.ImageContent(data=base64.b64encode(PNG).decode(), mime_type="image/png")
                return types.CallToolResult(
                    content=[types.TextContent(text="See:"), image], structured_content={"width": 1}
                )
        return types.CallToolResult(content=[types.TextContent(text=json.dumps(arguments))])

    def _guarded(self, app: Any) -> Callable[..., Awaitable[None]]:
        async def guarded(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            headers = {name.decode(): value.decode() for name, value in scope["headers"]}
            self.headers.append(headers)
            if self.location is not None:
                await Response(status_code=307, headers={"location": self.location})(scope, receive, send)
            elif self.token is not None and headers.get("authorization") != f"Bearer {self.token}":
                text = f"unknown token {headers.get('authorization')}"
                await Response(text, status_code=401)(scope, receive, send)
            else:
                self.connections += "mcp-session-id" not in headers and scope["method"] == "POST"
                await app(scope, receive, send)

        return guarded


def _sse_app(server: Server[Any]) -> Starlette:
    transport = SseServerTransport("/messages/")

    async def connect(request: Any) -> Response:
        async with transport.connect_sse(request.scope, request.receive, request._send) as (reader, writer):
            await server.run(reader, writer, server.create_initialization_options())
        return Response()

    return Starlette(routes=[Route("/sse", connect), Mount("/messages/", transport.handle_post_message)])


@asynccontextmanager
async def running(kind: str = "streamable_http", **settings: Any) -> AsyncIterator[Remote]:
    remote = Remote(**settings)
    await remote.start(kind)
    try:
        yield remote
    finally:
        await remote.stop()
