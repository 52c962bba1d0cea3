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
from mnemesh_kit.ids import RandomIds, new_id
from mnemesh_kit.metrics import Gauge
from mnemesh_kit.server import Assembly
from mnemesh_kit.sql import Database
from mnemesh_retrieval.flat import FlatIndex
from mnemesh_retrieval.index import NearestIndex
from mnemesh_retrieval.startup import embedder_from_config, open_index

from mnemesh_recall.config import Config
from mnemesh_recall.rpc.episodes import EpisodesServicer
from mnemesh_recall.rpc.messages import MessagesServicer
from mnemesh_recall.rpc.traces import TracesServicer
from mnemesh_recall.store.sql.episodes import SqlEpisodeStore
from mnemesh_recall.store.sql.messages import SqlMessageStore
from mnemesh_recall.store.sql.traces import SqlTraceStore
from mnemesh_recall.usecases.episode_search import MemoryFinder
from mnemesh_recall.usecases.episodes import EpisodeService
from mnemesh_recall.usecases.message_search import MessageFinder
from mnemesh_recall.usecases.messages import MessageService
from mnemesh_recall.usecases.retention import Retention
from mnemesh_recall.usecases.traces import TraceService
from mnemesh_recall.vectors.indexer import Indexer
from mnemesh_recall.vectors.memories import MemoryIndexer, MemoryVectors
from mnemesh_recall.vectors.messages import MessageVectors

# No call is to read a table whole. Planned without statistics, the word index would be passed over for that; and what
# is forbidden looks so dear to the planner that it would compile the query first.
_PLANNING = {"enable_seqscan": "off", "jit": "off"}
PURGE_SECONDS = 3600.0
RETENTION_SECONDS = 3600.0


async def assemble(config: Config, *, clock: Clock | None = None) -> Assembly:
    """The recall service over its migrated database and its vector index, ready to start."""
    clock = clock or SystemClock()
    embedder = embedder_from_config(config)
    database = Database.open(config.database, synchronous=config.sqlite_synchronous, postgres_settings=_PLANNING)
    await database.migrate("mnemesh_recall")
    store = SqlMessageStore(database, clock, RandomIds())
    index = await open_vector_index(config)
    vectors = MessageVectors(index, embedder)
    memories, memory_vectors = SqlEpisodeStore(database, clock, RandomIds()), MemoryVectors(index, embedder)
    # A Qdrant server may be filled by several processes; the embedded index has this one.
    holder = new_id("indexer") if config.qdrant_url else None
    indexer = Indexer(store, vectors, clock, holder, memories=MemoryIndexer(memories, memory_vectors))
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
        metrics=[
            Gauge(
                "mnemesh_recall_outbox_lag_seconds",
                "Age of the oldest change that the vector index lacks.",
                indexer.lag_seconds,
            )
        ],
        close=[database.close, embedder.close, index.close],
    )


async def open_vector_index(config: Config) -> NearestIndex:
    """Opens the vector index. Raises StartupError if another process holds it or the server does not answer."""
    directory = config.data_path / "recall-index"
    index = await open_index(config, directory, FlatIndex)
    if not config.qdrant_url:
        # Files of an engine that an earlier release used. The vectors are rebuilt from the rows.
        for shard in directory.glob("*.shard*"):
            await asyncio.to_thread(shutil.rmtree, shard)
    return index
