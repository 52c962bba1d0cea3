"""Behaviour while an embedder is unavailable."""

import asyncio
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from mnemesh.archival.v1.archives_pb2 import Passage
from mnemesh.archival.v1.passages_service_pb2 import (
    PASSAGE_SEARCH_MODE_TEXT,
    PASSAGE_SEARCH_MODE_VECTOR,
    GetPassageRequest,
    InsertPassagesRequest,
    SearchPassagesRequest,
    UpdatePassageRequest,
)
from mnemesh_archival.config import Config
from mnemesh_archival.vectors import Embedders
from mnemesh_kit.config import ConfigError
from mnemesh_kit.errors import MnemeshError
from mnemesh_kit.ids import new_id
from mnemesh_retrieval.indexing import collections, indexer
from mnemesh_testkit.timeouts import scaled

from .conftest import ArchivalServer


async def test_writes_succeed_without_the_embedder_and_are_found_by_full_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        unreachable = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    agent = new_id("agent")
    settings = {"port": 0, "data_dir": str(tmp_path), "embedder_base_url": unreachable, "embedder_dimension": 256}
    archival = ArchivalServer(Config(embedder="mnemesh/hashing-256", **settings))  # type: ignore[arg-type]
    monkeypatch.setattr(collections, "RETRY_SECONDS", 0.02)
    monkeypatch.setattr(indexer, "POLL_SECONDS", 0.02)
    await archival.start()
    try:
        archive = await archival.archive(agent, embedder="acme/embed-1")
        request = InsertPassagesRequest(archive_id=archive, request_id="r1")
        request.passages.extend([Passage(text="an apple", tags=["fruit"]), Passage(text="a pear")])
        began = time.monotonic()
        apple, pear = (result.passage.id for result in (await archival.passages.InsertPassages(request)).results)
        assert time.monotonic() - began < 4.0
        assert (await archival.summary(agent)).passage_count == 2
        change = UpdatePassageRequest(passage=Passage(id=pear, text="a ripe plum"))
        change.update_mask.paths.append("text")
        await archival.passages.UpdatePassage(change)
        for mode in (PASSAGE_SEARCH_MODE_TEXT, 0):
            search = SearchPassagesRequest(query="apples pears plums", mode=mode)  # type: ignore[arg-type]
            found = await archival.passages.SearchPassages(search)
            assert (sorted(hit.passage.id for hit in found.hits), found.degraded) == (sorted([apple, pear]), True)
        with pytest.raises(MnemeshError) as refused:
            await archival.passages.SearchPassages(
                SearchPassagesRequest(query="apple", mode=PASSAGE_SEARCH_MODE_VECTOR)
            )
        assert (refused.value.reason, refused.value.metadata["embedder"]) == ("EMBEDDER_UNAVAILABLE", "acme/embed-1")

        embed = Embedders.embed

        async def embed_again(self: Embedders, _handle: str, texts: list[str], **kwargs: Any) -> Any:
            return await embed(self, "mnemesh/hashing-256", texts, **kwargs)

        monkeypatch.setattr(Embedders, "embed", embed_again)
        search = SearchPassagesRequest(query="plum", mode=PASSAGE_SEARCH_MODE_VECTOR, limit=1)
        async with asyncio.timeout(scaled(60)):
            while (found := await archival.passages.SearchPassages(search)).degraded:
                await asyncio.sleep(0.01)
        assert [hit.passage.text for hit in found.hits] == ["a ripe plum"]
        seen = GetPassageRequest(passage_id=pear, include_embedding=True)
        assert (await archival.passages.GetPassage(seen)).passage.embedding
    finally:
        await archival.channels.close()
        await archival.stop()


async def test_misconfigured_embedder_prevents_the_start(tmp_path: Path) -> None:
    archival = ArchivalServer(Config(port=0, data_dir=str(tmp_path), embedder="acme/embed-1"))
    with pytest.raises(ConfigError, match=r"MNEMESH_EMBEDDER: .*base URL"):
        await archival.start()
    await archival.channels.close()


async def test_write_does_not_wait_for_an_embedder_that_never_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of the caller's deadline, 0.2 seconds are for the embedder; the rest is enough for an answer on a loaded machine.
    monkeypatch.setattr("mnemesh_archival.vectors.MARGIN_SECONDS", 10.0)
    hung_up = asyncio.Event()

    async def never_answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await hung_up.wait()
        writer.close()

    async with await asyncio.start_server(never_answer, "127.0.0.1", 0) as silent:
        url = f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}/v1"
        settings = {"port": 0, "data_dir": str(tmp_path), "embedder_base_url": url, "embedder_dimension": 3}
        archival = ArchivalServer(Config(embedder="mnemesh/hashing-256", **settings))  # type: ignore[arg-type]
        await archival.start()
        try:
            archive = await archival.archive(embedder="acme/embed-1")
            request = InsertPassagesRequest(archive_id=archive, passages=[Passage(text="apple")])
            (stored,) = (await archival.passages.InsertPassages(request, timeout=10.2)).results
            got = await archival.passages.GetPassage(GetPassageRequest(passage_id=stored.passage.id))
            assert got.passage.text == "apple"
        finally:
            hung_up.set()
            await archival.channels.close()
            await archival.stop()
