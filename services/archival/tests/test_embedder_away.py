"""An embedder that cannot be reached: what still works, and what says so."""

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

from .conftest import Room


async def test_words_are_found_while_the_embedder_is_away(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        nobody = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    agent = new_id("agent")
    settings = {"port": 0, "data_dir": str(tmp_path), "embedder_base_url": nobody, "embedder_dimension": 3}
    room = Room(Config(embedder="mnemesh/hashing-256", **settings))  # type: ignore[arg-type]
    await room.start()
    try:
        archive = await room.archive(agent, embedder="acme/embed-1")
        hybrid = SearchPassagesRequest(query="apple")
        found = await room.passages.SearchPassages(hybrid)
        assert (list(found.hits), found.degraded) == ([], True)
        with pytest.raises(MnemeshError) as refused:
            await room.passages.SearchPassages(SearchPassagesRequest(query="apple", mode=PASSAGE_SEARCH_MODE_VECTOR))
        assert (refused.value.reason, refused.value.metadata["embedder"]) == ("EMBEDDER_UNAVAILABLE", "acme/embed-1")
        request = InsertPassagesRequest(archive_id=archive, passages=[Passage(text="apple")], request_id="r1")
        began = time.monotonic()
        with pytest.raises(MnemeshError) as refused:
            await room.passages.InsertPassages(request)
        assert refused.value.reason == "EMBEDDER_UNAVAILABLE"
        assert time.monotonic() - began < 2.0
        assert (await room.summary(agent)).passage_count == 0
    finally:
        await room.channels.close()
        await room.stop()


async def test_an_embedder_that_cannot_be_made_stops_the_start(tmp_path: Path) -> None:
    room = Room(Config(port=0, data_dir=str(tmp_path), embedder="acme/embed-1"))
    with pytest.raises(ConfigError, match=r"MNEMESH_EMBEDDER: .*base URL"):
        await room.start()
    await room.channels.close()


async def test_an_embedder_that_never_answers_is_named_before_the_callers_deadline(tmp_path: Path) -> None:
    hung_up = asyncio.Event()

    async def say_nothing(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await hung_up.wait()
        writer.close()

    async with await asyncio.start_server(say_nothing, "127.0.0.1", 0) as silent:
        url = f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}/v1"
        settings = {"port": 0, "data_dir": str(tmp_path), "embedder_base_url": url, "embedder_dimension": 3}
        room = Room(Config(embedder="mnemesh/hashing-256", **settings))  # type: ignore[arg-type]
        await room.start()
        try:
            archive = await room.archive(embedder="acme/embed-1")
            request = InsertPassagesRequest(archive_id=archive, passages=[Passage(text="apple")])
            with pytest.raises(MnemeshError) as refused:
                await room.passages.InsertPassages(request, timeout=1.5)
            assert refused.value.reason == "EMBEDDER_UNAVAILABLE"
        finally:
            hung_up.set()
            await room.channels.close()
            await room.stop()
