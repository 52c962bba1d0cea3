"""Passages: inserted once, updated by mask, and deleted."""

import asyncio
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from mnemesh.archival.v1.archives_pb2 import PASSAGE_SOURCE_AGENT, PASSAGE_SOURCE_IMPORT, EmbedderIdentity, Passage
from mnemesh.archival.v1.embeddings_service_pb2 import EmbedTextsRequest
from mnemesh.archival.v1.passages_service_pb2 import (
    PASSAGE_SEARCH_MODE_TEXT,
    PASSAGE_SEARCH_MODE_VECTOR,
    VECTOR_USE_KEPT,
    VECTOR_USE_OTHER_DIMENSION,
    VECTOR_USE_OTHER_EMBEDDER,
    VECTOR_USE_UNSPECIFIED,
    DeletePassageRequest,
    DeletePassagesRequest,
    GetPassageRequest,
    ListPassagesRequest,
    PassageFilter,
    UpdatePassageRequest,
)
from mnemesh_kit.call_context import as_principal
from mnemesh_kit.errors import InvalidArgument, MnemeshError, NotFound, RequestIdReused
from mnemesh_kit.ids import new_id

from mnemesh_testkit.suites.archival.calls import Archival, ArchivalCases, at, reason, stranger


class Passages(ArchivalCases):
    """Inserts, repeats, updates, deletions, organizations."""

    async def test_inserted_passage_is_returned_unchanged(self, client: Archival) -> None:
        archive = await client.archive()
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
        (result,) = (await client.insert(archive, given)).results
        got = (await client.passages.GetPassage(GetPassageRequest(passage_id=result.passage.id))).passage
        assert got == result.passage
        assert list(got.tags) == ["b", "a"]
        for name in ("text", "metadata", "source", "file_id", "folder_id", "file_name", "create_time"):
            assert getattr(got, name) == getattr(given, name)
        assert got.HasField("chunk_index")
        assert not got.embedding
        seen = await client.passages.GetPassage(GetPassageRequest(passage_id=got.id, include_embedding=True))
        assert len(seen.passage.embedding) == 256

    async def test_passages_are_deleted_by_ids_or_by_file(self, client: Archival) -> None:
        archive, other = await client.archive(), await client.archive()
        file = new_id("file")
        by_id = [await client.one(archive, f"apple {n}") for n in range(3)]
        await client.insert(archive, *(Passage(text=f"apple {n}", file_id=file) for n in range(1000)))
        await client.one(archive, "apple again", file_id=file)
        elsewhere = await client.one(other, "apple elsewhere", file_id=file)

        async def deleted(archive_id: str, **selection: object) -> tuple[int, bool]:
            request = DeletePassagesRequest(archive_id=archive_id, **selection)  # type: ignore[arg-type]
            answer = await client.passages.DeletePassages(request)
            return answer.deleted_passages, answer.has_more

        for bad in ({}, {"file_id": file, "passage_ids": by_id}, {"passage_ids": [new_id("passage")] * 1001}):
            assert await reason(deleted(archive, **bad)) == "INVALID_ARGUMENT"
        assert await reason(deleted(new_id("archive"), file_id=file)) == "ARCHIVE_NOT_FOUND"
        some = [*by_id[1:], elsewhere, new_id("passage")]
        for _ in range(2):
            assert await deleted(archive, passage_ids=some, request_id="d") == (2, False)
        assert await deleted(archive, file_id=file) == (1000, True)
        assert await deleted(archive, file_id=file) == (1, False)
        assert await deleted(archive, file_id=file) == (0, False)
        assert sorted(await client.texts("apple")) == ["apple 0", "apple elsewhere"]

    async def test_first_insert_of_an_agent_creates_its_archive_once(self, client: Archival, agent: str) -> None:
        await asyncio.gather(*(client.insert(agent, f"fact {n}") for n in range(8)))
        assert len(await client.texts(filter=PassageFilter(agent_id=agent), limit=100)) == 8
        summary = await client.summary(agent)
        assert summary.passage_count == 8
        found = await client.passages.ListPassages(ListPassagesRequest(filter=PassageFilter(agent_id=agent)))
        assert len({passage.archive_id for passage in found.passages}) == 1
        assert {(passage.source, passage.agent_id) for passage in found.passages} == {(PASSAGE_SOURCE_AGENT, agent)}

    async def test_repeated_insert_returns_the_first_result(self, client: Archival, agent: str) -> None:
        first = await client.insert(agent, "one", "two", request_id="r1")
        again = await client.insert(agent, "one", "two", request_id="r1")
        assert again == first
        assert (await client.summary(agent)).passage_count == 2
        with pytest.raises(RequestIdReused):
            await client.insert(agent, "three", request_id="r1")

    async def test_concurrent_repeats_insert_once(self, client: Archival, agent: str) -> None:
        answers = await asyncio.gather(*(client.insert(agent, "one", "two", request_id="r1") for _ in range(6)))
        assert len({answer.SerializeToString(deterministic=True) for answer in answers}) == 1
        assert (await client.summary(agent)).passage_count == 2
        assert len(await client.texts(filter=PassageFilter(agent_id=agent))) == 2

    async def test_late_repeat_neither_reverts_an_update_nor_restores_a_deleted_passage(
        self, client: Archival, agent: str
    ) -> None:
        first = await client.insert(agent, "keep", "change", "drop", request_id="r1")
        keep, change, drop = (result.passage.id for result in first.results)
        await client.passages.UpdatePassage(
            UpdatePassageRequest(passage=Passage(id=change, text="changed"), update_mask=FieldMask(paths=["text"]))
        )
        await client.passages.DeletePassage(DeletePassageRequest(passage_id=drop))
        again = await client.insert(agent, "keep", "change", "drop", request_id="r1")
        assert [result.passage.text for result in again.results] == ["keep", "changed", ""]
        assert [result.deleted for result in again.results] == [False, False, True]
        assert [result.passage.id for result in again.results] == [keep, change, drop]
        assert sorted(await client.texts(filter=PassageFilter(agent_id=agent))) == ["changed", "keep"]
        assert (await client.summary(agent)).passage_count == 2

    async def test_batch_may_partly_fail(self, client: Archival) -> None:
        archive = await client.archive()
        taken = await client.one(archive, "first")
        answer = await client.insert(
            archive, "good", " \n", Passage(text="x", tags=["\x07"]), Passage(text="y", id=taken)
        )
        kinds = [result.WhichOneof("result") for result in answer.results]
        assert kinds == ["passage", "failure", "failure", "failure"]
        reasons = [result.failure.reason for result in answer.results[1:]]
        assert reasons == ["INVALID_ARGUMENT", "INVALID_ARGUMENT", "ALREADY_EXISTS"]
        assert "passages[1].text" in answer.results[1].failure.message
        assert sorted(await client.texts(filter=PassageFilter(archive_id=archive))) == ["first", "good"]
        with pytest.raises(MnemeshError) as refused:
            await client.insert(archive, Passage(text="y", id=taken))
        assert refused.value.reason == "ALREADY_EXISTS"

    async def test_imported_ids_are_separate_for_each_organization(self, client: Archival) -> None:
        imported = Passage(id=new_id("passage"), text="brought along")
        mine = await client.archive()
        await client.insert(mine, imported)
        with as_principal(stranger()):
            theirs = await client.archive()
            await client.insert(theirs, imported)
            await client.passages.DeletePassage(DeletePassageRequest(passage_id=imported.id))
        got = await client.passages.GetPassage(GetPassageRequest(passage_id=imported.id))
        assert (got.passage.text, got.passage.archive_id) == ("brought along", mine)

    async def test_deduplicating_archive_stores_a_text_once(self, client: Archival) -> None:
        archive = await client.archive(deduplicate=True)
        (first, twin) = (await client.insert(archive, "same", "same")).results
        (again,) = (await client.insert(archive, "same")).results
        assert (first.duplicate, twin.duplicate, again.duplicate) == (False, True, True)
        assert first.passage.id == twin.passage.id == again.passage.id
        await client.passages.DeletePassage(DeletePassageRequest(passage_id=first.passage.id))
        (fresh,) = (await client.insert(archive, "same")).results
        assert not fresh.duplicate
        assert await client.texts(filter=PassageFilter(archive_id=archive)) == ["same"]

    async def test_update_changes_only_the_fields_of_the_mask(self, client: Archival, agent: str) -> None:
        passage = await client.one(agent, "old words", tags=["a"], metadata="{}")
        before = (await client.passages.GetPassage(GetPassageRequest(passage_id=passage))).passage

        async def update(paths: list[str], **fields: object) -> Passage:
            draft = Passage(id=passage, **fields)  # type: ignore[arg-type]
            request = UpdatePassageRequest(passage=draft, update_mask=FieldMask(paths=paths))
            updated: Passage = (await client.passages.UpdatePassage(request)).passage
            return updated

        tagged = await update(["tags"], tags=["b"], text="ignored")
        assert (tagged.text, list(tagged.tags), tagged.metadata) == ("old words", ["b"], "{}")
        assert not (await update(["metadata"])).HasField("metadata")
        assert await client.texts("words", mode=PASSAGE_SEARCH_MODE_TEXT) == ["old words"]
        reworded = await update(["text", "metadata"], text="new sentence")
        assert (list(reworded.tags), reworded.HasField("metadata")) == (["b"], False)
        assert reworded.create_time == before.create_time
        assert reworded.update_time.ToDatetime() > before.update_time.ToDatetime()
        assert await client.texts("words", mode=PASSAGE_SEARCH_MODE_TEXT) == []
        assert await client.texts("sentence", mode=PASSAGE_SEARCH_MODE_VECTOR, limit=1) == ["new sentence"]
        assert list((await client.summary(agent)).tags) == ["b"]

    async def test_concurrent_updates_are_all_applied(self, client: Archival, agent: str) -> None:
        passage = await client.one(agent, "text")

        async def update(field: str, draft: Passage) -> None:
            request = UpdatePassageRequest(passage=draft, update_mask=FieldMask(paths=[field]))
            await client.passages.UpdatePassage(request)

        await asyncio.gather(
            *(update("tags", Passage(id=passage, tags=[f"t{n}"])) for n in range(5)),
            update("text", Passage(id=passage, text="other")),
            update("metadata", Passage(id=passage, metadata='{"a":1}')),
        )
        got = (await client.passages.GetPassage(GetPassageRequest(passage_id=passage))).passage
        assert (got.text, got.metadata, len(got.tags)) == ("other", '{"a":1}', 1)
        assert list((await client.summary(agent)).tags) == list(got.tags)

    async def test_deletion_is_final_and_may_be_repeated(self, client: Archival, agent: str) -> None:
        passage = await client.one(agent, "gone soon", tags=["x"])
        for _ in range(2):
            await client.passages.DeletePassage(DeletePassageRequest(passage_id=passage))
        with pytest.raises(NotFound):
            await client.passages.GetPassage(GetPassageRequest(passage_id=passage))
        with pytest.raises(NotFound):
            await client.passages.DeletePassage(DeletePassageRequest(passage_id=new_id("passage")))
        summary = await client.summary(agent)
        assert (summary.passage_count, list(summary.tags)) == (0, [])
        assert await client.texts("gone") == []

    async def test_passages_of_another_organization_are_not_found(self, client: Archival, agent: str) -> None:
        passage = await client.one(agent, "secret plan")
        archive = (await client.passages.GetPassage(GetPassageRequest(passage_id=passage))).passage.archive_id
        with as_principal(stranger()):
            assert await client.texts("secret plan") == []
            assert await client.texts(filter=PassageFilter(agent_id=agent)) == []
            assert (await client.summary(agent)).passage_count == 0
            for call in (
                client.passages.GetPassage(GetPassageRequest(passage_id=passage)),
                client.passages.DeletePassage(DeletePassageRequest(passage_id=passage)),
                client.insert(archive, "intruder"),
                client.texts("secret", filter=PassageFilter(archive_id=archive)),
                client.passages.ListPassages(ListPassagesRequest(after_id=passage)),
            ):
                with pytest.raises(NotFound):
                    await call
        assert await client.texts("plan") == ["secret plan"]

    async def test_concurrent_inserts_of_a_text_store_it_once(self, client: Archival, agent: str) -> None:
        archive = await client.archive(agent, deduplicate=True)
        answers = await asyncio.gather(*(client.insert(archive, "same", f"other {n}") for n in range(8)))
        same = [answer.results[0] for answer in answers]
        assert len({result.passage.id for result in same}) == 1
        assert sum(not result.duplicate for result in same) == 1
        assert (await client.summary(agent)).passage_count == 9
        assert len(await client.texts(filter=PassageFilter(archive_id=archive), limit=100)) == 9


DEFAULT = "mnemesh/hashing-256"
OTHER = "mnemesh/wordllama-256"


def unit(seed: int, dimension: int = 256) -> list[float]:
    """Returns a vector with norm 1 that no embedder makes, of numbers that 32 bits hold."""
    vector = np.random.default_rng(seed).normal(size=dimension)
    numbers: list[float] = (vector / np.linalg.norm(vector)).astype(np.float32).tolist()
    return numbers


def given(
    text: str, vector: Sequence[float], handle: str = DEFAULT, dimension: int | None = None, **fields: Any
) -> Passage:
    by = EmbedderIdentity(handle=handle, dimension=len(vector) if dimension is None else dimension)
    return Passage(text=text, embedding=vector, embedded_by=by, **fields)


async def seen(client: Archival, passage_id: str) -> Passage:
    """Returns a passage with its vector."""
    request = GetPassageRequest(passage_id=passage_id, include_embedding=True)
    passage: Passage = (await client.passages.GetPassage(request)).passage
    return passage


class GivenVectors(ArchivalCases):
    """The vector of a passage is kept where it fits, and the text is embedded elsewhere."""

    async def test_vectors_of_the_archives_embedder_are_kept_exactly(self, client: Archival) -> None:
        archive, vectors = await client.archive(), [unit(1), unit(2)]
        answer = await client.insert(archive, given("an oak", vectors[0]), "an elm", given("an ash", vectors[1]))
        assert answer.kept_vectors == 2
        uses = [result.vector_use for result in answer.results]
        assert uses == [VECTOR_USE_KEPT, VECTOR_USE_UNSPECIFIED, VECTOR_USE_KEPT]
        for result, vector in zip([answer.results[0], answer.results[2]], vectors, strict=True):
            passage = await seen(client, result.passage.id)
            assert list(passage.embedding) == vector
            assert passage.embedded_by == EmbedderIdentity(handle=DEFAULT, dimension=256)
        (embedded,) = (await client.embeddings.EmbedTexts(EmbedTextsRequest(texts=["an elm"]))).embeddings
        elm = await seen(client, answer.results[1].passage.id)
        assert list(elm.embedding) == pytest.approx(list(embedded.values), abs=1e-6)

    async def test_listed_passages_can_be_inserted_elsewhere_with_their_vectors(self, client: Archival) -> None:
        first, second = await client.archive(), await client.archive()
        await client.insert(first, given("an oak", unit(1)), "an elm")
        listing = ListPassagesRequest(filter=PassageFilter(archive_id=first), include_embedding=True)
        listed = (await client.passages.ListPassages(listing)).passages
        copies = [Passage(text=each.text, embedding=each.embedding, embedded_by=each.embedded_by) for each in listed]
        answer = await client.insert(second, *copies)
        assert answer.kept_vectors == 2
        for result, original in zip(answer.results, listed, strict=True):
            assert (await seen(client, result.passage.id)).embedding == original.embedding

    async def test_searches_compare_the_given_vector(self, client: Archival) -> None:
        archive = await client.archive()
        (oak,) = (await client.embeddings.EmbedTexts(EmbedTextsRequest(texts=["an old oak"]))).embeddings
        await client.insert(archive, given("a text of other words", [5 * value for value in oak.values]), "an elm")
        mine = PassageFilter(archive_id=archive)
        found = await client.texts("an old oak", filter=mine, mode=PASSAGE_SEARCH_MODE_VECTOR, limit=1)
        assert found == ["a text of other words"]

    @pytest.mark.parametrize(
        ("handle", "dimension", "use"),
        [(OTHER, 256, VECTOR_USE_OTHER_EMBEDDER), (DEFAULT, 128, VECTOR_USE_OTHER_DIMENSION)],
    )
    async def test_text_with_a_vector_that_does_not_fit_is_embedded(
        self, client: Archival, handle: str, dimension: int, use: int
    ) -> None:
        answer = await client.insert(await client.archive(), given("an oak", unit(1, dimension), handle))
        assert (answer.kept_vectors, answer.results[0].vector_use) == (0, use)
        (embedded,) = (await client.embeddings.EmbedTexts(EmbedTextsRequest(texts=["an oak"]))).embeddings
        passage = await seen(client, answer.results[0].passage.id)
        assert list(passage.embedding) == pytest.approx(list(embedded.values), abs=1e-6)

    async def test_changed_text_is_embedded_and_other_changes_keep_the_vector(self, client: Archival) -> None:
        answer = await client.insert(await client.archive(), given("an oak", unit(1)))
        (id_,) = (result.passage.id for result in answer.results)
        for path in ("tags", "text"):
            change = Passage(id=id_, text="an oak", tags=["tree"])
            await client.passages.UpdatePassage(
                UpdatePassageRequest(passage=change, update_mask=FieldMask(paths=[path]))
            )
            assert list((await seen(client, id_)).embedding) == unit(1)
        for text in ("an elm", "an oak"):
            request = UpdatePassageRequest(passage=Passage(id=id_, text=text), update_mask=FieldMask(paths=["text"]))
            await client.passages.UpdatePassage(request)
            (embedded,) = (await client.embeddings.EmbedTexts(EmbedTextsRequest(texts=[text]))).embeddings
            assert list((await seen(client, id_)).embedding) == pytest.approx(list(embedded.values), abs=1e-6)

    async def test_repeated_insert_of_vectors_changes_nothing(self, client: Archival) -> None:
        archive, passage = await client.archive(), given("an oak", unit(1))
        first = await client.insert(archive, passage, given("an elm", unit(2), OTHER), request_id="r1")
        again = await client.insert(archive, passage, given("an elm", unit(2), OTHER), request_id="r1")
        assert again == first
        assert await reason(client.insert(archive, given("an oak", unit(3)), request_id="r1")) == "REQUEST_ID_REUSED"
        mine = ListPassagesRequest(filter=PassageFilter(archive_id=archive))
        assert len((await client.passages.ListPassages(mine)).passages) == 2
        assert list((await seen(client, first.results[0].passage.id)).embedding) == unit(1)

    async def test_text_that_the_archive_has_keeps_its_vector(self, client: Archival) -> None:
        archive = await client.archive(deduplicate=True)
        (first,) = (await client.insert(archive, given("an oak", unit(1)))).results
        again = await client.insert(archive, given("an oak", unit(2)))
        assert (again.kept_vectors, again.results[0].duplicate) == (0, True)
        assert list((await seen(client, first.passage.id)).embedding) == unit(1)

    async def test_agents_first_archive_keeps_vectors(self, client: Archival, agent: str) -> None:
        assert (await client.insert(agent, given("an oak", unit(1)))).kept_vectors == 1

    @pytest.mark.parametrize(
        ("passage", "field"),
        [
            (Passage(text="x", embedding=unit(1)), "embedded_by"),
            (given("x", unit(1), ""), "embedded_by.handle"),
            (given("x", unit(1), "a\nb"), "embedded_by.handle"),
            (given("x", unit(1), "m/" + "x" * 500), "embedded_by.handle"),
            (given("x", unit(1), dimension=0), "embedded_by.dimension"),
            (given("x", unit(1), dimension=-256), "embedded_by.dimension"),
            (given("x", unit(1), dimension=255), "embedding"),
            (given("x", [], dimension=256), "embedding"),
            (given("x", [math.nan] + [0.1] * 255), "embedding"),
            (given("x", [0.1] * 255 + [math.inf]), "embedding"),
            (given("x", [0.0] * 256), "embedding"),
        ],
    )
    async def test_bad_vector_refuses_the_call(self, client: Archival, passage: Passage, field: str) -> None:
        archive, request_id = await client.archive(), new_id("request")
        with pytest.raises(InvalidArgument) as refused:
            await client.insert(archive, "good", given("good too", unit(1)), passage, request_id=request_id)
        assert refused.value.field == f"passages[2].{field}"
        mine = ListPassagesRequest(filter=PassageFilter(archive_id=archive))
        assert not (await client.passages.ListPassages(mine)).passages
        assert (await client.insert(archive, "good", request_id=request_id)).results[0].passage.text == "good"

    async def test_thousand_vectors_of_a_large_model_fit_into_a_call(self, client: Archival) -> None:
        vector = unit(1, 3072)
        answer = await client.insert(await client.archive(), *(given(f"oak {n}", vector) for n in range(1000)))
        assert {result.vector_use for result in answer.results} == {VECTOR_USE_OTHER_DIMENSION}
