"""The stores of a mesh: the databases of its services, and the contents of files.

The services are found by their names, as when they are started. Nothing of them runs.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module, resources
from pathlib import Path
from typing import Any, Final, Self

import sqlalchemy as sa
from mnemesh_cli.backups.places import BackupError
from mnemesh_cli.supervisor.config import MeshConfig, service_environment, service_module
from mnemesh_kit.errors import StorageFull, Unavailable
from mnemesh_kit.services import STORE_NAMES
from mnemesh_kit.sql import Database
from mnemesh_kit.sql.database import VERSIONS

DERIVED: Final = "derived"
"""The key of `Table.info` that says that the service makes the rows of the table again from those of others."""
KEY_HOLDERS: Final = ("orchestrator", "tools")
"""The services that store secrets."""


@dataclass(frozen=True)
class ServiceStore:
    """The database of one service."""

    name: str
    package: str
    config: Any
    """The settings of the service, its Config."""
    metadata: sa.MetaData

    @property
    def url(self) -> str:
        """The URL of the database."""
        return str(self.config.database)

    @cached_property
    def tables(self) -> tuple[sa.Table, ...]:
        """The tables with the record, each after those that it refers to."""
        return tuple(table for table in self.metadata.sorted_tables if not table.info.get(DERIVED))

    @cached_property
    def newest_revision(self) -> str:
        """The revision of the schema that the installed version of the service has."""
        versions = resources.files(self.package) / "store" / "migrations" / "versions"
        return max(file.name for file in versions.iterdir() if file.name.endswith(".py")).partition("_")[0]

    def migrate(self) -> None:
        """Creates the database if it is missing, and brings its schema up to date. Raises StartupError."""

        async def migrate() -> None:
            database = Database.open(self.url)
            try:
                await database.migrate(self.package)
            finally:
                await database.close()

        asyncio.run(migrate())


def revision_of(connection: sa.Connection) -> str | None:
    """Returns the revision of the schema of a database; None if it has no schema."""
    if not sa.inspect(connection).has_table(VERSIONS.name):
        return None
    return connection.execute(sa.select(VERSIONS.c.version_num)).scalar()


@dataclass(frozen=True)
class MeshStores:
    """The stores of a mesh, by the settings that its services have."""

    services: Mapping[str, ServiceStore]
    data_path: Path

    @classmethod
    def of(cls, mesh: MeshConfig) -> Self:
        """Returns the stores of the mesh on this machine, or of that which the environment describes.

        Raises:
            ConfigError: a setting of a service is wrong.
            StartupError: a service is not installed.
        """
        return cls({name: _service_store(name, mesh) for name in STORE_NAMES}, mesh.data_path)

    @property
    def urls(self) -> dict[str, str]:
        """The URLs of the databases by service."""
        return {name: store.url for name, store in self.services.items()}

    @asynccontextmanager
    async def contents(self) -> AsyncIterator[Any]:
        """Opens the store of the contents of files: a BlobStore of the service files.

        Raises:
            BackupError: it cannot be read or written.
        """
        store = import_module("mnemesh_files.wiring").blob_store(self.services["files"].config)
        try:
            yield store
        except (StorageFull, Unavailable) as error:
            raise BackupError(f"The contents of files cannot be used: {error.__cause__ or error.message}") from error
        finally:
            await store.close()

    @property
    def content_missing(self) -> type[Exception]:
        """The error of the store of contents for a content that it does not have."""
        error: type[Exception] = import_module("mnemesh_files.errors").ContentMissing
        return error


def _service_store(name: str, mesh: MeshConfig) -> ServiceStore:
    package = service_module(name)
    config = import_module(f"{package}.config").Config.from_env(service_environment(name, mesh))
    return ServiceStore(name, package, config, import_module(f"{package}.store.tables").metadata)
