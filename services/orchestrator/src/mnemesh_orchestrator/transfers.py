"""Connects the export and the import of agents. It chooses no stores and no clients: see `wiring`."""

from dataclasses import dataclass

from mnemesh_kit.clock import Clock
from mnemesh_kit.secret_variables import SecretVariables

from mnemesh_orchestrator.llm.embedders import EmbedderDirectory
from mnemesh_orchestrator.llm.model_catalog import ModelCatalog
from mnemesh_orchestrator.orchestrator import Orchestrator
from mnemesh_orchestrator.ports import Services
from mnemesh_orchestrator.ports.records import ImportedWindows, RecordParts
from mnemesh_orchestrator.store.base.stores import Stores
from mnemesh_orchestrator.usecases.agent_exports import AgentExportService
from mnemesh_orchestrator.usecases.agent_imports import AgentImportService
from mnemesh_orchestrator.usecases.import_batches import ImportWriter
from mnemesh_orchestrator.usecases.import_ends import ImportEnds


@dataclass(frozen=True, slots=True)
class Transfers:
    """The export and the import of agents."""

    exports: AgentExportService
    imports: AgentImportService


def build_transfers(
    orchestrator: Orchestrator,
    stores: Stores,
    services: Services,
    parts: RecordParts,
    windows: ImportedWindows,
    *,
    models: ModelCatalog,
    embedders: EmbedderDirectory,
    secrets: SecretVariables,
    clock: Clock,
) -> Transfers:
    """Connects the parts.

    Args:
        orchestrator: the use cases of single resources.
        stores: the orchestrator's own stores.
        services: the other services.
        parts: the records in the other services, by their types.
        windows: the windows of imported agents.
        models: resolves the handles of models.
        embedders: knows the embedders.
        secrets: encrypts the environment variables of agents.
        clock: the clock.
    """
    writer = ImportWriter(stores.agent_imports, stores.identities, parts, windows, orchestrator.agent_parts)
    ends = ImportEnds(
        stores.agent_imports,
        stores.agents,
        writer,
        services.tools,
        orchestrator.agents,
        orchestrator.groups,
        secrets,
    )
    return Transfers(
        AgentExportService(stores, parts, services.recall, clock),
        AgentImportService(stores.agent_imports, writer, ends, windows, models, embedders, clock),
    )
