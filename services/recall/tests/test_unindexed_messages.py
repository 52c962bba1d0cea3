"""The words of committed steps are indexed later than the commit; no search misses them."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import sqlalchemy as sa
from mnemesh.recall.v1 import messages_service_pb2 as rpc
from mnemesh_kit.ids import new_id
from mnemesh_kit.sql import DatabaseFull
from mnemesh_kit.time import FrozenClock
from mnemesh_recall.model.contexts import NewContext, StepCommit
from mnemesh_recall.model.ranking import id_of
from mnemesh_recall.model.search import SearchScope, WordCandidates, WordQuery
from mnemesh_recall.store.fulltext import indexing
from mnemesh_recall.store.fulltext.indexing import UnindexedMessages
from mnemesh_recall.store.tables import message_words, unindexed_agents
from mnemesh_recall.usecases import messages
from mnemesh_recall.usecases.messages import WordIndexing
from mnemesh_testkit.suites.recall.calls import Conversation
from mnemesh_testkit.timeouts import scaled
from mnemesh_types.messages import Message, Role, TextPart
from mnemesh_types.recall import WriterLease

from .word_indexes import BEGAN, ORGANIZATION, Indexed, append, check_all, opened, postings, said


class Dialogue:
    """A window of a store, whose steps are committed."""

    def __init__(self, indexed: Indexed, agent: str) -> None:
        self.indexed = indexed
        self.agent, self.id, self.run = agent, new_id("conv"), new_id("run")
        self.version = 1

    async def open(self) -> None:
        prompt = Message(
            id=new_id("message"),
            role=Role.SYSTEM,
            created_at=BEGAN,
            agent_id=self.agent,
            conversation_id=self.id,
            content=(TextPart("prompt"),),
        )
        new = NewContext(agent_id=self.agent, conversation_id=self.id, messages=(prompt,))
        await self.indexed.store.create_context(ORGANIZATION, new, None)

    async def commit(self, messages: Sequence[Message]) -> None:
        step = StepCommit(
            agent_id=self.agent,
            conversation_id=self.id,
            step_id=new_id("step"),
            lease=WriterLease(self.run, 1),
            base_version=self.version,
            messages=tuple(replace(message, conversation_id=self.id) for message in messages),
        )
        self.version = (await self.indexed.store.commit_step(ORGANIZATION, step)).version

    async def say(self, *texts: str) -> None:
        chance = random.Random(self.version)
        await self.commit(
            [replace(said(chance, self.agent, 1, [self.id]), content=(TextPart(text),)) for text in texts]
        )


async def waiting(indexed: Indexed) -> list[str]:
    """Returns the agents with messages that are not indexed."""
    statement = sa.select(unindexed_agents.c.agent_id)
    return await indexed.database.read(lambda conn: list(conn.execute(statement).scalars()))


async def documents(indexed: Indexed) -> dict[int, Any]:
    """Returns the documents of the word index by row id."""
    rows = await indexed.database.read(lambda conn: conn.execute(sa.select(message_words)).all())
    return {row.row_id: tuple(row) for row in rows}


async def search(indexed: Indexed, text: str, agent: str | None = None) -> WordCandidates:
    return await indexed.store.search_words(ORGANIZATION, SearchScope(agent_id=agent), WordQuery(text, ""), 10)


@pytest_asyncio.fixture
async def indexed(database_url: str, tmp_path: Path) -> AsyncIterator[Indexed]:
    """A store without background work."""
    async with opened(database_url, tmp_path) as index:
        yield index


@pytest_asyncio.fixture
async def dialogue(indexed: Indexed) -> Dialogue:
    made = Dialogue(indexed, new_id("agent"))
    await made.open()
    return made


async def test_commit_leaves_the_words_of_its_messages_to_later(indexed: Indexed, dialogue: Dialogue) -> None:
    before = await documents(indexed)
    await dialogue.say("We saw alpacas", "Where?")
    await dialogue.say("On a farm")
    assert await documents(indexed) == before
    assert await waiting(indexed) == [dialogue.agent]
    await WordIndexing(indexed.store, FrozenClock()).index_all()
    assert len(await documents(indexed)) == len(before) + 3
    assert await waiting(indexed) == []


@pytest.mark.parametrize("is_of_agent", [True, False])
async def test_search_indexes_the_messages_that_it_may_find(
    indexed: Indexed, dialogue: Dialogue, is_of_agent: bool
) -> None:
    other = Dialogue(indexed, new_id("agent"))
    await other.open()
    await other.say("Other alpacas")
    await dialogue.say("We saw alpacas", "Where?")
    found = await search(indexed, "alpaca", dialogue.agent if is_of_agent else None)
    assert found.is_complete
    texts = {message.content[0].text for message in await read(indexed, found)}  # type: ignore[union-attr]
    assert texts >= {"We saw alpacas"}
    assert ("Other alpacas" in texts) is not is_of_agent
    assert await waiting(indexed) == ([other.agent] if is_of_agent else [])


async def read(indexed: Indexed, found: WordCandidates) -> Sequence[Message]:
    return await indexed.store.get_messages(ORGANIZATION, list(map(id_of, found.candidates.keys)))


@pytest.mark.parametrize("is_of_agent", [True, False])
async def test_message_that_is_committed_during_a_search_does_not_degrade_it(
    indexed: Indexed, dialogue: Dialogue, monkeypatch: pytest.MonkeyPatch, is_of_agent: bool
) -> None:
    finish = UnindexedMessages.finish

    async def finish_before_a_commit(*given: Any) -> None:
        await finish(*given)
        await dialogue.say("Where?")

    monkeypatch.setattr(UnindexedMessages, "finish", finish_before_a_commit)
    await dialogue.say("We saw alpacas")
    indexed.clock.advance(1)
    assert (await search(indexed, "alpaca", dialogue.agent if is_of_agent else None)).is_complete
    assert await waiting(indexed) == [dialogue.agent]


async def test_search_of_another_organization_indexes_nothing(indexed: Indexed, dialogue: Dialogue) -> None:
    await dialogue.say("We saw alpacas")
    for agent in (dialogue.agent, None):
        found = await indexed.store.search_words("org-2", SearchScope(agent_id=agent), WordQuery("alpaca", ""), 10)
        assert found.is_complete
        assert not len(found.candidates)
    assert await waiting(indexed) == [dialogue.agent]


@pytest.mark.parametrize(
    "seed",
    [1, pytest.param(2, marks=pytest.mark.full), *(pytest.param(seed, marks=pytest.mark.sweep) for seed in (3, 4, 5))],
)
async def test_documents_are_those_of_a_rebuild_whenever_they_are_written(
    indexed: Indexed, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(indexing, "MOST_MESSAGES", 3)
    monkeypatch.setattr(indexing, "MOST_AGENTS", 2)
    chance = random.Random(seed)
    spoken = [Dialogue(indexed, new_id("agent")) for _ in range(3)]
    for each in spoken:
        await each.open()
    background, committed = WordIndexing(indexed.store, FrozenClock()), dict[str, list[Message]]()
    for place in range(90):
        of = chance.choice(spoken)
        history = committed.setdefault(of.agent, [])
        match chance.randrange(12):
            case 0:
                await append(indexed, of.agent, [said(chance, of.agent, place, [of.id, new_id("conv")])])
            case 1 if history:
                changed = replace(chance.choice(history), content=(TextPart(f"now about oaks {place}?"),))
                await indexed.store.update_message(ORGANIZATION, changed, frozenset({"content"}), None)
            case 2 if history:
                removed = history.pop(chance.randrange(len(history)))
                await indexed.store.delete_message(ORGANIZATION, removed.id, None)
            case 3:
                await indexed.store.index_some_words()
            case 4:
                await search(indexed, "oak", of.agent)
            case _:
                messages = [said(chance, of.agent, place, [of.id]) for _ in range(chance.randrange(1, 4))]
                await of.commit(messages)
                history.extend(messages)
    await background.index_all()
    assert await waiting(indexed) == []
    for each in spoken:
        await check_all(indexed, chance, each.agent, [each.id])
    written, entries = await documents(indexed), await postings(indexed)
    await indexed.store.rebuild_fulltext()
    assert await documents(indexed) == written
    assert await postings(indexed) == entries


async def test_message_that_another_process_commits_while_one_indexes_is_not_forgotten(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(1)
    async with opened(database_url, tmp_path) as first, opened(database_url, tmp_path) as second:
        one, two = Dialogue(first, new_id("agent")), Dialogue(second, "")
        await one.open()
        two.agent, two.id, two.run = one.agent, one.id, one.run
        done = asyncio.Event()

        async def index(of: Indexed) -> None:
            while not done.is_set():
                await of.store.index_some_words()

        async def talk() -> None:
            for place in range(60):
                of = chance.choice((one, two))
                of.version = max(one.version, two.version)
                await of.commit([said(chance, one.agent, place, [one.id])])
            done.set()

        async with asyncio.TaskGroup() as tasks:
            for each in (first, second):
                tasks.create_task(index(each))
            tasks.create_task(talk())
        await WordIndexing(first.store, FrozenClock()).index_all()
        assert await waiting(second) == []
        written, entries = await documents(second), await postings(second)
        await second.store.rebuild_fulltext()
        assert await documents(first) == written
        assert await postings(first) == entries


async def test_messages_still_wait_after_a_failure_in_the_transaction_that_indexes_them(
    indexed: Indexed, dialogue: Dialogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, index_page = await documents(indexed), indexing.index_page

    def index_and_fail(*given: Any, **more: Any) -> None:
        index_page(*given, **more)
        raise DatabaseFull

    await dialogue.say("We saw alpacas", "Where?")
    with monkeypatch.context() as failing:
        failing.setattr(indexing, "index_page", index_and_fail)
        with pytest.raises(DatabaseFull):
            await indexed.store.index_some_words()
    assert await documents(indexed) == before
    assert await waiting(indexed) == [dialogue.agent]
    await WordIndexing(indexed.store, FrozenClock()).index_all()
    assert len(await documents(indexed)) == len(before) + 2


async def test_transaction_indexes_few_long_messages(
    indexed: Indexed, dialogue: Dialogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexing, "PAGE_CHARACTERS", 100)
    before = len(await documents(indexed))
    await dialogue.say("alpacas " * 20, "camels " * 8, "llamas", "hay", "grass")
    counts = []
    while await indexed.store.index_some_words():
        counts.append(len(await documents(indexed)) - before)
    assert counts == [1]
    assert len(await documents(indexed)) == before + 5
    assert await waiting(indexed) == []


async def test_erasure_of_an_agent_leaves_nothing_to_index(indexed: Indexed, dialogue: Dialogue) -> None:
    await dialogue.say("We saw alpacas")
    await indexed.store.erase_agent(ORGANIZATION, dialogue.agent, None)
    assert await waiting(indexed) == []
    assert await postings(indexed) == {}


async def test_search_finds_what_is_indexed_if_the_disk_is_full(
    serve: Any, database_url: str, clock: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "GATHER_SECONDS", 3600.0)
    async with serve(database_url=database_url) as recall:
        conversation = Conversation(recall)
        await conversation.open("We saw alpacas")
        await conversation.commit("The alpacas were white")
        clock.advance(1)

        async def refuse(*_: object, **__: object) -> bool:
            raise DatabaseFull

        with monkeypatch.context() as full:
            full.setattr(UnindexedMessages, "index_some", refuse)
            for scope in ({"agent_id": conversation.agent_id}, {}):
                request = rpc.SearchMessagesRequest(query="alpaca", mode=rpc.SEARCH_MODE_TEXT, **scope)
                found = await recall.SearchMessages(request)
                assert [hit.text for hit in found.hits] == ["We saw alpacas"]
                assert found.degraded
        request = rpc.SearchMessagesRequest(query="alpaca", mode=rpc.SEARCH_MODE_TEXT)
        found = await recall.SearchMessages(request)
        assert {hit.text for hit in found.hits} == {"We saw alpacas", "The alpacas were white"}
        assert not found.degraded


async def until_indexed(indexed: Indexed) -> None:
    async with asyncio.timeout(scaled(30)):
        while await waiting(indexed):
            await asyncio.sleep(0.01)


async def test_messages_that_another_replica_left_are_indexed_after_a_while(
    serve: Any, database_url: str, tmp_path: Path, clock: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "POLL_SECONDS", 0.05)
    async with serve(database_url=database_url), opened(database_url, tmp_path) as other:
        dialogue = Dialogue(other, new_id("agent"))
        await dialogue.open()
        await dialogue.say("We saw alpacas")
        await other.store.index_some_words(before=other.clock.now())
        assert await waiting(other) == [dialogue.agent]  # They were not committed before that time.
        clock.advance(10)
        await until_indexed(other)


async def test_messages_are_indexed_in_the_background_also_after_a_restart(
    serve: Any, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as stopped:
        stopped.setattr(messages, "GATHER_SECONDS", 3600.0)
        async with serve(database_url=database_url) as recall:
            conversation = Conversation(recall)
            await conversation.open("We saw alpacas")
            await conversation.commit("The alpacas were white")
    async with opened(database_url, tmp_path) as other:
        assert await waiting(other) == [conversation.agent_id]
    async with serve(database_url=database_url) as recall, opened(database_url, tmp_path) as other:
        await until_indexed(other)
        conversation.stub = recall
        await conversation.commit("They ate hay", base=2)
        await until_indexed(other)
        assert len([row for row in (await documents(other)).values() if row[2]]) >= 3
