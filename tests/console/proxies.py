"""A reverse proxy that serves a gateway below a path, as operators have one."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import uvicorn
from mnemesh_testkit.timeouts import scaled
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

_OF_CONNECTIONS = ("connection", "keep-alive", "transfer-encoding")
"""Headers of one connection, which no proxy passes on."""


@asynccontextmanager
async def proxy(target: str, prefix: str) -> AsyncIterator[str]:
    """Serves `target` below `prefix`, such as "/team", and yields the address of the proxy with the prefix.

    The prefix is removed from the paths of requests. Headers, Host among them, and bodies pass unchanged, and streams
    as they arrive. Other paths are not found.
    """
    async with httpx.AsyncClient(base_url=target, timeout=scaled(60)) as client:

        async def forward(request: Request) -> Response:
            path = request.path_params["path"] + (f"?{request.url.query}" if request.url.query else "")
            headers = [(key, value) for key, value in request.headers.raw if key.decode() not in _OF_CONNECTIONS]
            sent = client.build_request(request.method, f"/{path}", headers=headers, content=await request.body())
            answer = await client.send(sent, stream=True)
            passed = {key: value for key, value in answer.headers.items() if key not in _OF_CONNECTIONS}
            closing = BackgroundTask(answer.aclose)
            return StreamingResponse(answer.aiter_raw(), answer.status_code, headers=passed, background=closing)

        app = Starlette(routes=[Route(prefix + "/{path:path}", forward, methods=["GET", "POST"])])
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=1))
        listener = socket.create_server(("127.0.0.1", 0))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        yield f"http://127.0.0.1:{listener.getsockname()[1]}{prefix}"
        server.should_exit = True
        await serving
