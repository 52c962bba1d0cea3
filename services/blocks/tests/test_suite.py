"""The blocks suite: in process on SQLite, over the wire on PostgreSQL."""

import pytest
import pytest_asyncio
from mnemesh_blocks.config import Config
from mnemesh_blocks.wiring import assemble
from mnemesh_testkit.suites.blocks import BlocksSuite
from mnemesh_testkit.suites.service_suite import InProcess, OnPgBouncer, OnPostgres, OnSqlite, OverTheWire, Parts


class Blocks(BlocksSuite):
    """The suite on the assembled service."""

    @pytest_asyncio.fixture(scope="class", loop_scope="class")
    @classmethod
    async def parts(cls, database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Parts:
        directory = str(tmp_path_factory.mktemp("blocks"))
        config = Config(port=0, data_dir=directory, database_url=database_url, shutdown_grace_seconds=0)
        return await assemble(config), config


class TestInProcessOnSqlite(OnSqlite, InProcess, Blocks): ...


class TestOverTheWireOnPostgres(OnPostgres, OverTheWire, Blocks): ...


class TestInProcessOnPgBouncer(OnPgBouncer, InProcess, Blocks): ...
