"""The archival suite: in process on SQLite, over the wire on PostgreSQL with each vector index."""

import os
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from mnemesh_archival.config import Config
from mnemesh_archival.wiring import assemble
from mnemesh_testkit.fakes.qdrant import fake_qdrant
from mnemesh_testkit.suites.archival import ArchivalSuite
from mnemesh_testkit.suites.service_suite import InProcess, OnPgBouncer, OnPostgres, OnSqlite, OverTheWire, Parts

QDRANT_URL = os.environ.get("QDRANT_URL", "")


async def built(database_url: str, directories: pytest.TempPathFactory, **settings: Any) -> Parts:
    config = Config(
        port=0, data_dir=str(directories.mktemp("archival")), database_url=database_url, embedder="mnemesh/hashing-256",
        log_level="error", shutdown_grace_seconds=0, **settings,
    )  # fmt: skip
    return await assemble(config), config


class OnEmbeddedIndex(ArchivalSuite):
    """The suite on the embedded index."""

    @pytest_asyncio.fixture(scope="class", loop_scope="class")
    @classmethod
    async def parts(cls, database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Parts:
        return await built(database_url, tmp_path_factory)


class TestInProcessOnSqlite(OnSqlite, InProcess, OnEmbeddedIndex): ...


class TestOverTheWireOnPostgres(OnPostgres, OverTheWire, OnEmbeddedIndex): ...


class TestInProcessOnPgBouncer(OnPgBouncer, InProcess, OnEmbeddedIndex): ...


@pytest.mark.full
class TestOnFakeQdrant(OnPostgres, OverTheWire, ArchivalSuite):
    """The suite on a fake that implements the protocol of a Qdrant server."""

    @pytest_asyncio.fixture(scope="class", loop_scope="class")
    @classmethod
    async def parts(cls, database_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Parts]:
        async with fake_qdrant() as server:
            settings = {"qdrant_url": "http://127.0.0.1:6333", "qdrant_grpc_port": server.port}
            yield await built(database_url, tmp_path_factory, **settings)


if QDRANT_URL:

    class TestOnQdrantServer(OnPostgres, OverTheWire, ArchivalSuite):
        @pytest_asyncio.fixture(scope="class", loop_scope="class")
        @classmethod
        async def parts(cls, database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Parts:
            return await built(
                database_url,
                tmp_path_factory,
                qdrant_url=QDRANT_URL,
                qdrant_api_key=os.environ.get("QDRANT_API_KEY", ""),
                qdrant_grpc_port=int(os.environ.get("QDRANT_GRPC_PORT", "6334")),
                qdrant_prefix=f"test-{uuid.uuid4().hex}",
            )

else:

    @pytest.mark.skip(reason="NO QDRANT SERVER WAS TESTED: set QDRANT_URL to one (docker-compose.yml has it)")
    def test_suite_on_a_qdrant_server() -> None:
        """Represents all cases of ArchivalSuite."""
