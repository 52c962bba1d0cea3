"""Builds the service from its parts. Only this module chooses implementations."""

from dataclasses import dataclass

from mnemesh.archival.v1 import archives_service_pb2_grpc, embeddings_service_pb2_grpc, passages_service_pb2_grpc
from mnemesh_kit.audit import AuditLog
from mnemesh_kit.ids import IdSource, RandomIds
from mnemesh_kit.server import Assembly, periodic
from mnemesh_kit.services import service
from mnemesh_kit.sql import Database, open_database
from mnemesh_kit.sql.postgresql import SoleUser
from mnemesh_kit.time import Clock, SystemClock
from mnemesh_retrieval.edge import EdgeIndex
from mnemesh_retrieval.index import VectorIndex
from mnemesh_retrieval.indexing.indexer import Indexer
from mnemesh_retrieval.indexing.outbox import Outbox
from mnemesh_retrieval.startup import (
    embedder_from_config,
    open_index,
    reranking_from_config,
)

from mnemesh_archival.config import Config
from mnemesh_archival.rpc.passages import ArchivesServicer, EmbeddingsServicer, PassagesServicer
from mnemesh_archival.store.archives import ArchiveStore, ReembeddingStore
from mnemesh_archival.store.index_changes import IndexRecords
from mnemesh_archival.store.passages import TOMBSTONE_LIFE, PassageStore
from mnemesh_archival.store.tables import index_tables, owners
from mnemesh_archival.usecases.archives import ArchiveService, EmbeddingService, ReembeddingWorker
from mnemesh_archival.usecases.passages import PassageService
from mnemesh_archival.usecases.search import PassageSearchService
from mnemesh_archival.vectors import Embedders, PassageIndex

PURGE_SECONDS = 3600.0
_SECOND_PROCESS = (
    "The embedded index of this service belongs to one process, and another one uses the database. "
    "Stop it, or set MNEMESH_QDRANT_URL for several replicas."
)


async def assemble(
    config: Config, *, clock: Clock | None = None, ids: IdSource | None = None, index: VectorIndex | None = None
) -> Assembly:
    """Opens the vector index if none is given, migrates the database and returns the service, ready to start."""
    clock, ids = clock or SystemClock(), ids or RandomIds()
    reranking = reranking_from_config(config)
    parts = await open_parts(config, clock, ids, index)
    embedders, passage_store, passage_index = parts.embedders, parts.passages, parts.index
    lock = await SoleUser.of("" if config.qdrant_url else config.database, _SECOND_PROCESS)
    archive_store = ArchiveStore(parts.database, clock)
    archives = ArchiveService(archive_store, passage_index, parts.reembedding, embedders, clock, ids)
    passages = PassageService(passage_store, passage_index, embedders, clock, ids)
    search = PassageSearchService(archive_store, passage_store, passage_index, embedders, reranking)

    async def purge() -> None:
        await passage_store.purge_requests()
        await passage_store.purge_tombstones(clock.now() - TOMBSTONE_LIFE)

    return Assembly(
        name="archival",
        servicers=[
            (archives_service_pb2_grpc.add_ArchiveServiceServicer_to_server, ArchivesServicer(archives)),
            (
                passages_service_pb2_grpc.add_PassageServiceServicer_to_server,
                PassagesServicer(archives, passages, search),
            ),
            (
                embeddings_service_pb2_grpc.add_EmbeddingServiceServicer_to_server,
                EmbeddingsServicer(EmbeddingService(embedders)),
            ),
        ],
        service_names=service("archival").proto_services,
        audit_log=AuditLog(parts.database, clock, config.audit_retention_days),
        find_owners=owners(parts.database).find,
        start=[passage_index.open],
        background=[parts.indexer.run, parts.reembedding.run, periodic(PURGE_SECONDS, purge), lock.watch],
        metrics=[*parts.indexer.metrics, *reranking.metrics],
        close=[
            lock.close,
            parts.vectors.close,
            parts.database.close,
            embedders.close,
            reranking.close,
            parts.indexer.close,
        ],
    )


@dataclass(frozen=True, slots=True)
class Parts:
    """The stores of the service and what keeps the index current, for the server and for maintenance."""

    database: Database
    vectors: VectorIndex
    embedders: Embedders
    passages: PassageStore
    outbox: Outbox
    indexer: Indexer
    index: PassageIndex
    reembedding: ReembeddingWorker


async def open_parts(config: Config, clock: Clock, ids: IdSource, index: VectorIndex | None = None) -> Parts:
    """Opens the vector index if none is given, and migrates and opens the database.

    Raises:
        StartupError: one of them cannot be opened.
    """
    embedders = Embedders(embedder_from_config(config), config.embedder_settings)
    vectors = await open_index(config, config.index_path, EdgeIndex) if index is None else index
    try:
        database = await open_database(config, "mnemesh_archival")
    except BaseException:
        await vectors.close()
        raise
    # One process uses the embedded index, so every claim at start is of a process that ended. With a Qdrant server, a
    # claim may be another replica's until it expires.
    exclusive = not config.qdrant_url
    outbox = Outbox(database, index_tables, clock)
    instance_id = None if exclusive else ids.new("indexer")
    indexer = Indexer(outbox, vectors, clock, instance_id=instance_id, flush_seconds=config.index_flush_seconds)
    passages = PassageIndex(vectors, indexer, IndexRecords(database), embedders)
    return Parts(
        database=database,
        vectors=vectors,
        embedders=embedders,
        passages=PassageStore(database, clock),
        outbox=outbox,
        indexer=indexer,
        index=passages,
        reembedding=ReembeddingWorker(ReembeddingStore(database, clock), passages, exclusive=exclusive),
    )
