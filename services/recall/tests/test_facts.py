"""Facts of EpisodeService that replace each other, over the wire, on each SQL engine."""

import asyncio
from datetime import timedelta
from typing import Any

from mnemesh.recall.v1 import episodes_pb2
from mnemesh.recall.v1 import episodes_service_pb2 as rpc
from mnemesh_kit.errors import FailedPrecondition, MnemeshError, NotFound
from mnemesh_kit.ids import new_id
from mnemesh_kit.time import FrozenClock
from mnemesh_testkit.errors import catch_refusal

from .episode_requests import AGENT, CONVERSATION, DAY, TEAM, at, fact, held, learn, supersede


async def test_superseded_fact_is_kept_and_closed(recall: Any, clock: FrozenClock) -> None:
    source = episodes_pb2.MemorySource(message_ids=[new_id("message")], agent_id=AGENT)
    old = await learn(recall, "Ada lives in Berlin", tags=["home"], confidence=0.9, source=source)
    told_in_may = clock.now()
    clock.advance(30 * DAY)
    moved = await supersede(recall, old, "Ada lives in Paris")
    assert moved.fact.supersedes_id == old.id
    assert moved.fact.valid_from_time == at(clock.now())
    assert (list(moved.fact.tags), moved.fact.confidence, list(moved.fact.source.message_ids)) == (["home"], 0.9, [])
    assert moved.superseded.superseded_by_id == moved.fact.id
    assert moved.superseded.invalid_time == moved.superseded.close_time == at(clock.now())
    assert moved.superseded.source == source
    clock.advance(DAY)
    # Valid now; valid in May by the knowledge of May; valid in May by the knowledge of today.
    assert await held(recall) == ["Ada lives in Paris"]
    assert await held(recall, known_at_time=at(told_in_may), valid_at_time=at(told_in_may)) == ["Ada lives in Berlin"]
    assert await held(recall, known_at_time=at(told_in_may)) == ["Ada lives in Berlin"]
    assert await held(recall, valid_at_time=at(told_in_may)) == ["Ada lives in Berlin"]
    assert await held(recall, known_at_time=at(told_in_may - timedelta(seconds=1))) == []
    assert await held(recall, include_invalid=True) == ["Ada lives in Berlin", "Ada lives in Paris"]
    for anyone in (old.id, moved.fact.id):
        history = await recall.episodes.ListFactHistory(rpc.ListFactHistoryRequest(fact_id=anyone))
        assert [item.text for item in history.facts] == ["Ada lives in Berlin", "Ada lives in Paris"]
    assert (await recall.episodes.GetFact(rpc.GetFactRequest(fact_id=old.id))).fact == moved.superseded


async def test_fact_superseded_in_the_future_is_valid_until_then(recall: Any, clock: FrozenClock) -> None:
    old = await learn(recall, "Ada lives in Berlin")
    summer = clock.now() + timedelta(days=90)
    await supersede(recall, old, "Ada lives in Paris", valid_from_time=at(summer))
    clock.advance(DAY)
    assert await held(recall) == ["Ada lives in Berlin"]
    assert await held(recall, valid_at_time=at(summer)) == ["Ada lives in Paris"]


async def test_fact_superseded_before_its_start_was_never_valid(recall: Any, clock: FrozenClock) -> None:
    since = clock.now() - timedelta(days=10)
    old = await learn(recall, "Ada was born in 1985", valid_from_time=at(since))
    believed = clock.now()
    clock.advance(DAY)
    await supersede(recall, old, "Ada was born in 1984", valid_from_time=at(since - timedelta(days=5)))
    assert await held(recall, valid_at_time=at(since)) == ["Ada was born in 1984"]
    assert await held(recall, valid_at_time=at(since), known_at_time=at(believed)) == ["Ada was born in 1985"]


async def test_fact_with_the_same_text_is_confirmed(recall: Any, clock: FrozenClock) -> None:
    first, second = new_id("message"), new_id("message")
    one = await learn(recall, "Likes tea", source=episodes_pb2.MemorySource(message_ids=[first]), confidence=0.5)
    clock.advance(5)
    again = await recall.episodes.CreateFact(
        rpc.CreateFactRequest(
            fact=fact("  likes   TEA ", source=episodes_pb2.MemorySource(message_ids=[second, first]), confidence=0.8)
        )
    )
    assert again.already_held
    assert (again.fact.id, again.fact.text, again.fact.confidence) == (one.id, "Likes tea", 0.8)
    assert list(again.fact.source.message_ids) == [first, second]
    assert again.fact.update_time == at(clock.now())
    assert again.fact.create_time == one.create_time
    elsewhere = await recall.episodes.CreateFact(rpc.CreateFactRequest(fact=fact("likes tea", TEAM)))
    assert not elsewhere.already_held
    await recall.episodes.InvalidateFact(
        rpc.InvalidateFactRequest(operation=episodes_pb2.InvalidateOperation(fact_id=one.id))
    )
    assert not (await recall.episodes.CreateFact(rpc.CreateFactRequest(fact=fact("likes tea")))).already_held


async def test_closed_fact_cannot_change(recall: Any, clock: FrozenClock) -> None:
    old = await learn(recall, "Likes tea")
    new = (await supersede(recall, old, "Likes coffee")).fact
    error = await catch_refusal(supersede(recall, old, "Likes water"))
    assert (type(error), error.reason) == (FailedPrecondition, "FACT_CLOSED")
    assert error.metadata["superseded_by_id"] == new.id
    gone = clock.now() + timedelta(days=1)
    for attempt in range(2):
        closed = await recall.episodes.InvalidateFact(
            rpc.InvalidateFactRequest(
                operation=episodes_pb2.InvalidateOperation(
                    fact_id=new.id,
                    invalid_time=at(gone),
                    reason="told so",
                    source=episodes_pb2.MemorySource(message_ids=[CONVERSATION.replace("conv", "message")]),
                )
            )
        )
        assert closed.fact.invalid_time == at(gone), attempt
        assert (closed.fact.invalid_reason, len(closed.fact.invalid_source.message_ids)) == ("told so", 1)
    other = episodes_pb2.InvalidateOperation(fact_id=new.id, invalid_time=at(gone + timedelta(days=1)))
    error = await catch_refusal(recall.episodes.InvalidateFact(rpc.InvalidateFactRequest(operation=other)))
    assert error.reason == "FACT_CLOSED"
    assert "superseded_by_id" not in error.metadata
    update = rpc.UpdateFactRequest(fact=episodes_pb2.Fact(id=old.id, confidence=1.0))
    update.update_mask.paths.append("confidence")
    assert (await catch_refusal(recall.episodes.UpdateFact(update))).reason == "FACT_CLOSED"


async def test_one_of_many_concurrent_supersedes_wins(recall: Any) -> None:
    old = await learn(recall, "Likes tea")
    results = await asyncio.gather(
        *(supersede(recall, old, f"Likes drink {number}") for number in range(8)), return_exceptions=True
    )
    won = [result for result in results if not isinstance(result, BaseException)]
    lost = [result for result in results if isinstance(result, MnemeshError)]
    assert (len(won), len(lost)) == (1, 7)
    assert {error.reason for error in lost} == {"FACT_CLOSED"}
    assert await held(recall) == [won[0].fact.text]


async def test_fact_in_the_middle_of_a_chain_can_be_deleted(recall: Any, clock: FrozenClock) -> None:
    first = await learn(recall, "one")
    clock.advance(1)
    second = (await supersede(recall, first, "two")).fact
    clock.advance(1)
    third = (await supersede(recall, second, "three")).fact
    for _ in range(2):
        await recall.episodes.DeleteFact(rpc.DeleteFactRequest(fact_id=second.id))
    history = await recall.episodes.ListFactHistory(rpc.ListFactHistoryRequest(fact_id=third.id))
    assert [(item.text, item.superseded_by_id, item.supersedes_id) for item in history.facts] == [
        ("one", "", ""), ("three", "", ""),
    ]  # fmt: skip
    assert await held(recall) == ["three"]
    assert isinstance(await catch_refusal(recall.episodes.GetFact(rpc.GetFactRequest(fact_id=second.id))), NotFound)
