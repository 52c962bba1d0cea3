"""URLs of PostgreSQL, connections, and the lock of a sole user. The engine is a module that only its users import."""

import asyncio
import os
import random
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit, urlunsplit

import structlog

from mnemesh_kit.config import ConfigError, StartupError

SCHEMES: Final = frozenset({"postgresql", "postgres"})
CONNECT_SECONDS: Final = 5.0
POOLER: Final = "pgbouncer"
"""The parameter, which is not one of libpq's, that says whether connections lead to a pooler."""

_OF_DRIVER: Final = frozenset(
    {
        *("host", "port", "dbname", "user", "password", "passfile", "service", "target_session_attrs"),
        *("sslmode", "sslcert", "sslkey", "sslpassword", "sslrootcert", "sslcrl", "sslnegotiation"),
        *("ssl_min_protocol_version", "ssl_max_protocol_version", "krbsrvname", "gsslib", "options"),
    }
)
"""The driver has the same parameters."""

# The driver finds broken connections by itself, encrypts with TLS only, and always sends the name of the server.
_WITHOUT_EFFECT: Final[Mapping[str, frozenset[str] | None]] = {
    "channel_binding": None,
    "client_encoding": frozenset({"auto", "utf8", "utf-8", "unicode"}),
    "gssdelegation": frozenset({"0"}),
    "gssencmode": frozenset({"disable", "prefer"}),
    "keepalives": None,
    "keepalives_count": None,
    "keepalives_idle": None,
    "keepalives_interval": None,
    "load_balance_hosts": frozenset({"disable", "random"}),
    "max_protocol_version": None,
    "min_protocol_version": frozenset({"3.0"}),
    "replication": frozenset({"0", "false", "off", "no"}),
    "sslcertmode": frozenset({"allow"}),
    "sslcompression": frozenset({"0"}),
    "sslsni": frozenset({"1"}),
    "tcp_user_timeout": None,
}
"""Parameters that change nothing here, and their values that may be given; None: all."""

_NOT_SUPPORTED: Final = frozenset(
    {
        *("hostaddr", "oauth_client_id", "oauth_client_secret", "oauth_issuer", "oauth_scope", "require_auth"),
        *("requirepeer", "requiressl", "scram_client_key", "scram_server_key", "servicefile", "sslcrldir"),
        "sslkeylogfile",
    }
)


@dataclass(frozen=True)
class PostgresUrl:
    """A parsed URL."""

    shown: str
    """The URL without its password and parameters, for messages."""
    database: str
    is_pooled: bool | None
    """Whether connections lead to a pooler; None if the URL does not say it."""
    _dsn: str = field(repr=False)
    _settings: Mapping[str, str] = field(repr=False)
    _options: Mapping[str, Any] = field(repr=False)
    _files: Mapping[str, str] = field(repr=False)
    _has_public_authority: bool

    @classmethod
    def parse(cls, url: str) -> Self:
        """Returns the parsed URL. Nothing is connected, and no file is read.

        Raises:
            ConfigError: the URL is malformed, or has a parameter that is unknown or cannot be followed.
        """
        try:
            parts = urlsplit(url)
            given = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=True) if parts.query else []
            _require_hosts(parts)
        except ValueError as error:
            raise ConfigError(
                "The database URL is malformed. Use postgresql://user:password@host:port/database, "
                "with the special characters of a password in the form %2F."
            ) from error
        values = {name: value for name, value in given if value}
        is_pooled = _taken(values, POOLER, _boolean)
        seconds = _taken(values, "connect_timeout", int)
        name = values.pop("application_name", None) or values.pop("fallback_application_name", None)
        values.pop("fallback_application_name", None)
        if "ssl" in values:
            values["sslmode"] = values.pop("ssl")
        _require_known(values)
        netloc = parts.netloc
        if values.pop("load_balance_hosts", "") == "random":
            netloc = _shuffled(netloc)
        kept = {name: value for name, value in values.items() if name in _OF_DRIVER}
        settings = {"application_name": name or "mnemesh", "timezone": "UTC"}
        if "options" in kept:
            settings["options"] = kept.pop("options")
        options: dict[str, Any] = {"timeout": CONNECT_SECONDS if seconds is None else seconds if seconds > 0 else None}
        is_public = kept.get("sslrootcert") == "system"
        if is_public:
            del kept["sslrootcert"]
        files: dict[str, str] = {
            name: kept[name] for name in ("sslcert", "sslkey", "sslrootcert", "sslcrl") if name in kept
        }
        dsn = urlunsplit(("postgresql", netloc, parts.path, urlencode(kept), ""))
        host = netloc.rpartition("@")[2] or values.get("host", "")
        database = parts.path.removeprefix("/") or values.get("dbname", "")
        return cls(f"postgresql://{host}/{database}", database, is_pooled, dsn, settings, options, files, is_public)

    async def connect(self, settings: Mapping[str, str], *, caches_statements: bool = True) -> Any:
        """Returns a new connection of asyncpg, with `settings` of the server.

        Raises:
            ConfigError: a value of the URL is wrong, or a file that it names cannot be used.
            Exception: whatever the driver raises.
        """
        import asyncpg  # noqa: PLC0415  (this module also tells whether a URL is one of PostgreSQL)

        self._require_files()
        options = dict(self._options)
        if self._has_public_authority:
            options["ssl"] = ssl.create_default_context()  # which verifies the name, as libpq does then
        if not caches_statements:
            options["statement_cache_size"] = 0
        try:
            return await asyncpg.connect(self._dsn, server_settings={**self._settings, **settings}, **options)
        except asyncpg.ClientConfigurationError as error:
            text = str(error).splitlines()[0].rstrip(".")
            raise ConfigError(f"The database URL {self.shown} cannot be used: {text}.") from error

    def _require_files(self) -> None:
        for name, path in self._files.items():
            if not os.access(path, os.R_OK):
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
    for name, value in values.items():
        if name in _OF_DRIVER:
            continue
        if name in _NOT_SUPPORTED:
            raise ConfigError(f"The parameter {name} of the database URL is not supported. Remove it.")
        if name not in _WITHOUT_EFFECT:
            raise ConfigError(
                f"The database URL has the unknown parameter {name}. "
                f"Settings of the server are given as options=-c%20{name}%3D{value}."
                if name.isidentifier()
                else f"The database URL has the unknown parameter {name!r}."
            )
        accepted = _WITHOUT_EFFECT[name]
        if accepted is not None and value.lower() not in accepted:
            raise ConfigError(f"The value {name}={value} of the database URL is not supported. Remove it.")


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


def _shuffled(netloc: str) -> str:
    """Returns the part of a URL with user and hosts, with the hosts in another order for each process."""
    user, at, hosts = netloc.rpartition("@")
    listed = hosts.split(",")
    random.shuffle(listed)
    return f"{user}{at}{','.join(listed)}"


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
