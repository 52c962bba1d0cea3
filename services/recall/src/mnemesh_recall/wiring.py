"""Builds the service from its parts. Only this module chooses implementations."""

import asyncio

import structlog
from mnemesh.recall.v1 import episodes_service_pb2_grpc, messages_service_pb2_grpc, traces_service_pb2_grpc
from mnemesh_kit.audit import AuditLog
from mnemesh_kit.ids import IdSource, RandomIds, new_id
from mnemesh_kit.server import Assembly, periodic
from mnemesh_kit.services import service
from mnemesh_kit.sql import Database, open_database
from mnemesh_kit.sql.postgresql import SoleUser
from mnemesh_kit.time import Clock, SystemClock
from mnemesh_retrieval.embedder import Embedder, LoadedEmbedder
from mnemesh_retrieval.errors import EmbedderMisconfigured
from mnemesh_retrieval.flat import FlatIndex
from mnemesh_retrieval.index import NearestIndex
from mnemesh_retrieval.indexing.indexer import Indexer
from mnemesh_retrieval.indexing.outbox import Outbox
from mnemesh_retrieval.startup import (
    embedder_from_config,
    open_index,
    reranking_from_config,
)

from mnemesh_recall.config import Config
from mnemesh_recall.rpc.episodes import EpisodesServicer
from mnemesh_recall.rpc.messages import MessagesServicer
from mnemesh_recall.rpc.traces import TracesServicer
from mnemesh_recall.store.episodes import EpisodeStore, MemoryAuditStore
from mnemesh_recall.store.indexed import IndexedMemories, IndexedMessages
from mnemesh_recall.store.messages import REPEAT_LIFE, MessageStore
from mnemesh_recall.store.tables import index_tables, owners
from mnemesh_recall.store.traces import TraceStore
from mnemesh_recall.store.transaction import MEMORIES, MESSAGES
from mnemesh_recall.usecases.episodes import EpisodeService, MemoryAuditService, MemoryFinder
from mnemesh_recall.usecases.message_search import MessageFinder
from mnemesh_recall.usecases.messages import MessageService, Retention, WordIndexing, WordRebuild
from mnemesh_recall.usecases.traces import TraceService
from mnemesh_recall.vectors import (
    MEMORY_PREFIX,
    MESSAGE_PREFIX,
    MemorySource,
    MemoryVectors,
    MessageSource,
    MessageVectors,
)

# No call reads a whole table. Without statistics the planner would prefer that to the full-text index; and a plan with
# a forbidden scan has such a high cost that PostgreSQL would compile the query first.
_POSTGRES_SETTINGS = {"enable_seqscan": "off", "jit": "off"}
_SECOND_PROCESS = (
    "The embedded index of this service belongs to one process, and another one uses the database. "
    "Stop it, or set MNEMESH_QDRANT_URL for several replicas."
)
PURGE_SECONDS = 3600.0
RETENTION_SECONDS = 3600.0
LOAD_SECONDS = 3.0
"""The time after the start, which has other work, until the model of the embedder is loaded."""

_log = structlog.get_logger("mnemesh.recall")


async def assemble(
    config: Config, *, clock: Clock | None = None, ids: IdSource | None = None, index: NearestIndex | None = None
) -> Assembly:
    """Migrates the database, opens the vector index if none is given, and returns the service, ready to start."""
    clock, ids = clock or SystemClock(), ids or RandomIds()
    embedder, reranking = embedder_from_config(config), reranking_from_config(config)
    database = await open_database(config, "mnemesh_recall", postgres_settings=_POSTGRES_SETTINGS)
    index = index or await open_vector_index(config)
    lock = await SoleUser.of("" if config.qdrant_url else config.database, _SECOND_PROCESS)
    store = MessageStore(database, clock, ids)
    episode_store = EpisodeStore(database, clock, ids)
    indexer = build_indexer(config, database, index, clock)
    vectors, memory_vectors = await register_collections(indexer, database, index, embedder)
    retention = Retention(store, indexer, clock, config.retention_days)

    words, new_words = WordRebuild(store), WordIndexing(store, clock)

    async def purge() -> None:
        await store.purge_ledger()
        await store.purge_steps(clock.now() - REPEAT_LIFE)

    messages = MessageService(store, MessageFinder(store, vectors, reranking), indexer, new_words)
    episodes = EpisodeService(episode_store, MemoryFinder(episode_store, memory_vectors), indexer)
    audits = MemoryAuditService(MemoryAuditStore(database, clock), clock)
    traces = TraceService(TraceStore(database, clock), indexer)
    return Assembly(
        name="recall",
        servicers=[
            (messages_service_pb2_grpc.add_MessageServiceServicer_to_server, MessagesServicer(messages, clock)),
            (episodes_service_pb2_grpc.add_EpisodeServiceServicer_to_server, EpisodesServicer(episodes, audits)),
            (traces_service_pb2_grpc.add_TraceServiceServicer_to_server, TracesServicer(traces)),
        ],
        service_names=service("recall").proto_services,
        audit_log=AuditLog(database, clock, config.audit_retention_days),
        find_owners=owners(database).find,
        start=[words.mark, indexer.open],
        background=[
            words.run,
            new_words.run,
            indexer.run,
            periodic(PURGE_SECONDS, purge),
            periodic(RETENTION_SECONDS, retention.sweep),
            lambda: load_later(embedder),
            lock.watch,
        ],
        metrics=[*indexer.metrics, *reranking.metrics],
        close=[lock.close, database.close, embedder.close, reranking.close, index.close, indexer.close],
    )


async def load_later(embedder: Embedder) -> None:
    """Loads the model of an embedder a while after the start, so that no search waits for it.

    The first new message would load it anyway, in order to be indexed.
    """
    if isinstance(embedder, LoadedEmbedder):
        await asyncio.sleep(LOAD_SECONDS)
        try:
            await embedder.load()
        except EmbedderMisconfigured as error:
            _log.warning("embedder_not_loaded", error=str(error))


def build_indexer(config: Config, database: Database, index: NearestIndex, clock: Clock) -> Indexer:
    """Returns the indexer, without its collections.

    With a Qdrant server, several processes may update the index, and each has its own instance id. The embedded index
    belongs to this process.
    """
    return Indexer(
        Outbox(database, index_tables, clock),
        index,
        clock,
        instance_id=new_id("indexer") if config.qdrant_url else None,
        owned_prefixes=(MESSAGE_PREFIX, MEMORY_PREFIX),
        flush_seconds=config.index_flush_seconds,
    )


async def register_collections(
    indexer: Indexer, database: Database, index: NearestIndex, embedder: Embedder
) -> tuple[MessageVectors, MemoryVectors]:
    messages, memories = MessageVectors(index, embedder, indexer), MemoryVectors(index, embedder, indexer)
    await indexer.register(MESSAGES, MessageSource(IndexedMessages(database), messages))
    await indexer.register(MEMORIES, MemorySource(IndexedMemories(database), memories))
    return messages, memories


async def open_vector_index(config: Config) -> NearestIndex:
    """Opens the vector index. Raises StartupError if another process holds it or the server does not answer."""
    return await open_index(config, config.data_path / "recall-index", FlatIndex)
