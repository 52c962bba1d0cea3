"""A process that must be the only one on a database: a second one is refused, and the lock outlives outages."""

import asyncio
from contextlib import suppress

import psycopg
import pytest
from mnemesh_kit.config import StartupError
from mnemesh_kit.sql.postgresql import SoleUser
from mnemesh_testkit.timeouts import scaled

END_OTHERS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


@pytest.fixture(autouse=True)
def _no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mnemesh_kit.sql.postgresql.WAIT_SECONDS", 0.0)


async def test_second_process_is_refused_until_the_first_ends(database_url: str) -> None:
    if database_url.startswith("sqlite"):
        user = await SoleUser.of(database_url, "Only one.")
        await user.check()
        await user.close()
    else:
        await _second_is_refused(database_url)


async def _second_is_refused(url: str) -> None:
    first = await SoleUser.of(url, "Only one.")
    with pytest.raises(StartupError, match="Only one"):
        await SoleUser.of(url, "Only one.")
    await first.close()
    second = await SoleUser.of(url, "Only one.")
    await second.close()


async def test_lock_is_taken_again_after_an_outage_unless_another_has_it(postgres_url: str) -> None:
    first = await SoleUser.of(postgres_url, "Only one.")
    async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as operator:
        await operator.execute(END_OTHERS)
        await first.check()
        with pytest.raises(StartupError):
            await SoleUser.of(postgres_url, "Only one.")
        await operator.execute(END_OTHERS)
        second = await _take_when_free(postgres_url)
        with pytest.raises(StartupError, match="Only one"):
            await first.check()
        await second.close()


async def _take_when_free(url: str) -> SoleUser:
    """Takes the lock. A connection that was ended gives it back a little later."""
    async with asyncio.timeout(scaled(30)):
        while True:
            with suppress(StartupError):
                return await SoleUser.of(url, "Only one.")
