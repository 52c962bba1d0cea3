"""The settings of a service that keeps its data in an SQL database."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from mnemesh_kit.config import ServerConfig, service_of
from mnemesh_kit.sql.database import POOL_SIZE, Database


@dataclass(frozen=True, kw_only=True)
class SqlConfig(ServerConfig):
    """The settings of every service with a database. The service's Config extends it."""

    database_url: str | None = None
    """`sqlite:////path` or `postgresql://…`; by default <service>.db in the data directory."""
    database_pool_size: int = POOL_SIZE
    """The largest number of connections of this process to PostgreSQL."""
    sqlite_synchronous: Literal["NORMAL", "FULL"] = "FULL"
    """FULL flushes each write to the disk before it is acknowledged. NORMAL can lose the last writes in a power
    failure."""

    @property
    def database(self) -> str:
        """The URL of the service's own database."""
        return self.database_url or f"sqlite:///{self.data_path / f'{service_of(type(self))}.db'}"


async def open_database(
    config: SqlConfig, package: str, *, postgres_settings: Mapping[str, str] | None = None
) -> Database:
    """Opens the database of a service and migrates it to the newest schema.

    Args:
        config: the service's settings.
        package: the service's package, whose `store/migrations` has the revisions.
        postgres_settings: settings of each connection to PostgreSQL, by name.

    Raises:
        StartupError: the database cannot be reached or opened. It is closed again.
    """
    database = Database.open(
        config.database,
        synchronous=config.sqlite_synchronous,
        pool_size=config.database_pool_size,
        postgres_settings=postgres_settings,
    )
    try:
        await database.migrate(package)
    except BaseException:
        await database.close()
        raise
    return database
