"""The conformance suite of `VectorIndex`. Subclass it with an `index` fixture for each backend."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from mnemesh_retrieval.errors import CollectionMismatch, CollectionMissing, PointInvalid, VectorIndexError
from mnemesh_retrieval.filters import (
    EVERYTHING,
    And,
    Filter,
    HasId,
    HasWords,
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
    ListQuery,
    NearestIndex,
    Point,
    Position,
    SearchMode,
    SearchQuery,
    VectorIndex,
    WriteMode,
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
        hits = await index.search("plants", SearchQuery(SearchMode.VECTOR, vector=unit(2, 0, 0, 0), limit=2))
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
        hits = await index.search("plants", SearchQuery(SearchMode.VECTOR, vector=unit(0, 1, 0, 0), limit=1))
        assert [(hit.id, round(hit.score, 3)) for hit in hits] == [(pid(1), 1.0)]
        assert await self._numbers(index, Match("tenant", "t1")) == [2]
        assert await self._numbers(index, TimeRange("created_at", lt=NOON + timedelta(hours=1))) == [2]
        assert await index.count("plants", EVERYTHING) == 2

    async def test_dense_search_is_restricted_to_the_filter(self, index: NearestIndex) -> None:
        await index.write("plants", [point(n, vector=(1, n, 0, 0), tenant=f"t{n % 10}") for n in range(1, 501)])
        for asked in (
            SearchQuery(SearchMode.VECTOR, vector=unit(1, 0, 0, 0), filter=Match("tenant", "t3"), limit=100),
            SearchQuery(SearchMode.VECTOR, vector=unit(1, 0, 0, 0), filter=Match("tenant", "t3"), newest=10_000),
        ):
            hits = await index.search("plants", asked)
            assert [hit.id.int for hit in hits] == list(range(3, 501, 10))[: asked.limit]

    async def test_points_of_equal_similarity_are_ordered_by_id(self, index: NearestIndex) -> None:
        await index.write("plants", [point((n * 7) % 200 + 1) for n in range(200)])
        hits = await index.search("plants", SearchQuery(SearchMode.VECTOR, vector=unit(1, 0, 0, 0), limit=200))
        assert [hit.id.int for hit in hits] == list(range(1, 201))

    async def test_deleted_points_are_not_found(self, index: NearestIndex) -> None:
        numbers = set(range(1, 301))
        await index.write("plants", [point(n, tags=[f"r{n % 7}"], tenant=f"t{n % 2}") for n in numbers])
        await index.delete("plants", [pid(n) for n in range(1, 301, 3)])
        await index.delete_where("plants", And((Match("tags", "r3"), Match("tenant", "t1"))))
        left = {n for n in numbers if n % 3 != 1 and not (n % 7 == 3 and n % 2)}
        await index.write("plants", [point(1, tags=["r1"], tenant="t1")])
        hits = await index.search("plants", SearchQuery(SearchMode.VECTOR, vector=unit(1, 0, 0, 0), limit=1_000))
        assert {hit.id.int for hit in hits} == left | {1}
        for rest in range(7):
            expected = sorted(n for n in left | {1} if n % 7 == rest)
            assert await self._numbers(index, Match("tags", f"r{rest}")) == expected

    async def test_collection_keeps_its_dimension(self, index: NearestIndex) -> None:
        with pytest.raises(CollectionMismatch):
            await index.ensure_collection(Collection("plants", dimension=5))
        await index.ensure_collection(PLANTS)


ONE_LIST = (SearchMode.VECTOR, SearchMode.TEXT)
"""The modes of `search`."""


class VectorIndexSuite(NearestIndexSuite):
    """The contract of `mnemesh_retrieval.index.VectorIndex` beyond that of `NearestIndex`."""

    async def test_written_point_is_read_unchanged(self, index: VectorIndex) -> None:
        deep = {"nested": [1, 2.5, None, "é"], "flag": True}
        await index.write("plants", [point(1, "oak", (0, 3, 0, 4), extra=deep)])
        (found,) = await index.get("plants", [pid(9), pid(1)], with_vectors=True)
        assert found.id == pid(1)
        assert found.payload["extra"] == deep
        assert found.payload["created_at"] == instant(NOON)
        assert found.vector is not None
        assert np.allclose(found.vector, (0, 0.6, 0, 0.8))
        assert (await index.get("plants", [pid(1)]))[0].vector is None

    async def test_points_are_returned_in_the_requested_order(self, index: VectorIndex) -> None:
        await index.write("plants", [point(n) for n in (1, 2, 3)])
        assert [found.id for found in await index.get("plants", [pid(3), pid(1), pid(2)])] == [pid(3), pid(1), pid(2)]

    async def test_upsert_replaces_everything(self, index: VectorIndex) -> None:
        await index.write("plants", [point(1, "oak", kind="tree")])
        await index.write("plants", [point(1, "moss", (0, 1, 0, 0))])
        (found,) = await index.get("plants", [pid(1)])
        assert "kind" not in found.payload
        assert not await index.search("plants", SearchQuery(SearchMode.TEXT, text="oak"))
        assert await index.search("plants", SearchQuery(SearchMode.TEXT, text="moss"))

    async def test_insert_absent_keeps_existing_points(self, index: VectorIndex) -> None:
        await index.write("plants", [point(1, "oak")])
        await index.write("plants", [point(1, "moss"), point(2, "fern")], WriteMode.INSERT_ABSENT)
        texts = [found.payload["text"] for found in await index.get("plants", [pid(1), pid(2)])]
        assert texts == ["oak", "fern"]

    async def test_update_present_creates_no_points(self, index: VectorIndex) -> None:
        await index.write("plants", [point(1, "oak")])
        await index.write("plants", [point(1, "moss"), point(2, "fern")], WriteMode.UPDATE_PRESENT)
        assert [found.payload["text"] for found in await index.get("plants", [pid(1), pid(2)])] == ["moss"]

    async def test_last_of_several_points_with_one_id_wins(self, index: VectorIndex) -> None:
        await index.write("plants", [point(1, "oak"), point(1, "moss")])
        assert (await index.get("plants", [pid(1)]))[0].payload["text"] == "moss"
        assert await index.count("plants", EVERYTHING) == 1

    async def test_set_payload_keeps_other_fields(self, index: VectorIndex) -> None:
        await index.write("plants", [point(1, "oak", tags=["old"])])
        await index.set_payload("plants", [pid(1), pid(7)], {"tags": ["new"]})
        (hit,) = await index.search("plants", SearchQuery(SearchMode.TEXT, text="oak"))
        assert hit.payload["tags"] == ["new"]
        assert hit.payload["text"] == "oak"
        assert await self._numbers(index, Match("tags", "old")) == []
        assert await index.count("plants", EVERYTHING) == 1

    async def test_text_search_stems_words_and_folds_accents(self, index: VectorIndex) -> None:
        await index.write("plants", [point(1, "Three CAFÉS in the garden"), point(2, "an oak")])
        (hit,) = await index.search("plants", SearchQuery(SearchMode.TEXT, text="cafe"))
        assert hit.id == pid(1)
        assert hit.score > 0

    async def test_rare_words_have_a_higher_weight(self, index: VectorIndex) -> None:
        await index.write("plants", [point(n, "garden tree") for n in range(1, 30)])
        await index.write("plants", [point(30, "garden orchid"), point(31, "tree tree garden")])
        hits = await index.search("plants", SearchQuery(SearchMode.TEXT, text="garden orchid", limit=3))
        assert hits[0].id == pid(30)

    async def test_text_search_finds_other_scripts(self, index: VectorIndex) -> None:
        await index.write("plants", [point(1, "庭に桜の木がある"), point(2, "Во саду растёт дуб")])
        assert [h.id.int for h in await index.search("plants", SearchQuery(SearchMode.TEXT, text="桜"))] == [1]
        assert [h.id.int for h in await index.search("plants", SearchQuery(SearchMode.TEXT, text="ДУБ"))] == [2]

    async def test_points_without_a_query_word_are_not_text_hits(self, index: VectorIndex) -> None:
        await index.write("plants", [point(1, "oak"), point(2, "fern", (0, 1, 0, 0))])
        assert [h.id.int for h in await index.search("plants", SearchQuery(SearchMode.TEXT, text="oak tree"))] == [1]
        assert await index.search("plants", SearchQuery(SearchMode.TEXT, text="zebra")) == []

    async def test_stop_words_count_only_in_queries_of_stop_words(self, index: VectorIndex) -> None:
        await index.write("plants", [point(1, "the one and the other"), point(2, "oak")])
        assert [h.id.int for h in await index.search("plants", SearchQuery(SearchMode.TEXT, text="the oak"))] == [2]
        assert [h.id.int for h in await index.search("plants", SearchQuery(SearchMode.TEXT, text="and the"))] == [1]
        assert await index.search("plants", SearchQuery(SearchMode.TEXT, text="?!")) == []

    async def test_forms_of_an_irregular_word_are_one_term(self, index: VectorIndex) -> None:
        await index.write("plants", [point(1, "we bought an oak"), point(2, "she buys and buys"), point(3, "a fern")])
        await index.write("plants", [point(4, "children"), point(5, "bought, and to buy")])
        for query in ("buy", "Who bought it?"):
            hits = await index.search("plants", SearchQuery(SearchMode.TEXT, text=query))
            assert {hit.id.int for hit in hits} == {1, 2, 5}
            found = await index.candidates("plants", SearchQuery(SearchMode.TEXT, text=query))
            assert len({word for match in found.text for word in match.words}) == 1
        assert [h.id.int for h in await index.search("plants", SearchQuery(SearchMode.TEXT, text="a child"))] == [4]

    async def test_search_by_both_lists_is_refused_and_candidates_are_not(self, index: VectorIndex) -> None:
        await index.write("plants", [point(1, "oak")])
        with pytest.raises(VectorIndexError, match="mode"):
            await index.search("plants", SearchQuery(SearchMode.HYBRID, "oak", unit(1, 0, 0, 0)))
        for text, vector, counts in (("oak", None, (0, 1)), ("zebra", unit(1, 0, 0, 0), (1, 0)), ("", None, (0, 0))):
            found = await index.candidates("plants", SearchQuery(SearchMode.HYBRID, text, vector))
            assert (len(found.dense), len(found.text)) == counts

    async def test_hits_have_no_payload_if_it_is_not_requested(self, index: VectorIndex) -> None:
        await index.write("plants", [point(1, "oak", tags=["old"]), point(2, "elm", (0, 1, 0, 0))])
        for mode in ONE_LIST:
            asked = SearchQuery(mode, text="oak", vector=unit(1, 0, 0, 0), limit=1)
            (whole,) = await index.search("plants", asked)
            assert whole.payload["tags"] == ["old"]
            assert await index.search("plants", replace(asked, with_payload=False)) == [replace(whole, payload={})]

    async def test_candidates_equal_the_lists_of_a_search(self, index: VectorIndex) -> None:
        await index.write("plants", [point(n, "garden" + " tree" * n, (1, n, 0, 0)) for n in range(1, 30)])
        await index.write("plants", [point(30, "garden orchid, an orchid", (1, 0, 0, 0)), point(31, "fern", None)])
        query = SearchQuery(SearchMode.HYBRID, "the garden orchid", unit(1, 0, 0, 0), limit=5)
        found = await index.candidates("plants", query)
        assert [id_.int for id_, _ in found.dense][:1] == [30]
        assert len(found.dense) == len(found.text) == 5
        lists = {mode: await index.search("plants", replace(query, mode=mode)) for mode in ONE_LIST}
        assert [id_ for id_, _ in found.dense] == [hit.id for hit in lists[SearchMode.VECTOR]]
        assert [match.id for match in found.text] == [hit.id for hit in lists[SearchMode.TEXT]]
        assert [score for _, score in found.dense] == pytest.approx([hit.score for hit in lists[SearchMode.VECTOR]])
        assert [match.score for match in found.text] == pytest.approx([hit.score for hit in lists[SearchMode.TEXT]])
        first, *others = found.text
        (garden,) = {word for match in others for word in match.words}
        assert set(first.words) > {garden}
        (orchid,) = set(first.words) - {garden}
        assert 2.2 > first.words[orchid] > first.words[garden] > 0

    async def test_candidates_follow_mode_and_filter(self, index: VectorIndex) -> None:
        await index.write("plants", [point(n, "oak", tenant=f"t{n % 2}") for n in range(1, 9)])
        query = SearchQuery(SearchMode.HYBRID, "oak", unit(1, 0, 0, 0), filter=Match("tenant", "t1"))
        for mode, dense, text in ((SearchMode.VECTOR, 4, 0), (SearchMode.TEXT, 0, 4), (SearchMode.HYBRID, 4, 4)):
            found = await index.candidates("plants", replace(query, mode=mode))
            assert (len(found.dense), len(found.text)) == (dense, text)
            assert {id_.int % 2 for id_, _ in found.dense} | {match.id.int % 2 for match in found.text} == {1}
        assert not (await index.candidates("plants", replace(query, mode=SearchMode.TEXT, text="zebra"))).text

    async def test_search_is_restricted_to_the_filter(self, index: VectorIndex) -> None:
        await index.write("plants", [point(n, "oak", tenant=f"t{n % 10}") for n in range(1, 201)])
        for mode in ONE_LIST:
            hits = await index.search(
                "plants",
                SearchQuery(mode, text="oak", vector=unit(1, 0, 0, 0), filter=Match("tenant", "t3"), limit=100),
            )
            assert len(hits) == 20
            assert {hit.payload["tenant"] for hit in hits} == {"t3"}

    @pytest.mark.parametrize("descending", [False, True])
    async def test_lists_with_equal_times_cover_each_point_once(self, index: VectorIndex, descending: bool) -> None:
        # 30 points at 5 times, written in an order that is neither that of ids nor that of times.
        numbers = [(n * 7) % 31 for n in range(1, 31)]
        await index.write("plants", [point(n, at=NOON + timedelta(microseconds=n % 5)) for n in numbers])
        expected = sorted(numbers, key=lambda n: (n % 5, n), reverse=descending)
        for size in (1, 4, 7, 100):
            seen: list[int] = []
            after: Position | None = None
            while True:
                query = ListQuery("created_at", descending=descending, after=after, limit=size)
                page = await index.list_points("plants", query)
                seen += [found.id.int for found in page]
                if len(page) < size:
                    break
                after = Position(datetime.fromisoformat(page[-1].payload["created_at"]), page[-1].id)
            assert seen == expected

    @pytest.mark.parametrize("descending", [False, True])
    async def test_lists_between_two_positions(self, index: VectorIndex, descending: bool) -> None:
        numbers = range(1, 25)
        await index.write("plants", [point(n, at=NOON + timedelta(seconds=n // 6)) for n in numbers])
        order = sorted(numbers, key=lambda n: (n // 6, n), reverse=descending)
        places = {n: Position(NOON + timedelta(seconds=n // 6), pid(n)) for n in numbers}
        for first, last in ((0, 23), (3, 4), (2, 4), (7, 20)):
            query = ListQuery("created_at", descending, after=places[order[first]], before=places[order[last]])
            found = [listed.id.int for listed in await index.list_points("plants", query)]
            assert found == order[first + 1 : last]

    async def test_lists_apply_filters_and_omit_points_without_a_time(self, index: VectorIndex) -> None:
        await index.write("plants", [point(1), point(2, tenant="t2")])
        await index.write("plants", [Point(pid(3), None, "timeless", {"tenant": "t1"})])
        listed = await index.list_points("plants", ListQuery("created_at", filter=Match("tenant", "t1")))
        assert [found.id.int for found in listed] == [1]

    async def test_facets_count_tags(self, index: VectorIndex) -> None:
        await index.write(
            "plants", [point(1, tags=["a", "b"]), point(2, tags=["b"]), point(3, tags=["c"], tenant="t2")]
        )
        assert await index.facets("plants", "tags", Match("tenant", "t1")) == {"a": 1, "b": 2}

    async def test_collection_keeps_its_dimension_and_accepts_new_fields(self, index: VectorIndex) -> None:
        await index.write("plants", [point(1, colour="green")])
        with pytest.raises(CollectionMismatch):
            await index.ensure_collection(Collection("plants", dimension=5))
        await index.ensure_collection(Collection("plants", dimension=4, keyword_fields=("colour",)))
        assert await index.facets("plants", "colour", EVERYTHING) == {"green": 1}

    @pytest.mark.parametrize(
        ("condition", "expected"),
        [
            (HasWords("text", "OLD oak"), [1]),
            (HasWords("text", "OAK 2"), [2]),
            (HasWords("text", "桜の木"), [3]),
            (HasWords("text", "MOSS 桜"), [3]),
            (HasWords("text", "!"), []),
        ],
    )
    async def test_filters_by_words_of_a_text(self, index: VectorIndex, condition: Filter, expected: list[int]) -> None:
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
