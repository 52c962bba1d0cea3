"""Searches of passages by words and by similarity, and the vectors of texts."""

import pytest
from mnemesh.archival.v1.archives_pb2 import Passage
from mnemesh.archival.v1.embeddings_service_pb2 import EmbedTextsRequest
from mnemesh.archival.v1.passages_service_pb2 import (
    PASSAGE_CONTINUITY_CONTINUOUS,
    PASSAGE_SEARCH_MODE_TEXT,
    PASSAGE_SEARCH_MODE_VECTOR,
    TAG_MATCH_ALL,
    DeletePassageRequest,
    GetPassageRequest,
    ListPassagesRequest,
    PassageFilter,
    ResolvedTimeRange,
    SearchPassagesRequest,
)
from mnemesh.types.v1.paging_pb2 import SORT_ORDER_ASCENDING
from mnemesh_kit.errors import InvalidArgument, MnemeshError, PageTokenInvalid
from mnemesh_kit.ids import new_id

from mnemesh_testkit.suites.archival.calls import Archival, ArchivalCases, at


class Embedding(ArchivalCases):
    """Vectors over the RPC."""

    @pytest.mark.parametrize("embedder", ["", "mnemesh/wordllama-256"])
    async def test_vectors_are_those_of_passages(self, client: Archival, embedder: str) -> None:
        archive = await client.archive(embedder=embedder)
        texts = ["an old oak", "a young birch"]
        passages = [await client.one(archive, text) for text in texts]
        stored = [
            (await client.passages.GetPassage(GetPassageRequest(passage_id=each, include_embedding=True))).passage
            for each in passages
        ]
        got = await client.embeddings.EmbedTexts(EmbedTextsRequest(embedder=embedder, texts=[*texts, " "]))
        assert (got.embedder, got.dimension) == (embedder or "mnemesh/hashing-256", 256)
        assert [len(each.values) for each in got.embeddings] == [256] * 3
        for passage, each in zip(stored, got.embeddings, strict=False):
            assert list(each.values) == pytest.approx(list(passage.embedding), abs=1e-6)
        assert not any(got.embeddings[2].values)
        assert got.embeddings[0] != got.embeddings[1]

    async def test_many_texts_are_in_order(self, client: Archival) -> None:
        texts = [f"word{index}" for index in range(300)] + ["long " * 50_000, "last"]
        many = (await client.embeddings.EmbedTexts(EmbedTextsRequest(texts=texts))).embeddings
        for index in (0, 127, 128, 299, 300, 301):
            (alone,) = (await client.embeddings.EmbedTexts(EmbedTextsRequest(texts=[texts[index]]))).embeddings
            assert many[index] == alone

    async def test_unknown_embedder_is_refused(self, client: Archival) -> None:
        with pytest.raises(InvalidArgument) as refused:
            await client.embeddings.EmbedTexts(EmbedTextsRequest(embedder="mnemesh/none", texts=["x"]))
        assert (refused.value.reason, refused.value.field) == ("EMBEDDER_UNKNOWN", "embedder")


class Finding(ArchivalCases):
    """Modes, filters, dates, pages."""

    async def test_search_fuses_text_and_vector_ranks_and_reports_both(self, client: Archival, agent: str) -> None:
        await client.insert(agent, "the red apple", "a green pear", "nothing of the kind")
        found = await client.passages.SearchPassages(
            SearchPassagesRequest(query="apple", filter=PassageFilter(agent_id=agent))
        )
        assert found.hits[0].passage.text == "the red apple"
        assert (found.hits[0].text_rank, found.hits[0].vector_rank) == (1, 1)
        assert [hit.score for hit in found.hits] == sorted((hit.score for hit in found.hits), reverse=True)
        by_words = await client.passages.SearchPassages(
            SearchPassagesRequest(query="apple", mode=PASSAGE_SEARCH_MODE_TEXT)
        )
        assert by_words.hits[0].passage.text == "the red apple"
        assert not any(hit.HasField("vector_rank") for hit in by_words.hits)

    async def test_search_covers_all_archives_of_an_agent(self, client: Archival, agent: str) -> None:
        first, second, foreign = await client.archive(agent), await client.archive(agent), await client.archive()
        for archive, text in ((first, "oak in one"), (second, "oak in two"), (foreign, "oak elsewhere")):
            await client.insert(archive, text)
        assert sorted(await client.texts("oak", filter=PassageFilter(agent_id=agent))) == ["oak in one", "oak in two"]
        assert await client.texts("oak", filter=PassageFilter(agent_id=agent, archive_id=second)) == ["oak in two"]
        assert len(await client.texts("oak")) == 3
        with pytest.raises(MnemeshError) as refused:
            await client.texts("oak", filter=PassageFilter(agent_id=agent, archive_id=foreign))
        assert refused.value.reason == "ARCHIVE_NOT_FOUND"

    async def test_search_covers_several_archives_and_several_files(self, client: Archival, agent: str) -> None:
        archives = [await client.archive() for _ in range(3)]
        files = [new_id("file") for _ in range(3)]
        for number, (archive, file) in enumerate(zip(archives, files, strict=True)):
            await client.insert(archive, Passage(text=f"oak of file {number}", file_id=file), f"oak of {number}")

        async def found(**conditions: object) -> list[str]:
            return sorted(await client.texts("oak", filter=PassageFilter(**conditions)))  # type: ignore[arg-type]

        assert await found(archive_ids=archives[:2]) == ["oak of 0", "oak of 1", "oak of file 0", "oak of file 1"]
        assert await found(file_ids=[files[0], files[2]]) == ["oak of file 0", "oak of file 2"]
        assert await found(archive_ids=archives[:2], file_ids=files[1:]) == ["oak of file 1"]
        assert await found(archive_ids=archives[:1], file_ids=files[1:]) == []
        listed = await client.passages.ListPassages(ListPassagesRequest(filter=PassageFilter(file_ids=files[2:])))
        assert [passage.text for passage in listed.passages] == ["oak of file 2"]
        for conditions, reason in (
            ({"archive_ids": [archives[0], new_id("archive")]}, "ARCHIVE_NOT_FOUND"),
            ({"archive_ids": archives, "agent_id": agent}, "ARCHIVE_NOT_FOUND"),
            ({"file_ids": ["file-1"]}, "INVALID_ARGUMENT"),
            ({"file_ids": [new_id("file") for _ in range(1001)]}, "INVALID_ARGUMENT"),
        ):
            with pytest.raises(MnemeshError) as refused:
                await found(**conditions)
            assert refused.value.reason == reason

    async def test_search_covers_archives_of_different_embedders(self, client: Archival, agent: str) -> None:
        await client.insert(await client.archive(agent, embedder="mnemesh/hashing-256"), "a puppy sleeps")
        await client.insert(
            await client.archive(agent, embedder="mnemesh/wordllama-256"), "the dog barks", "stock prices"
        )
        hits = await client.texts("dog", filter=PassageFilter(agent_id=agent))
        assert hits == ["the dog barks"]
        by_vector = await client.texts(
            "a puppy sleeps", mode=PASSAGE_SEARCH_MODE_VECTOR, filter=PassageFilter(agent_id=agent)
        )
        assert by_vector[0] == "a puppy sleeps"
        newest = ["stock prices", "the dog barks", "a puppy sleeps"]
        assert await client.texts(filter=PassageFilter(agent_id=agent)) == newest
        listed: list[str] = []
        token = ""
        for _ in newest:
            request = ListPassagesRequest(page_size=1, page_token=token, filter=PassageFilter(agent_id=agent))
            page = await client.passages.ListPassages(request)
            listed += [passage.text for passage in page.passages]
            token = page.next_page_token
        assert (listed, token) == (newest, "")

    async def test_blank_query_lists_the_newest_passages(self, client: Archival, agent: str) -> None:
        await client.insert(agent, *(f"note {n}" for n in range(5)))
        assert await client.texts(" ", filter=PassageFilter(agent_id=agent), limit=2) == ["note 4", "note 3"]

    async def test_filters_limit_the_candidates_of_a_search(self, client: Archival, agent: str) -> None:
        # More passages match the query better than a search looks at.
        better = [Passage(text="purple monkey", tags=["b"], create_time=at("2026-02-02T00:00:00")) for _ in range(200)]
        worse = Passage(text="purple dishwasher", tags=["w"], create_time=at("2026-01-01T00:00:00"))
        await client.insert(agent, worse, *better)
        for mode in (PASSAGE_SEARCH_MODE_TEXT, PASSAGE_SEARCH_MODE_VECTOR):
            for bounds in ({"end_date": "2026-01-31"}, {"tags": ["w"]}, {"tags": ["w"], "tag_match": TAG_MATCH_ALL}):
                filter_ = PassageFilter(agent_id=agent, **bounds)
                assert await client.texts("purple monkey", filter=filter_, mode=mode) == [worse.text]

    async def test_filters_by_any_and_by_all_tags(self, client: Archival, agent: str) -> None:
        await client.insert(
            agent, Passage(text="red", tags=["r"]), Passage(text="both", tags=["r", "b"]), Passage(text="none")
        )
        some = PassageFilter(agent_id=agent, tags=["r", "b"])
        assert sorted(await client.texts(filter=some)) == ["both", "red"]
        every = PassageFilter(agent_id=agent, tags=["r", "b"], tag_match=TAG_MATCH_ALL)
        assert await client.texts("red both none", filter=every) == ["both"]

    @pytest.mark.parametrize(
        ("bounds", "expected"),
        [
            ({"start_date": "2026-01-20"}, ["a", "b", "c", "d"]),
            ({"end_date": "2026-01-20"}, ["a", "b", "c"]),
            ({"start_date": "2026-01-20", "end_date": "2026-01-20", "time_zone": "America/New_York"}, ["b", "c", "d"]),
            ({"start_date": "2026-01-20T23:59:59", "end_date": "2026-01-20T23:59:59"}, ["c"]),
            ({"start_date": "2026-01-20T10:00", "time_zone": "Asia/Tokyo"}, ["b", "c", "d"]),
            ({"end_date": "2026-01-20T13:00+01:00"}, ["a", "b"]),
            ({"start_date": "2026-01-22"}, []),
        ],
    )
    async def test_date_filters_use_the_time_zone_of_the_caller_and_include_the_last_day(
        self, client: Archival, agent: str, bounds: dict[str, str], expected: list[str]
    ) -> None:
        times = {
            "a": "2026-01-20T00:00:00",
            "b": "2026-01-20T12:00:00",
            "c": "2026-01-20T23:59:59",
            "d": "2026-01-21T01:00:00",
        }
        await client.insert(agent, *(Passage(text=text, create_time=at(time)) for text, time in times.items()))
        assert sorted(await client.texts(filter=PassageFilter(agent_id=agent, **bounds))) == expected  # type: ignore[arg-type]

    async def test_lists_are_paged_by_token_and_by_id(self, client: Archival, agent: str) -> None:
        answer = await client.insert(agent, *(f"note {n}" for n in range(7)))
        ids = [result.passage.id for result in answer.results]
        mine = PassageFilter(agent_id=agent)

        async def listed(**request: object) -> tuple[list[str], str]:
            page = await client.passages.ListPassages(ListPassagesRequest(filter=mine, **request))  # type: ignore[arg-type]
            return [passage.id for passage in page.passages], page.next_page_token

        newest_first = ids[::-1]
        assert await listed() == (newest_first, "")
        page, token = await listed(page_size=3)
        rest, more = await listed(page_size=3, page_token=token)
        last, end = await listed(page_size=3, page_token=more)
        assert (page + rest + last, end) == (newest_first, "")
        assert (await listed(after_id=ids[3]))[0] == [ids[2], ids[1], ids[0]]
        assert (await listed(before_id=ids[3]))[0] == [ids[6], ids[5], ids[4]]
        assert (await listed(after_id=ids[1], order=SORT_ORDER_ASCENDING, page_size=2))[0] == [ids[2], ids[3]]
        with pytest.raises(PageTokenInvalid):
            await listed(page_size=3, page_token=token, order=SORT_ORDER_ASCENDING)
        await client.passages.DeletePassage(DeletePassageRequest(passage_id=ids[3]))
        assert (await listed(after_id=ids[3]))[0] == [ids[2], ids[1], ids[0]]

    async def test_lists_order_ties_by_id_and_filter_by_words(self, client: Archival, agent: str) -> None:
        same = at("2026-01-01T00:00:00")
        answer = await client.insert(agent, *(Passage(text=f"Note {n} on Trees", create_time=same) for n in range(5)))
        ids = sorted(result.passage.id for result in answer.results)
        request = ListPassagesRequest(filter=PassageFilter(agent_id=agent), order=SORT_ORDER_ASCENDING)
        assert [passage.id for passage in (await client.passages.ListPassages(request)).passages] == ids
        request.text_search = "TREES 3"
        assert [passage.text for passage in (await client.passages.ListPassages(request)).passages] == [
            "Note 3 on Trees"
        ]
        request.ClearField("text_search")
        request.text_contains = "E 2 ON TR"
        assert [passage.text for passage in (await client.passages.ListPassages(request)).passages] == [
            "Note 2 on Trees"
        ]


class Asking(ArchivalCases):
    """Queries the way agents ask them."""

    async def test_several_queries_find_what_each_of_them_finds(self, client: Archival, agent: str) -> None:
        await client.insert(agent, "The otter swims", "The stoat sleeps", "A gull", "Nothing")
        request = {"mode": PASSAGE_SEARCH_MODE_TEXT, "filter": PassageFilter(agent_id=agent)}
        found = await client.texts("otter swimming", further_queries=["sleeping stoat", " ", "gull"], **request)
        assert set(found) == {"The otter swims", "The stoat sleeps", "A gull"}
        assert await client.texts(" ", further_queries=["gull"], **request) == ["A gull"]
        assert len(await client.texts("", further_queries=["", " "], **request)) == 4

    async def test_a_hit_has_the_passages_of_its_text_around_it(self, client: Archival, agent: str) -> None:
        parts = [f"part {word}" for word in ("one", "two", "of the heron", "four")]
        await client.insert(agent, *parts, continuity=PASSAGE_CONTINUITY_CONTINUOUS)
        await client.insert(agent, "a fact by itself")
        found = await client.passages.SearchPassages(
            SearchPassagesRequest(
                query="heron", passages_before=1, passages_after=10, limit=1, filter=PassageFilter(agent_id=agent)
            )
        )
        (hit,) = found.hits
        assert [each.text for each in hit.before] == ["part two"]
        assert [each.text for each in hit.after] == ["part four"]

    async def test_passages_of_a_named_time_come_first_and_others_are_found(self, client: Archival, agent: str) -> None:
        months = {f"2025-{month:02d}-15T12:00": f"the beach, note {month}" for month in (3, 5, 7)}
        await client.insert(agent, *(Passage(text=text, create_time=at(time)) for time, text in months.items()))
        request = SearchPassagesRequest(
            query="the beach between February and April",
            mode=PASSAGE_SEARCH_MODE_TEXT,
            filter=PassageFilter(agent_id=agent, time_zone="Asia/Tokyo"),
            reference_time=at("2026-01-20T12:00"),
        )
        found = await client.passages.SearchPassages(request)
        assert found.hits[0].passage.text == "the beach, note 3"
        assert len(found.hits) == 3
        spring = ResolvedTimeRange(
            expression="between February and April",
            start_time=at("2025-01-31T15:00"),
            end_time=at("2025-04-30T15:00"),
        )
        assert list(found.time_ranges) == [spring]
        request.query = "the beach before 2020"
        (before,) = (await client.passages.SearchPassages(request)).time_ranges
        assert (before.HasField("start_time"), before.HasField("end_time")) == (False, True)
        request.ClearField("reference_time")
        assert not (await client.passages.SearchPassages(request)).time_ranges
