"""URLs of PostgreSQL, connections, and the lock of a sole user. The engine is a module that only its users import."""

import asyncio
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import SplitResult, parse_qsl, urlsplit

import structlog

from mnemesh_kit.config import ConfigError, StartupError

if TYPE_CHECKING:
    from mnemesh_kit.sql.pipeline import PostgresConnection

SCHEMES: Final = frozenset({"postgresql", "postgres"})
CONNECT_SECONDS: Final = 5
_WHILE_WAITING: Final = {
    "tcp_user_timeout": "30000",
    "keepalives_idle": "20",
    "keepalives_interval": "5",
    "keepalives_count": "3",
}
"""Ends the wait for a server that vanished, after about half a minute: a thread waits for it."""
POOLER: Final = "pgbouncer"
"""The parameter, which is not one of libpq's, that says whether connections lead to a pooler."""
_ENCODINGS: Final = frozenset({"auto", "utf8", "utf-8", "unicode"})
_FILES: Final = ("sslcert", "sslkey", "sslrootcert", "sslcrl")
_INVALID: Final = re.compile(r"invalid \S+ (value|number)")
# libpq gives no codes for these. A start waits for other reasons to end, as it does for a server that is off.
_REFUSED: Final = re.compile(
    r"FATAL:.*(authentication|does not exist|no such|pg_hba\.conf|permission|not permitted)"
    r"|certificate|channel binding|does not support SSL|SSL error: (?!.*closed)"
)
"""Texts of libpq for a refusal by the server, which a retry cannot change."""


@dataclass(frozen=True)
class PostgresUrl:
    """A parsed URL."""

    shown: str
    """The URL without its password and parameters, for messages."""
    database: str
    is_pooled: bool | None
    """Whether connections lead to a pooler; None if the URL does not say it."""
    _parameters: Mapping[str, str] = field(repr=False)

    @classmethod
    def parse(cls, url: str) -> Self:
        """Returns the parsed URL. Nothing is connected, and no file is read.

        Raises:
            ConfigError: the URL is malformed, or has a parameter that is unknown.
        """
        import psycopg  # noqa: PLC0415  (this module also tells whether a URL is one of PostgreSQL)

        try:
            parts = urlsplit(url)
            given = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=True) if parts.query else []
            _require_hosts(parts)
            address = psycopg.conninfo.conninfo_to_dict(f"postgresql://{parts.netloc}{parts.path}")
        except (ValueError, psycopg.ProgrammingError) as error:
            raise ConfigError(
                "The database URL is malformed. Use postgresql://user:password@host:port/database, "
                "with the special characters of a password in the form %2F."
            ) from error
        values = {name: value for name, value in given if value}
        is_pooled = _taken(values, POOLER, _boolean)
        _taken(dict(values), "connect_timeout", int)
        if "ssl" in values:
            values["sslmode"] = values.pop("ssl")
        _require_known(values)
        parameters = {
            "fallback_application_name": "mnemesh",
            "connect_timeout": str(CONNECT_SECONDS),
            **_WHILE_WAITING,
            **{name: str(value) for name, value in address.items()},
            **values,
            "client_encoding": "utf8",
        }
        host = parts.netloc.rpartition("@")[2] or values.get("host", "")
        database = parameters.get("dbname", "")
        return cls(f"postgresql://{host}/{database}", database, is_pooled, parameters)

    def connect(self, settings: Mapping[str, str] | None, *, keeps_statements: bool) -> "PostgresConnection":
        """Returns a new connection, in the mode that commits each statement. Blocks.

        Args:
            settings: settings of the server for this connection; None if it may lead to a pooler, which refuses them.
            keeps_statements: whether the server keeps statements that are repeated.

        Raises:
            ConfigError: a value of the URL is wrong, or a file that it names cannot be used.
            ConnectionError: the server cannot be reached.
            psycopg.OperationalError: the server refuses the connection.
        """
        import psycopg  # noqa: PLC0415

        from mnemesh_kit.sql.pipeline import PostgresConnection, PostgresCursor  # noqa: PLC0415

        self._require_files()
        parameters = dict(self._parameters)
        if settings is not None:
            made = (f"-c {name}={value}" for name, value in {"timezone": "UTC", **settings}.items())
            parameters["options"] = " ".join((*made, parameters.get("options", ""))).rstrip()
        try:
            return PostgresConnection.connect(
                **parameters,  # type: ignore[arg-type]  # a parameter of libpq may have any name
                autocommit=True,
                cursor_factory=PostgresCursor,
                prepare_threshold=5 if keeps_statements else None,
            )
        except psycopg.OperationalError as error:
            text = str(error).splitlines()[0].rstrip(".")
            if _INVALID.search(text):
                raise ConfigError(f"The database URL {self.shown} cannot be used: {text}.") from error
            if _REFUSED.search(text):
                raise
            raise ConnectionError(text) from error

    def _require_files(self) -> None:
        for name in _FILES:
            path = self._parameters.get(name)
            if path is not None and path != "system" and not os.access(path, os.R_OK):
                raise ConfigError(f"The database URL {self.shown} cannot be used: {name} {path} cannot be read.")


def is_postgresql(url: str) -> bool:
    """Returns whether a database URL names PostgreSQL, also with a driver: `postgresql+asyncpg://`."""
    return url.partition("://")[0].partition("+")[0] in SCHEMES and "://" in url


def _require_hosts(parts: SplitResult) -> None:
    """Raises ValueError if a port is not a number, or a character of the password has cut the URL."""
    if parts.fragment or ("@" in parts.path and "@" not in parts.netloc):
        raise ValueError("not escaped")
    for host in parts.netloc.rpartition("@")[2].split(","):
        port = host.rpartition("]")[2].partition(":")[2]
        if port and not port.isdecimal():
            raise ValueError("port")


def _require_known(values: Mapping[str, str]) -> None:
    import psycopg  # noqa: PLC0415

    known = {option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()}
    for name, value in values.items():
        if name not in known:
            raise ConfigError(
                f"The database URL has the unknown parameter {name}. "
                f"Settings of the server are given as options=-c%20{name}%3D{value}."
                if name.isidentifier()
                else f"The database URL has the unknown parameter {name!r}."
            )
    encoding = values.get("client_encoding", "utf8")
    if encoding.lower() not in _ENCODINGS:
        raise ConfigError(f"The value client_encoding={encoding} of the database URL is not supported. Remove it.")


def _taken(values: dict[str, str], name: str, convert: Callable[[str], Any]) -> Any:
    text = values.pop(name, None)
    try:
        return None if text is None else convert(text)
    except ValueError as error:
        raise ConfigError(f"The parameter {name} of the database URL has the invalid value {text!r}.") from error


def _boolean(text: str) -> bool:
    known = {"true": True, "1": True, "on": True, "yes": True, "false": False, "0": False, "off": False, "no": False}
    if text.lower() not in known:
        raise ValueError(text)
    return known[text.lower()]


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
        self._connection: PostgresConnection | None = None

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
        if user._url is None:
            return user
        give_up, said = time.monotonic() + WAIT_SECONDS, False
        while not await asyncio.to_thread(user._take):
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
            OSError, psycopg.Error: the database does not answer. Try again later.
        """
        if self._connection is not None and not await asyncio.to_thread(self._has_or_takes):
            raise StartupError(self._refusal)

    async def watch(self) -> None:
        """Checks for ever, on PostgreSQL. A task for `Assembly.background`."""
        if self._url is None:
            return
        import psycopg  # noqa: PLC0415

        while True:
            await asyncio.sleep(CHECK_SECONDS)
            try:
                await self.check()
            except (OSError, psycopg.Error):
                continue  # the database is away, for others as well

    async def close(self) -> None:
        """Gives the lock back."""
        if self._connection is not None:
            await asyncio.to_thread(self._connection.close)

    def _has_or_takes(self) -> bool:
        return self._answers() or self._take()

    def _take(self) -> bool:
        if self._url is None:
            return True
        connection = self._url.connect(None, keeps_statements=False)
        try:
            connection.execute("BEGIN")
            connection.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
            (taken,) = connection.execute(_LOCK).fetchone() or (False,)
        except BaseException:
            connection.close()
            raise
        if taken:
            self._connection = connection
        else:
            connection.close()
        return bool(taken)

    def _answers(self) -> bool:
        """Returns whether the connection can still be used. Closes it if not."""
        import psycopg  # noqa: PLC0415

        connection = self._connection
        if connection is None:
            return False
        try:
            connection.execute("SELECT 1")
        except psycopg.Error:
            connection.close()
            return False
        return True
