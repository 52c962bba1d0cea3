"""The words of texts and the terms of queries."""

import pytest
from mnemesh_retrieval.words.analysis import indexed, terms


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("What did I say about the Guitar?", ("say", "guitar")),
        ("who are you", ("who", "are", "you")),
        ("guitar guitars", ("guitar",)),
        ("Where she went and what she bought", ("go", "buy")),
        ("She lives; he died, dies, is dying", ("live", "die")),
        ("The plant won't grow, it shan\u2019t", ("plant", "grow")),
        ("They won", ("win",)),
        ("Café naïve ＦＵＬＬ", ("cafe", "naiv", "full")),
        ("東京タワー", ("東 京", "京 タ", "タ ワ", "ワ ー")),
        ("go東京go", ("go", "東 京")),
        ("犬", ("犬",)),
        ('"quoted" AND (NOT near*) OR body:x^2 -- ;', ("quot", "near", "bodi", "x", "2")),
        ("🎸", ()),
        ("", ()),
        ("snake_case a.b@c", ("snake", "case", "b", "c")),
    ],
)
def test_terms(query: str, expected: tuple[str, ...]) -> None:
    assert tuple(terms(query)) == expected


def test_long_query_has_a_bounded_number_of_terms() -> None:
    assert len(terms(" ".join(f"word{n}" for n in range(5000)))) == 64


def test_indexed_words_are_folded_stemmed_and_separated() -> None:
    assert indexed("Ünïcode, 東京 and\n\tspaces_too!") == "unicod 東 京 and space too"
