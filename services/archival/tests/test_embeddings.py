"""Vectors of texts by a provider over HTTP: order, concurrency, refusals, and a provider that is away."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mnemesh.archival.v1.embeddings_service_pb2 import EmbedTextsRequest
from mnemesh_archival import vectors
from mnemesh_archival.config import Config
from mnemesh_archival.usecases.archives import CONCURRENT_CALLS
from mnemesh_archival.vectors import Embedders
from mnemesh_kit.errors import MnemeshError
from mnemesh_retrieval.embedder import CountedVectors
from mnemesh_retrieval.embedders.openai_compatible import OpenAICompatibleEmbedder
from mnemesh_retrieval.registry import EmbedderSettings, make_embedder
from mnemesh_testkit.timeouts import scaled

from .conftest import ArchivalServer, serving


class Provider:
    """An embeddings API. The vector of a text is its length; requests wait while `open` is not set."""

    def __init__(self) -> None:
        self.status = 200
        self.open = asyncio.Event()
        self.open.set()
        self.running = self.most = 0
        self.changed = asyncio.Condition()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                size = next(
                    int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
                )
                texts = json.loads(await reader.readexactly(size))["input"]
                async with self.changed:
                    self.running += 1
                    self.most = max(self.most, self.running)
                    self.changed.notify_all()
                await self.open.wait()
                self.running -= 1
                data = [{"index": n, "embedding": [len(text), 1.0]} for n, text in enumerate(texts)]
                usage = {"prompt_tokens": sum(len(text) for text in texts)}
                body = json.dumps({"data": data, "usage": usage}).encode()
                writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (self.status, len(body), body))
        except asyncio.IncompleteReadError:
            writer.close()


@asynccontextmanager
async def provided(tmp_path: Path) -> AsyncIterator[tuple[ArchivalServer, Provider]]:
    """An archival whose embedders `acme/…` are those of a provider."""
    provider = Provider()
    async with await asyncio.start_server(provider.serve, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        config = Config(
            port=0, data_dir=str(tmp_path), embedder="mnemesh/hashing-256", embedder_base_url=url, embedder_dimension=2
        )
        try:
            async with serving(config) as archival:
                yield archival, provider
        finally:
            provider.open.set()


def embed(archival: ArchivalServer, *texts: str, embedder: str | None = "acme/m", timeout: float = 60.0) -> Any:
    return archival.embeddings.EmbedTexts(EmbedTextsRequest(embedder=embedder, texts=texts), timeout=timeout)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> float:
    """The seconds of a call that the service gives up after 0.2, with ten left to say so."""
    monkeypatch.setattr("mnemesh_archival.usecases.archives.MARGIN_SECONDS", 10.0)
    return 10.2


async def test_vectors_of_a_provider(tmp_path: Path, soon: float) -> None:
    async with provided(tmp_path) as (archival, provider):
        texts = ["x" * (index + 1) for index in range(200)]
        got = await embed(archival, *texts)
        assert (got.embedder, got.dimension) == ("acme/m", 2)
        assert got.tokens == sum(range(1, 201)), "of all batches"
        unknown = await embed(archival, "x", embedder=None)
        assert not unknown.HasField("tokens"), "the hashing embedder has no tokens"
        assert [round(each.values[0] / each.values[1]) for each in got.embeddings] == list(range(1, 201))

        provider.open.clear()
        calls = [asyncio.ensure_future(embed(archival, "x")) for _ in range(CONCURRENT_CALLS + 3)]
        async with asyncio.timeout(scaled(60)), provider.changed:
            await provider.changed.wait_for(lambda: provider.running == CONCURRENT_CALLS)
        with pytest.raises(MnemeshError) as late:
            await embed(archival, "x", timeout=soon)
        assert late.value.reason == "EMBEDDER_UNAVAILABLE"
        provider.open.set()
        await asyncio.gather(*calls)
        assert provider.most == CONCURRENT_CALLS

        provider.status = 401
        with pytest.raises(MnemeshError) as refused:
            await embed(archival, "x")
        assert (refused.value.reason, refused.value.metadata["provider"]) == ("PROVIDER_REFUSED", "acme")


async def test_provider_that_is_away(tmp_path: Path, soon: float) -> None:
    async with provided(tmp_path) as (archival, provider):
        provider.status = 503
        with pytest.raises(MnemeshError) as away:
            await embed(archival, "x", timeout=soon)
        assert (away.value.reason, away.value.metadata["embedder"]) == ("EMBEDDER_UNAVAILABLE", "acme/m")


async def test_embedders_that_are_not_used_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []

    async def close(self: OpenAICompatibleEmbedder) -> None:
        closed.append(self.handle)

    async def embedded(self: OpenAICompatibleEmbedder, texts: list[str]) -> CountedVectors:
        return CountedVectors([], None)

    monkeypatch.setattr(OpenAICompatibleEmbedder, "close", close)
    monkeypatch.setattr(OpenAICompatibleEmbedder, "embed_counted", embedded)
    monkeypatch.setattr(vectors, "MAX_KEPT", 3)
    settings = EmbedderSettings(base_url="http://127.0.0.1:9/v1", dimension=2)
    kept = Embedders(make_embedder("mnemesh/hashing-256"), settings)
    for name in ("a", "b", "a", "c", "d"):
        await kept.embed(f"acme/{name}", ["x"])
    assert closed == ["acme/b", "acme/a"]
    await kept.close()
