"""The use of a reranker in a search: order, time limit, fallback, circuit breaker, metrics."""

import asyncio
from collections.abc import Callable, Sequence

import pytest
from mnemesh_kit.retries import Backoff
from mnemesh_retrieval.errors import RerankerError, RerankerRejected, RerankerUnavailable
from mnemesh_retrieval.ranking.scores import EXACT, Ranked
from mnemesh_retrieval.rerankers.reranking import Breaker, Reranking, readable

PAUSE = Backoff(first=10.0, maximum=60.0, jitter=0.0)


class Fake:
    """Scores a text by the number in it, or fails as told."""

    handle = "acme/m"

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[str]]] = []
        self.failure: Exception | None = None
        self.hold: asyncio.Event | None = None
        self.scores: Callable[[Sequence[str]], list[float]] = lambda texts: [float(text.split()[-1]) for text in texts]

    async def rerank(self, query: str, texts: Sequence[str]) -> list[float]:
        self.calls.append((query, list(texts)))
        if self.hold is not None:
            await self.hold.wait()
        if self.failure is not None:
            raise self.failure
        return self.scores(texts)

    async def close(self) -> None: ...


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def ranking(*ids: str) -> list[Ranked[str]]:
    return [Ranked(id_, 1 - place / 10) for place, id_ in enumerate(ids)]


def texts(**scores: float) -> dict[str, str]:
    return {id_: f"text {score}" for id_, score in scores.items()}


async def test_candidates_are_ordered_and_the_rest_follows() -> None:
    reranking = Reranking(Fake(), candidates=3)
    first = ranking("a", "b", "c", "d", "e")
    found = await reranking.rerank(["q"], first, texts(a=0.1, b=0.9, c=0.5, d=1.0, e=1.0))
    assert found is not None
    assert [each.id for each in found] == ["b", "c", "a", "d", "e"]
    assert [each.rerank_score for each in found] == [0.9, 0.5, 0.1, None, None]
    assert [each.score for each in found] == sorted((each.score for each in found), reverse=True)
    assert found[0].score > found[3].score == first[3].score


async def test_negative_scores_and_candidates_without_text() -> None:
    found = await Reranking(Fake()).rerank(["q"], ranking("a", "b", "c"), texts(a=-5.0, c=-1.0))
    assert found is not None
    assert [each.id for each in found] == ["c", "a", "b"]
    assert [each.score for each in found] == sorted((each.score for each in found), reverse=True)


async def test_a_text_that_equals_the_query_stays_first_and_ties_keep_their_order() -> None:
    first = [Ranked("a", EXACT + 1, is_exact=True), *ranking("b", "c")]
    found = await Reranking(Fake()).rerank(["q"], first, texts(a=0.0, b=0.5, c=0.5))
    assert found is not None
    assert [each.id for each in found] == ["a", "b", "c"]


async def test_several_queries_are_read_as_one_and_long_texts_in_part() -> None:
    fake = Fake()
    fake.scores = lambda texts: [0.0 for _ in texts]
    await Reranking(fake).rerank(["who?", " ", "which person?"], ranking("a", "b"), {"a": "x" * 9_000, "b": "y"})
    ((query, read),) = fake.calls
    assert query == "who?\nwhich person?"
    assert [len(text) for text in read] == [2_000, 1]


async def test_nothing_to_order_calls_no_reranker() -> None:
    fake = Fake()
    reranking = Reranking(fake)
    assert await reranking.rerank(["q"], ranking("a"), texts(a=1.0)) is None
    assert await reranking.rerank([" "], ranking("a", "b"), texts(a=1.0, b=1.0)) is None
    assert await reranking.rerank(["q"], ranking("a", "b"), {}) is None
    assert fake.calls == []


@pytest.mark.parametrize(("requested", "expected"), [(None, True), (False, False), (True, True)])
def test_a_request_can_refuse(requested: bool | None, expected: bool) -> None:
    assert Reranking(Fake()).is_requested(requested) is expected
    none = Reranking(None)
    assert none.is_requested(requested) is False
    assert none.metrics == ()


@pytest.mark.parametrize(
    ("failure", "outcome"),
    [
        (RerankerUnavailable("down"), "unavailable"),
        (RerankerRejected("key"), "rejected"),
        (RerankerError("garbage"), "invalid"),
    ],
)
async def test_failure_leaves_the_first_ranking(failure: Exception, outcome: str) -> None:
    fake = Fake()
    fake.failure = failure
    reranking = Reranking(fake)
    assert await reranking.rerank(["q"], ranking("a", "b"), texts(a=1.0, b=2.0)) is None
    assert reranking.outcomes.value(outcome) == 1


async def test_wrong_number_of_scores_leaves_the_first_ranking() -> None:
    fake = Fake()
    fake.scores = lambda texts: [1.0]
    reranking = Reranking(fake)
    assert await reranking.rerank(["q"], ranking("a", "b"), texts(a=1.0, b=2.0)) is None
    assert reranking.outcomes.value("invalid") == 1


async def test_slow_reranker_leaves_the_first_ranking_and_is_cancelled() -> None:
    fake = Fake()
    fake.hold = asyncio.Event()
    reranking = Reranking(fake, timeout_seconds=0.01)
    assert await reranking.rerank(["q"], ranking("a", "b"), texts(a=1.0, b=2.0)) is None
    assert reranking.outcomes.value("timeout") == 1


async def test_dead_reranker_is_not_called_for_a_while_then_tried_once() -> None:
    fake, clock = Fake(), Clock()
    fake.failure = RerankerUnavailable("down")
    reranking = Reranking(fake, breaker=Breaker(failures=3, pause=PAUSE, monotonic=clock))

    async def search() -> bool:
        return await reranking.rerank(["q"], ranking("a", "b"), texts(a=1.0, b=2.0)) is not None

    for _ in range(5):
        assert not await search()
    assert len(fake.calls) == 3
    assert reranking.outcomes.value("paused") == 2
    clock.now = 10.0
    assert not await search()
    assert not await search()
    assert len(fake.calls) == 4, "one trial, then a longer pause"
    clock.now = 29.9
    assert not await search()
    clock.now, fake.failure = 30.0, None
    assert await search()
    assert await search()
    assert len(fake.calls) == 6
    assert reranking.outcomes.value("reranked") == 2


async def test_a_trial_runs_alone_and_an_abandoned_one_is_repeated() -> None:
    fake, clock = Fake(), Clock()
    fake.failure = RerankerUnavailable("down")
    reranking = Reranking(fake, timeout_seconds=60.0, breaker=Breaker(failures=1, pause=PAUSE, monotonic=clock))

    async def search() -> bool:
        return await reranking.rerank(["q"], ranking("a", "b"), texts(a=1.0, b=2.0)) is not None

    assert not await search()
    clock.now, fake.failure, fake.hold = 10.0, None, asyncio.Event()
    trial = asyncio.create_task(search())
    while len(fake.calls) < 2:
        await asyncio.sleep(0)
    assert not await search(), "a trial runs"
    trial.cancel()
    with pytest.raises(asyncio.CancelledError):
        await trial
    fake.hold.set()
    assert await search()


def test_text_as_a_person_would_read_it() -> None:
    assert readable("Nora", "I sold it.") == "Nora: I sold it."
    assert readable(None, "Nora: I sold it.", "Tomas: And the boat?") == "Tomas: And the boat?\nNora: I sold it."
