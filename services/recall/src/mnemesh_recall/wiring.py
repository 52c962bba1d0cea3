"""Builds the service from its parts; the only place that picks them."""

from __future__ import annotations

import asyncio
import shutil
from datetime import timedelta

from mnemesh.recall.v1 import (
    episodes_service_pb2,
    episodes_service_pb2_grpc,
    messages_service_pb2,
    messages_service_pb2_grpc,
    traces_service_pb2,
    traces_service_pb2_grpc,
)
from mnemesh_kit.background import periodic
from mnemesh_kit.clock import Clock, SystemClock
from mnemesh_kit.config import StartupError
from mnemesh_kit.ids import RandomIds, new_id
from mnemesh_kit.metrics import Gauge
from mnemesh_kit.service import Assembly
from mnemesh_kit.sql import Database
from mnemesh_retrieval.embedder import Embedder
from mnemesh_retrieval.errors import EmbedderMisconfigured, RetrievalError
from mnemesh_retrieval.flat import FlatIndex
from mnemesh_retrieval.index import NearestIndex
from mnemesh_retrieval.registry import EmbedderSettings, make_embedder

from mnemesh_recall.config import Config
from mnemesh_recall.rpc.episodes import EpisodesServicer
from mnemesh_recall.rpc.messages import MessagesServicer
from mnemesh_recall.rpc.traces import TracesServicer
from mnemesh_recall.store.sql.episodes import SqlMemoryStore
from mnemesh_recall.store.sql.messages import SqlRecallStore
from mnemesh_recall.store.sql.traces import SqlTraceStore
from mnemesh_recall.usecases.episode_search import MemoryFinder
from mnemesh_recall.usecases.episodes import EpisodeService
from mnemesh_recall.usecases.message_search import MessageFinder
from mnemesh_recall.usecases.messages import MessageService
from mnemesh_recall.usecases.retention import Retention
from mnemesh_recall.usecases.traces import TraceService
from mnemesh_recall.vectors.indexer import Indexer
from mnemesh_recall.vectors.memories import MemoryFollower, MemoryVectors
from mnemesh_recall.vectors.messages import MessageVectors

# No call is to read a table whole. Planned without statistics, the word index would be passed over for that; and what
# is forbidden looks so dear to the planner that it would compile the query first.
_PLANNING = {"enable_seqscan": "off", "jit": "off"}
PURGE_SECONDS = 3600.0
RETENTION_SECONDS = 3600.0


async def assemble(config: Config, *, clock: Clock | None = None) -> Assembly:
    """The recall service over its migrated database and its vector index, ready to start."""
    clock = clock or SystemClock()
    embedder = make_embedder_of(config)
    database = Database.open(config.database, synchronous=config.sqlite_synchronous, postgres_settings=_PLANNING)
    await database.migrate("mnemesh_recall")
    store = SqlRecallStore(database, clock, RandomIds())
    index = await open_index(config)
    vectors = MessageVectors(index, embedder)
    memories, memory_vectors = SqlMemoryStore(database, clock, RandomIds()), MemoryVectors(index, embedder)
    # A Qdrant server may be filled by several processes; the embedded index has this one.
    holder = new_id("indexer") if config.qdrant_url else None
    indexer = Indexer(store, vectors, clock, holder, memories=MemoryFollower(memories, memory_vectors))
    retention = Retention(store, indexer, clock, config.retention_days)

    async def purge() -> None:
        await store.purge_ledger()
        await store.purge_steps(clock.now() - timedelta(days=config.repeat_days))

    service = MessageService(store, MessageFinder(store, vectors), indexer)
    episodes = EpisodeService(memories, MemoryFinder(memories, memory_vectors), indexer)
    traces = TraceService(SqlTraceStore(database, clock), indexer)
    return Assembly(
        name="recall",
        servicers=[
            (messages_service_pb2_grpc.add_MessageServiceServicer_to_server, MessagesServicer(service, clock)),
            (episodes_service_pb2_grpc.add_EpisodeServiceServicer_to_server, EpisodesServicer(episodes)),
            (traces_service_pb2_grpc.add_TraceServiceServicer_to_server, TracesServicer(traces)),
        ],
        service_names=[
            messages_service_pb2.DESCRIPTOR.services_by_name["MessageService"].full_name,
            traces_service_pb2.DESCRIPTOR.services_by_name["TraceService"].full_name,
            episodes_service_pb2.DESCRIPTOR.services_by_name["EpisodeService"].full_name,
        ],
        start=[indexer.open_words, indexer.open],
        background=[
            indexer.run,
            periodic(PURGE_SECONDS, purge),
            periodic(RETENTION_SECONDS, retention.sweep),
        ],
        gauges=[
            Gauge(
                "mnemesh_recall_outbox_lag_seconds",
                "Age of the oldest change that the vector index lacks.",
                indexer.lag_seconds,
            )
        ],
        close=[database.close, embedder.close, index.close],
    )


def make_embedder_of(config: Config) -> Embedder:
    """The embedder that the configuration names. StartupError if it cannot be made."""
    settings = EmbedderSettings(
        base_url=config.embedder_base_url, api_key=config.embedder_api_key, dimension=config.embedder_dimension
    )
    try:
        return make_embedder(config.embedder, settings)
    except EmbedderMisconfigured as error:
        raise StartupError(f"MNEMESH_EMBEDDER: {error}.") from error


async def open_index(config: Config) -> NearestIndex:
    """The vector index that the configuration names. StartupError if another process holds it, or nobody answers."""
    try:
        return await (_server_index(config) if config.qdrant_url else _embedded_index(config))
    except RetrievalError as error:
        raise StartupError(f"The vector index cannot be opened: {error}.") from error


async def _embedded_index(config: Config) -> NearestIndex:
    directory = config.data_path / "recall-index"
    index = await FlatIndex.open(directory, flush_interval_seconds=config.index_flush_seconds)
    # The vectors of an earlier release, in another engine's files: they are made anew from the rows.
    for left in directory.glob("*.shard*"):
        await asyncio.to_thread(shutil.rmtree, left)
    return index


async def _server_index(config: Config) -> NearestIndex:
    try:
        from mnemesh_retrieval.server import ServerIndex, ServerSettings  # noqa: PLC0415 - optional, and heavy
    except ModuleNotFoundError as error:
        raise StartupError("MNEMESH_QDRANT_URL is set, but mnemesh-recall[qdrant] is not installed.") from error
    settings = ServerSettings(
        url=config.qdrant_url,
        api_key=config.qdrant_api_key,
        grpc_port=config.qdrant_grpc_port,
        prefix=config.qdrant_prefix,
    )
    return await ServerIndex.open(settings)
