"""The recall suite: in process on SQLite, over the wire on PostgreSQL."""

import pytest
import pytest_asyncio
from mnemesh_recall.config import Config
from mnemesh_recall.wiring import assemble
from mnemesh_retrieval.registry import HASHING
from mnemesh_testkit.suites.recall import RecallSuite
from mnemesh_testkit.suites.service_suite import InProcess, OnPgBouncer, OnPostgres, OnSqlite, OverTheWire, Parts


class Recall(RecallSuite):
    """The suite with the parts of recall."""

    @pytest_asyncio.fixture(scope="class", loop_scope="class")
    @classmethod
    async def parts(cls, database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Parts:
        config = Config(
            port=0, data_dir=str(tmp_path_factory.mktemp("recall")), database_url=database_url, embedder=HASHING,
            log_level="error", shutdown_grace_seconds=0,
        )  # fmt: skip
        return await assemble(config), config


class TestInProcessOnSqlite(OnSqlite, InProcess, Recall): ...


class TestOverTheWireOnPostgres(OnPostgres, OverTheWire, Recall): ...


class TestInProcessOnPgBouncer(OnPgBouncer, InProcess, Recall): ...
