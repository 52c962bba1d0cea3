"""Maintenance of the database while the orchestrator is stopped: deleted bytes leave the disk."""

from collections.abc import AsyncIterator

from mnemesh_kit.idempotency import RETENTION
from mnemesh_kit.maintenance import maintenance_of
from mnemesh_kit.secret_variables import SecretBox, SecretVariables
from mnemesh_kit.sql import Database
from mnemesh_kit.time import Clock

from mnemesh_orchestrator.config import Config
from mnemesh_orchestrator.llm.settings import CredentialSealer
from mnemesh_orchestrator.store.providers import reseal
from mnemesh_orchestrator.store.runs import RunStore
from mnemesh_orchestrator.store.webhooks import reseal_webhooks
from mnemesh_orchestrator.usecases.webhooks import WebhookSecrets


@maintenance_of("mnemesh_orchestrator")
async def maintain(config: Config, database: Database, clock: Clock) -> AsyncIterator[str]:
    """Deletes what has expired. Yields one line for each thing that was done."""
    deleted = await RunStore(database, clock).purge_requests(clock.now() - RETENTION)
    yield f"idempotency keys deleted: {deleted}"
    box = SecretBox.of_service(config.secrets_key_file, config.database, config.data_path)
    variables, credentials = SecretVariables(box, clock), CredentialSealer(box)
    webhooks = WebhookSecrets(box, clock)
    yield str(
        await database.write(
            lambda conn: reseal_webhooks(
                conn, webhooks.resealed, reseal(conn, variables.resealed, credentials.resealed)
            )
        )
    )
