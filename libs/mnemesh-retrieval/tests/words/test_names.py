"""Queries without the names of speakers."""

import pytest
from mnemesh_retrieval.words.sparse import name_words, without_names

NAMES = frozenset[str]().union(*map(name_words, ["Tom", "Ada Lovelace", "Zoë", "李明"]))


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("Where did Tom rent his workshop?", "Where did rent his workshop?"),
        ("What is Zoë's job?", "What is job?"),
        ("what is zoe\u2019s job", "what is job"),
        ("Lovelace and the piano", "and the piano"),
        ("Tomorrow", "Tomorrow"),
        ("Who is Tom?", "Who is Tom?"),
        ("Tom", "Tom"),
        ("李明 piano", "piano"),
        ("", ""),
    ],
)
def test_names_are_left_out_if_the_query_is_about_more(query: str, expected: str) -> None:
    assert " ".join(without_names(query, NAMES).split()) == expected


def test_a_query_without_known_names_stays_as_it_is() -> None:
    assert without_names("Where did Tom live?", frozenset()) == "Where did Tom live?"
    assert without_names("Where  did Ann live?", NAMES) == "Where  did Ann live?"
