"""Times in queries about facts."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from mnemesh.recall.v1 import episodes_pb2
from mnemesh.recall.v1 import episodes_service_pb2 as rpc
from mnemesh.recall.v1 import messages_service_pb2 as messages
from mnemesh_kit.ids import new_id
from mnemesh_kit.time import FrozenClock
from mnemesh_recall.model.episode_rules import fact_times
from mnemesh_testkit.errors import catch_refusal

from .episode_requests import DAY, MINE, at, held, learn, supersede

NOW = datetime(2026, 8, 20, 12, tzinfo=UTC)


def day(month: int, number: int, year: int = 2026) -> datetime:
    return datetime(year, month, number, tzinfo=UTC)


@pytest.mark.parametrize(
    ("query", "since", "until", "known"),
    [
        ("Where does Ana live?", None, None, None),
        ("Where did Ana live last year?", day(1, 1, 2025), day(1, 1), None),
        ("Who led the team in May?", day(5, 1), day(6, 1), None),
        ("What did you know in May about where Ana lives?", None, None, day(6, 1)),
        ("Where did you think in May that Ana lives?", None, None, day(6, 1)),
        ("What was known in May of the budget?", None, None, day(6, 1)),
        ("What did you know this year about Ana?", None, None, NOW + timedelta(microseconds=1)),
    ],
)
def test_times_of_queries(query: str, since: datetime | None, until: datetime | None, known: datetime | None) -> None:
    found = fact_times(query, UTC, NOW)
    if since is None and known is None:
        assert found is None
        return
    assert found is not None
    instant = timedelta(microseconds=1)
    assert found.valid_since == since
    assert found.valid_at == (None if until is None else until - instant)
    assert found.known_at == (None if known is None else known - instant)


async def ask(recall: Any, query: str, now: datetime, **more: Any) -> rpc.SearchFactsResponse:
    request = rpc.SearchFactsRequest(
        query=query,
        mode=messages.SEARCH_MODE_TEXT,
        **{"filter": rpc.FactFilter(scopes=[MINE]), "reference_time": at(now), **more},
    )
    return await recall.episodes.SearchFacts(request)  # type: ignore[no-any-return]


async def test_validity_and_knowledge_in_words(recall: Any, clock: FrozenClock) -> None:
    clock.advance((day(4, 10) - clock.now()).total_seconds())
    old = await learn(recall, "Ana lives in Lisbon", valid_from_time=at(day(3, 1, 2025)))
    clock.advance((day(6, 20) - clock.now()).total_seconds())
    await supersede(recall, old, "Ana lives in Porto", valid_from_time=at(day(5, 5)))
    clock.advance((NOW - clock.now()).total_seconds())

    async def texts(query: str, **more: Any) -> list[str]:
        return sorted(hit.fact.text for hit in (await ask(recall, query, NOW, **more)).hits)

    assert await texts("Where does Ana live?") == ["Ana lives in Porto"]
    assert await texts("Where did Ana live last year?") == ["Ana lives in Lisbon"]
    assert await texts("Where did Ana live in May?") == ["Ana lives in Lisbon", "Ana lives in Porto"]
    assert await texts("Where did Ana live in June?") == ["Ana lives in Porto"]
    assert await texts("What did you know in May about where Ana lives?") == ["Ana lives in Lisbon"]
    assert await texts("What did you know in March about where Ana lives?") == []
    filter_ = rpc.FactFilter(scopes=[MINE], valid_at_time=at(NOW))
    assert await texts("Where did Ana live last year?", filter=filter_) == ["Ana lives in Porto"]
    found = await ask(recall, "Where did Ana live last year?", NOW)
    assert (found.times.expression, found.times.valid_since_time) == ("last year", at(day(1, 1, 2025)))
    assert not (await ask(recall, "Where does Ana live?", NOW)).HasField("times")
    error = await catch_refusal(ask(recall, "Where did Ana live last year?", NOW, time_zone="Nowhere/Town"))
    assert error.field == "time_zone"


async def test_erased_sender_leaves_no_memory_in_its_scope(recall: Any, clock: FrozenClock) -> None:
    ana, bo = (episodes_pb2.MemoryScope(identity_id=new_id("identity")) for _ in range(2))
    for scope in (ana, bo):
        await learn(recall, "The salary is 5000", scope=scope)
    clock.advance(DAY)
    erased = await recall.EraseSender(messages.EraseSenderRequest(sender_id=ana.identity_id))
    assert erased.deleted_facts == 1
    assert await held(recall, scopes=[ana]) == []
    assert await held(recall, scopes=[bo]) == ["The salary is 5000"]
