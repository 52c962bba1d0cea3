"""Servers of embeddings and of reranking over HTTP."""

import asyncio
import hashlib
from collections.abc import Callable
from typing import Any, Self

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mnemesh_testkit.fakes.served_app import ServedApp, listen


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
        listener, url = listen()
        self.url = f"{url}/v1"
        self._served = ServedApp(app, listener)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.open.set()
        await self._served.stop()

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


class FakeReranker:
    """A server on a free loopback port; an async context manager.

    The first part of the path selects the form: POST {url}/tei/rerank, {url}/voyage/rerank; any other is Cohere's.
    """

    def __init__(self, score: Callable[[str], float] = lambda text: len(text) / 100) -> None:
        """Takes the function that scores a text; by default its length counts."""
        self.score = score
        self.script: list[Response] = []
        """Responses that are returned first."""
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        """The bodies and the Authorization headers of the requests."""
        self.hold: asyncio.Event | None = None
        """Delays every answer until it is set."""
        self.url = ""

    async def __aenter__(self) -> Self:
        app = Starlette(routes=[Route("/{form}/rerank", self._answer, methods=["POST"])])
        listener, self.url = listen()
        self._served = ServedApp(app, listener)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.hold is not None:
            self.hold.set()
        await self._served.stop()

    async def _answer(self, request: Request) -> Response:
        body = await request.json()
        self.bodies.append(body)
        self.keys.append(request.headers.get("authorization"))
        if self.hold is not None:
            await self.hold.wait()
        if self.script:
            return self.script.pop(0)
        match request.path_params["form"]:
            case "tei":
                found = [{"index": index, "score": self.score(text)} for index, text in enumerate(body["texts"])]
                return JSONResponse(sorted(found, key=lambda each: -each["score"]))
            case "voyage":
                return JSONResponse({"object": "list", "data": self._results(body), "model": body["model"]})
        usage = {"billed_units": {"search_units": 1}}
        return JSONResponse({"id": "r-1", "results": self._results(body), "meta": usage})

    def _results(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        """Returns the results best first, as real servers do."""
        texts = enumerate(body["documents"])
        found: list[dict[str, Any]] = [{"index": index, "relevance_score": self.score(text)} for index, text in texts]
        return sorted(found, key=lambda each: -each["relevance_score"])
