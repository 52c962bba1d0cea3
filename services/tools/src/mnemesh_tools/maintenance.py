"""Maintenance of the database while the service is stopped: deleted bytes leave the disk."""

from collections.abc import AsyncIterator

from mnemesh_kit.maintenance import maintain_database
from mnemesh_kit.secret_variables import SecretBox, SecretVariables
from mnemesh_kit.sql import Database
from mnemesh_kit.time import Clock, SystemClock

from mnemesh_tools.config import Config
from mnemesh_tools.store.tables import metadata
from mnemesh_tools.store.tools import ToolStore, reseal
from mnemesh_tools.usecases.mcp_contacts import McpTargets


async def maintain(config: Config, *, clock: Clock | None = None) -> AsyncIterator[str]:
    """Deletes what has expired and rewrites the database.

    Yields:
        One line for each thing that was done.

    Raises:
        StartupError: The service is running and uses the database.
    """
    clock = clock or SystemClock()

    async def purge(database: Database) -> AsyncIterator[str]:
        yield f"idempotency keys deleted: {await ToolStore(database, clock).purge_ledger()}"
        box = SecretBox.of_service(config.secrets_key_file, config.database, config.data_path)
        variables, targets = SecretVariables(box, clock), McpTargets(box, allows_programs=False)
        seals = variables.resealed, targets.resealed, targets.resealed_authorization
        yield str(await database.write(lambda conn: reseal(conn, *seals)))

    async for line in maintain_database(config, "mnemesh_tools", list(metadata.tables), purge):
        yield line
