"""Several recall processes over one PostgreSQL and one Qdrant server.

The server is a fake that implements the protocol, or a real one if QDRANT_URL is set.
"""

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from mnemesh.recall.v1 import messages_service_pb2 as rpc
from mnemesh.types.v1 import message_pb2 as pb
from mnemesh_kit.call_context import DEFAULT_PRINCIPAL
from mnemesh_kit.config import StartupError
from mnemesh_kit.ids import RandomIds, new_id
from mnemesh_kit.sql import Database
from mnemesh_kit.time import FrozenClock
from mnemesh_recall.config import Config
from mnemesh_recall.maintenance import maintain, rebuild
from mnemesh_recall.model.messages import MessageBatch
from mnemesh_recall.store.indexed import IndexedMessages
from mnemesh_recall.store.messages import MessageStore
from mnemesh_recall.store.tables import index_tables
from mnemesh_recall.store.transaction import MESSAGES
from mnemesh_recall.usecases.messages import Retention
from mnemesh_recall.vectors import MessageSource, MessageVectors
from mnemesh_recall.wiring import assemble, open_vector_index
from mnemesh_retrieval.embedder import Vector
from mnemesh_retrieval.embedders.built_in import HashingEmbedder
from mnemesh_retrieval.filters import EVERYTHING
from mnemesh_retrieval.index import Collection, SearchMode, SearchQuery, VectorIndex
from mnemesh_retrieval.indexing.indexer import Indexer
from mnemesh_retrieval.indexing.outbox import Outbox
from mnemesh_retrieval.indexing.pending import CLAIM_DURATION
from mnemesh_retrieval.registry import HASHING
from mnemesh_testkit.fakes.qdrant import FakeQdrant, fake_qdrant
from mnemesh_testkit.timeouts import scaled
from mnemesh_types.messages import Message, Role, TextPart

ORG = DEFAULT_PRINCIPAL.organization_id
Settings = Callable[..., Config]


@pytest_asyncio.fixture
async def qdrant() -> AsyncIterator[FakeQdrant]:
    async with fake_qdrant() as server:
        yield server


@pytest.fixture
def settings(qdrant: FakeQdrant, postgres_url: str, tmp_path: Path) -> Settings:
    """Returns a function that returns the configuration of a replica by name."""
    server: dict[str, Any] = {"qdrant_url": "http://127.0.0.1:6333", "qdrant_grpc_port": qdrant.port}
    if url := os.environ.get("QDRANT_URL"):
        server = {
            "qdrant_url": url,
            "qdrant_api_key": os.environ.get("QDRANT_API_KEY", ""),
            "qdrant_grpc_port": int(os.environ.get("QDRANT_GRPC_PORT", "6334")),
        }
    shared = {
        **server,
        "index_flush_seconds": 0.1,
        "database_url": postgres_url,
        "qdrant_prefix": f"test-{uuid.uuid4().hex}",
    }

    def config(name: str, **more: Any) -> Config:
        return Config(port=0, data_dir=str(tmp_path / name), embedder=HASHING, **{**shared, **more})

    return config


def message(text: str, **more: Any) -> pb.Message:
    return pb.Message(
        id=new_id("message"), role=pb.ROLE_USER, content=[pb.ContentPart(text=pb.TextPart(text=text))], **more
    )


async def found(recall: Any, query: str, **more: Any) -> list[str]:
    request = rpc.SearchMessagesRequest(query=query, mode=rpc.SEARCH_MODE_VECTOR, limit=50, **more)
    return [hit.text for hit in (await recall.SearchMessages(request)).hits]


async def until_found(recall: Any, query: str, expected: set[str], **more: Any) -> None:
    async with asyncio.timeout(scaled(60)):
        while set(await found(recall, query, **more)) != expected:
            await asyncio.sleep(0.05)


@pytest_asyncio.fixture
async def replicas(serve: Any, settings: Settings, tmp_path: Path) -> AsyncIterator[tuple[Any, Any]]:
    async with AsyncExitStack() as stack:
        stubs = []
        for name in ("one", "two"):
            config = settings(name)
            fields = (
                "index_flush_seconds",
                "database_url",
                "qdrant_url",
                "qdrant_api_key",
                "qdrant_grpc_port",
                "qdrant_prefix",
                "data_dir",
            )
            stubs.append(await stack.enter_async_context(serve(**{each: getattr(config, each) for each in fields})))
        yield stubs[0], stubs[1]


async def test_replicas_find_each_others_messages_and_sequence_ids_stay_ordered(replicas: tuple[Any, Any]) -> None:
    agent = new_id("agent")
    texts = [f"the fox of writer {number}" for number in range(40)]
    answers = await asyncio.gather(
        *(
            replicas[number % 2].AppendMessages(
                rpc.AppendMessagesRequest(agent_id=agent, messages=[message(text)], request_id=f"r{number}")
            )
            for number, text in enumerate(texts)
        )
    )
    assert sorted(answer.sequence_ids[0] for answer in answers) == list(range(1, 41))
    for recall in replicas:
        await until_found(recall, "fox", set(texts), agent_id=agent)
    again = rpc.AppendMessagesRequest(agent_id=agent, messages=[message("never")], request_id="r0")
    with pytest.raises(Exception, match="request_id"):
        await replicas[1].AppendMessages(again)
    await replicas[1].EraseAgent(rpc.EraseAgentRequest(agent_id=agent))
    assert await found(replicas[0], "fox", agent_id=agent) == []


class Rig:
    """The indexer of one replica without its server, so that it can be stopped between two steps."""

    def __init__(self, store: MessageStore, outbox: Outbox, index: VectorIndex, clock: FrozenClock, name: str) -> None:
        self.store, self.index, self.embedder = store, index, Slow()
        self.vectors = MessageVectors(index, self.embedder)
        self.outbox = outbox
        self.indexer = Indexer(outbox, index, clock, instance_id=name)

    async def texts(self, text: str) -> float:
        """Returns the similarity of the only point to a text."""
        (vector,) = await HashingEmbedder().embed([text])
        query = SearchQuery(mode=SearchMode.VECTOR, vector=vector, filter=EVERYTHING, limit=10)
        (hit,) = await self.index.search(self.vectors.schema.name, query)
        return hit.score


class Slow(HashingEmbedder):
    """An embedder that waits if `waits` is set, and sets `asked` when it does."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.released, self.waits = asyncio.Event(), asyncio.Event(), False

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        vectors = await super().embed(texts)
        if self.waits:
            self.waits = False
            self.asked.set()
            await self.released.wait()
        return vectors


@pytest_asyncio.fixture
async def rigs(settings: Settings, clock: FrozenClock) -> AsyncIterator[tuple[Rig, Rig]]:
    async with AsyncExitStack() as stack:
        created = []
        for name in ("one", "two"):
            config = settings(name)
            database = Database.open(config.database)
            stack.push_async_callback(database.close)
            await database.migrate("mnemesh_recall")
            index = await open_vector_index(config)
            stack.push_async_callback(index.close)
            store, outbox = MessageStore(database, clock, RandomIds()), Outbox(database, index_tables, clock)
            rig = Rig(store, outbox, index, clock, name)
            created.append(rig)
            await rig.indexer.register(MESSAGES, MessageSource(IndexedMessages(database), rig.vectors))
            await rig.indexer.open()
        yield created[0], created[1]


def said(text: str, clock: FrozenClock, **more: Any) -> Message:
    return Message(
        id=new_id("message"),
        agent_id="agent-00000000-0000-4000-8000-000000000001",
        role=Role.USER,
        created_at=clock.now(),
        content=(TextPart(text),),
        **more,
    )


async def append(rig: Rig, *rows: Message) -> None:
    await rig.store.append_messages(
        ORG, MessageBatch(agent_id=rows[0].agent_id, conversation_id=None, messages=rows), None
    )


async def test_scope_is_the_tenant_field_on_the_server(tmp_path: Path) -> None:
    """This always uses the fake server, because only it shows the definition of an index."""
    async with fake_qdrant() as server:
        where: dict[str, Any] = {"qdrant_url": "http://127.0.0.1:6333", "qdrant_grpc_port": server.port}
        index = await open_vector_index(Config(port=0, data_dir=str(tmp_path), embedder=HASHING, **where))
        await index.ensure_collection(MessageVectors(index, HashingEmbedder()).schema)
        await index.close()
        assert server.indexes["scope"].is_tenant is True


async def test_change_is_applied_by_the_instance_that_claimed_it(rigs: tuple[Rig, Rig], clock: FrozenClock) -> None:
    one, two = rigs
    await append(one, said("fox", clock))
    one.embedder.waits = True
    working = asyncio.create_task(one.indexer.catch_up())
    await one.embedder.asked.wait()
    clock.advance(5)
    assert await two.indexer.catch_up() == 0, "the other instance has claimed it"
    assert two.indexer.lag_seconds() == 5, "the lag is known without the claim"
    one.embedder.released.set()
    assert await working == 1
    await append(two, said("owl", clock))
    assert await two.indexer.catch_up() == 1
    assert await one.index.count(one.vectors.schema.name, EVERYTHING) == 2


async def test_instance_whose_claim_expired_writes_nothing(rigs: tuple[Rig, Rig], clock: FrozenClock) -> None:
    one, two = rigs
    row = said("old fox", clock)
    await append(one, row)
    one.embedder.waits = True
    late = asyncio.create_task(one.indexer.catch_up())
    await one.embedder.asked.wait()
    changed = replace(row, content=(TextPart("new owl"),))
    await two.store.update_message(ORG, changed, frozenset({"content"}), None)
    clock.advance(CLAIM_DURATION.total_seconds() + 1)
    assert await two.indexer.catch_up() == 2
    one.embedder.released.set()
    assert await late == 0
    assert await two.texts("new owl") > 0.9


async def test_claims_of_a_crashed_instance_expire(rigs: tuple[Rig, Rig], clock: FrozenClock) -> None:
    one, two = rigs
    await append(one, said("fox", clock))
    assert len(await one.outbox.claim("one", CLAIM_DURATION, 10, {MESSAGES})) == 1
    assert await two.indexer.catch_up() == 0
    clock.advance(CLAIM_DURATION.total_seconds())
    assert await two.indexer.catch_up() == 1


@pytest.mark.full
async def test_concurrent_sweeps_delete_each_message_once(rigs: tuple[Rig, Rig], clock: FrozenClock) -> None:
    one, two = rigs
    await append(one, *(said(f"fox {number}", clock) for number in range(350)))
    clock.advance(timedelta(days=8).total_seconds())
    await append(two, said("young fox", clock))
    counts = await asyncio.gather(*(Retention(rig.store, rig.indexer, clock, 7).sweep() for rig in rigs))
    assert sum(counts) == 350
    await asyncio.gather(*(rig.indexer.drain() for rig in rigs))
    assert await one.index.count(one.vectors.schema.name, EVERYTHING) == 1
    changes = await asyncio.gather(*(rig.store.purge_ledger() for rig in rigs))
    assert changes == [0, 0]


async def test_indexes_are_rebuilt_while_a_service_runs(replicas: tuple[Any, Any], settings: Settings) -> None:
    """The commands work on the same server and keep the collections of others."""
    agent = new_id("agent")
    config = settings("three")
    await replicas[0].AppendMessages(rpc.AppendMessagesRequest(agent_id=agent, messages=[message("fox")]))
    index = await open_vector_index(config)
    await index.ensure_collection(Collection("passages:other", dimension=4))
    lines = [line async for line in rebuild(config)]
    assert lines[0] == "messages in the word index: 1"
    assert "passages:other" in await index.collections()
    for recall in replicas:
        await until_found(recall, "fox", {"fox"}, agent_id=agent)
    report = [line async for line in maintain(config)]
    assert any("Qdrant server's optimizer" in line for line in report)
    assert any(line.startswith("PostgreSQL database") for line in report)
    await index.drop_collection("passages:other")
    await index.close()


async def test_unreachable_server_is_reported_in_one_line(tmp_path: Path, unused_tcp_port: int) -> None:
    away = {"qdrant_url": "http://127.0.0.1:6333", "qdrant_grpc_port": unused_tcp_port}
    config = Config(port=0, data_dir=str(tmp_path), embedder=HASHING, **away)  # type: ignore[arg-type]
    with pytest.raises(StartupError, match="UNAVAILABLE"):
        await assemble(config)
