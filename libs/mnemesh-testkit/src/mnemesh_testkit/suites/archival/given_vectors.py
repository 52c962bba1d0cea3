"""Passages that come with their vectors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from mnemesh.archival.v1.archives_pb2 import EmbedderIdentity, Passage
from mnemesh.archival.v1.embeddings_service_pb2 import EmbedTextsRequest
from mnemesh.archival.v1.passages_service_pb2 import (
    PASSAGE_SEARCH_MODE_VECTOR,
    VECTOR_USE_KEPT,
    VECTOR_USE_OTHER_DIMENSION,
    VECTOR_USE_OTHER_EMBEDDER,
    VECTOR_USE_UNSPECIFIED,
    GetPassageRequest,
    ListPassagesRequest,
    PassageFilter,
    UpdatePassageRequest,
)
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import new_id

from mnemesh_testkit.suites.archival.calls import Archival, ArchivalCases, reason

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
    """Returns a passage with a vector."""
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
