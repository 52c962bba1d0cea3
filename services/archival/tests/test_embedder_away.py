"""Behaviour while an embedder cannot be reached."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path

import pytest
from mnemesh.archival.v1.archives_pb2 import Passage
from mnemesh.archival.v1.passages_service_pb2 import (
    PASSAGE_SEARCH_MODE_VECTOR,
    InsertPassagesRequest,
    SearchPassagesRequest,
)
from mnemesh_archival.config import Config
from mnemesh_kit.config import ConfigError
from mnemesh_kit.errors import MnemeshError
from mnemesh_kit.ids import new_id

from .conftest import ArchivalServer


async def test_search_by_words_works_while_the_embedder_is_unavailable(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        unreachable = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    agent = new_id("agent")
    settings = {"port": 0, "data_dir": str(tmp_path), "embedder_base_url": unreachable, "embedder_dimension": 3}
    archival = ArchivalServer(Config(embedder="mnemesh/hashing-256", **settings))  # type: ignore[arg-type]
    await archival.start()
    try:
        archive = await archival.archive(agent, embedder="acme/embed-1")
        hybrid = SearchPassagesRequest(query="apple")
        found = await archival.passages.SearchPassages(hybrid)
        assert (list(found.hits), found.degraded) == ([], True)
        with pytest.raises(MnemeshError) as refused:
            await archival.passages.SearchPassages(
                SearchPassagesRequest(query="apple", mode=PASSAGE_SEARCH_MODE_VECTOR)
            )
        assert (refused.value.reason, refused.value.metadata["embedder"]) == ("EMBEDDER_UNAVAILABLE", "acme/embed-1")
        request = InsertPassagesRequest(archive_id=archive, passages=[Passage(text="apple")], request_id="r1")
        began = time.monotonic()
        with pytest.raises(MnemeshError) as refused:
            await archival.passages.InsertPassages(request)
        assert refused.value.reason == "EMBEDDER_UNAVAILABLE"
        assert time.monotonic() - began < 2.0
        assert (await archival.summary(agent)).passage_count == 0
    finally:
        await archival.channels.close()
        await archival.stop()


async def test_a_misconfigured_embedder_prevents_the_start(tmp_path: Path) -> None:
    archival = ArchivalServer(Config(port=0, data_dir=str(tmp_path), embedder="acme/embed-1"))
    with pytest.raises(ConfigError, match=r"MNEMESH_EMBEDDER: .*base URL"):
        await archival.start()
    await archival.channels.close()


async def test_an_embedder_that_never_answers_is_reported_before_the_deadline(tmp_path: Path) -> None:
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
            with pytest.raises(MnemeshError) as refused:
                await archival.passages.InsertPassages(request, timeout=1.5)
            assert refused.value.reason == "EMBEDDER_UNAVAILABLE"
        finally:
            hung_up.set()
            await archival.channels.close()
            await archival.stop()
