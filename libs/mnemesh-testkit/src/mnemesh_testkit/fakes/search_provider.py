"""A fake server of web searches that speaks the APIs of Exa, Tavily, Brave and SearXNG.

Like the real ones, it refuses requests that do not have the form of its API or have no key.
"""

import asyncio
from dataclasses import dataclass
from typing import Any, Final, Self

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mnemesh_testkit.fakes.served_app import ServedApp, listen

KEY: Final = "key-of-the-provider"
_EXA_FIELDS: Final = {
    *("query", "type", "category", "numResults", "includeDomains", "excludeDomains", "startPublishedDate"),
    *("endPublishedDate", "userLocation", "contents"),
}
_TAVILY_FIELDS: Final = {
    *("query", "max_results", "topic", "include_domains", "exclude_domains", "start_date", "end_date"),
    "include_raw_content",
}
_BRAVE_FIELDS: Final = {"q", "count", "country", "freshness", "text_decorations"}
_SEARXNG_FIELDS: Final = {"q", "format", "pageno", "categories", "time_range"}


@dataclass(frozen=True, slots=True)
class FoundPage:
    """A page that every search finds."""

    title: str
    url: str
    snippet: str = ""
    text: str = ""
    published: str | None = None
    """In the form of the API."""


class FakeSearchProvider:
    """A server on a free loopback port; an async context manager. `{url}/exa` is the base URL of the API of Exa."""

    def __init__(self, *pages: FoundPage) -> None:
        """Takes the pages that it finds."""
        self.pages = list(pages)
        self.script: list[Response] = []
        """Responses that are returned first."""
        self.requests: list[dict[str, Any]] = []
        """The parameters or the bodies of the requests, each with its path."""
        self.hold: asyncio.Event | None = None
        """Delays every answer until it is set."""
        self.url = ""

    async def __aenter__(self) -> Self:
        routes = [
            Route("/exa/search", self._exa, methods=["POST"]),
            Route("/tavily/search", self._tavily, methods=["POST"]),
            Route("/brave/web/search", self._brave),
            Route("/brave/news/search", self._brave),
            Route("/searxng/search", self._searxng),
        ]
        listener, self.url = listen()
        self._served = ServedApp(Starlette(routes=routes), listener)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.hold is not None:
            self.hold.set()
        await self._served.stop()

    async def _early(
        self, request: Request, given: dict[str, Any], key: str | None, known: set[str]
    ) -> Response | None:
        self.requests.append({"path": request.url.path, **given})
        if self.hold is not None:
            await self.hold.wait()
        if self.script:
            return self.script.pop(0)
        if key is not None and key != KEY:
            return JSONResponse({"error": f"the key {key} is not valid"}, 401)
        unknown = sorted(set(given) - known)
        return JSONResponse({"error": f"unknown fields: {unknown}"}, 400) if unknown else None

    async def _exa(self, request: Request) -> Response:
        body = await request.json()
        early = await self._early(request, body, request.headers.get("x-api-key", ""), _EXA_FIELDS)
        has_text = "text" in body["contents"]
        results = [
            {
                "id": page.url,
                "title": page.title,
                "url": page.url,
                "publishedDate": page.published,
                "author": "Ana Lind",
                "highlights": [page.snippet],
                "highlightScores": [0.5],
                **({"text": page.text} if has_text else {}),
            }
            for page in self.pages
        ]
        return early or JSONResponse({"requestId": "r", "resolvedSearchType": "neural", "results": results})

    async def _tavily(self, request: Request) -> Response:
        body = await request.json()
        key = request.headers.get("authorization", "").removeprefix("Bearer ")
        early = await self._early(request, body, key, _TAVILY_FIELDS)
        results = [
            {
                "title": page.title,
                "url": page.url,
                "content": page.snippet,
                "score": 0.9,
                "raw_content": page.text if body.get("include_raw_content") else None,
                **({"published_date": page.published} if page.published else {}),
            }
            for page in self.pages
        ]
        answer = {"query": body["query"], "answer": None, "images": [], "results": results, "response_time": 0.1}
        return early or JSONResponse(answer)

    async def _brave(self, request: Request) -> Response:
        given, key = dict(request.query_params), request.headers.get("x-subscription-token", "")
        early = await self._early(request, given, key, _BRAVE_FIELDS)
        results = [
            {
                "title": page.title,
                "url": page.url,
                "description": page.snippet,
                **({"page_age": page.published} if page.published else {}),
            }
            for page in self.pages
        ]
        if request.url.path.startswith("/brave/news"):
            return early or JSONResponse({"type": "news", "query": {}, "results": results})
        web = {"web": {"type": "search", "results": results}} if results else {}
        return early or JSONResponse({"type": "search", "query": {}, **web})

    async def _searxng(self, request: Request) -> Response:
        early = await self._early(request, dict(request.query_params), None, _SEARXNG_FIELDS)
        results = [
            {
                "title": page.title,
                "url": page.url,
                "content": page.snippet,
                "publishedDate": page.published,
                "engine": "fake",
                "engines": ["fake"],
                "score": 1.0,
            }
            for page in self.pages
        ]
        answer = {"query": "", "number_of_results": 0, "results": results, "answers": [], "suggestions": []}
        return early or JSONResponse(answer)
