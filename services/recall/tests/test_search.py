"""SearchMessages: what is found, in which order, and what never is."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from engram.recall.v1 import messages_service_pb2 as rpc
from engram.types.v1 import message_pb2 as pb
from engram_kit.clock import FrozenClock
from engram_kit.ids import new_id
from engram_kit.sql import Database
from engram_recall.indexer import Indexer, MessageVectors
from engram_recall.store.sql import SqlRecallStore
from engram_retrieval.edge import EdgeIndex
from engram_retrieval.registry import HASHING, WORDLLAMA, make_embedder
from google.protobuf.timestamp_pb2 import Timestamp

AGENT = new_id("agent")
CONVERSATION = new_id("conv")


def at(text: str) -> Timestamp:
    stamp = Timestamp()
    stamp.FromDatetime(datetime.fromisoformat(text).astimezone(UTC))
    return stamp


def message(role: str, text: str = "", time: str = "2026-01-10T12:00+00:00", **more: Any) -> pb.Message:
    content = [pb.ContentPart(text=pb.TextPart(text=text))] if text else []
    return pb.Message(
        id=new_id("message"), role=pb.Role.Value(f"ROLE_{role}"), content=content, create_time=at(time), **more
    )


def sent(text: str) -> pb.Message:
    call = pb.ToolCall(id=new_id("call"), name="send_message", arguments=json.dumps({"message": text}))
    return message("ASSISTANT", tool_calls=[call])


def returned(name: str, text: str) -> pb.Message:
    packed = json.dumps({"status": "OK", "message": text, "time": "now"})
    item = pb.ToolReturn(tool_call_id="c", name=name, status=pb.TOOL_RETURN_STATUS_SUCCESS)
    item.content.append(pb.ContentPart(text=pb.TextPart(text=packed)))
    return message("TOOL", tool_returns=[item])


async def store(recall: Any, *messages: pb.Message, agent: str = AGENT, **more: Any) -> None:
    await recall.AppendMessages(rpc.AppendMessagesRequest(agent_id=agent, messages=messages, **more))


async def found(recall: Any, query: str, **more: Any) -> list[str]:
    request = rpc.SearchMessagesRequest(**{"query": query, "agent_id": AGENT, "mode": rpc.SEARCH_MODE_TEXT, **more})
    return [hit.text for hit in (await recall.SearchMessages(request)).hits]


async def test_words_are_found_at_once_and_the_best_come_first(recall: Any) -> None:
    await store(
        recall,
        message("USER", json.dumps({"type": "user_message", "message": "I play the guitar", "time": "t"})),
        sent("What music do you like?"),
        message("USER", "Mostly jazz guitar, on an old guitar"),
        sent("And food?"),
        message("USER", "Pancakes"),
    )
    hits = await found(recall, "who plays guitars?")
    assert hits[0] in ("I play the guitar", "Mostly jazz guitar, on an old guitar")
    assert {"I play the guitar", "Mostly jazz guitar, on an old guitar"} <= set(hits[:3])
    # A neighbour's words count by half: the question is found by its answer, after the answer.
    assert (await found(recall, "pancakes"))[0] == "Pancakes"
    assert "And food?" in await found(recall, "pancakes")
    assert "I play the guitar" not in await found(recall, "pancakes")


async def test_a_rare_word_outweighs_a_common_one(recall: Any) -> None:
    for number in range(30):
        await store(
            recall, message("USER", f"work work meeting {number}", f"2026-01-{number % 28 + 1:02d}T12:00+00:00")
        )
    await store(recall, message("USER", "the giraffe came to work", "2026-05-01T12:00+00:00"))
    assert (await found(recall, "work giraffe"))[0] == "the giraffe came to work"


async def test_the_speaker_and_the_day_are_words_of_a_message(recall: Any) -> None:
    await store(
        recall,
        message("USER", "We went to the beach", "2023-05-08T12:00+00:00", name="Caroline"),
        message("USER", "We went to the beach", "2023-07-08T12:00+00:00", name="Melanie"),
        message("USER", "We went to the beach", "2023-09-08T12:00+00:00", name="Caroline"),
    )

    async def day(query: str) -> int:
        request = rpc.SearchMessagesRequest(query=query, agent_id=AGENT, mode=rpc.SEARCH_MODE_TEXT)
        (best, *_) = (await recall.SearchMessages(request)).hits
        return int(best.message.create_time.ToDatetime().month)

    assert await day("When did Melanie go to the beach?") == 7
    assert await day("Who went to the beach in May 2023?") == 5
    assert await day("Did Caroline go to the beach in September?") == 9


async def test_artefacts_and_noise_are_never_found(recall: Any) -> None:
    search = pb.ToolCall(id="c", name="conversation_search", arguments='{"query": "zebra"}')
    await store(
        recall,
        message("SYSTEM", "zebra prompt"),
        message("SUMMARY", "zebra summary"),
        message("USER", json.dumps({"type": "heartbeat", "reason": "zebra", "time": "t"})),
        message("ASSISTANT", "looking for the zebra", tool_calls=[search]),
        returned("conversation_search", "zebra was found"),
        returned("send_message", "zebra"),
        returned("zoo", "a zebra named Kim"),
        sent("There is a zebra"),
    )
    assert set(await found(recall, "zebra")) == {"a zebra named Kim", "There is a zebra"}
    assert await found(recall, "zebra", roles=[pb.ROLE_TOOL]) == ["a zebra named Kim"]
    assert await found(recall, "zebra", roles=[pb.ROLE_ASSISTANT]) == ["There is a zebra"]
    assert await found(recall, "zebra", roles=[pb.ROLE_USER]) == []
    assert len(await found(recall, "zebra", limit=1)) == 1
    assert await found(recall, "") == ["There is a zebra", "a zebra named Kim"]


async def test_scopes_dates_and_exclusions(recall: Any) -> None:
    await recall.CreateContext(
        rpc.CreateContextRequest(agent_id=AGENT, conversation_id=CONVERSATION, messages=[message("SYSTEM", "s")])
    )
    # 23:30 in Berlin on the 20th, and 00:30 on the 21st.
    late = message("USER", "tea late", "2026-01-20T22:30+00:00")
    await store(recall, late, message("USER", "tea early", "2026-01-20T23:30+00:00"), conversation_id=CONVERSATION)
    await store(recall, message("USER", "tea elsewhere", "2025-06-01T12:00+00:00"))
    await store(recall, message("USER", "tea of another agent"), agent=new_id("agent"))
    berlin = {"time_zone": "Europe/Berlin"}
    assert await found(recall, "tea", start_date="2026-01-20", end_date="2026-01-20", **berlin) == ["tea late"]
    assert await found(recall, "tea", start_date="2026-01-21", **berlin) == ["tea early"]
    assert await found(recall, "tea", start_date="2026-01-20", end_date="2026-01-20") == ["tea early", "tea late"]
    assert await found(recall, "tea", end_date="2025-12-31") == ["tea elsewhere"]
    scope = rpc.ConversationScope(conversation_id=CONVERSATION)
    assert set(await found(recall, "tea", conversation=scope)) == {"tea late", "tea early"}
    assert "tea late" not in await found(recall, "tea", exclude_message_ids=[late.id])
    everywhere = rpc.SearchMessagesRequest(query="tea", mode=rpc.SEARCH_MODE_TEXT)
    assert len((await recall.SearchMessages(everywhere)).hits) == 4


HOSTILE = (
    '"', "'", '"unbalanced', "a AND", "NEAR(", "body:", "scope:x", "*", "-", "^", "(((", "🎸🎸", "'; DROP TABLE", "\\",
    "&|!<->:*",
)  # fmt: skip


async def test_no_query_breaks_the_search(recall: Any) -> None:
    await store(recall, message("USER", "nothing but sandpaper"))
    for query in HOSTILE:
        assert await found(recall, query) == []
        assert await found(recall, f"{query} sandpaper") == ["nothing but sandpaper"]


async def test_scripts_without_spaces_and_accents_are_found(recall: Any) -> None:
    await store(recall, message("USER", "昨日、東京タワーに行きました"), message("USER", "Un café à Zürich"))
    assert (await found(recall, "東京"))[0].startswith("昨日")
    assert (await found(recall, "cafe zurich"))[0] == "Un café à Zürich"
    assert await found(recall, "京都") == []


class Rig:
    """The store and the vector index without a server, so that the indexer can be stopped between two moves."""

    def __init__(self, store: SqlRecallStore, vectors: MessageVectors, database: Database) -> None:
        self.store, self.vectors, self.database = store, vectors, database
        self.indexer = Indexer(store, vectors)


@pytest_asyncio.fixture
async def rig(tmp_path: Path, clock: FrozenClock) -> Any:
    database = Database.open(f"sqlite:///{tmp_path / 'recall.db'}")
    await database.migrate("engram_recall")
    index = await EdgeIndex.open(tmp_path / "index")
    vectors = MessageVectors(index, make_embedder(HASHING))
    rig = Rig(SqlRecallStore(database, clock), vectors, database)
    await rig.indexer.open()
    yield rig
    await index.close()
    await database.close()


async def test_the_vector_index_follows_the_store_and_repeats_do_no_harm(rig: Rig) -> None:
    from engram_recall.commands import Batch, MessageSearch, SearchMode, SearchScope
    from engram_recall.model import Message, Role, TextPart
    from engram_recall.search import MessageFinder
    from engram_retrieval.filters import EVERYTHING

    org, now = "org-00000000-0000-4000-8000-000000000001", datetime(2026, 1, 1, tzinfo=UTC)

    def said(text: str) -> Message:
        return Message(id=new_id("message"), agent_id=AGENT, role=Role.USER, created_at=now, content=(TextPart(text),))

    prompt = Message(id=new_id("message"), agent_id=AGENT, role=Role.SYSTEM, created_at=now)
    rows = (said("purple monkey dishwasher"), said("green apple"), prompt)
    await rig.store.append_messages(org, Batch(agent_id=AGENT, conversation_id=None, messages=rows), None)
    # Killed after the index was written and before the outbox was settled: the batch comes again.
    waiting, news = await rig.store.pending(100)
    assert len(waiting) == 2
    await rig.indexer._apply(waiting, news)
    assert await rig.indexer.catch_up() == 2
    assert await rig.indexer.catch_up() == 0
    count = rig.vectors.index.count
    assert await count(rig.vectors.collection, EVERYTHING) == 2

    finder = MessageFinder(rig.store, rig.vectors)
    scope = SearchScope(organization_id=org, agent_id=AGENT)
    for mode, ranks in (
        (SearchMode.HYBRID, (1, 1)),
        (SearchMode.TEXT, (None, 1)),
        (SearchMode.VECTOR, (1, None)),
    ):
        hits = await finder.search(MessageSearch(query="purple monkey", mode=mode, limit=5, scope=scope))
        assert hits[0].message.id == rows[0].id
        assert (hits[0].vector_rank, hits[0].text_rank) == ranks
        assert hits[0].mode is mode
        assert hits[0].score > 0

    # Gone from the store is gone from the hits, whatever the index still holds; and then from the index.
    await rig.store.delete_message(org, rows[0].id, None)
    hits = await finder.search(MessageSearch(query="purple monkey", mode=SearchMode.HYBRID, limit=5, scope=scope))
    assert rows[0].id not in [hit.message.id for hit in hits]
    await rig.indexer.catch_up()
    assert await count(rig.vectors.collection, EVERYTHING) == 1
    await rig.store.erase_agent(org, AGENT, None)
    await rig.indexer.catch_up()
    assert await count(rig.vectors.collection, EVERYTHING) == 0


async def test_the_indexer_ends_although_news_comes_with_its_end(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that is stopped right after a write must not wait for ever."""
    looked, pending = asyncio.Event(), rig.store.pending

    async def looking(limit: int) -> Any:
        found = await pending(limit)
        looked.set()
        return found

    monkeypatch.setattr(rig.store, "pending", looking)
    running = asyncio.create_task(rig.indexer.run())
    await looked.wait()
    for _ in range(10):  # it has found nothing to do, and waits for news
        await asyncio.sleep(0)
    rig.indexer.wake()
    running.cancel()
    async with asyncio.timeout(1):
        await asyncio.wait([running])
    assert running.cancelled()


async def test_an_index_of_another_embedder_is_built_anew(serve: Any, tmp_path: Path) -> None:
    async with serve() as recall:
        await store(recall, message("USER", "a car in the garage"))
    async with serve(embedder=WORDLLAMA) as recall:
        wanted = rpc.SearchMessagesRequest(query="automobile", agent_id=AGENT, mode=rpc.SEARCH_MODE_VECTOR)
        hits: list[Any] = []
        async with asyncio.timeout(30):
            while not hits:
                hits = list((await recall.SearchMessages(wanted)).hits)
        assert hits[0].vector_rank == 1
        assert not hits[0].HasField("text_rank")
    assert len(list((tmp_path / "recall-index").glob("messages*"))) == 1
