"""The conformance suite of `NearestIndex`. Subclass it with an `index` fixture for each backend."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from mnemesh_retrieval.errors import CollectionMismatch, CollectionMissing, PointInvalid
from mnemesh_retrieval.filters import (
    EVERYTHING,
    And,
    Filter,
    HasId,
    Match,
    MatchAll,
    MatchAny,
    Not,
    Or,
    TimeRange,
    all_of,
)
from mnemesh_retrieval.index import (
    Collection,
    NearestIndex,
    Point,
    SearchMode,
    SearchQuery,
    instant,
)

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
PLANTS = Collection(
    "plants",
    dimension=4,
    keyword_fields=("tenant", "tags"),
    datetime_fields=("created_at",),
    text_fields=("text",),
    tenant_field="tenant",
)


def pid(number: int) -> uuid.UUID:
    """The point id with this number; ids order as their numbers do."""
    return uuid.UUID(int=number)


def point(
    number: int,
    text: str = "",
    vector: Sequence[float] | None = (1, 0, 0, 0),
    *,
    at: datetime = NOON,
    tenant: str = "t1",
    tags: Sequence[str] = (),
    **payload: Any,
) -> Point:
    """A point of the PLANTS collection."""
    fields: Mapping[str, Any] = {
        "created_at": instant(at),
        "tenant": tenant,
        "tags": list(tags),
        "text": text,
        **payload,
    }
    return Point(pid(number), None if vector is None else np.asarray(vector, dtype=np.float32), text, fields)


def unit(*numbers: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    """A query vector."""
    return np.asarray(numbers, dtype=np.float32)


class NearestIndexSuite:
    """The contract of mnemesh_retrieval.index.NearestIndex."""

    @pytest.fixture
    async def index(self) -> NearestIndex:
        """An open, empty index."""
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    async def _plants(self, index: NearestIndex) -> None:
        await index.ensure_collection(PLANTS)

    async def _numbers(self, index: NearestIndex, condition: Filter) -> list[int]:
        return [found.int for found in await index.scan("plants", condition)]

    async def test_delete_by_id_and_by_filter(self, index: NearestIndex) -> None:
        await index.write("plants", [point(n, tenant="t1" if n < 4 else "t2") for n in range(1, 7)])
        await index.delete("plants", [pid(1), pid(99)])
        await index.delete_where("plants", Match("tenant", "t2"))
        assert await self._numbers(index, EVERYTHING) == [2, 3]

    @pytest.mark.parametrize("vector", [(1, 0, 0), (1, 0, 0, float("nan")), (float("inf"), 0, 0, 0)])
    async def test_invalid_vector_is_refused(self, index: NearestIndex, vector: tuple[float, ...]) -> None:
        with pytest.raises(PointInvalid):
            await index.write("plants", [point(1), point(2, vector=vector)])
        assert await index.count("plants", EVERYTHING) == 0

    async def test_dense_search_orders_by_similarity(self, index: NearestIndex) -> None:
        near, nearer, far = (
            point(1, vector=(1, 1, 0, 0)),
            point(2, vector=(1, 0.1, 0, 0)),
            point(3, vector=(0, 0, 1, 0)),
        )
        await index.write("plants", [near, nearer, far])
        hits = await index.search("plants", SearchQuery(SearchMode.DENSE, vector=unit(2, 0, 0, 0), limit=2))
        assert [hit.id.int for hit in hits] == [2, 1]
        assert hits[0].score == pytest.approx(0.995, abs=0.001)

    @pytest.mark.parametrize(
        ("condition", "expected"),
        [
            (EVERYTHING, [1, 2, 3, 4]),
            (Match("tenant", "t1"), [1, 2, 3]),
            (Match("tags", "red"), [1, 2]),
            (MatchAny("tags", ("red", "blue")), [1, 2, 3]),
            (MatchAny("tags", ()), []),
            (MatchAll("tags", ("red", "blue")), [2]),
            (MatchAll("tags", ()), [1, 2, 3, 4]),
            (HasId((pid(2), pid(4), pid(77))), [2, 4]),
            (HasId(()), []),
            (TimeRange("created_at", gte=NOON + timedelta(hours=2)), [2, 3, 4]),
            (TimeRange("created_at", gte=NOON, lt=NOON + timedelta(hours=3)), [1, 2]),
            (TimeRange("created_at"), [1, 2, 3, 4]),
            (Not(Match("tenant", "t1")), [4]),
            (Not(And(())), []),
            (Or(()), []),
            (Or((Match("tenant", "t2"), Match("tags", "blue"))), [2, 3, 4]),
            (all_of(Match("tenant", "t1"), None, Not(MatchAny("tags", ("blue",)))), [1]),
        ],
    )
    async def test_search_and_count_apply_filters(
        self, index: NearestIndex, condition: Filter, expected: list[int]
    ) -> None:
        await index.write(
            "plants",
            [
                point(1, "an old oak", tags=["red"], at=NOON + timedelta(hours=1)),
                point(2, "oak 2", tags=["blue", "red"], at=NOON + timedelta(hours=2)),
                point(3, "old moss 庭に桜の木がある", tags=["blue"], at=NOON + timedelta(hours=3)),
                point(4, "fern", tenant="t2", at=NOON + timedelta(hours=4)),
            ],
        )
        assert await self._numbers(index, condition) == expected
        assert await index.count("plants", condition) == len(expected)

    async def test_time_bounds_are_exact_to_the_microsecond_in_any_zone(self, index: NearestIndex) -> None:
        tick = timedelta(microseconds=1)
        await index.write("plants", [point(1, at=NOON - tick), point(2, at=NOON), point(3, at=NOON + tick)])
        rome = NOON.astimezone(tz=__import__("zoneinfo").ZoneInfo("Europe/Rome"))
        assert await self._numbers(index, TimeRange("created_at", gte=rome, lt=rome + tick)) == [2]

    async def test_scan_continues_after_an_id(self, index: NearestIndex) -> None:
        await index.write("plants", [point(n) for n in range(1, 8)])
        assert [i.int for i in await index.scan("plants", EVERYTHING, limit=3)] == [1, 2, 3]
        assert [i.int for i in await index.scan("plants", EVERYTHING, after=pid(3), limit=3)] == [4, 5, 6]
        await index.delete("plants", [pid(3)])
        assert [i.int for i in await index.scan("plants", EVERYTHING, after=pid(3), limit=9)] == [4, 5, 6, 7]

    async def test_collections_are_listed_and_dropped(self, index: NearestIndex) -> None:
        await index.ensure_collection(Collection("odd/name é", dimension=2))
        assert await index.collections() == ("odd/name é", "plants")
        await index.drop_collection("plants")
        await index.drop_collection("plants")
        assert await index.collections() == ("odd/name é",)
        with pytest.raises(CollectionMissing):
            await index.count("plants", EVERYTHING)
        await index.ensure_collection(PLANTS)
        assert await index.count("plants", EVERYTHING) == 0

    async def test_uuid_fields_match_any_of_their_values(self, index: NearestIndex) -> None:
        oak, elm, yew = (str(uuid.UUID(int=number)) for number in (7, 8, 9))
        await index.ensure_collection(Collection("trees", dimension=4, uuid_fields=("kinds",), tenant_field="kinds"))
        await index.write("trees", [point(1, kinds=[oak, elm]), point(2, kinds=[elm]), point(3, kinds=[yew])])
        assert await index.scan("trees", Match("kinds", elm)) == [pid(1), pid(2)]
        assert await index.scan("trees", all_of(Match("kinds", elm), Match("kinds", oak))) == [pid(1)]
        assert await index.scan("trees", MatchAny("kinds", (oak, yew))) == [pid(1), pid(3)]
        await index.delete_where("trees", Match("kinds", oak))
        assert await index.count("trees", EVERYTHING) == 2

    async def test_unknown_collection_is_an_error(self, index: NearestIndex) -> None:
        with pytest.raises(CollectionMissing):
            await index.search("weeds", SearchQuery(SearchMode.TEXT, text="oak"))

    async def test_second_write_of_an_id_replaces_the_first(self, index: NearestIndex) -> None:
        await index.write("plants", [point(1, tenant="t1"), point(2, vector=(0, 0, 1, 0))])
        again = point(1, vector=(0, 1, 0, 0), tenant="t2", at=NOON + timedelta(days=1))
        await index.write("plants", [point(1, vector=(0, 0, 0, 1)), again])
        hits = await index.search("plants", SearchQuery(SearchMode.DENSE, vector=unit(0, 1, 0, 0), limit=1))
        assert [(hit.id, round(hit.score, 3)) for hit in hits] == [(pid(1), 1.0)]
        assert await self._numbers(index, Match("tenant", "t1")) == [2]
        assert await self._numbers(index, TimeRange("created_at", lt=NOON + timedelta(hours=1))) == [2]
        assert await index.count("plants", EVERYTHING) == 2

    async def test_dense_search_is_restricted_to_the_filter(self, index: NearestIndex) -> None:
        await index.write("plants", [point(n, vector=(1, n, 0, 0), tenant=f"t{n % 10}") for n in range(1, 501)])
        for asked in (
            SearchQuery(SearchMode.DENSE, vector=unit(1, 0, 0, 0), filter=Match("tenant", "t3"), limit=100),
            SearchQuery(SearchMode.DENSE, vector=unit(1, 0, 0, 0), filter=Match("tenant", "t3"), newest=10_000),
        ):
            hits = await index.search("plants", asked)
            assert [hit.id.int for hit in hits] == list(range(3, 501, 10))[: asked.limit]

    async def test_points_of_equal_similarity_are_ordered_by_id(self, index: NearestIndex) -> None:
        await index.write("plants", [point((n * 7) % 200 + 1) for n in range(200)])
        hits = await index.search("plants", SearchQuery(SearchMode.DENSE, vector=unit(1, 0, 0, 0), limit=200))
        assert [hit.id.int for hit in hits] == list(range(1, 201))

    async def test_deleted_points_are_not_found(self, index: NearestIndex) -> None:
        numbers = set(range(1, 301))
        await index.write("plants", [point(n, tags=[f"r{n % 7}"], tenant=f"t{n % 2}") for n in numbers])
        await index.delete("plants", [pid(n) for n in range(1, 301, 3)])
        await index.delete_where("plants", And((Match("tags", "r3"), Match("tenant", "t1"))))
        left = {n for n in numbers if n % 3 != 1 and not (n % 7 == 3 and n % 2)}
        await index.write("plants", [point(1, tags=["r1"], tenant="t1")])
        hits = await index.search("plants", SearchQuery(SearchMode.DENSE, vector=unit(1, 0, 0, 0), limit=1_000))
        assert {hit.id.int for hit in hits} == left | {1}
        for rest in range(7):
            expected = sorted(n for n in left | {1} if n % 7 == rest)
            assert await self._numbers(index, Match("tags", f"r{rest}")) == expected

    async def test_collection_keeps_its_dimension(self, index: NearestIndex) -> None:
        with pytest.raises(CollectionMismatch):
            await index.ensure_collection(Collection("plants", dimension=5))
        await index.ensure_collection(PLANTS)
