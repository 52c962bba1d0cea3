"""The model of the embedder is loaded after the start."""

import asyncio
from pathlib import Path

import pytest
from mnemesh_kit.server import RunningServer
from mnemesh_recall import wiring
from mnemesh_recall.config import Config
from mnemesh_recall.wiring import load_later
from mnemesh_retrieval.embedders.built_in import WordLlamaEmbedder
from mnemesh_retrieval.errors import EmbedderMisconfigured
from mnemesh_testkit.timeouts import scaled
from structlog.testing import capture_logs


class _Embedder(WordLlamaEmbedder):
    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.loads = 0
        self._error = error

    async def load(self) -> None:
        self.loads += 1
        if self._error is not None:
            raise self._error


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wiring, "LOAD_SECONDS", 0.0)


async def test_the_model_is_loaded_once() -> None:
    embedder = _Embedder()
    await load_later(embedder)
    assert embedder.loads == 1
    await embedder.close()


async def test_a_missing_model_does_not_stop_the_service() -> None:
    embedder = _Embedder(EmbedderMisconfigured("the package is not installed"))
    with capture_logs() as logs:
        await load_later(embedder)
    assert [(line["event"], line["error"]) for line in logs] == [
        ("embedder_not_loaded", "the package is not installed")
    ]
    await embedder.close()


async def test_recall_loads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = asyncio.Event()

    async def load(_: WordLlamaEmbedder) -> None:
        loaded.set()

    monkeypatch.setattr(WordLlamaEmbedder, "load", load)
    config, server = Config(port=0, data_dir=str(tmp_path), shutdown_grace_seconds=0.0), RunningServer()
    await server.start(await wiring.assemble(config), config)
    try:
        await asyncio.wait_for(loaded.wait(), scaled(60))
    finally:
        await server.stop()
