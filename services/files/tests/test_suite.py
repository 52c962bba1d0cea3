"""The files suite: in process on SQLite, over the wire on PostgreSQL."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from mnemesh_files.clients import ArchivalClient
from mnemesh_files.config import Config
from mnemesh_files.errors import REMOTE
from mnemesh_files.wiring import assemble
from mnemesh_testkit.mesh.in_process import probe_sandbox
from mnemesh_testkit.mesh.local_services import local_services
from mnemesh_testkit.suites.files import FilesSuite
from mnemesh_testkit.suites.service_suite import InProcess, OnPgBouncer, OnPostgres, OnSqlite, OverTheWire, Parts


class WithArchival(FilesSuite):
    """The suite over the real archival service in this process."""

    @pytest_asyncio.fixture(scope="class", loop_scope="class")
    @classmethod
    async def parts(cls, database_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Parts]:
        directory = tmp_path_factory.mktemp("files")
        config = Config(
            port=0, data_dir=str(directory), database_url=database_url, log_level="error", shutdown_grace_seconds=0
        )
        async with local_services(directory, "archival", errors=REMOTE) as services:
            archival, sandbox = ArchivalClient(services["archival"]), await probe_sandbox(config.sandbox)
            yield await assemble(config, archival=archival, sandbox=sandbox), config


class TestInProcessOnSqlite(OnSqlite, InProcess, WithArchival): ...


class TestOverTheWireOnPostgres(OnPostgres, OverTheWire, WithArchival): ...


class TestInProcessOnPgBouncer(OnPgBouncer, InProcess, WithArchival): ...
