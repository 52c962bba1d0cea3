"""The vector index: it follows the store, its indexer stops, and it is rebuilt."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from mnemesh.recall.v1 import messages_service_pb2 as rpc
from mnemesh.types.v1 import message_pb2 as pb
from mnemesh_kit.call_context import DEFAULT_PRINCIPAL
from mnemesh_kit.ids import RandomIds, new_id
from mnemesh_kit.sql import Database
from mnemesh_kit.time import FrozenClock
from mnemesh_recall.errors import VectorIndexUnavailable
from mnemesh_recall.model.messages import MessageBatch
from mnemesh_recall.model.search import MessageSearch, SearchScope
from mnemesh_recall.store.indexed import IndexedMessages
from mnemesh_recall.store.messages import MessageStore
from mnemesh_recall.store.tables import index_tables
from mnemesh_recall.store.transaction import MESSAGES
from mnemesh_recall.usecases import message_search as search
from mnemesh_recall.usecases.message_search import MessageFinder
from mnemesh_recall.vectors import MessageSource, MessageVectors
from mnemesh_retrieval.filters import EVERYTHING
from mnemesh_retrieval.flat import FlatIndex
from mnemesh_retrieval.flat.file import CAPACITY
from mnemesh_retrieval.index import SearchMode
from mnemesh_retrieval.indexing.indexer import Indexer
from mnemesh_retrieval.indexing.outbox import Outbox
from mnemesh_retrieval.registry import HASHING, WORDLLAMA, make_embedder
from mnemesh_testkit.timeouts import scaled
from mnemesh_types.messages import Message, Role, TextPart
from structlog.testing import capture_logs

AGENT = new_id("agent")
CALLER = DEFAULT_PRINCIPAL


class Rig:
    """The store and the vector index without a server, so that the indexer can be stopped between two steps."""

    def __init__(self, vectors: MessageVectors, database: Database, clock: FrozenClock) -> None:
        self.store, self.outbox = (
            MessageStore(database, clock, RandomIds()),
            Outbox(database, index_tables, clock),
        )
        self.vectors, self.database = vectors, database
        self.indexer = Indexer(self.outbox, vectors.index, clock)


@pytest_asyncio.fixture
async def rig(tmp_path: Path, clock: FrozenClock) -> Any:
    database = Database.open(f"sqlite:///{tmp_path / 'recall.db'}")
    await database.migrate("mnemesh_recall")
    index = await FlatIndex.open(tmp_path / "index")
    vectors = MessageVectors(index, make_embedder(HASHING))
    rig = Rig(vectors, database, clock)
    await rig.indexer.register(MESSAGES, MessageSource(IndexedMessages(database), vectors))
    await rig.indexer.open()
    yield rig
    await index.close()
    await database.close()


async def test_vector_index_follows_the_store_and_repeats_are_idempotent(rig: Rig) -> None:
    org, now = CALLER.organization_id, datetime(2026, 1, 1, tzinfo=UTC)

    def said(text: str) -> Message:
        return Message(id=new_id("message"), agent_id=AGENT, role=Role.USER, created_at=now, content=(TextPart(text),))

    prompt = Message(id=new_id("message"), agent_id=AGENT, role=Role.SYSTEM, created_at=now)
    rows = (said("purple monkey dishwasher"), said("green apple"), prompt)
    await rig.store.append_messages(org, MessageBatch(agent_id=AGENT, conversation_id=None, messages=rows), None)
    assert await rig.indexer.catch_up() == 2
    assert await rig.indexer.catch_up() == 0
    count = rig.vectors.index.count
    assert await count(rig.vectors.schema.name, EVERYTHING) == 2

    finder = MessageFinder(rig.store, rig.vectors)
    scope = SearchScope(agent_id=AGENT)
    for mode, ranks in (
        (SearchMode.HYBRID, (1, 1)),
        (SearchMode.TEXT, (None, 1)),
        (SearchMode.VECTOR, (1, None)),
    ):
        hits = (await finder.search(CALLER, MessageSearch(query="purple monkey", mode=mode, limit=5, scope=scope))).hits
        assert hits[0].message.id == rows[0].id
        assert (hits[0].vector_rank, hits[0].text_rank) == ranks
        assert hits[0].mode is mode
        assert hits[0].score > 0

    # A deleted message is not a hit, even while the index still contains it. Then it is removed from the index.
    await rig.store.delete_message(org, rows[0].id, None)
    found = await finder.search(
        CALLER, MessageSearch(query="purple monkey", mode=SearchMode.HYBRID, limit=5, scope=scope)
    )
    assert rows[0].id not in [hit.message.id for hit in found.hits]
    nearest = MessageSearch(query="purple monkey green", mode=SearchMode.VECTOR, limit=1, scope=scope)
    assert [(hit.message.id, hit.vector_rank) for hit in (await finder.search(CALLER, nearest)).hits] == [
        (rows[1].id, 1)
    ]
    await rig.indexer.catch_up()
    assert await count(rig.vectors.schema.name, EVERYTHING) == 1
    await rig.store.erase_agent(org, AGENT, None)
    await rig.indexer.catch_up()
    assert await count(rig.vectors.schema.name, EVERYTHING) == 0


async def test_a_text_that_equals_the_query_is_found_by_meaning_once_it_has_a_vector(rig: Rig) -> None:
    said = Message(
        id=new_id("message"),
        agent_id=AGENT,
        role=Role.USER,
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
        content=(TextPart("purple monkey dishwasher"),),
    )
    batch = MessageBatch(agent_id=AGENT, conversation_id=None, messages=(said,))
    await rig.store.append_messages(CALLER.organization_id, batch, None)
    finder = MessageFinder(rig.store, rig.vectors)
    scope = SearchScope(agent_id=AGENT)
    search_ = MessageSearch(query="Purple monkey dishwasher!", mode=SearchMode.VECTOR, limit=5, scope=scope)
    assert (await finder.search(CALLER, search_)).hits == ()
    await rig.indexer.catch_up()
    assert [hit.vector_rank for hit in (await finder.search(CALLER, search_)).hits] == [1]


async def test_organization_search_compares_the_newest_vectors_and_full_text_hits(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of compared vectors is bounded. A search of one agent compares more of them."""
    monkeypatch.setattr(search, "MAX_COMPARED_IN_ORGANIZATION", 256)
    org, agents = CALLER.organization_id, [new_id("agent") for _ in range(3)]
    created = {
        agent: [
            Message(
                id=new_id("message"),
                agent_id=agent,
                role=Role.USER,
                created_at=datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=10 * number + place),
                content=(TextPart("the apple" if number else "the heron"),),
            )
            for number in range(300)
        ]
        for place, agent in enumerate(agents)
    }
    for agent, messages in created.items():
        await rig.store.append_messages(
            org, MessageBatch(agent_id=agent, conversation_id=None, messages=tuple(messages)), None
        )
    await rig.indexer.catch_up()
    finder = MessageFinder(rig.store, rig.vectors)

    async def ranked(query: str, agent: str | None) -> set[str]:
        scope = SearchScope(agent_id=agent)
        wanted = MessageSearch(query=query, mode=SearchMode.VECTOR, limit=1_000, scope=scope)
        return {hit.message.id for hit in (await finder.search(CALLER, wanted)).hits if hit.vector_rank}

    newest = {message.id for messages in created.values() for message in messages[-40:]}
    oldest = {messages[0].id for messages in created.values()}
    # Full text searches only for the zebra, because "the" is a stop word. The embedder knows "the".
    everywhere = await ranked("the zebra", None)
    assert everywhere >= newest
    assert len(everywhere) <= 256 + CAPACITY
    assert not everywhere & oldest
    assert await ranked("the heron", None) >= oldest
    assert len(await ranked("the zebra", agents[0])) == 300


async def test_indexer_stops_if_a_notification_arrives_with_the_cancellation(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service that is stopped right after a write must not hang."""
    looked, read = asyncio.Event(), rig.outbox.read

    async def looking(*arguments: Any) -> Any:
        found = await read(*arguments)
        looked.set()
        return found

    monkeypatch.setattr(rig.outbox, "read", looking)
    running = asyncio.create_task(rig.indexer.run())
    await looked.wait()
    for _ in range(10):  # it has read an empty outbox and waits for a notification
        await asyncio.sleep(0)
    rig.indexer.notify()
    running.cancel()
    async with asyncio.timeout(scaled(60)):
        await asyncio.wait([running])
    assert running.cancelled()


async def test_index_of_another_embedder_is_rebuilt(serve: Any, tmp_path: Path) -> None:
    async with serve() as recall:
        car = pb.Message(id=new_id("message"), role=pb.ROLE_USER)
        car.content.add().text.text = "a car in the garage"
        await recall.AppendMessages(rpc.AppendMessagesRequest(agent_id=AGENT, messages=[car]))
    async with serve(embedder=WORDLLAMA) as recall:
        wanted = rpc.SearchMessagesRequest(query="automobile", agent_id=AGENT, mode=rpc.SEARCH_MODE_VECTOR)
        hits: list[Any] = []
        async with asyncio.timeout(scaled(60)):
            while not hits:
                hits = list((await recall.SearchMessages(wanted)).hits)
        assert hits[0].vector_rank == 1
        assert not hits[0].HasField("text_rank")
    index = await FlatIndex.open(tmp_path / "recall-index")
    assert [name for name in await index.collections() if name.startswith("messages.")] == [f"messages.3.{WORDLLAMA}"]
    await index.close()


@pytest.mark.parametrize("mode", [rpc.SEARCH_MODE_HYBRID, rpc.SEARCH_MODE_VECTOR])
async def test_the_name_of_a_speaker_in_a_query_does_not_make_short_messages_similar(serve: Any, mode: Any) -> None:
    texts = ("I tore a ligament on the trampoline.", "Okay!", "Hm.", "Go on.", "Ha, never.", "No way!")
    async with serve(embedder=WORDLLAMA) as recall:
        messages = [pb.Message(id=new_id("message"), role=pb.ROLE_USER, name="Ximena") for _ in texts]
        for message, text in zip(messages, texts, strict=True):
            message.content.add().text.text = text
        await recall.AppendMessages(rpc.AppendMessagesRequest(agent_id=AGENT, messages=messages))
        wanted = rpc.SearchMessagesRequest(query="How did Ximena injure herself?", agent_id=AGENT, mode=mode)
        similar: dict[int, str] = {}
        async with asyncio.timeout(scaled(60)):
            while not similar:
                hits = (await recall.SearchMessages(wanted)).hits
                similar = {hit.vector_rank: hit.text for hit in hits if hit.HasField("vector_rank")}
        assert similar[1] == texts[0]


async def test_damaged_vector_file_is_rebuilt_while_words_are_found(serve: Any, tmp_path: Path) -> None:
    async with serve() as recall:
        heron = pb.Message(id=new_id("message"), role=pb.ROLE_USER)
        heron.content.add().text.text = "a heron at the pond"
        await recall.AppendMessages(rpc.AppendMessagesRequest(agent_id=AGENT, messages=[heron]))
    file = tmp_path / "recall-index" / "vectors.db"
    file.write_bytes(file.read_bytes()[:5_000] + bytes(50_000))
    wanted = rpc.SearchMessagesRequest(query="heron pond", agent_id=AGENT, mode=rpc.SEARCH_MODE_HYBRID)
    with capture_logs() as logs:
        async with serve() as recall:
            found = await recall.SearchMessages(wanted)
            assert [hit.text for hit in found.hits] == ["a heron at the pond"]
            async with asyncio.timeout(scaled(60)):
                while found.degraded or not found.hits[0].vector_rank:
                    found = await recall.SearchMessages(wanted)
    (damaged,) = [line for line in logs if line["event"] == "vector_index_damaged"]
    assert (Path(damaged["moved_to"]) / "vectors.db").exists()


async def test_search_without_the_vector_index_finds_words(rig: Rig) -> None:
    row = Message(
        id=new_id("message"), agent_id=AGENT, role=Role.USER, created_at=datetime(2026, 1, 1, tzinfo=UTC),
        content=(TextPart("purple monkey"),),
    )  # fmt: skip
    batch = MessageBatch(agent_id=AGENT, conversation_id=None, messages=(row,))
    await rig.store.append_messages(CALLER.organization_id, batch, None)
    await rig.vectors.index.drop_collection(rig.vectors.schema.name)
    finder = MessageFinder(rig.store, rig.vectors)
    scope = SearchScope(agent_id=AGENT)
    hybrid = MessageSearch(query="purple monkey", mode=SearchMode.HYBRID, limit=5, scope=scope)
    found = await finder.search(CALLER, hybrid)
    assert ([hit.message.id for hit in found.hits], found.degraded) == ([row.id], True)
    with pytest.raises(VectorIndexUnavailable):
        await finder.search(CALLER, replace(hybrid, mode=SearchMode.VECTOR))
