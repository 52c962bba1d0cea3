"""The conformance suite of `VectorIndex`. Subclass it with an `index` fixture for each backend."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import numpy as np
import pytest
from mnemesh_retrieval.errors import CollectionMismatch, VectorIndexError
from mnemesh_retrieval.filters import (
    EVERYTHING,
    Filter,
    HasWords,
    Match,
)
from mnemesh_retrieval.index import (
    Collection,
    ListQuery,
    Point,
    Position,
    SearchMode,
    SearchQuery,
    VectorIndex,
    WriteMode,
    instant,
)

from mnemesh_testkit.suites.nearest_index import NOON, NearestIndexSuite, pid, point, unit

ONE_LIST = (SearchMode.DENSE, SearchMode.TEXT)
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
        assert [id_ for id_, _ in found.dense] == [hit.id for hit in lists[SearchMode.DENSE]]
        assert [match.id for match in found.text] == [hit.id for hit in lists[SearchMode.TEXT]]
        assert [score for _, score in found.dense] == pytest.approx([hit.score for hit in lists[SearchMode.DENSE]])
        assert [match.score for match in found.text] == pytest.approx([hit.score for hit in lists[SearchMode.TEXT]])
        first, *others = found.text
        (garden,) = {word for match in others for word in match.words}
        assert set(first.words) > {garden}
        (orchid,) = set(first.words) - {garden}
        assert 2.2 > first.words[orchid] > first.words[garden] > 0

    async def test_candidates_follow_mode_and_filter(self, index: VectorIndex) -> None:
        await index.write("plants", [point(n, "oak", tenant=f"t{n % 2}") for n in range(1, 9)])
        query = SearchQuery(SearchMode.HYBRID, "oak", unit(1, 0, 0, 0), filter=Match("tenant", "t1"))
        for mode, dense, text in ((SearchMode.DENSE, 4, 0), (SearchMode.TEXT, 0, 4), (SearchMode.HYBRID, 4, 4)):
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
