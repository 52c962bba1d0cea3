"""The parts of a text, and the equality of a query and a text."""

import pytest
from mnemesh_retrieval.ranking.scores import fingerprint, normalized, utterance
from mnemesh_retrieval.words.analysis import analysed
from mnemesh_retrieval.words.sparse import split_speaker


@pytest.mark.parametrize(
    ("text", "questions", "statements", "ends"),
    [
        ("I moved in May.", "", "I moved in May.", False),
        ("I moved. Where do you live?", "Where do you live?", "I moved.", True),
        ("Where do you live? I moved", "Where do you live?", "I moved", False),
        ("Really?! No way.", "Really?!", "No way.", False),
        ("Did it cost 3.50 at shop.example/?q=tea", "", "Did it cost 3.50 at shop.example/?q=tea", False),
        ('He asked "why?" \U0001f642', 'He asked "why?', '" \U0001f642', True),
        ("先週どこへ行った？京都です。", "先週どこへ行った？", "京都です。", False),
        ("", "", "", False),
    ],
)
def test_question_sentences_are_separated(text: str, questions: str, statements: str, ends: bool) -> None:
    found = utterance(text)
    assert (found.questions, found.statements, found.ends_in_question) == (questions, statements, ends)
    assert found.asks == bool(questions)


@pytest.mark.parametrize(
    ("text", "speaker", "rest"),
    [
        ("Ada: hello", "Ada", "hello"),
        ("Ada Lovelace: hello", "Ada Lovelace", "hello"),
        ("田中：こんにちは", "田中", "こんにちは"),
        ("see the list: milk", "", "see the list: milk"),
        ("It is 10:30 now", "", "It is 10:30 now"),
        ("http://example.org", "", "http://example.org"),
        ("Ada:", "", "Ada:"),
    ],
)
def test_a_leading_name_is_the_speaker(text: str, speaker: str, rest: str) -> None:
    assert split_speaker(text) == (speaker, rest)


def test_equal_texts_have_one_fingerprint() -> None:
    assert normalized("Ada:  I moved, in MAY! ") == "i moved in may"
    assert fingerprint("I moved in May") == fingerprint("Ada: i moved — in may.")
    assert fingerprint("\U0001f44d") != fingerprint("\U0001f44e")
    assert fingerprint("I moved in May") != fingerprint("I moved in June")


def test_a_leading_name_is_found_in_a_folded_text() -> None:
    assert split_speaker("ada lovelace: hello", is_folded=True) == ("ada lovelace", "hello")
    assert split_speaker("this is the list: milk", is_folded=True)[0] == ""
    assert fingerprint("Ada Lovelace: hello") == fingerprint("ada lovelace: hello") == fingerprint("Hello!")


@pytest.mark.parametrize("unit", [".", "!", "?!", "a", " ", "\n", ". "])
def test_long_runs_of_one_character_are_read_in_linear_time(unit: str) -> None:
    found = utterance(f"Ada: {unit * 200_000}word")
    assert "word" in found.statements
    assert analysed(f"word {unit * 200_000}")[0]
