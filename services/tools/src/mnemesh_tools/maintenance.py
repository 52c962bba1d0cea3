"""Maintenance of the database while the service is stopped: deleted bytes leave the disk."""

from collections.abc import AsyncIterator

from mnemesh_kit.maintenance import maintenance_of
from mnemesh_kit.secret_variables import SecretBox, SecretVariables
from mnemesh_kit.sql import Database
from mnemesh_kit.time import Clock

from mnemesh_tools.config import Config
from mnemesh_tools.store.tools import ToolStore, reseal
from mnemesh_tools.usecases.mcp_contacts import McpTargets


@maintenance_of("mnemesh_tools")
async def maintain(config: Config, database: Database, clock: Clock) -> AsyncIterator[str]:
    """Deletes what has expired. Yields one line for each thing that was done."""
    yield f"idempotency keys deleted: {await ToolStore(database, clock).purge_ledger()}"
    box = SecretBox.of_service(config.secrets_key_file, config.database, config.data_path)
    variables, targets = SecretVariables(box, clock), McpTargets(box, allows_programs=False)
    seals = variables.resealed, targets.resealed, targets.resealed_authorization
    yield str(await database.write(lambda conn: reseal(conn, *seals)))
