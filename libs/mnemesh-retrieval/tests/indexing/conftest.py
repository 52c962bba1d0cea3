"""A rig of the indexer: notes in SQL, an index on an engine, and crashes that lose what was not flushed."""

import shutil
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from mnemesh_kit.sql import Database
from mnemesh_kit.time import FrozenClock
from mnemesh_retrieval.edge import EdgeIndex
from mnemesh_retrieval.flat import FlatIndex
from mnemesh_retrieval.index import NearestIndex
from mnemesh_retrieval.indexing.indexer import Indexer
from mnemesh_retrieval.indexing.outbox import Outbox
from mnemesh_retrieval.server import ServerIndex, ServerSettings
from mnemesh_testkit.fakes.notes import NOTES, Embedder, Notebook, NoteSource, difference, index_tables
from mnemesh_testkit.fakes.qdrant import FakeQdrant, fake_qdrant

ENGINES = {"flat": FlatIndex, "edge": EdgeIndex}


class Rig:
    """A service with notes. `engine` is flat, edge or server."""

    def __init__(self, database: Database, directory: Path, engine: str, server: FakeQdrant | None) -> None:
        self.notebook = Notebook(database)
        self.clock = FrozenClock()
        self.outbox = Outbox(database, index_tables, self.clock)
        self.embedder = Embedder()
        self.directory = directory
        self.engine = engine
        self.server = server
        self.reserve_bytes = 0
        self.words_version: str | None = None if engine == "flat" else "2"
        self.index: NearestIndex
        self.indexer: Indexer

    @property
    def source(self) -> NoteSource:
        """The records of the only collection."""
        has_words = self.engine != "flat"
        return NoteSource(self.notebook, self.embedder, keep_without_vector=has_words, words_version=self.words_version)

    async def start(self) -> None:
        """Starts the service."""
        self.index = await self._open_index()
        self.indexer = Indexer(
            self.outbox, self.index, self.clock, instance_id=uuid.uuid4().hex if self.server else None
        )
        await self.indexer.register(NOTES, self.source)
        await self.indexer.open()

    async def stop(self) -> None:
        """Stops the service in order."""
        await self.indexer.close()
        await self.index.close()

    async def flush(self) -> None:
        """Flushes, and remembers the state of the disk."""
        await self.indexer.flush()
        if self.server is None:
            shutil.rmtree(self._flushed, ignore_errors=True)
            shutil.copytree(self.directory, self._flushed)

    async def lose_power(self) -> None:
        """Ends the service. The index has only what was flushed; SQL has everything."""
        await self.index.close()
        if self.server is None:
            shutil.rmtree(self.directory)
            if self._flushed.exists():
                shutil.copytree(self._flushed, self.directory)
        self.clock.advance(120)

    async def difference(self) -> dict[str, str]:
        """Returns what differs between the notes and the index."""
        return await difference(self.notebook, self.index, self.source)

    @property
    def _flushed(self) -> Path:
        return self.directory.with_name("flushed")

    async def _open_index(self) -> NearestIndex:
        if self.server is not None:
            settings = ServerSettings(url="http://127.0.0.1:6333", grpc_port=self.server.port, flush_seconds=0.0)
            return await ServerIndex.open(settings)
        return await ENGINES[self.engine].open(
            self.directory, flush_interval_seconds=3600, reserve_bytes=self.reserve_bytes
        )


ON_POSTGRESQL = [pytest.param(f"{engine} on postgresql", marks=pytest.mark.full) for engine in ("flat", "server")]


@pytest.fixture(params=["flat on sqlite", "edge on sqlite", *ON_POSTGRESQL])
def variant(request: pytest.FixtureRequest) -> tuple[str, str]:
    """The engine of the index, and the URL of an empty database."""
    engine, _, sql = request.param.split()
    return engine, "sqlite:///:memory:" if sql == "sqlite" else str(request.getfixturevalue("postgres_url"))


@pytest.fixture
async def rig(variant: tuple[str, str], tmp_path: Path) -> AsyncIterator[Rig]:
    """A service that was started."""
    engine, url = variant
    async with AsyncExitStack() as stack:
        database = Database.open(url)
        stack.push_async_callback(database.close)
        server = await stack.enter_async_context(fake_qdrant()) if engine == "server" else None
        rig = Rig(database, tmp_path / "index", engine, server)
        await rig.notebook.create_tables()
        await rig.start()
        yield rig
        await rig.stop()
