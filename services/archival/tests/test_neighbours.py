"""Search also ranks passages by the words of their neighbours in dialogues and documents."""

import asyncio
import random
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.timestamp_pb2 import Timestamp
from mnemesh.archival.v1.archives_pb2 import Passage
from mnemesh.archival.v1.passages_service_pb2 import (
    PASSAGE_CONTINUITY_CONTINUOUS,
    PASSAGE_SEARCH_MODE_HYBRID,
    PASSAGE_SEARCH_MODE_TEXT,
    PASSAGE_SEARCH_MODE_VECTOR,
    DeletePassageRequest,
    PassageFilter,
    PassageSearchMode,
    SearchPassagesRequest,
    UpdatePassageRequest,
)
from mnemesh_archival.store.tables import passages
from mnemesh_kit.ids import new_id
from mnemesh_kit.sql import Database
from mnemesh_retrieval.registry import WORDLLAMA

from .conftest import ArchivalServer

MAY = datetime(2023, 5, 8, 13, 56, tzinfo=UTC)


def stamp(when: datetime) -> Timestamp:
    timestamp = Timestamp()
    timestamp.FromDatetime(when)
    return timestamp


def turns(*texts: str, at: datetime = MAY, **fields: object) -> Iterable[Passage]:
    return [
        Passage(text=text, create_time=stamp(at + timedelta(minutes=n)), **fields)  # type: ignore[arg-type]
        for n, text in enumerate(texts)
    ]


async def by_words(archival: ArchivalServer, query: str, **which: object) -> list[str]:
    return await archival.texts(query, mode=PASSAGE_SEARCH_MODE_TEXT, limit=100, filter=PassageFilter(**which))  # type: ignore[arg-type]


async def test_answer_is_found_by_the_words_of_its_question(archival: ArchivalServer) -> None:
    archive = await archival.archive()
    await archival.insert(archive, *turns("How was your week?", "Quiet, and yours?"))
    later = MAY + timedelta(days=3)
    question = "Did you buy that used motorcycle?"
    for text in turns(question, "I picked it up this morning!", "Enjoy it?", at=later):
        await archival.insert(archive, text)
    for mode in (PASSAGE_SEARCH_MODE_TEXT, PASSAGE_SEARCH_MODE_HYBRID):
        found = await archival.passages.SearchPassages(
            SearchPassagesRequest(query="When did she buy the motorcycle?", mode=mode)
        )
        assert [hit.passage.text for hit in found.hits][:3] == ["I picked it up this morning!", question, "Enjoy it?"]
        assert [hit.text_rank for hit in found.hits][:3] == [1, 2, 3]
    assert await by_words(archival, "motorcycle") == ["I picked it up this morning!", question, "Enjoy it?"]


async def test_neighbours_share_archive_file_writer_and_time(archival: ArchivalServer, agent: str) -> None:
    archive, other = await archival.archive(agent), await archival.archive()
    file = new_id("file")
    await archival.insert(archive, *turns("an oak"))
    await archival.insert(other, *turns("of another archive"))
    await archival.insert(archive, *turns("of a file", file_id=file))
    await archival.insert(agent, *turns("of an agent"))
    assert await by_words(archival, "oak") == ["an oak"]
    await archival.insert(archive, *turns("of another day", at=MAY + timedelta(days=1)))
    assert await by_words(archival, "oak") == ["an oak"]
    await archival.insert(archive, *turns("a chapter on oaks", "its next page", file_id=file))
    assert await by_words(archival, "chapter") == ["a chapter on oaks", "its next page"]


async def test_independent_facts_keep_their_order(archival: ArchivalServer) -> None:
    archive = await archival.archive()
    likings = "Ada orchids, Ben rowing, Cleo ramen, Dan jazz, Eva chess, Finn orchids, Gil surfing, Hana quilts"
    facts = [f"{each.replace(' ', ' likes ')}." for each in likings.split(", ")]
    for fact in facts:
        await archival.insert(archive, fact)
    for fact in facts:
        words = fact.removesuffix(".").replace("likes ", "")
        assert (await archival.texts(words))[0] == fact
    assert set((await archival.texts("orchids"))[:2]) == {facts[0], facts[5]}


async def test_deleted_or_changed_passage_no_longer_affects_its_neighbours(archival: ArchivalServer) -> None:
    archive = await archival.archive()
    described = turns("the lighthouse", "we went there", "the windmill", "and there")
    inserted = await archival.insert(archive, *described, continuity=PASSAGE_CONTINUITY_CONTINUOUS)
    lighthouse, _, windmill, _ = (result.passage.id for result in inserted.results)
    assert "we went there" in await by_words(archival, "lighthouse")
    await archival.passages.DeletePassage(DeletePassageRequest(passage_id=lighthouse))
    assert await by_words(archival, "lighthouse") == []
    assert (await by_words(archival, "windmill"))[0] == "the windmill"
    change = UpdatePassageRequest(
        passage=Passage(id=windmill, text="the sawmill"), update_mask=FieldMask(paths=["text"])
    )
    await archival.passages.UpdatePassage(change)
    assert await by_words(archival, "windmill") == []
    assert "the lighthouse" not in await by_words(archival, "sawmill")


async def test_no_hit_is_ever_outside_the_filter(archival: ArchivalServer, agent: str) -> None:
    chance = random.Random(5)
    archives = [await archival.archive(agent), await archival.archive(agent), await archival.archive()]
    files = [new_id("file"), new_id("file")]
    words = ["oak", "elm", "fern", "moss", "ivy", "reed"]
    for archive in archives:
        drafts = [
            Passage(
                text=" ".join(chance.sample(words, 2)) if n % 2 else f"remark {n}",
                tags=chance.sample(["red", "blue", "green"], chance.randrange(3)),
                file_id=chance.choice(files),
                create_time=stamp(MAY + timedelta(hours=n)),
            )
            for n in range(40)
        ]
        await archival.insert(archive, *drafts, continuity=PASSAGE_CONTINUITY_CONTINUOUS)
    modes = (PASSAGE_SEARCH_MODE_HYBRID, PASSAGE_SEARCH_MODE_TEXT, PASSAGE_SEARCH_MODE_VECTOR)
    neighbours = 0
    for n in range(36):
        tags, archive, file = chance.sample(["red", "blue"], n % 2), chance.choice(archives), chance.choice(files)
        since, until = sorted(chance.sample(range(40), 2))
        which = PassageFilter(
            archive_id=archive, tags=tags, file_id=file if n % 3 else None,
            start_date=(MAY + timedelta(hours=since)).isoformat(), end_date=(MAY + timedelta(hours=until)).isoformat(),
        )  # fmt: skip
        query = " ".join(chance.sample(words, 2))
        found = await archival.passages.SearchPassages(
            SearchPassagesRequest(query=query, mode=modes[n // 2 % 3], filter=which, limit=50)
        )
        for hit in found.hits:
            passage = hit.passage
            assert passage.archive_id == archive
            assert not tags or set(tags) & set(passage.tags)
            assert n % 3 == 0 or passage.file_id == file
            hours = (passage.create_time.ToDatetime(tzinfo=UTC) - MAY) / timedelta(hours=1)
            assert since <= hours <= until
            neighbours += hit.HasField("text_rank") and passage.text.startswith("remark")
    assert neighbours  # the filter applied to neighbours, too


async def test_concurrent_inserts_get_unique_positions(archival: ArchivalServer) -> None:
    archive = await archival.archive()
    batches = [[f"{n} says {word}" for word in ("one", "two", "three")] for n in range(16)]
    answers = await asyncio.gather(*(archival.insert(archive, *turns(*batch)) for batch in batches))
    database = Database.open(archival.config.database)
    stored = await database.read(lambda conn: conn.execute(sa.select(passages.c.id, passages.c.position)).all())
    await database.close()
    positions = {row.id: row.position for row in stored}
    assert sorted(positions.values()) == list(range(1, 49))
    for answer in answers:
        first, second, third = (positions[result.passage.id] for result in answer.results)
        assert (second, third) == (first + 1, first + 2)


async def test_search_of_many_archives_runs_as_many_sql_statements_as_one_of_a_single_archive(
    archival: ArchivalServer,
) -> None:
    statements: list[str] = []

    def note(_conn: object, _cursor: object, statement: str, *_rest: object) -> None:
        statements.append(statement)

    parts = {"continuity": PASSAGE_CONTINUITY_CONTINUOUS}
    await archival.insert(await archival.archive(), *turns("an oak", "that tree"), **parts)
    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        assert await by_words(archival, "oak") == ["an oak", "that tree"]
        of_one = len(statements)
        sa.event.remove(sa.Engine, "before_cursor_execute", note)
        for n in range(8):
            await archival.insert(await archival.archive(), *turns(f"oak {n}", f"tree {n}"), **parts)
        sa.event.listen(sa.Engine, "before_cursor_execute", note)
        statements.clear()
        assert len(await by_words(archival, "oak")) == 18
        assert len(statements) == of_one
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)


@pytest.mark.parametrize("mode", [PASSAGE_SEARCH_MODE_HYBRID, PASSAGE_SEARCH_MODE_VECTOR])
async def test_the_name_of_a_speaker_in_a_query_does_not_make_short_turns_similar(
    archival: ArchivalServer, mode: "PassageSearchMode.ValueType"
) -> None:
    archive = await archival.archive(embedder=WORDLLAMA)
    injury = "Ximena: I tore a ligament on the trampoline."
    said = [injury, "Theo: When?", "Ximena: Friday.", "Theo: Ouch!", "Ximena: Okay!", "Theo: Hm.", "Ximena: No way!"]
    await archival.insert(archive, *turns(*said), continuity=PASSAGE_CONTINUITY_CONTINUOUS)
    found = await archival.passages.SearchPassages(
        SearchPassagesRequest(query="How did Ximena injure herself?", mode=mode)
    )
    assert {hit.vector_rank: hit.passage.text for hit in found.hits}[1] == injury
