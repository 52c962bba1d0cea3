"""The routes of the HTTP API."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

from mnemesh_kit.call_context import current_principal
from mnemesh_kit.errors import NotFound, Unimplemented
from mnemesh_kit.health import READY_PATH, VERSION_PATH
from mnemesh_kit.server_info import version_of
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from mnemesh_gateway.errors import MethodNotAllowed
from mnemesh_gateway.http.connect import PREFIX as CONNECT_PREFIX
from mnemesh_gateway.http.console import is_console
from mnemesh_gateway.http.convert.chat import model_to_json
from mnemesh_gateway.http.mcp import MCP_PATH
from mnemesh_gateway.http.streams import encode
from mnemesh_gateway.usecases.agents import AgentService
from mnemesh_gateway.usecases.sessions import SessionService

_VERSION: Final = version_of("mnemesh-gateway")
Endpoint = Callable[[Request], Awaitable[Response]]


class App:
    """The routes, and the answers that need no file of their own."""

    def __init__(
        self,
        chat: Endpoint,
        responses: Endpoint,
        embeddings: Endpoint,
        agents: AgentService,
        sessions: SessionService,
        is_ready: Callable[[], Awaitable[bool]],
        mcp: ASGIApp,
        connect: ASGIApp,
        console: ASGIApp,
        *,
        debug_sessions: bool,
    ) -> None:
        self._agents = agents
        self._sessions = sessions
        self._is_ready = is_ready
        self._mcp = mcp
        self._connect = connect
        self._console = console
        routes = [
            Route(VERSION_PATH, self._live, methods=["GET"]),
            Route(READY_PATH, self._ready, methods=["GET"]),
            Route("/v1/models", self._models, methods=["GET"]),
            Route("/v1/models/{model:path}", self._model, methods=["GET"]),
            Route("/v1/chat/completions", chat, methods=["POST"]),
            Route("/v1/responses", responses, methods=["POST"]),
            Route("/v1/embeddings", embeddings, methods=["POST"]),
        ]
        if debug_sessions:
            routes.append(Route("/debug/sessions", self._debug_sessions, methods=["GET"]))
        self._router = Router(routes, redirect_slashes=False, default=_refuse_missing)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves a request."""
        if scope["path"] == MCP_PATH or scope["path"].startswith(f"{MCP_PATH}/"):
            await self._mcp(scope, receive, send)
            return
        if scope["path"].startswith(CONNECT_PREFIX):
            await self._connect(scope, receive, send)
            return
        if is_console(scope["path"]):
            await self._console(scope, receive, send)
            return
        scope["app"] = self  # routes then raise HTTPException for a wrong method
        try:
            await self._router(scope, receive, send)
        except HTTPException as error:
            raise MethodNotAllowed(
                f"{scope['path'][:200]} does not take {scope['method']}. See docs/gateway.md.",
                code="method_not_allowed",
            ) from error

    async def _live(self, _request: Request) -> Response:
        return _json({"service": "gateway", "version": _VERSION})

    async def _ready(self, _request: Request) -> Response:
        ready = await self._is_ready()
        return _json({"status": "SERVING" if ready else "NOT_SERVING"}, 200 if ready else 503)

    async def _models(self, _request: Request) -> Response:
        """Lists each agent by its id, and by its name if no other agent has it."""
        agents = [agent async for agent in self._agents.list()]
        unique = _unique([agent.name for agent in agents])
        models = []
        for agent in agents:
            if agent.name in unique:
                models.append(model_to_json(agent, agent.name))
            models.append(model_to_json(agent, agent.id))
        return _json({"object": "list", "data": models})

    async def _model(self, request: Request) -> Response:
        name = request.path_params["model"]
        return _json(model_to_json(await self._agents.find(current_principal(), name), name))

    async def _debug_sessions(self, _request: Request) -> Response:
        sessions = list(self._sessions.known(current_principal()))
        return _json({"count": len(sessions), "sessions": sessions})


def _unique(names: list[str]) -> set[str]:
    seen: set[str] = set()
    repeated: set[str] = set()
    for name in names:
        (repeated if name in seen else seen).add(name)
    return seen - repeated


def _json(content: Any, status: int = 200) -> Response:
    return Response(encode(content), status, media_type="application/json")


async def _refuse_missing(scope: Scope, _receive: Receive, _send: Send) -> None:
    """Refuses a path or a method that does not exist."""
    if scope["path"].startswith("/v1/"):
        raise Unimplemented(
            f"The gateway does not serve {scope['method']} {scope['path'][:200]}. See docs/gateway.md.",
            code="unknown_url",
        )
    raise NotFound(
        f"There is no {scope['path'][:200]}. The base URL of OpenAI's API here ends with /v1.", code="unknown_url"
    )
