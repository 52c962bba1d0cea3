"""Words of points are replaced after a change of the word analysis."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from mnemesh_retrieval.index import SearchMode, SearchQuery
from mnemesh_retrieval.indexing.collections import Busy, WordRenewal
from mnemesh_retrieval.indexing.outbox import Record
from mnemesh_retrieval.words import sparse
from mnemesh_testkit.fakes.notes import NOTES, NoteSource, note_id

Rig = Any
pytestmark = pytest.mark.parametrize(
    "variant", ["edge on sqlite", pytest.param("server on postgresql", marks=pytest.mark.full)], indirect=True
)
TEXTS = {note_id(number): f"note{number} of foxes" for number in range(300)}


@pytest.fixture
async def earlier(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Rig:
    """A service whose index has the words of an earlier analysis, and that was started with a new one."""
    await rig.stop()
    rig.words_version = "1"
    with monkeypatch.context() as before:
        before.setattr(sparse, "number_of", len)
        await rig.start()
        await rig.notebook.put(TEXTS)
        await rig.indexer.catch_up()
        await rig.flush()
        assert await found(rig, "fox")
        await rig.stop()
    rig.words_version = "2"
    rig.embedder.embedded.clear()
    await rig.start()
    return rig


async def found(rig: Rig, query: str) -> set[str]:
    hits = await rig.index.search(NOTES, SearchQuery(SearchMode.TEXT, text=query, limit=1_000))
    return {rig.source.subject_of(hit.id) for hit in hits}


async def test_words_of_an_earlier_analysis_are_replaced_and_nothing_is_embedded(earlier: Rig) -> None:
    assert not await found(earlier, "fox")
    assert not earlier.indexer.is_complete(NOTES)
    await earlier.indexer.check()
    assert earlier.indexer.is_complete(NOTES)
    assert await found(earlier, "fox") == set(TEXTS)
    assert await found(earlier, "note7") == {note_id(7)}
    assert earlier.embedder.embedded == []
    assert await earlier.difference() == {}
    await earlier.stop()
    await earlier.start()
    assert earlier.indexer.is_complete(NOTES)


async def test_renewal_begins_again_after_a_crash(earlier: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    class Crash(Exception):
        pass

    async def crash(*_: object) -> None:
        raise Crash

    with monkeypatch.context() as failing:
        failing.setattr(WordRenewal, "finish", crash)
        with pytest.raises(Crash):
            await earlier.indexer.check()
    await earlier.lose_power()
    await earlier.start()
    assert not earlier.indexer.is_complete(NOTES)
    await earlier.indexer.check()
    assert await found(earlier, "fox") == set(TEXTS)


async def test_deleted_points_stay_deleted_and_changed_records_are_reported(earlier: Rig) -> None:
    changed, deleted = note_id(1), note_id(2)

    class Changing(NoteSource):
        reads = 0

        async def read(self, subjects: Sequence[str]) -> Mapping[str, Record]:
            records = await super().read(subjects)
            self.reads += 1
            if self.reads == 1:
                await earlier.notebook.put({changed: "an owl"})
                await earlier.notebook.delete([deleted])
                await earlier.index.delete(NOTES, [self.point_id(deleted)])
            return records

    source = Changing(earlier.notebook, earlier.embedder, keep_without_vector=True, words_version="2")
    renewal = WordRenewal(earlier.outbox, earlier.index, Busy())
    assert set(await renewal.renew(source, [changed, deleted, note_id(3)])) == {changed, deleted}
    assert await found(earlier, "fox") == {changed, note_id(3)}
    await earlier.indexer.check()
    assert await found(earlier, "owl") == {changed}
    assert await found(earlier, "fox") == set(TEXTS) - {changed, deleted}
