"""Vectors that came with passages replace calls of the embedder, also when the index is made again."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from google.protobuf.field_mask_pb2 import FieldMask
from mnemesh.archival.v1.archives_pb2 import EmbedderIdentity, Passage
from mnemesh.archival.v1.passages_service_pb2 import (
    PASSAGE_SEARCH_MODE_TEXT,
    PASSAGE_SEARCH_MODE_VECTOR,
    DeletePassageRequest,
    GetPassageRequest,
    SearchPassagesRequest,
    UpdatePassageRequest,
)
from mnemesh_archival.config import Config
from mnemesh_archival.maintenance import maintain
from mnemesh_testkit.fakes.embedders import FakeEmbedder
from mnemesh_testkit.timeouts import scaled

from .conftest import ArchivalServer, serving
from .embedder_changes import change, wait_until_serving
from .index_damage import damage, lose

FIRST, SECOND = "acme/embed-1", "acme/embed-2"
TEXTS = ("an old oak", "a young elm", "an ash")


@asynccontextmanager
async def paid(
    tmp_path: Path, database_url: str, embedder: FakeEmbedder, **settings: Any
) -> AsyncIterator[ArchivalServer]:
    """An archival whose embedders are those of a provider."""
    config = Config(
        port=0, data_dir=str(tmp_path), database_url=database_url, embedder=FIRST, embedder_base_url=embedder.url,
        embedder_dimension=embedder.dimension, log_level="error", **settings,
    )  # fmt: skip
    async with serving(config) as archival:
        yield archival


@pytest.fixture
async def embedder() -> AsyncIterator[FakeEmbedder]:
    async with FakeEmbedder() as server:
        yield server


@pytest.fixture
async def archival(tmp_path: Path, database_url: str, embedder: FakeEmbedder) -> AsyncIterator[ArchivalServer]:
    async with paid(tmp_path, database_url, embedder) as server:
        yield server


def vector_of(text: str, dimension: int = 8) -> list[float]:
    """Returns a vector with norm 1 that the provider does not make."""
    vector = np.random.default_rng(len(text)).normal(size=dimension)
    numbers: list[float] = (vector / np.linalg.norm(vector)).astype(np.float32).tolist()
    return numbers


def given(text: str, handle: str = FIRST) -> Passage:
    by = EmbedderIdentity(handle=handle, dimension=8)
    return Passage(text=text, embedding=vector_of(text), embedded_by=by)


async def embedding_of(archival: ArchivalServer, passage_id: str) -> list[float]:
    request = GetPassageRequest(passage_id=passage_id, include_embedding=True)
    return list((await archival.passages.GetPassage(request)).passage.embedding)


async def rebuilt(archival: ArchivalServer) -> None:
    """Waits until the index is complete. Words embed nothing."""
    request = SearchPassagesRequest(query="oak", mode=PASSAGE_SEARCH_MODE_TEXT)
    async with asyncio.timeout(scaled(60)):
        while (await archival.passages.SearchPassages(request)).degraded:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("spoil", [lose, damage])
async def test_rebuild_of_the_index_embeds_only_texts_without_a_vector(
    archival: ArchivalServer, embedder: FakeEmbedder, spoil: Callable[[Path], None]
) -> None:
    archive = await archival.archive()
    answer = await archival.insert(archive, *(given(text) for text in TEXTS), "a birch")
    assert (answer.kept_vectors, embedder.texts) == (3, ["a birch"])
    oak, elm, *_ = (result.passage.id for result in answer.results)
    request = UpdatePassageRequest(passage=Passage(id=elm, text="a larch"), update_mask=FieldMask(paths=["text"]))
    await archival.passages.UpdatePassage(request)
    assert embedder.texts == ["a birch", "a larch"]
    await archival.stop()
    spoil(archival.config.index_path)
    embedder.texts.clear()
    await archival.start()
    await rebuilt(archival)
    assert sorted(embedder.texts) == ["a birch", "a larch"]
    assert await embedding_of(archival, oak) == vector_of("an old oak")
    assert (await embedding_of(archival, elm)) != vector_of("a young elm")


async def test_maintenance_embeds_nothing(archival: ArchivalServer, embedder: FakeEmbedder) -> None:
    answer = await archival.insert(await archival.archive(), *(given(text) for text in TEXTS))
    gone, kept, *_ = (result.passage.id for result in answer.results)
    await archival.passages.DeletePassage(DeletePassageRequest(passage_id=gone))
    await archival.stop()
    lose(archival.config.index_path)
    assert [line async for line in maintain(archival.config)]
    await archival.start()
    await rebuilt(archival)
    assert embedder.texts == []
    assert await embedding_of(archival, kept) == vector_of("a young elm")


async def test_new_embedder_embeds_the_texts_and_the_former_one_uses_its_vectors_again(
    archival: ArchivalServer, embedder: FakeEmbedder
) -> None:
    archive = await archival.archive()
    (oak, *_) = (await archival.insert(archive, *(given(text) for text in TEXTS))).results
    await change(archival, archive, SECOND)
    await wait_until_serving(archival, archive, SECOND)
    assert sorted(embedder.texts) == sorted(TEXTS)
    assert await embedding_of(archival, oak.passage.id) != vector_of("an old oak")
    await change(archival, archive, FIRST)
    await wait_until_serving(archival, archive, FIRST)
    assert sorted(embedder.texts) == sorted(TEXTS), "nothing was embedded"
    assert await embedding_of(archival, oak.passage.id) == vector_of("an old oak")


async def test_vectors_of_the_new_embedder_are_kept_while_it_is_being_changed(
    archival: ArchivalServer, embedder: FakeEmbedder
) -> None:
    archive = await archival.archive()
    await archival.insert(archive, *(given(text) for text in TEXTS))
    embedder.open.clear()
    await change(archival, archive, SECOND)
    answer = await archival.insert(archive, given("a larch", SECOND), given("a birch", FIRST))
    assert answer.kept_vectors == 2
    embedder.open.set()
    await wait_until_serving(archival, archive, SECOND)
    larch, birch = (result.passage.id for result in answer.results)
    async with asyncio.timeout(scaled(60)):
        while not (await embedding_of(archival, larch) and await embedding_of(archival, birch)):
            await asyncio.sleep(0.01)
    assert await embedding_of(archival, larch) == vector_of("a larch")
    assert await embedding_of(archival, birch) != vector_of("a birch")


async def test_vectors_are_found_while_the_provider_is_away(tmp_path: Path, database_url: str) -> None:
    async with FakeEmbedder() as embedder:
        pass
    async with paid(tmp_path, database_url, embedder) as archival:
        (result,) = (await archival.insert(await archival.archive(), given("an old oak"))).results
        assert await embedding_of(archival, result.passage.id) == vector_of("an old oak")


async def test_given_vector_of_another_norm_is_found_by_its_direction(
    archival: ArchivalServer, embedder: FakeEmbedder
) -> None:
    archive = await archival.archive()
    numbers = embedder.vector("a question")
    by = EmbedderIdentity(handle=FIRST, dimension=8)
    for scale in (1e-30, 1.0, 1e30):
        scaled_numbers = [scale * number for number in numbers]
        passage = Passage(text=f"text {scale}", embedding=scaled_numbers, embedded_by=by)
        (result,) = (await archival.insert(archive, passage)).results
        stored = await embedding_of(archival, result.passage.id)
        assert stored == pytest.approx((np.array(numbers) / np.linalg.norm(numbers)).tolist(), abs=1e-6)
    assert len(await archival.texts("a question", mode=PASSAGE_SEARCH_MODE_VECTOR)) == 3


async def test_insert_without_vectors_runs_no_further_statement(archival: ArchivalServer) -> None:
    archive = await archival.archive()
    await archival.insert(archive, "the first one")
    statements: list[str] = []

    def note(_conn: Any, _cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement)

    async def count(*passages: Passage | str) -> int:
        statements.clear()
        await archival.insert(archive, *passages)
        await archival.indexed()
        return len([each for each in statements if "passages" in each or "reembeddings" in each])

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        without = await count("an oak", "an elm")
        with_vectors = await count(given("an ash"), given("a birch"))
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)
    assert without > 0
    assert with_vectors == without + 1, "one reads the identity of the embedder that the archive changes to"
