"""Words as sparse vectors."""

import pytest
from mnemesh_retrieval.words.sparse import document_vector, query_numbers


@pytest.mark.parametrize("speaker", ["Tom", "Kim", "Mia", "Dan", "Ada Lovelace"])
def test_the_name_of_the_speaker_does_not_decide_on_the_language(speaker: str) -> None:
    vector = document_vector(f"{speaker}: Swimming!")
    assert query_numbers("swim").keys() & vector.keys()
    assert query_numbers(speaker).keys() & vector.keys()
