"""A search by words finds the messages that have them or are beside such messages, through all changes."""

import random
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
from mnemesh_kit.ids import new_id
from mnemesh_recall.model.search import SearchScope, WordQuery
from mnemesh_recall.store.fulltext import selection
from mnemesh_types.messages import TextPart

from .word_indexes import ORGANIZATION, WORDS, Indexed, append, check, check_all, opened, postings, said


@pytest_asyncio.fixture
async def indexed(database_url: str, tmp_path: Path) -> AsyncIterator[Indexed]:
    async with opened(database_url, tmp_path) as index:
        yield index


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.full)])
async def test_search_finds_what_a_look_at_every_message_finds(indexed: Indexed, seed: int) -> None:
    chance = random.Random(seed)
    agent, conversations = new_id("agent"), [new_id("conv") for _ in range(3)]
    history = [said(chance, agent, place, conversations) for place in range(160)]
    other = new_id("agent")
    await append(indexed, other, [said(chance, other, place, [new_id("conv")]) for place in range(20)])
    await append(indexed, agent, history)
    await check_all(indexed, chance, agent, conversations)
    for message in chance.sample(history, 12):
        changed = replace(message, content=(TextPart(f"now about {chance.choice(WORDS)} and oaks?"),))
        await indexed.store.update_message(ORGANIZATION, changed, frozenset({"content"}), None)
    for message in chance.sample(history, 12):
        await indexed.store.delete_message(ORGANIZATION, message.id, None)
    await check_all(indexed, chance, agent, conversations)
    entries = await postings(indexed)
    await indexed.store.rebuild_fulltext()
    assert await postings(indexed) == entries


async def test_common_words_do_not_select_next_to_rarer_ones(indexed: Indexed, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(5)
    monkeypatch.setattr(selection, "MOST_HOLDERS", 90)
    monkeypatch.setattr(selection, "FEW_HOLDERS", 10)
    agent, conversations = new_id("agent"), [new_id("conv")]
    history = [said(chance, agent, place, conversations) for place in range(60)]
    await append(indexed, agent, history)
    for query in ("elm", "oak filler1", "word0", "word0 word1", "word0 elm oak"):
        await check(indexed, SearchScope(agent_id=agent), query, history)


async def test_long_text_is_found_by_its_last_word(indexed: Indexed) -> None:
    agent = new_id("agent")
    filler = " ".join(f"filler{number}" for number in range(1_500))
    long = replace(said(random.Random(1), agent, 1, [new_id("conv")]), content=(TextPart(f"oak {filler} elm"),))
    await append(indexed, agent, [long])
    found = await indexed.store.search_words(ORGANIZATION, SearchScope(agent_id=agent), WordQuery("elm", ""), 10)
    assert len(found.candidates) == 1


async def test_erased_words_leave_the_index(indexed: Indexed) -> None:
    agent, chance = new_id("agent"), random.Random(3)
    history = [said(chance, agent, place, [new_id("conv")]) for place in range(40)]
    await append(indexed, agent, history)
    before = await postings(indexed)
    secret = replace(history[5], id=new_id("message"), content=(TextPart("The secret is xylophone"),), name="Xylo")
    await append(indexed, agent, [secret])
    assert await postings(indexed) != before
    await indexed.store.delete_message(ORGANIZATION, secret.id, None)
    found = await indexed.store.search_words(ORGANIZATION, SearchScope(agent_id=agent), WordQuery("xylophone", ""), 10)
    assert not len(found.candidates)
    assert await postings(indexed) == before


async def test_erased_agent_has_no_words(indexed: Indexed) -> None:
    agent, chance = new_id("agent"), random.Random(4)
    await append(indexed, agent, [said(chance, agent, place, [new_id("conv")]) for place in range(30)])
    await indexed.store.erase_agent(ORGANIZATION, agent, None)
    assert await postings(indexed) == {}
    found = await indexed.store.search_words(ORGANIZATION, SearchScope(agent_id=agent), WordQuery("oak", ""), 10)
    assert not len(found.candidates)


async def test_agent_of_another_organization_is_not_searched(indexed: Indexed) -> None:
    agent = new_id("agent")
    await append(indexed, agent, [said(random.Random(4), agent, place, [new_id("conv")]) for place in range(30)])
    found = await indexed.store.search_words("org-2", SearchScope(agent_id=agent), WordQuery("oak word1", ""), 10)
    assert not len(found.candidates)
