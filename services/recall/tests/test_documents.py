"""The documents of the full-text index."""

from datetime import UTC, datetime

import pytest
from mnemesh_recall.model.ranking import SECTION
from mnemesh_recall.store.fulltext.documents import Document, SearchableMessage
from mnemesh_retrieval.words.analysis import terms


@pytest.mark.parametrize("name", ["Tom", "Kim", "Dan Brown", "Mia", "Ella", "Lucía", "Ада", "李明"])
def test_a_query_names_the_speaker_in_a_dialogue_of_any_language(name: str) -> None:
    speaker = _document(name, "").about.partition(SECTION)[0].split()
    assert set(" ".join(terms(f"What did {name} say?")).split()) >= set(speaker)
    assert _document(None, name.lower()).about == _document(name, "").about


def test_the_day_of_a_message_has_the_words_of_a_query() -> None:
    assert _document("Ada", "").about == f"ada {SECTION} 1 march 2026"


def _document(name: str | None, speaker: str) -> Document:
    source = SearchableMessage(
        row_id=1,
        id="message-00000000-0000-4000-8000-000000000001",
        organization_id="organization-1",
        agent_id="agent-1",
        conversation_id=None,
        role="user",
        created_at=datetime(2026, 3, 1, tzinfo=UTC),
        sequence_id=1,
        name=name,
        text="an oak",
    )
    return Document(source, "english", "an oak", speaker)
