"""Letta's REST API as one ASGI application: its operations, its OpenAPI document, and the page that shows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mnemesh_kit.errors import MnemeshError, Unimplemented
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from mnemesh_gateway.http.body import Bodies
from mnemesh_gateway.letta.errors import error_response
from mnemesh_gateway.letta.mesh import Mesh
from mnemesh_gateway.letta.openapi import DOCS_PAGE, document
from mnemesh_gateway.letta.operations import Operation, json_response, starlette_routes
from mnemesh_gateway.letta.profile import Profile
from mnemesh_gateway.letta.routes import resources

_EXACT: Final = frozenset({"models"})
"""The resources that OpenAI's API has too: its paths have no slash at the end."""
_CLOUD: Final = "This is a service of Letta's cloud."
_INTERNAL: Final = "Letta's own services use this path. The same path without `_internal_` is for clients."
_PROXY: Final = "This path forwards the requests of a client to a provider. Send messages to an agent."
_NOT_SERVED: Final[Mapping[str, str]] = {
    "_internal_agents": _INTERNAL,
    "_internal_blocks": _INTERNAL,
    "_internal_runs": _INTERNAL,
    "_internal_search": _INTERNAL,
    "_internal_templates": _CLOUD,
    "anthropic": _PROXY,
    "client-side-access-tokens": _CLOUD,
    "environments": _CLOUD,
    "git": "Blocks are the memory of agents; no repositories are kept of them.",
    "projects": _CLOUD,
    "templates": _CLOUD,
    "sandbox-config": (
        "Tools run in the sandboxes of the tools service, which its operator configures. Variables of tools are the "
        "`secrets` of an agent."
    ),
    "voice-beta": "Agents answer to clients of OpenAI's API at /v1/chat/completions, voice agents too.",
    "zai": _PROXY,
}
"""Resources of Letta's API without any operation, and the reasons. Their paths answer 501 in its form."""
_DOCUMENTS: Final = ("/openapi.json", "/v1/openapi.json", "/docs")


class LettaApp:
    """Serves what belongs to Letta's API, and leaves the rest to the next application."""

    def __init__(self, mesh: Mesh, profile: Profile, bodies: Bodies, following: ASGIApp) -> None:
        self._following = following
        self._operations: list[Operation] = [operation for module in resources() for operation in module.all]
        by_resource: dict[str, list[Operation]] = {name: [] for name in _NOT_SERVED}
        for operation in self._operations:
            by_resource.setdefault(operation.path.split("/")[1], []).append(operation)
        self._routers = {
            name: Router(
                starlette_routes(operations, mesh, profile, bodies, exact=name in _EXACT),
                redirect_slashes=False,
                default=_left if name in _EXACT else _unknown,
            )
            for name, operations in by_resource.items()
        }
        self._documents = Router(
            [
                Route("/openapi.json", self._openapi, methods=["GET"]),
                Route("/v1/openapi.json", self._openapi, methods=["GET"]),
                Route("/docs", _docs, methods=["GET"]),
            ],
            redirect_slashes=False,
        )
        self._document: bytes | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves a request."""
        router = self._router(scope["path"])
        if router is None:
            await self._following(scope, receive, send)
            return
        scope["app"] = self  # routes then raise HTTPException for a wrong method
        try:
            await router(scope, receive, send)
        except _NotOurs:
            await self._following(scope, receive, send)
        except HTTPException as error:
            detail = f"{scope['path'][:200]} does not take {scope['method']}."
            await json_response({"detail": detail}, error.status_code)(scope, receive, send)

    def error_response(self, scope: Scope, error: MnemeshError) -> Response | None:
        """Returns an error in the form of Letta's API; None for a request that does not belong to it."""
        router = self._router(scope["path"])
        if router is None or (
            router.default is _left and all(route.matches(scope)[0] is Match.NONE for route in router.routes)
        ):
            return None
        return error_response(error)

    def _router(self, path: str) -> Router | None:
        if path in _DOCUMENTS:
            return self._documents
        head, _, rest = path[1:].partition("/")
        return self._routers.get(rest.partition("/")[0]) if head == "v1" else None

    async def _openapi(self, _request: Request) -> Response:
        if self._document is None:
            self._document = document(self._operations)
        return Response(self._document, media_type="application/json")


class _NotOurs(Exception):
    """The path is one of OpenAI's API."""


async def _left(_scope: Scope, _receive: Receive, _send: Send) -> None:
    raise _NotOurs


async def _unknown(scope: Scope, receive: Receive, send: Send) -> None:
    reason = _NOT_SERVED.get(scope["path"].split("/")[2])
    wanted = f"The gateway does not serve {scope['method']} {scope['path'][:200]}."
    error = Unimplemented(" ".join(filter(None, (wanted, reason, "See docs/letta-compatibility.md."))))
    await error_response(error)(scope, receive, send)


async def _docs(_request: Request) -> Response:
    return Response(DOCS_PAGE, media_type="text/html; charset=utf-8")
