"""Builds the service from its parts. Only this module chooses implementations."""

from mnemesh.blocks.v1 import blocks_service_pb2_grpc
from mnemesh_kit.audit import AuditLog
from mnemesh_kit.ids import IdSource, RandomIds
from mnemesh_kit.server import Assembly, periodic
from mnemesh_kit.services import service
from mnemesh_kit.sql import open_database
from mnemesh_kit.time import Clock, SystemClock

from mnemesh_blocks.config import Config
from mnemesh_blocks.rpc.blocks import BlocksServicer
from mnemesh_blocks.store.blocks import TOMBSTONE_LIFE, BlockStore
from mnemesh_blocks.store.tables import owners
from mnemesh_blocks.usecases.blocks import BlockImportService, BlockService, RevisionService
from mnemesh_blocks.usecases.core_memory import ConversationBlockService, CoreMemoryService, LinkService

PURGE_SECONDS = 3600.0


async def assemble(config: Config, *, clock: Clock | None = None, ids: IdSource | None = None) -> Assembly:
    """Migrates the database and returns the service, ready to start."""
    clock, ids = clock or SystemClock(), ids or RandomIds()
    database = await open_database(config, "mnemesh_blocks")
    store = BlockStore(database, clock)

    async def purge() -> None:
        await store.purge_ledger()
        await store.purge_tombstones(clock.now() - TOMBSTONE_LIFE)

    servicer = BlocksServicer(
        blocks=BlockService(store, clock, ids),
        core_memory=CoreMemoryService(store, clock),
        conversation_blocks=ConversationBlockService(store, clock, ids),
        revisions=RevisionService(store, clock),
        links=LinkService(store),
        imports=BlockImportService(store),
    )
    return Assembly(
        name="blocks",
        servicers=[(blocks_service_pb2_grpc.add_BlockServiceServicer_to_server, servicer)],
        service_names=service("blocks").proto_services,
        audit_log=AuditLog(database, clock, config.audit_retention_days),
        find_owners=owners(database).find,
        background=[periodic(PURGE_SECONDS, purge)],
        close=[database.close],
    )
