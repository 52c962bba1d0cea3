"""The suite of agents' files: in process on SQLite, over the wire on PostgreSQL. Texts are stored without parsers."""

import zlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio
import sqlalchemy as sa
from mnemesh_files.clients import ArchivalClient, PassageSearchClient
from mnemesh_files.config import Config
from mnemesh_files.errors import REMOTE
from mnemesh_files.store import folder_rows
from mnemesh_files.store.tables import files, segments
from mnemesh_files.wiring import assemble
from mnemesh_kit.call_context import current_principal
from mnemesh_kit.ids import new_id
from mnemesh_kit.sql import Database
from mnemesh_kit.time import SystemClock
from mnemesh_testkit.mesh.local_services import local_services
from mnemesh_testkit.suites.files import AgentFilesSuite
from mnemesh_testkit.suites.files.calls import Parsed
from mnemesh_testkit.suites.service_suite import InProcess, OnPostgres, OnSqlite, OverTheWire, Parts

SEGMENT_LINES = 7


class NoAgents:
    """An orchestrator that knows nothing and wants to know nothing."""

    async def record_folders(self, agent_id: str, revision: int, *, holds_folders: bool) -> None:
        return None


class WithTexts(AgentFilesSuite):
    """The suite over files whose texts a test stores."""

    @pytest_asyncio.fixture(scope="class", loop_scope="class")
    @classmethod
    async def parts(cls, database_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Parts]:
        directory = tmp_path_factory.mktemp("files")
        config = Config(
            port=0, data_dir=str(directory), database_url=database_url, log_level="error", shutdown_grace_seconds=0
        )
        async with local_services(directory, "archival", errors=REMOTE) as services:
            archival, passages = ArchivalClient(services["archival"]), PassageSearchClient(services["archival"])
            assembly = await assemble(config, archival=archival, passages=passages, agents=NoAgents())
            assembly.background = ()  # no worker parses the files, whose texts the tests store
            yield assembly, config

    @pytest_asyncio.fixture(scope="class", loop_scope="class")
    @classmethod
    async def database(cls, database_url: str, channel: Any) -> AsyncIterator[Database]:
        """Another connection to the database of the service."""
        database = Database.open(database_url)
        yield database
        await database.close()

    @pytest.fixture
    def parsed(self, database: Database) -> Parsed:
        """Stores the text of a file, as the ingestion does."""

        async def parsed(
            file_id: str, text: str, kind: str = "data", page_starts: tuple[int, ...] = (), status: str = "completed"
        ) -> None:
            organization_id, text_id = current_principal().organization_id, new_id("text")
            lines = text.split("\n") if text else []
            values = {
                "text_id": text_id, "kind": kind, "status": status, "searchable": True, "total_lines": len(lines),
                "total_chars": len(text), "page_starts": msgspec.json.encode(page_starts).decode(), "due_at": None,
            }  # fmt: skip

            def write(conn: sa.Connection) -> None:
                mine = sa.and_(files.c.organization_id == organization_id, files.c.id == file_id)
                conn.execute(files.update().where(mine).values(values))
                for start in range(0, len(lines), SEGMENT_LINES):
                    part = lines[start : start + SEGMENT_LINES]
                    data = zlib.compress("\n".join(part).encode())
                    row = {"organization_id": organization_id, "file_id": file_id, "text_id": text_id, "data": data}
                    conn.execute(segments.insert().values(**row, first_line=start + 1, line_count=len(part)))
                folder_id = conn.execute(sa.select(files.c.folder_id).where(mine)).scalar_one()
                folder_rows.count(conn, organization_id, folder_id, SystemClock().now())

            await database.write(write)

        return parsed


class TestInProcessOnSqlite(OnSqlite, InProcess, WithTexts): ...


class TestOverTheWireOnPostgres(OnPostgres, OverTheWire, WithTexts): ...
