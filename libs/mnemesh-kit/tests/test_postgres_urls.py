"""The URLs of PostgreSQL databases: parameters of libpq, and unknown ones; poolers are found."""

import asyncio
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
import structlog
from mnemesh_kit.config import ConfigError
from mnemesh_kit.sql import Database
from mnemesh_kit.sql.postgresql import PostgresUrl, is_postgresql
from mnemesh_testkit.timeouts import scaled


def _number(conn: sa.Connection) -> int:
    return int(conn.execute(sa.select(sa.literal(7))).scalar_one())


def _setting(name: str) -> Any:
    return lambda conn: conn.execute(sa.select(sa.func.current_setting(name))).scalar_one()


async def _read(url: str, fn: Any = _number) -> Any:
    database = Database.open(url)
    try:
        return await database.read(fn)
    finally:
        await database.close()


@pytest.mark.parametrize(
    "parameters",
    [
        "sslmode=disable",
        "sslmode=prefer&channel_binding=prefer",
        "connect_timeout=10&keepalives=1&keepalives_idle=30&keepalives_interval=10&keepalives_count=3",
        "tcp_user_timeout=5000&gssencmode=prefer&client_encoding=utf8&sslsni=1&sslcompression=0",
        "target_session_attrs=any&load_balance_hosts=random",
        "target_session_attrs=read-write&connect_timeout=0",
        "sslmode=&application_name=",
        "fallback_application_name=other&user=postgres&pgbouncer=false",
        "ssl=prefer",
    ],
)
async def test_parameters_of_libpq_are_accepted(postgres_url: str, parameters: str) -> None:
    assert await _read(f"{postgres_url}&{parameters}") == 7


async def test_parameters_reach_the_server(postgres_url: str) -> None:
    url = f"{postgres_url}&application_name=ours&options=-c%20statement_timeout%3D4321"
    assert await _read(url, _setting("statement_timeout")) == "4321ms"
    assert await _read(url, _setting("application_name")) == "ours"
    assert await _read(postgres_url, _setting("application_name")) == "mnemesh"


async def test_second_host_is_used_if_the_first_does_not_answer(postgres_url: str, tmp_path: Path) -> None:
    head, _, directory = postgres_url.partition("?host=")
    assert await _read(f"{head}?host={tmp_path},{directory}&port=5432,5432") == 7


def test_hosts_in_the_address_are_accepted() -> None:
    url = PostgresUrl.parse("postgres://u:p%40x@db1.example:5432,db2.example:6432/app?target_session_attrs=read-write")
    assert (url.shown, url.database) == ("postgresql://db1.example:5432,db2.example:6432/app", "app")


async def test_password_is_read_from_a_file(postgres_url: str, tmp_path: Path) -> None:
    passwords = tmp_path / "passwords"
    passwords.write_text("*:*:*:*:secret\n")
    passwords.chmod(0o600)
    assert await _read(f"{postgres_url}&passfile={passwords}") == 7


@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        ("statement_timeout=5", "statement_timeout"),
        ("sslmod=require", "sslmod"),
        ("client_encoding=latin1", "client_encoding=latin1"),
        ("connect_timeout=soon", "connect_timeout"),
        ("pgbouncer=maybe", "pgbouncer"),
        ("schema=public", "schema"),
    ],
)
def test_other_parameters_are_named_in_one_line(parameters: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named) as refused:
        Database.open(f"postgresql://u:secret@host/db?{parameters}")
    assert "\n" not in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:se/cret@host/db",
        "postgresql://u:se#cret@host/db",
        "postgresql://u:se?cret@host/db",
        "postgresql://u:secret@host:port/db",
        "postgresql://u:secret@[::1/db",
        "postgresql://u:secret@host/db?sslmode",
    ],
)
def test_malformed_url_is_one_line_without_the_password(url: str) -> None:
    with pytest.raises(ConfigError, match="malformed") as refused:
        Database.open(url)
    assert "cret" not in str(refused.value)


@pytest.mark.parametrize(
    "parameters", ["sslmode=sometimes", "sslmode=verify-full&sslrootcert=/missing/ca.crt", "target_session_attrs=best"]
)
async def test_wrong_value_is_one_line_at_the_start(parameters: str) -> None:
    database = Database.open(f"postgresql://u:secret@127.0.0.1:1/db?{parameters}")
    with pytest.raises(ConfigError, match="cannot be used") as refused:
        await database.migrate("mnemesh_blocks")
    assert "\n" not in str(refused.value)
    assert "secret" not in str(refused.value)
    await database.close()


def test_urls_of_other_libraries_are_recognised() -> None:
    for url in ("postgres://h/d", "postgresql://h/d", "postgresql+asyncpg://h/d", "postgresql+psycopg2://h/d"):
        assert is_postgresql(url)
        Database.open(url)
    assert not is_postgresql("sqlite:////x.db")


async def test_pooler_is_detected(pooled_postgres_url: str, postgres_url: str) -> None:
    with structlog.testing.capture_logs() as logs:
        assert await _read(pooled_postgres_url) == 7
        assert await _read(f"{pooled_postgres_url}&pgbouncer=true") == 7
        assert await _read(postgres_url) == 7
    assert [line["event"] for line in logs] == ["database_pooler_detected"]


async def test_pooler_of_these_tests_mixes_the_connections_of_transactions(pooled_postgres: Any) -> None:
    pids = set()
    async with (
        await psycopg.AsyncConnection.connect(
            pooled_postgres.url(), autocommit=True, prepare_threshold=None
        ) as connection,
        asyncio.timeout(scaled(30)),
    ):
        while len(pids) < 2:
            pids |= set(await (await connection.execute("SELECT pg_backend_pid()")).fetchall())


async def test_reads_and_writes_of_many_callers_pass_a_pooler(pooled_postgres_url: str) -> None:
    settings = {"enable_seqscan": "off", "jit": "off"}
    database = Database.open(pooled_postgres_url, postgres_settings=settings)
    notes = sa.Table("notes", sa.MetaData(), sa.Column("text", sa.Text))
    await database.write(notes.create)

    async def use(number: int) -> int:
        await database.write(lambda conn: conn.execute(notes.insert(), [{"text": str(number)}, {"text": "x"}]))
        for snapshot in (True, False):
            assert await database.read(_setting("enable_seqscan"), snapshot=snapshot) == "off"
        found = await database.read(
            lambda conn: conn.execute(sa.select(notes.c.text).where(notes.c.text == str(number))).all(), snapshot=False
        )
        return len(found)

    assert sum(await asyncio.gather(*(use(number) for number in range(60)))) == 60
    await database.close()
    assert await _read(pooled_postgres_url, _setting("enable_seqscan")) == "on", (
        "the connections of others are unchanged"
    )
