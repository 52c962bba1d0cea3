"""The lock of a process that must be alone on a PostgreSQL database, because of what it keeps on its own disk."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final, Self

import structlog

from mnemesh_kit.config import StartupError
from mnemesh_kit.sql.postgres_url import PostgresUrl, is_postgresql

_log = structlog.get_logger("mnemesh.sql")

WAIT_SECONDS: Final = 30.0
"""How long a start waits for the process before, which may still drain."""
CHECK_SECONDS: Final = 5.0
_LOCK: Final = "SELECT pg_try_advisory_xact_lock(hashtext('mnemesh sole user'))"


class SoleUser:
    """Holds the lock in a transaction that stays open, which also works through a pooler.

    The transaction has no snapshot, so it does not keep dead rows. Without PostgreSQL there is no lock.
    """

    def __init__(self, url: PostgresUrl | None, refusal: str) -> None:
        self._url = url
        self._refusal = refusal
        self._connection: Any = None

    @classmethod
    async def of(cls, url: str, refusal: str) -> Self:
        """Takes the lock of a database.

        Args:
            url: the database, as for `Database.open`.
            refusal: what the operator reads if another process has the lock.

        Raises:
            StartupError: another process has it.
        """
        user = cls(PostgresUrl.parse(url) if is_postgresql(url) else None, refusal)
        give_up, said = time.monotonic() + WAIT_SECONDS, False
        while not await user._take():
            if time.monotonic() >= give_up:
                raise StartupError(refusal)
            if not said:
                _log.warning("database_in_use_by_another_process", reason=refusal)
            said = True
            await asyncio.sleep(min(1.0, WAIT_SECONDS))
        return user

    async def check(self) -> None:
        """Takes the lock again if its connection broke.

        Raises:
            StartupError: another process took it meanwhile.
            OSError: the database does not answer. Try again later.
        """
        if self._connection is not None and self._connection.is_closed() and not await self._take():
            raise StartupError(self._refusal)

    async def watch(self) -> None:
        """Checks for ever. A task for `Assembly.background`."""
        import asyncpg  # noqa: PLC0415

        while True:
            await asyncio.sleep(CHECK_SECONDS)
            try:
                await self.check()
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                continue  # the database is away, for others as well

    async def close(self) -> None:
        """Gives the lock back."""
        if self._connection is not None and not self._connection.is_closed():
            await self._connection.close()

    async def _take(self) -> bool:
        if self._url is None:
            return True
        connection = await self._url.connect({}, caches_statements=False)
        try:
            await connection.execute("BEGIN; SET LOCAL idle_in_transaction_session_timeout = 0")
            taken: bool = await connection.fetchval(_LOCK)
        except BaseException:
            await connection.close()
            raise
        if taken:
            self._connection = connection
        else:
            await connection.close()
        return taken
