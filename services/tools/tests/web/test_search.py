"""Searches of the web: each provider's API, failures and limits."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from mnemesh.tools.v1 import web_service_pb2 as pb
from mnemesh_kit.config import ConfigError
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.retries import Backoff
from mnemesh_kit.time import SystemClock
from mnemesh_testkit.errors import catch_refusal
from mnemesh_testkit.fakes.search_provider import KEY, FakeSearchProvider, FoundPage
from mnemesh_tools.config import Config
from mnemesh_tools.errors import WebSearchRefused, WebSearchUnavailable
from mnemesh_tools.model.web import Category, WebSearch, moment, new_result, new_search
from mnemesh_tools.web.searcher import ATTEMPTS, Brave, Exa, Provider, Searxng, Tavily, WebSearcher
from mnemesh_types.tools import SearchAnswer
from starlette.responses import JSONResponse, Response

from ..conftest import serve

PROVIDERS: dict[str, Provider] = {each.name: each for each in (Exa(), Tavily(), Brave(), Searxng(SystemClock()))}
AT_ONCE = Backoff(first=0.0, maximum=0.0)
PAGES = (
    FoundPage(
        "Bees <strong>see</strong>", "https://bees.example/a", "Bees &  see", "The whole text.", "2026-03-04T10:00:00"
    ),
    FoundPage("Ants", "https://news.ants.example/b", "Ants walk"),
)
BEES = WebSearch(query="bees")
START, END = datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 3, 31, tzinfo=UTC)


@pytest_asyncio.fixture
async def server() -> AsyncIterator[FakeSearchProvider]:
    async with FakeSearchProvider(*PAGES) as server:
        yield server


async def searched(
    server: FakeSearchProvider, search: WebSearch = BEES, name: str = "exa", key: str = KEY, seconds: float = 20.0
) -> SearchAnswer:
    searcher = WebSearcher(PROVIDERS[name], f"{server.url}/{name}", key, seconds=seconds, backoff=AT_ONCE)
    try:
        return await searcher.search(search)
    finally:
        await searcher.close()


@pytest.mark.parametrize("name", PROVIDERS)
async def test_results_have_title_url_time_and_snippets(server: FakeSearchProvider, name: str) -> None:
    answer = await searched(server, WebSearch(query="bees", include_text=True), name)
    first, second = answer.results
    assert (answer.provider, first.url, second.url) == (name, PAGES[0].url, PAGES[1].url)
    assert (first.title, first.snippets) == ("Bees see", ("Bees & see",))
    assert first.published_at == datetime(2026, 3, 4, 10, tzinfo=UTC)
    assert second.published_at is None
    assert first.text == ("The whole text." if name in ("exa", "tavily") else "")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "exa",
            {
                "path": "/exa/search",
                "query": "bees",
                "type": "auto",
                "numResults": 30,
                "category": "research paper",
                "includeDomains": ["a.example", "b.example"],
                "excludeDomains": ["c.example"],
                "startPublishedDate": "2026-03-01T00:00:00+00:00",
                "endPublishedDate": "2026-03-31T00:00:00+00:00",
                "userLocation": "SE",
                "contents": {"highlights": True},
            },
        ),
        (
            "tavily",
            {
                "path": "/tavily/search",
                "query": "bees",
                "max_results": 20,
                "topic": "general",
                "include_domains": ["a.example", "b.example"],
                "exclude_domains": ["c.example"],
                "start_date": "2026-03-01",
                "end_date": "2026-03-31",
            },
        ),
        (
            "brave",
            {
                "path": "/brave/web/search",
                "q": "bees (site:a.example OR site:b.example) -site:c.example",
                "count": "20",
                "country": "SE",
                "freshness": "2026-03-01to2026-03-31",
                "text_decorations": "false",
            },
        ),
        (
            "searxng",
            {
                "path": "/searxng/search",
                "q": "bees (site:a.example OR site:b.example) -site:c.example",
                "format": "json",
                "pageno": "1",
                "categories": "science",
            },
        ),
    ],
)
async def test_arguments_in_the_form_of_each_api(
    server: FakeSearchProvider, name: str, expected: dict[str, Any]
) -> None:
    server.pages.clear()
    search = WebSearch(
        query="bees",
        num_results=30,
        category=Category.RESEARCH_PAPER,
        include_domains=("a.example", "b.example"),
        exclude_domains=("c.example",),
        start_published_at=START,
        end_published_at=END,
        user_location="SE",
    )
    if name == "searxng":  # the range depends on the clock: no range is long enough for this one
        search = WebSearch(
            query="bees",
            category=Category.RESEARCH_PAPER,
            include_domains=("a.example", "b.example"),
            exclude_domains=("c.example",),
            start_published_at=datetime(2001, 1, 1, tzinfo=UTC),
        )
    assert (await searched(server, search, name)).results == ()
    assert server.requests == [expected]


@pytest.mark.parametrize(
    ("name", "category", "expected"),
    [
        ("tavily", Category.NEWS, {"topic": "news"}),
        ("tavily", Category.GITHUB, {"include_domains": ["github.com"]}),
        ("brave", Category.NEWS, {"path": "/brave/news/search"}),
        ("brave", Category.GITHUB, {"q": "bees site:github.com"}),
        ("brave", Category.PDF, {"q": "bees filetype:pdf"}),
        ("searxng", Category.NEWS, {"categories": "news"}),
    ],
)
async def test_categories(server: FakeSearchProvider, name: str, category: Category, expected: dict[str, Any]) -> None:
    await searched(server, WebSearch(query="bees", category=category), name)
    assert expected.items() <= server.requests[0].items()


async def test_filters_hold_whatever_a_provider_returns(server: FakeSearchProvider) -> None:
    server.pages[0] = FoundPage("Old", "https://bees.example/old", published="2020-01-01T00:00:00Z")
    server.pages += [FoundPage("No page", "javascript:alert(1)"), FoundPage("Twice", PAGES[1].url)]
    allowed = WebSearch(query="bees", start_published_at=START, include_domains=("ants.example", "bees.example"))
    assert [each.title for each in (await searched(server, allowed)).results] == ["Ants"]
    assert (await searched(server, WebSearch(query="bees", exclude_domains=("example",)))).results == ()
    assert len((await searched(server, WebSearch(query="bees", num_results=1))).results) == 1


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_failures_that_pass_are_repeated(server: FakeSearchProvider, status: int) -> None:
    server.script = [JSONResponse({}, status) for _ in range(ATTEMPTS - 1)]
    assert len((await searched(server)).results) == 2
    assert len(server.requests) == ATTEMPTS


@pytest.mark.parametrize(
    ("script", "requests", "part"),
    [
        ([Response(status_code=503)] * ATTEMPTS, ATTEMPTS, "status 503"),
        ([Response(status_code=429, headers={"retry-after": "600"})], 1, "limits the rate"),
        ([Response("no JSON")], 1, "not a list of results"),
        ([JSONResponse([])], 1, "not a list of results"),
        ([JSONResponse({"results": 5})], 1, "not a list of results"),
        ([JSONResponse({"results": [{"url": "https://a.example", "highlights": 5}]})], 1, "not a list of results"),
        ([Response(b"[" * 200_000)], 1, "not a list of results"),
        ([Response(b" " * (9 << 20))], 1, "more than 8 MB"),
    ],
)
async def test_provider_that_fails(
    server: FakeSearchProvider, script: list[Response], requests: int, part: str
) -> None:
    server.script = script
    with pytest.raises(WebSearchUnavailable, match=part):
        await searched(server)
    assert len(server.requests) == requests


async def test_provider_that_refuses(server: FakeSearchProvider) -> None:
    with pytest.raises(WebSearchRefused, match="MNEMESH_TOOLS_WEB_SEARCH_KEY") as refused:
        await searched(server, key="wrong")
    assert "wrong" not in str(refused.value)
    server.script = [JSONResponse({"detail": f"quota of {KEY}"}, 400), Response(status_code=432)]
    with pytest.raises(WebSearchRefused, match=r"quota of \[secret"):
        await searched(server)
    with pytest.raises(WebSearchRefused, match="payment"):
        await searched(server)
    server.script = [Response(status_code=302, headers={"location": "http://127.0.0.1:1/"})]
    with pytest.raises(WebSearchRefused, match="302"):
        await searched(server)


async def test_provider_that_hangs(server: FakeSearchProvider) -> None:
    server.hold = asyncio.Event()
    with pytest.raises(WebSearchUnavailable, match=r"within 0\.1 seconds"):
        await searched(server, seconds=0.1)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("query", " "),
        ("query", "x" * 2001),
        ("num_results", -1),
        ("num_results", 101),
        ("include_domains", ("http://a.example/path",)),
        ("exclude_domains", ("a.example",) * 21),
        ("exclude_domains", ("",)),
        ("user_location", "Sweden"),
        ("start_published_at", datetime(2027, 1, 1, tzinfo=UTC)),
    ],
)
def test_invalid_searches_name_the_field(field: str, value: Any) -> None:
    valid: dict[str, Any] = {
        "query": "bees",
        "num_results": 0,
        "category": None,
        "include_text": False,
        "include_domains": (),
        "exclude_domains": (),
        "start_published_at": None,
        "end_published_at": END,
        "user_location": "",
    }
    assert new_search(**valid).num_results == 10
    with pytest.raises(InvalidArgument) as refused:
        new_search(**{**valid, field: value})
    assert (refused.value.field or "").startswith(field.replace("_at", "_time"))


def test_values_of_results() -> None:
    assert moment("Wed, 04 Mar 2026 10:00:00 GMT") == moment("2026-03-04T10:00:00Z")
    assert moment("yesterday") is moment("9999-99-99") is None
    result = new_result(title=None, url="https://a.example", snippets=[5, "x" * 900, "\ud800\0"], text=["no text"])
    assert result is not None
    assert (result.title, len(result.snippets[0]), result.text) == ("https://a.example", 500, "")
    assert "".join(result.snippets).encode()
    assert new_result(title="", url="http://[::1", snippets=[]) is None


async def test_over_the_wire(server: FakeSearchProvider, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"port": 0, "min_sandbox": "minimal", "warm_processes": 0}
    config = Config(
        data_dir=str(tmp_path),
        web_search="tavily",
        web_search_url=f"{server.url}/tavily",
        web_search_key=KEY,
        **settings,
    )
    assert KEY not in repr(config)
    async with serve(config) as stubs:
        answer = await stubs.web.SearchWeb(pb.SearchWebRequest(query="bees", category=pb.WEB_SEARCH_CATEGORY_NEWS))
    assert (answer.provider, [each.title for each in answer.results]) == ("tavily", ["Bees see", "Ants"])
    assert answer.results[0].published_time.ToDatetime(UTC) == datetime(2026, 3, 4, 10, tzinfo=UTC)


async def test_not_configured(embedded: Any) -> None:
    error = await catch_refusal(embedded.web.SearchWeb(pb.SearchWebRequest(query="bees")))
    assert (error.reason, error.code) == ("WEB_SEARCH_NOT_CONFIGURED", grpc.StatusCode.FAILED_PRECONDITION)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"WEB_SEARCH": "exa"}, "WEB_SEARCH_KEY"),
        ({"WEB_SEARCH": "searxng"}, "WEB_SEARCH_URL"),
        ({"WEB_SEARCH": "searxng", "WEB_SEARCH_URL": "ftp://a.example"}, "WEB_SEARCH_URL"),
        ({"WEB_SEARCH": "exa", "WEB_SEARCH_KEY": "a\nb"}, "WEB_SEARCH_KEY"),
        ({"WEB_SEARCH": "google"}, "WEB_SEARCH"),
    ],
)
def test_settings_that_do_not_fit(settings: dict[str, str], name: str) -> None:
    with pytest.raises(ConfigError, match=f"MNEMESH_TOOLS_{name}"):
        Config.from_env({f"MNEMESH_TOOLS_{key}": value for key, value in settings.items()})
