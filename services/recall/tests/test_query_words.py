"""What a search looks for in documents that are not in a segment yet."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from mnemesh_recall.store.fulltext.segment_building import DocumentRow, QueryWords, built
from mnemesh_retrieval.ranking.scores import fingerprint
from mnemesh_retrieval.words.analysis import indexed


def document(text: str, **received: str) -> DocumentRow:
    sections = {"asked": "", "beside": "/", "around": "/", "about": "ada / monday"} | received
    return DocumentRow(
        row_id=1,
        id="message-00000000-0000-4000-8000-000000000001",
        conversation_id=None,
        role="user",
        speaker=None,
        sender_id=None,
        created_at=datetime(2026, 3, 1, tzinfo=UTC),
        search_text=text.casefold(),
        body=indexed(text),
        before_id=None,
        after_id=None,
        ends_in_question=False,
        **sections,
    )


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("We saw an old oak.", "we saw an OLD oak"),
        ("Ada: the ﬁrst oak", "the first oak"),
        ("Große Häuser", "grosse HÄUSER!"),
        ("STRASSE", "Straße"),
        ("snake_case-words", "snake case words"),
        ("?!", " ?! "),
        ("東京 の 木", "東京の木"),
        ("", ""),
        ("anything at all", "something else"),
    ],
)
def test_texts_that_equal_the_query_have_its_fingerprint(text: str, query: str) -> None:
    found = QueryWords(query, ()).fingerprint_of(text.casefold())
    wanted, own = int(fingerprint(query), 16), int(fingerprint(text.casefold()), 16)
    assert (found == wanted) == (own == wanted)
    assert found in {0, own}


@pytest.mark.parametrize(
    "row",
    [
        document("an oak and another oak"),
        document("elm", asked="oak"),
        document("elm", beside="oak / elm"),
        document("elm", around="elm / fir oak"),
        document("elm", about="oak / monday"),
        document("東京都"),
        document(f"{'elm ' * 4_000}oak"),
        document("oaken soaked"),
        document(""),
    ],
)
def test_the_words_of_a_query_are_counted_as_in_a_segment(row: DocumentRow) -> None:
    terms = ["oak", "fir", "東 京"]
    some, every = built([row], (), QueryWords("oak fir 東京", terms)), built([row])
    for term in terms:
        found, wanted = some.postings.of(term), every.postings.of(term)
        assert (found is None) == (wanted is None)
        if found is not None and wanted is not None:
            assert [part.tolist() for part in found] == [part.tolist() for part in wanted]
    columns = some.documents.columns
    assert all(
        columns[name].tolist() == every.documents.columns[name].tolist() for name in columns if name != "fingerprint"
    )
