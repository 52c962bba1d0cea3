"""Passages as a caller sees them: written once, found by words and by meaning, gone when deleted."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest
from engram.archival.v1.archives_pb2 import PASSAGE_SOURCE_AGENT, PASSAGE_SOURCE_IMPORT, Passage
from engram.archival.v1.passages_service_pb2 import (
    PASSAGE_SEARCH_MODE_TEXT,
    PASSAGE_SEARCH_MODE_VECTOR,
    TAG_MATCH_ALL,
    DeletePassageRequest,
    GetPassageRequest,
    ListPassagesRequest,
    PassageFilter,
    SearchPassagesRequest,
    UpdatePassageRequest,
)
from engram.types.v1.paging_pb2 import SORT_ORDER_ASCENDING
from engram_kit.errors import EngramError, NotFound, PageTokenInvalid, RequestIdReused
from engram_kit.ids import new_id
from engram_kit.principal import Principal, as_principal
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.timestamp_pb2 import Timestamp

from .conftest import Room

OTHERS = Principal(new_id("org"), new_id("user"))


def at(text: str) -> Timestamp:
    stamp = Timestamp()
    stamp.FromDatetime(datetime.fromisoformat(text).replace(tzinfo=UTC))
    return stamp


async def test_a_passage_comes_back_as_it_was_given(room: Room) -> None:
    archive = await room.archive()
    given = Passage(
        text="Éva likes  two\nlines\t& tabs",
        tags=["b", "a", "b"],
        metadata='{"z": 1, "a": 12345678901234567890}',
        source=PASSAGE_SOURCE_IMPORT,
        file_id=new_id("file"),
        folder_id=new_id("source"),
        file_name="notes.txt",
        chunk_index=0,
        create_time=at("2020-02-29T12:30:00.123456"),
    )
    (result,) = (await room.insert(archive, given)).results
    got = (await room.passages.GetPassage(GetPassageRequest(passage_id=result.passage.id))).passage
    assert got == result.passage
    assert list(got.tags) == ["b", "a"]
    for name in ("text", "metadata", "source", "file_id", "folder_id", "file_name", "create_time"):
        assert getattr(got, name) == getattr(given, name)
    assert got.HasField("chunk_index")
    assert not got.embedding
    seen = await room.passages.GetPassage(GetPassageRequest(passage_id=got.id, include_embedding=True))
    assert len(seen.passage.embedding) == 256


async def test_an_agents_first_insert_makes_its_archive_once(room: Room, agent: str) -> None:
    await asyncio.gather(*(room.insert(agent, f"fact {n}") for n in range(8)))
    assert len(await room.texts(filter=PassageFilter(agent_id=agent), limit=100)) == 8
    summary = await room.summary(agent)
    assert summary.passage_count == 8
    found = await room.passages.ListPassages(ListPassagesRequest(filter=PassageFilter(agent_id=agent)))
    assert len({passage.archive_id for passage in found.passages}) == 1
    assert {(passage.source, passage.agent_id) for passage in found.passages} == {(PASSAGE_SOURCE_AGENT, agent)}


async def test_a_repeat_is_the_first_insert(room: Room, agent: str) -> None:
    first = await room.insert(agent, "one", "two", request_id="r1")
    again = await room.insert(agent, "one", "two", request_id="r1")
    assert again == first
    assert (await room.summary(agent)).passage_count == 2
    with pytest.raises(RequestIdReused):
        await room.insert(agent, "three", request_id="r1")


async def test_repeats_at_once_are_one(room: Room, agent: str) -> None:
    answers = await asyncio.gather(*(room.insert(agent, "one", "two", request_id="r1") for _ in range(6)))
    assert len({answer.SerializeToString(deterministic=True) for answer in answers}) == 1
    assert (await room.summary(agent)).passage_count == 2
    assert len(await room.texts(filter=PassageFilter(agent_id=agent))) == 2


async def test_a_late_repeat_neither_reverts_nor_resurrects(room: Room, agent: str) -> None:
    first = await room.insert(agent, "keep", "change", "drop", request_id="r1")
    keep, change, drop = (result.passage.id for result in first.results)
    await room.passages.UpdatePassage(
        UpdatePassageRequest(passage=Passage(id=change, text="changed"), update_mask=FieldMask(paths=["text"]))
    )
    await room.passages.DeletePassage(DeletePassageRequest(passage_id=drop))
    again = await room.insert(agent, "keep", "change", "drop", request_id="r1")
    assert [result.passage.text for result in again.results] == ["keep", "changed", ""]
    assert [result.deleted for result in again.results] == [False, False, True]
    assert [result.passage.id for result in again.results] == [keep, change, drop]
    assert sorted(await room.texts(filter=PassageFilter(agent_id=agent))) == ["changed", "keep"]
    assert (await room.summary(agent)).passage_count == 2


async def test_part_of_a_batch_may_fail(room: Room) -> None:
    archive = await room.archive()
    taken = await room.one(archive, "first")
    answer = await room.insert(archive, "good", " \n", Passage(text="x", tags=["\x07"]), Passage(text="y", id=taken))
    kinds = [result.WhichOneof("result") for result in answer.results]
    assert kinds == ["passage", "failure", "failure", "failure"]
    reasons = [result.failure.reason for result in answer.results[1:]]
    assert reasons == ["INVALID_ARGUMENT", "INVALID_ARGUMENT", "ALREADY_EXISTS"]
    assert "passages[1].text" in answer.results[1].failure.message
    assert sorted(await room.texts(filter=PassageFilter(archive_id=archive))) == ["first", "good"]
    with pytest.raises(EngramError) as refused:
        await room.insert(archive, Passage(text="y", id=taken))
    assert refused.value.reason == "ALREADY_EXISTS"


async def test_an_importer_keeps_its_ids_in_every_organization(room: Room) -> None:
    imported = Passage(id=new_id("passage"), text="brought along")
    mine = await room.archive()
    await room.insert(mine, imported)
    with as_principal(OTHERS):
        theirs = await room.archive()
        await room.insert(theirs, imported)
        await room.passages.DeletePassage(DeletePassageRequest(passage_id=imported.id))
    got = await room.passages.GetPassage(GetPassageRequest(passage_id=imported.id))
    assert (got.passage.text, got.passage.archive_id) == ("brought along", mine)


async def test_an_archive_that_deduplicates_holds_a_text_once(room: Room) -> None:
    archive = await room.archive(deduplicate=True)
    (first, twin) = (await room.insert(archive, "same", "same")).results
    (again,) = (await room.insert(archive, "same")).results
    assert (first.duplicate, twin.duplicate, again.duplicate) == (False, True, True)
    assert first.passage.id == twin.passage.id == again.passage.id
    await room.passages.DeletePassage(DeletePassageRequest(passage_id=first.passage.id))
    (fresh,) = (await room.insert(archive, "same")).results
    assert not fresh.duplicate
    assert await room.texts(filter=PassageFilter(archive_id=archive)) == ["same"]


async def test_updates_touch_what_the_mask_names(room: Room, agent: str) -> None:
    passage = await room.one(agent, "old words", tags=["a"], metadata="{}")
    before = (await room.passages.GetPassage(GetPassageRequest(passage_id=passage))).passage

    async def update(paths: list[str], **fields: object) -> Passage:
        draft = Passage(id=passage, **fields)  # type: ignore[arg-type]
        request = UpdatePassageRequest(passage=draft, update_mask=FieldMask(paths=paths))
        updated: Passage = (await room.passages.UpdatePassage(request)).passage
        return updated

    tagged = await update(["tags"], tags=["b"], text="ignored")
    assert (tagged.text, list(tagged.tags), tagged.metadata) == ("old words", ["b"], "{}")
    assert await room.texts("words", mode=PASSAGE_SEARCH_MODE_TEXT) == ["old words"]
    reworded = await update(["text", "metadata"], text="new sentence")
    assert (list(reworded.tags), reworded.HasField("metadata")) == (["b"], False)
    assert reworded.create_time == before.create_time
    assert reworded.update_time.ToDatetime() > before.update_time.ToDatetime()
    assert await room.texts("words", mode=PASSAGE_SEARCH_MODE_TEXT) == []
    assert await room.texts("sentence", mode=PASSAGE_SEARCH_MODE_VECTOR, limit=1) == ["new sentence"]
    assert list((await room.summary(agent)).tags) == ["b"]


async def test_updates_at_once_all_count(room: Room, agent: str) -> None:
    passage = await room.one(agent, "text")

    async def update(field: str, draft: Passage) -> None:
        request = UpdatePassageRequest(passage=draft, update_mask=FieldMask(paths=[field]))
        await room.passages.UpdatePassage(request)

    await asyncio.gather(
        *(update("tags", Passage(id=passage, tags=[f"t{n}"])) for n in range(5)),
        update("text", Passage(id=passage, text="other")),
        update("metadata", Passage(id=passage, metadata='{"a":1}')),
    )
    got = (await room.passages.GetPassage(GetPassageRequest(passage_id=passage))).passage
    assert (got.text, got.metadata, len(got.tags)) == ("other", '{"a":1}', 1)
    assert list((await room.summary(agent)).tags) == list(got.tags)


async def test_deleting_is_for_ever_and_may_be_repeated(room: Room, agent: str) -> None:
    passage = await room.one(agent, "gone soon", tags=["x"])
    for _ in range(2):
        await room.passages.DeletePassage(DeletePassageRequest(passage_id=passage))
    with pytest.raises(NotFound):
        await room.passages.GetPassage(GetPassageRequest(passage_id=passage))
    with pytest.raises(NotFound):
        await room.passages.DeletePassage(DeletePassageRequest(passage_id=new_id("passage")))
    summary = await room.summary(agent)
    assert (summary.passage_count, list(summary.tags)) == (0, [])
    assert await room.texts("gone") == []


async def test_another_organization_sees_nothing(room: Room, agent: str) -> None:
    passage = await room.one(agent, "secret plan")
    archive = (await room.passages.GetPassage(GetPassageRequest(passage_id=passage))).passage.archive_id
    with as_principal(OTHERS):
        assert await room.texts("secret plan") == []
        assert await room.texts(filter=PassageFilter(agent_id=agent)) == []
        assert (await room.summary(agent)).passage_count == 0
        for call in (
            room.passages.GetPassage(GetPassageRequest(passage_id=passage)),
            room.passages.DeletePassage(DeletePassageRequest(passage_id=passage)),
            room.insert(archive, "intruder"),
            room.texts("secret", filter=PassageFilter(archive_id=archive)),
            room.passages.ListPassages(ListPassagesRequest(after_id=passage)),
        ):
            with pytest.raises(NotFound):
                await call
    assert await room.texts("plan") == ["secret plan"]


async def test_search_fuses_words_and_meaning_and_says_where_it_found(room: Room, agent: str) -> None:
    await room.insert(agent, "the red apple", "a green pear", "nothing of the kind")
    found = await room.passages.SearchPassages(
        SearchPassagesRequest(query="apple", filter=PassageFilter(agent_id=agent))
    )
    assert found.hits[0].passage.text == "the red apple"
    assert (found.hits[0].text_rank, found.hits[0].vector_rank) == (1, 1)
    assert [hit.score for hit in found.hits] == sorted((hit.score for hit in found.hits), reverse=True)
    by_words = await room.passages.SearchPassages(SearchPassagesRequest(query="apple", mode=PASSAGE_SEARCH_MODE_TEXT))
    assert by_words.hits[0].passage.text == "the red apple"
    assert not any(hit.HasField("vector_rank") for hit in by_words.hits)


async def test_all_archives_of_an_agent_are_searched_as_one(room: Room, agent: str) -> None:
    first, second, foreign = await room.archive(agent), await room.archive(agent), await room.archive()
    for archive, text in ((first, "oak in one"), (second, "oak in two"), (foreign, "oak elsewhere")):
        await room.insert(archive, text)
    assert sorted(await room.texts("oak", filter=PassageFilter(agent_id=agent))) == ["oak in one", "oak in two"]
    assert await room.texts("oak", filter=PassageFilter(agent_id=agent, archive_id=second)) == ["oak in two"]
    assert len(await room.texts("oak")) == 3
    with pytest.raises(EngramError) as refused:
        await room.texts("oak", filter=PassageFilter(agent_id=agent, archive_id=foreign))
    assert refused.value.reason == "ARCHIVE_NOT_FOUND"


async def test_archives_of_different_embedders_are_searched_as_one(room: Room, agent: str) -> None:
    await room.insert(await room.archive(agent, embedder="engram/hashing-256"), "a puppy sleeps")
    await room.insert(await room.archive(agent, embedder="engram/wordllama-256"), "the dog barks", "stock prices")
    hits = await room.texts("dog", filter=PassageFilter(agent_id=agent))
    assert hits[0] == "the dog barks"
    assert len(await room.texts("dog", mode=PASSAGE_SEARCH_MODE_VECTOR, filter=PassageFilter(agent_id=agent))) == 3
    newest = ["stock prices", "the dog barks", "a puppy sleeps"]
    assert await room.texts(filter=PassageFilter(agent_id=agent)) == newest
    listed: list[str] = []
    token = ""
    for _ in newest:
        request = ListPassagesRequest(page_size=1, page_token=token, filter=PassageFilter(agent_id=agent))
        page = await room.passages.ListPassages(request)
        listed += [passage.text for passage in page.passages]
        token = page.next_page_token
    assert (listed, token) == (newest, "")


async def test_a_blank_query_lists_the_newest(room: Room, agent: str) -> None:
    await room.insert(agent, *(f"note {n}" for n in range(5)))
    assert await room.texts(" ", filter=PassageFilter(agent_id=agent), limit=2) == ["note 4", "note 3"]


async def test_tags_any_and_all(room: Room, agent: str) -> None:
    await room.insert(
        agent, Passage(text="red", tags=["r"]), Passage(text="both", tags=["r", "b"]), Passage(text="none")
    )
    some = PassageFilter(agent_id=agent, tags=["r", "b"])
    assert sorted(await room.texts(filter=some)) == ["both", "red"]
    every = PassageFilter(agent_id=agent, tags=["r", "b"], tag_match=TAG_MATCH_ALL)
    assert await room.texts("red both none", filter=every) == ["both"]


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
async def test_dates_are_the_callers_and_the_end_day_counts(
    room: Room, agent: str, bounds: dict[str, str], expected: list[str]
) -> None:
    times = {
        "a": "2026-01-20T00:00:00",
        "b": "2026-01-20T12:00:00",
        "c": "2026-01-20T23:59:59",
        "d": "2026-01-21T01:00:00",
    }
    await room.insert(agent, *(Passage(text=text, create_time=at(time)) for text, time in times.items()))
    assert sorted(await room.texts(filter=PassageFilter(agent_id=agent, **bounds))) == expected  # type: ignore[arg-type]


async def test_lists_page_by_token_and_by_id(room: Room, agent: str) -> None:
    answer = await room.insert(agent, *(f"note {n}" for n in range(7)))
    ids = [result.passage.id for result in answer.results]
    mine = PassageFilter(agent_id=agent)

    async def listed(**request: object) -> tuple[list[str], str]:
        page = await room.passages.ListPassages(ListPassagesRequest(filter=mine, **request))  # type: ignore[arg-type]
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
    await room.passages.DeletePassage(DeletePassageRequest(passage_id=ids[3]))
    assert (await listed(after_id=ids[3]))[0] == [ids[2], ids[1], ids[0]]


async def test_lists_break_ties_by_id_and_look_for_words(room: Room, agent: str) -> None:
    same = at("2026-01-01T00:00:00")
    answer = await room.insert(agent, *(Passage(text=f"Note {n} on Trees", create_time=same) for n in range(5)))
    ids = sorted(result.passage.id for result in answer.results)
    request = ListPassagesRequest(filter=PassageFilter(agent_id=agent), order=SORT_ORDER_ASCENDING)
    assert [passage.id for passage in (await room.passages.ListPassages(request)).passages] == ids
    request.text_search = "TREES 3"
    assert [passage.text for passage in (await room.passages.ListPassages(request)).passages] == ["Note 3 on Trees"]


async def test_everything_is_there_after_a_restart(room: Room, agent: str) -> None:
    await room.insert(agent, "the red apple")
    before = await room.summary(agent)
    await room.stop()
    await room.start()
    assert await room.texts("apple", filter=PassageFilter(agent_id=agent)) == ["the red apple"]
    assert await room.summary(agent) == before
