"""The analysis of any text: deterministic, without exceptions, in bounded time."""

import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mnemesh_retrieval.words.analysis import (
    MAX_TERMS,
    folded,
    indexed,
    normal_form,
    query_words,
    query_words_of,
    stem,
    terms,
    words_of,
)
from mnemesh_retrieval.words.languages import LANGUAGES
from mnemesh_retrieval.words.sparse import document_vector, query_numbers

TEXTS = st.one_of(
    st.text(max_size=200),
    st.text(st.characters(categories=("L", "M", "N")), max_size=100),
    st.lists(st.sampled_from(["der", "und", "les", "won't", "x’s", "東京", "кошек", "ﷺ", "İ", "e\u0301"])).map(
        " ".join
    ),
)
WORDS = st.text(st.characters(categories=("L",), max_codepoint=0x24F), min_size=1, max_size=12)


@pytest.mark.parametrize("query", [" ".join(f"ß{n}x" for n in range(2_000)), "".join(map(chr, range(0x4E00, 0x5E00)))])
def test_a_query_has_a_bounded_number_of_words(query: str) -> None:
    assert len(set(query_words(query).values())) == MAX_TERMS
    assert len(query_words(query)) <= MAX_TERMS * (len(LANGUAGES) + 1)


def test_normal_form_of_combining_marks_takes_no_more_than_a_few() -> None:
    assert len(normal_form("NFKC", "a" + "\u0316\u0301" * 1_000 + "b")) < 40
    assert normal_form("NFC", "e\u0301" * 1_000 + "-" * 100) == "\u00e9" * 1_000 + "-" * 100


@given(TEXTS)
def test_indexed_words_are_letters_and_digits(text: str) -> None:
    words = indexed(text).split(" ")
    assert words == [""] or all(word.isalnum() for word in words)
    assert indexed(text) == " ".join(words)


@given(TEXTS)
def test_each_word_of_a_text_finds_it(text: str) -> None:
    found = f" {indexed(text)} "
    vector = document_vector(text)
    for word in words_of(text):
        assert any(f" {term} " in found for term in terms(word, LANGUAGES))
        assert query_numbers(word).keys() & vector.keys()


@given(TEXTS)
def test_a_query_has_a_bounded_number_of_terms_without_special_characters(text: str) -> None:
    found = terms(text, LANGUAGES)
    assert len(found) <= MAX_TERMS
    assert all(word.isalnum() for term in found for word in term.split(" "))
    assert set(terms(text)) <= {*found} or len(found) == MAX_TERMS
    assert set(found.values()) <= found.keys()


@given(TEXTS)
@example("Ǽ ǿ")
def test_words_and_folding_are_the_same_when_repeated(text: str) -> None:
    words = words_of(text)
    assert words_of(" ".join(words)) == words
    assert all(folded(folded(word)) == folded(word) for word in words)


@given(WORDS)
def test_a_decomposed_or_capital_word_has_the_same_terms(word: str) -> None:
    expected = query_words(word.casefold())
    assert query_words(unicodedata.normalize("NFD", word.casefold())) == expected
    assert stem(word, "german") == stem(word, "german")


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("a" * 1_000_000, id="one letter"),
        pytest.param("e\u0301\u0327\u0323" * 250_000, id="combining marks"),
        pytest.param("e" + "\u0315\u0300\u05ae\u062e\u0f71" * 200_000, id="marks of other orders"),
        pytest.param("'" * 1_000_000, id="apostrophes"),
        pytest.param("n't" * 300_000, id="negations"),
        pytest.param("ß" * 99_000 + "1n't", id="letters before a negation"),
        pytest.param("ﷺ" * 100_000, id="long ligatures"),
        pytest.param("東" * 1_000_000, id="Han"),
        pytest.param("х" * 1_000_000, id="Cyrillic"),
        pytest.param("ä " * 500_000, id="short words"),
        pytest.param("a1" * 500_000, id="letters and digits"),
    ],
)
def test_hostile_texts_end_soon(text: str) -> None:
    assert len(indexed(text).encode()) < 2_000_000
    assert len(terms(text, LANGUAGES)) <= MAX_TERMS
    assert all(len(word) <= 256 for word in query_words_of(text[:100_000]))
