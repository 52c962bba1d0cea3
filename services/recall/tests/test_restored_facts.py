"""Facts that are stated again after they were closed, on each SQL engine."""

from datetime import timedelta
from typing import Any

import pytest
from mnemesh.recall.v1 import episodes_pb2
from mnemesh.recall.v1 import episodes_service_pb2 as rpc
from mnemesh_kit.errors import NotFound
from mnemesh_kit.ids import new_id
from mnemesh_kit.time import FrozenClock
from mnemesh_testkit.errors import catch_refusal

from .episode_requests import DAY, at, held, learn, look_back, open_window, rests_on, supersede


async def restore(recall: Any, fact_id: str, **more: Any) -> rpc.RestoreFactResponse:
    request = rpc.RestoreFactRequest(fact_id=fact_id, **more)
    return await recall.episodes.RestoreFact(request)  # type: ignore[no-any-return]


async def history(recall: Any, fact_id: str) -> list[episodes_pb2.Fact]:
    listed = await recall.episodes.ListFactHistory(rpc.ListFactHistoryRequest(fact_id=fact_id))
    return list(listed.facts)


async def test_wrong_correction_is_undone(recall: Any, clock: FrozenClock) -> None:
    old = await learn(recall, "Ana lives in Lisbon", tags=["home"])
    clock.advance(DAY)
    wrong = (await supersede(recall, old, "Ana lives in Porto")).fact
    believed = clock.now()
    clock.advance(DAY)
    key = new_id("request")
    for _ in range(2):
        undone = await restore(recall, old.id, request_id=key, reason="it was Bo who moved")
    assert undone.fact.text == "Ana lives in Lisbon"
    assert list(undone.fact.tags) == ["home"]
    assert (undone.superseded.id, undone.superseded.invalid_reason) == (wrong.id, "it was Bo who moved")
    assert await held(recall) == ["Ana lives in Lisbon"]
    assert await held(recall, valid_at_time=at(believed)) == ["Ana lives in Lisbon"]
    assert await held(recall, valid_at_time=at(believed), known_at_time=at(believed)) == ["Ana lives in Porto"]
    assert [fact.text for fact in await history(recall, wrong.id)] == [
        "Ana lives in Lisbon", "Ana lives in Porto", "Ana lives in Lisbon",
    ]  # fmt: skip
    # What is current needs no restoration.
    again = await restore(recall, old.id)
    assert again == rpc.RestoreFactResponse(fact=undone.fact)
    assert await restore(recall, undone.fact.id) == again


async def test_forgotten_fact_is_restored(recall: Any, clock: FrozenClock) -> None:
    fact = await learn(recall, "Ana likes tea")
    clock.advance(DAY)
    operation = episodes_pb2.InvalidateOperation(fact_id=fact.id, reason="forget this")
    await recall.episodes.InvalidateFact(rpc.InvalidateFactRequest(operation=operation))
    assert await held(recall) == []
    clock.advance(DAY)
    restored = await restore(recall, fact.id)
    assert not restored.HasField("superseded")
    assert await held(recall) == ["Ana likes tea"]
    for days in (0.5, 1.5, 3):
        since = fact.create_time.ToDatetime(tzinfo=clock.now().tzinfo)
        assert len(await held(recall, valid_at_time=at(since + timedelta(days=days)))) == 1


async def test_facts_of_a_range_of_time(recall: Any, clock: FrozenClock) -> None:
    start = clock.now()
    old = await learn(recall, "Ana lives in Lisbon", valid_from_time=at(start))
    clock.advance(100 * DAY)
    await supersede(recall, old, "Ana lives in Porto")
    clock.advance(100 * DAY)

    async def between(since: float, until: float) -> list[str]:
        since_, until_ = start + timedelta(days=since), start + timedelta(days=until)
        return await held(recall, valid_since_time=at(since_), valid_at_time=at(until_))

    assert await between(10, 50) == ["Ana lives in Lisbon"]
    assert await between(50, 150) == ["Ana lives in Lisbon", "Ana lives in Porto"]
    assert await between(120, 150) == ["Ana lives in Porto"]
    assert await between(-20, -10) == []


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"fact_id": "fact-1"}, "fact_id"),
        ({"reason": "x" * 2001}, "reason"),
        ({"source": episodes_pb2.MemorySource(message_ids=["x"])}, "source.message_ids[0]"),
    ],
)
async def test_invalid_restorations_are_refused(recall: Any, fields: dict[str, Any], field: str) -> None:
    fact = await learn(recall, "Ana likes tea")
    error = await catch_refusal(recall.episodes.RestoreFact(rpc.RestoreFactRequest(**{"fact_id": fact.id, **fields})))
    assert error.field == field
    assert await held(recall) == ["Ana likes tea"]


async def test_facts_of_erased_messages_are_refused(recall: Any) -> None:
    (message,) = (await open_window(recall, "I like tea."))[1:]
    add = episodes_pb2.FactOperation(add=episodes_pb2.Fact(text="Ana likes tea", source=rests_on(message)))
    lost = new_id("message")
    other = episodes_pb2.FactOperation(add=episodes_pb2.Fact(text="Ana likes cake", source=rests_on(message, lost)))
    error = await catch_refusal(
        recall.episodes.CommitEpisode(look_back(operations=[add, other], require_source_messages=True))
    )
    assert isinstance(error, NotFound)
    assert error.metadata["resource_id"] == lost
    assert await held(recall) == []
    await recall.episodes.CommitEpisode(look_back(operations=[add], require_source_messages=True))
    assert await held(recall) == ["Ana likes tea"]


@pytest.mark.parametrize("since", [2, 1])
async def test_invalid_range_is_refused(recall: Any, clock: FrozenClock, since: int) -> None:
    valid_at = {"valid_at_time": at(clock.now() + timedelta(days=1))} if since == 2 else {}
    filter_ = rpc.FactFilter(valid_since_time=at(clock.now() + timedelta(days=since)), **valid_at)
    error = await catch_refusal(recall.episodes.ListFacts(rpc.ListFactsRequest(filter=filter_)))
    assert error.field == "filter.valid_since_time"
