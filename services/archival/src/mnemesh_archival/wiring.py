"""Builds the service from its parts. Only this module chooses implementations."""

from __future__ import annotations

from datetime import timedelta

from mnemesh.archival.v1 import archives_service_pb2_grpc, passages_service_pb2_grpc
from mnemesh_kit.background import periodic
from mnemesh_kit.clock import Clock, SystemClock
from mnemesh_kit.ids import IdSource, RandomIds
from mnemesh_kit.server import Assembly
from mnemesh_kit.services import service
from mnemesh_kit.sql import open_database
from mnemesh_retrieval.edge import EdgeIndex
from mnemesh_retrieval.startup import embedder_from_config, open_index

from mnemesh_archival.config import Config
from mnemesh_archival.rpc.archives import ArchivesServicer
from mnemesh_archival.rpc.passages import PassagesServicer
from mnemesh_archival.store.sql.archives import SqlArchiveStore
from mnemesh_archival.store.sql.passage_ledger import SqlPassageLedger
from mnemesh_archival.store.sql.reembeddings import SqlReembeddingStore
from mnemesh_archival.usecases.archives import ArchiveService
from mnemesh_archival.usecases.operation_worker import OperationWorker
from mnemesh_archival.usecases.passages import PassageService
from mnemesh_archival.usecases.reembedding import ReembeddingWorker
from mnemesh_archival.usecases.search import PassageSearchService
from mnemesh_archival.vectors.embedders import Embedders
from mnemesh_archival.vectors.passages import VectorPassageStore

PURGE_SECONDS = 3600.0
SWEEP_SECONDS = 15.0


async def assemble(config: Config, *, clock: Clock | None = None, ids: IdSource | None = None) -> Assembly:
    """Opens the vector index, migrates the database and returns the service, ready to start."""
    clock, ids = clock or SystemClock(), ids or RandomIds()
    embedders = Embedders(embedder_from_config(config), config.embedder_settings)
    index = await open_index(config, config.index_path, EdgeIndex)
    try:
        database = await open_database(config, "mnemesh_archival")
    except BaseException:
        await index.close()
        raise
    archive_store = SqlArchiveStore(database, clock, ids)
    ledger = SqlPassageLedger(database, clock, ids)
    passage_store = VectorPassageStore(index, embedders)
    # One process uses the embedded index, so every claim at start is of a process that ended. With a Qdrant server, a
    # claim may be another replica's until it expires.
    exclusive = not config.qdrant_url
    operations = OperationWorker(ledger, passage_store, embedders)
    reembedding = ReembeddingWorker(SqlReembeddingStore(database, clock), passage_store, embedders, exclusive=exclusive)
    archives = ArchiveService(archive_store, operations, reembedding, embedders, clock, ids)
    passages = PassageService(ledger, passage_store, operations, embedders, clock, ids)
    search = PassageSearchService(archive_store, ledger, passage_store, embedders)

    async def recover() -> None:
        await operations.sweep(everything=exclusive)

    async def purge() -> None:
        await ledger.purge_requests()
        await ledger.purge_tombstones(clock.now() - timedelta(days=config.tombstone_days))

    return Assembly(
        name="archival",
        servicers=[
            (archives_service_pb2_grpc.add_ArchiveServiceServicer_to_server, ArchivesServicer(archives)),
            (
                passages_service_pb2_grpc.add_PassageServiceServicer_to_server,
                PassagesServicer(archives, passages, search),
            ),
        ],
        service_names=service("archival").proto_services,
        start=[recover],
        background=[
            reembedding.run,
            periodic(SWEEP_SECONDS, operations.sweep),
            periodic(PURGE_SECONDS, purge),
        ],
        close=[index.close, database.close, embedders.close, operations.close],
    )
