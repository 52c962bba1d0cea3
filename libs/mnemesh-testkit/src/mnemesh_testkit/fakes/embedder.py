"""A fake server of an OpenAI-compatible embeddings API, which counts what it embeds."""

from __future__ import annotations

import asyncio
import hashlib
import socket
from typing import Any, Self

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route


class FakeEmbedder:
    """A server on a free loopback port; an async context manager. Every model has the same vectors.

    Example:
        >>> async with FakeEmbedder(dimension=8) as embedder:
        ...     config = Config(embedder="acme/embed-1", embedder_base_url=embedder.url, embedder_dimension=8)
    """

    def __init__(self, dimension: int = 8) -> None:
        self.dimension = dimension
        self.texts: list[str] = []
        """The texts of all requests."""
        self.open = asyncio.Event()
        """Requests wait while it is not set."""
        self.open.set()
        self.url = ""

    def vector(self, text: str) -> list[float]:
        """Returns the vector of a text, with a norm other than 1."""
        digest = hashlib.shake_256(text.encode()).digest(self.dimension)
        return [byte / 128 - 0.99 for byte in digest]

    async def __aenter__(self) -> Self:
        app = Starlette(routes=[Route("/v1/embeddings", self._answer, methods=["POST"])])
        config = uvicorn.Config(app, log_config=None, log_level="critical", lifespan="off", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        self._serving = asyncio.create_task(self._server.serve(sockets=[listener]))
        return self

    async def __aexit__(self, *_: object) -> None:
        self.open.set()
        self._server.should_exit = True
        await self._serving

    async def _answer(self, request: Request) -> JSONResponse:
        body: dict[str, Any] = await request.json()
        await self.open.wait()
        texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
        self.texts += texts
        data = [
            {"object": "embedding", "index": index, "embedding": self.vector(text)} for index, text in enumerate(texts)
        ]
        tokens = sum(len(text.split()) for text in texts)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return JSONResponse({"object": "list", "model": body["model"], "data": data, "usage": usage})
