"""Searches of passages are reranked if a reranker is configured, and keep their ranking if it fails."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from mnemesh.archival.v1 import archives_pb2, archives_service_pb2
from mnemesh.archival.v1 import passages_service_pb2 as rpc
from mnemesh_archival.config import Config
from mnemesh_archival.wiring import assemble
from mnemesh_kit.config import ConfigError
from mnemesh_testkit.fakes.embedders import FakeReranker
from starlette.responses import PlainTextResponse

from .conftest import ArchivalServer, serving

SAID = (
    "Tomas: Did you sell the boat?",
    "Nora: Yes, to a baker from Bergen.",
    "Tomas: The boat was red, and the boat was fast.",
    "Nora: A boat again.",
)


@pytest.fixture
async def provider() -> AsyncIterator[FakeReranker]:
    async with FakeReranker(lambda text: float("baker" in text)) as provider:
        yield provider


def config(directory: Path, provider: FakeReranker | None = None, **more: Any) -> Config:
    if provider is not None:
        url = f"{provider.url}/tei"
        more = {"reranker": "tei/m", "reranker_base_url": url, "reranker_timeout_ms": 30_000, **more}
    return Config(port=0, data_dir=str(directory), embedder="mnemesh/hashing-256", log_level="error", **more)


async def filled(archival: ArchivalServer) -> str:
    created = archives_service_pb2.CreateArchiveRequest(archive=archives_pb2.Archive(name="talk"))
    archive_id: str = (await archival.archives.CreateArchive(created)).archive.id
    passages = [archives_pb2.Passage(text=text) for text in SAID]
    continuous = rpc.PASSAGE_CONTINUITY_CONTINUOUS
    request = rpc.InsertPassagesRequest(archive_id=archive_id, passages=passages, continuity=continuous)
    await archival.passages.InsertPassages(request)
    return archive_id


async def search(archival: ArchivalServer, archive_id: str, query: str = "boat", **fields: Any) -> Any:
    request = rpc.SearchPassagesRequest(
        query=query, mode=rpc.PASSAGE_SEARCH_MODE_TEXT, filter=rpc.PassageFilter(archive_id=archive_id), **fields
    )
    return await archival.passages.SearchPassages(request)


async def test_candidates_are_read_after_the_question_before_them(tmp_path: Path, provider: FakeReranker) -> None:
    async with serving(config(tmp_path, provider)) as archival:
        archive_id = await filled(archival)
        found = await search(archival, archive_id, further_queries=["who bought it"], limit=2)
        unchanged = await search(archival, archive_id, rerank=False)
        exact = await search(archival, archive_id, SAID[3])
    assert found.reranked
    assert found.hits[0].passage.text == SAID[1]
    assert found.hits[0].rerank_score == 1.0
    assert found.hits[0].score > found.hits[1].score
    assert provider.bodies[0]["query"] == "boat\nwho bought it"
    assert f"{SAID[0]}\n{SAID[1]}" in provider.bodies[0]["texts"]
    assert SAID[0] in provider.bodies[0]["texts"]
    assert not unchanged.reranked
    assert not unchanged.hits[0].HasField("rerank_score")
    assert exact.reranked
    assert exact.hits[0].passage.text == SAID[3], "the query itself stays first"


async def test_failing_reranker_leaves_the_ranking_and_is_not_called_for_a_while(
    tmp_path: Path, provider: FakeReranker
) -> None:
    provider.script = [PlainTextResponse("[]") for _ in range(9)]
    async with serving(config(tmp_path, provider)) as archival:
        archive_id = await filled(archival)
        expected = [hit.passage.text for hit in (await search(archival, archive_id, rerank=False)).hits]
        for _ in range(6):
            found = await search(archival, archive_id)
            assert [hit.passage.text for hit in found.hits] == expected
            assert (found.reranked, found.degraded) == (False, False)
    assert len(provider.bodies) == 3, "a circuit breaker stops the calls"


async def test_hanging_reranker_costs_its_time_limit_at_most(tmp_path: Path, provider: FakeReranker) -> None:
    provider.hold = asyncio.Event()
    async with serving(config(tmp_path, provider, reranker_timeout_ms=20)) as archival:
        found = await search(archival, await filled(archival))
    assert found.hits
    assert not found.reranked


async def test_wrong_settings_stop_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"MNEMESH_RERANKER: .*needs the base URL"):
        await assemble(config(tmp_path, reranker="acme/m"))
