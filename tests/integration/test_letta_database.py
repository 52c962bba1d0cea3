"""Reading a database of Letta: both engines have the same records, and nothing is written."""

import gzip
import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from mnemesh_kit.errors import FailedPrecondition, InvalidArgument
from mnemesh_letta.database.database import open_database
from mnemesh_letta.database.records import AgentRecords, Target
from mnemesh_letta.database.report import Report
from mnemesh_testkit.databases.postgres import PostgresServer

from .letta_database import DATA, DUMP


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "letta.db"
    path.write_bytes(gzip.decompress(DUMP.read_bytes()))
    return path


@pytest.mark.full
async def test_postgresql_and_sqlite_have_the_same_records(database: Path, postgres_server: PostgresServer) -> None:
    name = await postgres_server.create_database()
    async with await psycopg.AsyncConnection.connect(postgres_server.url(name), autocommit=True) as connection:
        await connection.execute(gzip.decompress((DATA / "letta-0.16.7.sql.gz").read_bytes()))

    found, _ = await records_of(postgres_server.url(name))

    expected, vectors = await records_of(f"sqlite:///{database}")
    assert found == expected
    assert vectors == 6
    await postgres_server.drop_database(name)


async def records_of(url: str) -> tuple[list[str], int]:
    """All records of all agents as text, without the times of the header, and the number of their vectors."""
    offered = frozenset(["openai/text-embedding-3-small"])
    report = Report()
    found, vectors = [], 0
    async with open_database(url) as letta:
        (organization,) = await letta.organizations()
        letta.select_organization(organization["id"])
        for row in await letta.all("agents"):
            target = Target(frozenset(["send_message"]), frozenset(["openai/gpt-4o-mini"]), offered)
            records = AgentRecords(letta, row, target, report).read()
            read = [record async for record in records if not record.HasField("header")]
            found += map(str, read)
            vectors += sum(len(record.passage.passage.embedding) == 24 for record in read)
    return found, vectors


async def test_a_database_of_letta_is_never_written(database: Path) -> None:
    before = database.read_bytes()

    await records_of(f"sqlite:///{database}")

    assert database.read_bytes() == before


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("mysql://host/letta", "PostgreSQL or SQLite"),
        ("sqlite:///nowhere.db", "no database file"),
        ("nonsense", "must be a URL"),
    ],
)
async def test_a_wrong_url_is_named(url: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        await records_of(url)


async def test_a_database_of_another_program_is_refused(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "other.db")) as connection, connection:
        connection.execute("CREATE TABLE agents (id TEXT)")

    with pytest.raises(FailedPrecondition, match="no table organizations"):
        await records_of(f"sqlite:///{tmp_path / 'other.db'}")
