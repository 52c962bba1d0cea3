"""Rerankers over HTTP against a real server on a free port."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from mnemesh_kit.retries import Backoff
from mnemesh_retrieval.errors import RerankerError, RerankerMisconfigured, RerankerRejected, RerankerUnavailable
from mnemesh_retrieval.rerankers.registry import COHERE, MAX_ANSWER_BYTES, HttpReranker, RerankerSettings, make_reranker
from mnemesh_testkit.fakes.embedders import FakeReranker
from mnemesh_testkit.mesh.faulty_proxy import ReservedPort
from starlette.responses import JSONResponse, PlainTextResponse, Response

SECRET = "rr-very-secret"
FAST = Backoff(first=0.001, maximum=0.01)
TEXTS = ["xx", "xxxx", "x"]


@asynccontextmanager
async def over_http(provider: FakeReranker, timeout_seconds: float = 30.0) -> AsyncIterator[HttpReranker]:
    reranker = HttpReranker(
        handle="acme/rerank-1",
        model="rerank-1",
        base_url=f"{provider.url}/cohere",
        api_key=SECRET,
        form=COHERE,
        timeout_seconds=timeout_seconds,
        backoff=FAST,
    )
    yield reranker
    await reranker.close()


@pytest.mark.parametrize(
    ("handle", "body"),
    [
        ("cohere/rerank-v3.5", {"model": "rerank-v3.5", "query": "q", "documents": TEXTS, "top_n": 3}),
        ("acme/BAAI/bge", {"model": "BAAI/bge", "query": "q", "documents": TEXTS, "top_n": 3}),
        ("jina/m", {"model": "m", "query": "q", "documents": TEXTS, "top_n": 3, "return_documents": False}),
        ("voyage/rerank-2", {"model": "rerank-2", "query": "q", "documents": TEXTS, "top_k": 3}),
        ("tei/any", {"query": "q", "texts": TEXTS, "truncate": True}),
    ],
)
async def test_each_api_gets_its_form_and_scores_are_in_the_order_of_texts(
    provider: FakeReranker, handle: str, body: dict[str, Any]
) -> None:
    url = f"{provider.url}/{handle.partition('/')[0]}/"
    reranker = make_reranker(handle, RerankerSettings(base_url=url, api_key=SECRET, timeout_seconds=30))
    assert await reranker.rerank("q", TEXTS) == [0.02, 0.04, 0.01]
    await reranker.close()
    assert provider.bodies == [body]
    assert provider.keys == [f"Bearer {SECRET}"]


async def test_temporary_failures_are_retried(provider: FakeReranker) -> None:
    provider.script = [PlainTextResponse("slow down", 429, {"retry-after": "0"}), PlainTextResponse("oops", 500)]
    async with over_http(provider) as reranker:
        assert await reranker.rerank("q", TEXTS) == [0.02, 0.04, 0.01]
    assert len(provider.bodies) == 3


async def test_repeated_failures_are_unavailable(provider: FakeReranker) -> None:
    provider.script = [PlainTextResponse("oops", 503) for _ in range(5)]
    async with over_http(provider) as reranker:
        with pytest.raises(RerankerUnavailable, match=r"acme/rerank-1.*503.*3 attempts"):
            await reranker.rerank("q", TEXTS)
    assert len(provider.bodies) == 3


async def test_a_delay_beyond_the_time_limit_is_not_waited_for(provider: FakeReranker) -> None:
    provider.script = [PlainTextResponse("slow down", 429, {"retry-after": "3600"})]
    async with over_http(provider) as reranker:
        with pytest.raises(RerankerUnavailable, match=r"429 .1 attempts."):
            await reranker.rerank("q", TEXTS)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422, 302])
async def test_refusal_is_not_retried_and_does_not_reveal_the_key(provider: FakeReranker, status: int) -> None:
    headers = {"location": f"{provider.url}/cohere/rerank"}
    provider.script = [JSONResponse({"message": f"bad key {SECRET}"}, status, headers)]
    async with over_http(provider) as reranker:
        with pytest.raises(RerankerRejected) as refused:
            await reranker.rerank("q", TEXTS)
    assert str(status) in str(refused.value)
    assert SECRET not in str(refused.value)
    assert len(provider.bodies) == 1


def _result(index: Any, score: Any) -> dict[str, Any]:
    return {"index": index, "relevance_score": score}


@pytest.mark.parametrize(
    "answer",
    [
        lambda: PlainTextResponse("<html>"),
        lambda: PlainTextResponse("[" * 100_000),
        lambda: JSONResponse([]),
        lambda: JSONResponse({"results": None}),
        lambda: JSONResponse({"results": [_result(0, 0.5), _result(1, 0.5)]}),
        lambda: JSONResponse({"results": [_result(0, 0.5), _result(1, 0.5), _result(1, 0.5)]}),
        lambda: JSONResponse({"results": [_result(0, 0.5), _result(1, 0.5), _result(3, 0.5)]}),
        lambda: JSONResponse({"results": [_result(0, 0.5), _result(1, 0.5), _result(-1, 0.5)]}),
        lambda: JSONResponse({"results": [_result(0, 0.5), _result(1, 0.5), _result(True, 0.5)]}),
        lambda: JSONResponse({"results": [_result(0, 0.5), _result(1, 0.5), _result(2, "0.5")]}),
        lambda: JSONResponse({"results": [_result(0, 0.5), _result(1, 0.5), "x"]}),
        lambda: PlainTextResponse('{"results": [{"index": 0, "relevance_score": NaN}, 1, 2]}'),
        lambda: PlainTextResponse("x" * (MAX_ANSWER_BYTES + 1)),
    ],
)
async def test_malformed_answer_is_an_error(provider: FakeReranker, answer: Callable[[], Response]) -> None:
    provider.script = [answer()]
    async with over_http(provider) as reranker:
        with pytest.raises(RerankerError) as refused:
            await reranker.rerank("q", TEXTS)
    assert not isinstance(refused.value, RerankerUnavailable | RerankerRejected)
    assert len(provider.bodies) == 1


async def test_hanging_server_ends_at_the_time_limit(provider: FakeReranker) -> None:
    provider.hold = asyncio.Event()
    async with over_http(provider, timeout_seconds=0.05) as reranker:
        with pytest.raises(RerankerUnavailable, match=r"no answer within 0.05 s"):
            await reranker.rerank("q", TEXTS)


async def test_unreachable_server_is_unavailable() -> None:
    closed = ReservedPort()
    settings = RerankerSettings(base_url=f"http://{closed.address}", timeout_seconds=30)
    reranker = make_reranker("acme/m", settings)
    with pytest.raises(RerankerUnavailable, match="cannot be reached"):
        await reranker.rerank("q", TEXTS)
    await reranker.close()
    closed.release()


@pytest.mark.parametrize(
    ("handle", "settings", "message"),
    [
        ("nonsense", RerankerSettings(), "provider/model"),
        ("cohere/rerank-v3.5", RerankerSettings(), "API key"),
        ("acme/m", RerankerSettings(), "base URL"),
        ("acme/m", RerankerSettings(base_url="localhost:80"), "http or https URL"),
        ("acme/m", RerankerSettings(base_url="http://u:p@localhost"), "neither credentials nor a query"),
        ("acme/m", RerankerSettings(base_url="http://localhost/a b"), "visible ASCII"),
        ("onnx/m", RerankerSettings(), "directory of its model"),
        ("onnx/m", RerankerSettings(directory="/nowhere"), "has no model.onnx"),
    ],
)
def test_misconfigured_reranker_is_refused(handle: str, settings: RerankerSettings, message: str) -> None:
    with pytest.raises(RerankerMisconfigured, match=message):
        make_reranker(handle, settings)


def test_settings_hide_the_key() -> None:
    assert SECRET not in repr(RerankerSettings(base_url="http://localhost", api_key=SECRET))
