"""The built-in embedders, and the HTTP embedder against a real server on a free port."""

import asyncio
import importlib.util
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvicorn
from mnemesh_kit.retries import Backoff
from mnemesh_retrieval.config import EmbedderConfig
from mnemesh_retrieval.embedder import LoadedEmbedder, embed_counted
from mnemesh_retrieval.embedders import built_in
from mnemesh_retrieval.embedders.built_in import WordLlamaEmbedder
from mnemesh_retrieval.embedders.openai_compatible import OpenAICompatibleEmbedder
from mnemesh_retrieval.errors import EmbedderError, EmbedderMisconfigured, EmbedderRejected, EmbedderUnavailable
from mnemesh_retrieval.registry import HASHING, WORDLLAMA, EmbedderSettings, make_embedder
from safetensors import safe_open
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

SECRET = "sk-very-secret"
FAST = Backoff(first=0.001, maximum=0.01)


@pytest.mark.parametrize("handle", [WORDLLAMA, HASHING])
async def test_built_in_embedders_return_unit_vectors_in_order(handle: str) -> None:
    embedder = make_embedder(handle)
    vectors = await embedder.embed(["a cat sat", "the stock market", "", "a cat sat", "\U0001f408 \x00"])
    assert [vector.shape for vector in vectors] == [(embedder.dimension,)] * 5
    assert all(vector.dtype == np.float32 and np.isfinite(vector).all() for vector in vectors)
    assert np.linalg.norm(vectors[0]) == pytest.approx(1, abs=1e-5)
    assert np.array_equal(vectors[0], vectors[3])
    assert not np.array_equal(vectors[0], vectors[1])
    assert not vectors[2].any()
    await embedder.close()


async def test_wordllama_places_related_texts_near_each_other() -> None:
    embedder = make_embedder(WORDLLAMA)
    query, near, far = await embedder.embed(["my dog is ill", "the puppy feels sick", "taxes are due in April"])
    assert query @ near > query @ far + 0.2
    await embedder.close()


def test_the_weights_of_wordllama_stay_in_their_file() -> None:
    rows = built_in._load()._rows
    package = importlib.util.find_spec("wordllama")
    assert package is not None
    assert package.submodule_search_locations is not None
    with safe_open(Path(package.submodule_search_locations[0]) / built_in.WEIGHTS, framework="np") as weights:
        assert np.array_equal(rows, weights.get_tensor("embedding.weight"))
    assert isinstance(rows.base, np.memmap)


async def test_a_query_waits_for_no_model_that_is_loaded() -> None:
    embedder = WordLlamaEmbedder()
    assert isinstance(embedder, LoadedEmbedder)
    await embedder.load()
    with ThreadPoolExecutor() as none:
        none.shutdown()
        embedder._thread, thread = none, embedder._thread  # which would load the model
        (found,) = await embedder.embed(["an old oak"])
        embedder._thread = thread
    assert found.any()
    await embedder.close()


async def test_wordllama_embeds_short_texts_like_long_ones() -> None:
    embedder = make_embedder(WORDLLAMA)
    texts = ["an old oak", "", "word " * 300]
    loaded = await embedder.embed(texts)
    try:
        for text, vector in zip(texts, loaded, strict=True):
            (alone,) = await embedder.embed([text])
            assert alone.tolist() == vector.tolist()
    finally:
        await embedder.close()


async def test_wordllama_embeds_a_megabyte() -> None:
    embedder = make_embedder(WORDLLAMA)
    (long, short) = await embedder.embed(["green apples " * 80_000, "green apples"])
    assert long @ short > 0.99
    await embedder.close()


def test_wordllama_vectors_equal_those_of_the_package() -> None:
    # In its own process, because importing the package reconfigures the root logger.
    script = """
import asyncio, pathlib, numpy, wordllama
from mnemesh_retrieval.registry import make_embedder
theirs = wordllama.WordLlama.load(cache_dir=pathlib.Path(wordllama.__file__).parent, disable_download=True)
texts = ["hello world", "Grüße aus Köln!", "one two three " * 50]
ours = asyncio.run(make_embedder("mnemesh/wordllama-256").embed(texts))
assert numpy.allclose(theirs.embed(texts, norm=True), numpy.array(ours), atol=1e-4)
"""
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize(
    ("handle", "settings", "message"),
    [
        ("nonsense", EmbedderSettings(), "provider/model"),
        ("mnemesh/other", EmbedderSettings(), "no built-in embedder"),
        ("openai/text-embedding-3-small", EmbedderSettings(), "API key: set OPENAI_API_KEY"),
        ("acme/model", EmbedderSettings(dimension=3), "base URL"),
        ("acme/model", EmbedderSettings(base_url="http://localhost/v1"), "dimension"),
        ("acme/model", EmbedderSettings(base_url="localhost:8080", dimension=3), "http or https URL"),
        ("acme/model", EmbedderSettings(base_url="http://a:b@localhost/v1", dimension=3), "neither credentials"),
        ("acme/model", EmbedderSettings(base_url="http://localhost/v1?key=x", dimension=3), "nor a query"),
    ],
)
def test_misconfigured_embedder_is_refused(handle: str, settings: EmbedderSettings, message: str) -> None:
    with pytest.raises(EmbedderMisconfigured, match=message):
        make_embedder(handle, settings)


def test_settings_hide_the_key() -> None:
    settings = EmbedderSettings(base_url="http://localhost/v1", api_key=SECRET, dimension=3)
    assert SECRET not in repr(settings)
    assert make_embedder("acme/model", settings).dimension == 3


class Provider:
    """A small embeddings API. It returns the responses in `script` first, then embeddings."""

    def __init__(self) -> None:
        self.script: list[Response] = []
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.url = ""
        self.limit = 1_000

    async def embeddings(self, request: Request) -> Response:
        self.bodies.append(await request.json())
        self.keys.append(request.headers.get("authorization"))
        if self.script:
            return self.script.pop(0)
        texts = self.bodies[-1]["input"]
        if len(texts) > self.limit or "bad" in texts:
            return JSONResponse({"error": "batch size is invalid"}, 400)
        data = [
            {"index": i, "object": "embedding", "embedding": [float(len(text)), 1.0, 0.0]}
            for i, text in enumerate(self.bodies[-1]["input"])
        ]
        return JSONResponse({"object": "list", "data": data[::-1], "model": self.bodies[-1]["model"]})


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    provider = Provider()
    app = Starlette(routes=[Route("/v1/embeddings", provider.embeddings, methods=["POST"])])
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off"))
    listener = socket.create_server(("127.0.0.1", 0))
    provider.url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    yield provider
    server.should_exit = True
    await serving


@pytest.fixture
async def embedder(provider: Provider) -> AsyncIterator[OpenAICompatibleEmbedder]:
    embedder = OpenAICompatibleEmbedder(
        handle="acme/embed-1",
        model="embed-1",
        base_url=provider.url,
        api_key=SECRET,
        dimension=3,
        attempts=3,
        backoff=FAST,
    )
    yield embedder
    await embedder.close()


async def test_texts_are_sent_in_batches_and_vectors_returned_in_order(
    provider: Provider, embedder: OpenAICompatibleEmbedder
) -> None:
    texts = ["x" * n for n in range(300)]
    vectors = await embedder.embed(texts)
    assert [round(float(v[0] / v[1])) if v.any() else 0 for v in vectors] == list(range(300))
    assert [len(body["input"]) for body in provider.bodies] == [128, 128, 43]
    assert provider.bodies[0]["model"] == "embed-1"
    assert set(provider.keys) == {f"Bearer {SECRET}"}


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"prompt_tokens": 7}, 14),
        ({"prompt_tokens": 0}, None),
        ({"prompt_tokens": "7"}, None),
        (None, None),
        ([], None),
    ],
)
async def test_tokens_are_those_that_the_provider_reports(
    provider: Provider, embedder: OpenAICompatibleEmbedder, usage: Any, tokens: int | None
) -> None:
    for count in (128, 1):
        data = [{"index": index, "embedding": [1.0, 0.0, 0.0]} for index in range(count)]
        provider.script.append(JSONResponse({"data": data, "usage": usage}))
    counted = await embed_counted(embedder, ["x"] * 129)
    assert (len(counted.vectors), counted.tokens) == (129, tokens)


@pytest.mark.parametrize("limit", [10, 64])
async def test_provider_that_takes_fewer_texts_at_once_gets_fewer_from_then_on(
    provider: Provider, embedder: OpenAICompatibleEmbedder, limit: int
) -> None:
    provider.limit = limit
    texts = ["x" * n for n in range(1, 151)]
    for _ in range(2):
        vectors = await embedder.embed(texts)
        assert [round(float(v[0] / v[1])) for v in vectors] == list(range(1, 151))
    sizes = [len(body["input"]) for body in provider.bodies]
    refused = [size for size in sizes if size > limit]
    assert refused == sizes[: len(refused)]
    assert len(refused) <= 4


async def test_text_that_is_refused_does_not_make_batches_smaller(
    provider: Provider, embedder: OpenAICompatibleEmbedder
) -> None:
    with pytest.raises(EmbedderRejected):
        await embedder.embed(["a", "bad", "b"])
    await embedder.embed(["a"] * 100)
    assert len(provider.bodies[-1]["input"]) == 100


async def test_temporary_failures_are_retried(provider: Provider, embedder: OpenAICompatibleEmbedder) -> None:
    provider.script = [PlainTextResponse("slow down", 429, {"retry-after": "0"}), PlainTextResponse("oops", 503)]
    (vector,) = await embedder.embed(["hello"])
    assert vector.any()
    assert len(provider.bodies) == 3


async def test_repeated_failures_are_unavailable(provider: Provider, embedder: OpenAICompatibleEmbedder) -> None:
    provider.script = [PlainTextResponse("oops", 500) for _ in range(5)]
    with pytest.raises(EmbedderUnavailable, match=r"acme/embed-1.*500.*3 attempts"):
        await embedder.embed(["hello"])
    assert len(provider.bodies) == 3


async def test_refusal_is_not_retried_and_does_not_reveal_the_key(
    provider: Provider, embedder: OpenAICompatibleEmbedder
) -> None:
    provider.script = [JSONResponse({"error": f"bad key {SECRET}"}, 401)]
    with pytest.raises(EmbedderRejected) as refused:
        await embedder.embed(["hello"])
    assert "401" in str(refused.value)
    assert SECRET not in str(refused.value)
    assert len(provider.bodies) == 1


@pytest.mark.parametrize(
    "answer",
    [
        PlainTextResponse("<html>"),
        JSONResponse({"data": []}),
        JSONResponse({"data": [{"index": 0, "embedding": [1.0, 2.0]}]}),
        JSONResponse({"data": [{"index": 0, "embedding": ["a", "b", "c"]}]}),
        PlainTextResponse('{"data": [{"index": 0, "embedding": [1.0, 2.0, NaN]}]}'),
    ],
)
async def test_malformed_response_is_an_embedder_error(
    provider: Provider, embedder: OpenAICompatibleEmbedder, answer: Response
) -> None:
    provider.script = [answer]
    with pytest.raises(EmbedderError):
        await embedder.embed(["hello"])


async def test_unreachable_server_is_unavailable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    embedder = OpenAICompatibleEmbedder(
        handle="acme/m",
        model="m",
        base_url=f"http://127.0.0.1:{port}/v1",
        api_key="",
        dimension=3,
        attempts=2,
        backoff=FAST,
    )
    with pytest.raises(EmbedderUnavailable, match="cannot be reached"):
        await embedder.embed(["hello"])
    await embedder.close()


def test_key_of_openai_is_used_at_its_own_address_only() -> None:
    def key(**given: str) -> str:
        return EmbedderConfig(openai_api_key="sk-openai", **given).embedder_settings.api_key  # type: ignore[arg-type]

    assert key() == "sk-openai"
    assert key(embedder_api_key="sk-own") == "sk-own"
    assert key(embedder_base_url="http://localhost/v1") == ""
    assert key(embedder_base_url="http://localhost/v1", embedder_api_key="sk-own") == "sk-own"
