"""Builds the service from its parts; the only place that picks them."""

from __future__ import annotations

from datetime import timedelta

from mnemesh.archival.v1 import archives_service_pb2 as aspb
from mnemesh.archival.v1 import archives_service_pb2_grpc as aspb_grpc
from mnemesh.archival.v1 import passages_service_pb2 as ppb
from mnemesh.archival.v1 import passages_service_pb2_grpc as ppb_grpc
from mnemesh_kit.background import periodic
from mnemesh_kit.clock import Clock, SystemClock
from mnemesh_kit.ids import IdSource, RandomIds
from mnemesh_kit.server import Assembly
from mnemesh_kit.sql import Database
from mnemesh_retrieval.edge import EdgeIndex
from mnemesh_retrieval.startup import embedder_from_config, open_index

from mnemesh_archival.config import Config
from mnemesh_archival.rpc.passages import ArchivesServicer, PassagesServicer
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
    """The archival service over its migrated database and its index, ready to start."""
    clock, ids = clock or SystemClock(), ids or RandomIds()
    embedders = Embedders(embedder_from_config(config), config.embedder_settings)
    index = await open_index(config, config.index_path, EdgeIndex)
    database = Database.open(config.database, synchronous=config.sqlite_synchronous)
    try:
        await database.migrate("mnemesh_archival")
    except BaseException:
        await index.close()
        await database.close()
        raise
    archives = SqlArchiveStore(database, clock, ids)
    ledger = SqlPassageLedger(database, clock, ids)
    passages = VectorPassageStore(index, embedders)
    finisher = OperationWorker(ledger, passages, embedders)
    # The embedded index has one process: what was claimed before belongs to one that died. Over a Qdrant server it may
    # be the work of another replica, as long as that one's claim lasts.
    alone = not config.qdrant_url
    reembedder = ReembeddingWorker(SqlReembeddingStore(database, clock), passages, embedders, alone=alone)
    registry = ArchiveService(archives, finisher, reembedder, embedders, clock, ids)
    writer = PassageService(ledger, passages, finisher, embedders, clock, ids)
    finder = PassageSearchService(archives, ledger, passages, embedders)

    async def recover() -> None:
        await finisher.sweep(everything=alone)

    async def purge() -> None:
        await ledger.purge_requests()
        await ledger.purge_tombstones(clock.now() - timedelta(days=config.tombstone_days))

    return Assembly(
        name="archival",
        servicers=[
            (aspb_grpc.add_ArchiveServiceServicer_to_server, ArchivesServicer(registry)),
            (ppb_grpc.add_PassageServiceServicer_to_server, PassagesServicer(registry, writer, finder)),
        ],
        service_names=[
            aspb.DESCRIPTOR.services_by_name["ArchiveService"].full_name,
            ppb.DESCRIPTOR.services_by_name["PassageService"].full_name,
        ],
        start=[recover],
        background=[
            reembedder.run,
            periodic(SWEEP_SECONDS, finisher.sweep),
            periodic(PURGE_SECONDS, purge),
        ],
        close=[index.close, database.close, embedders.close, finisher.close],
    )
