"""The comparison of statements."""

from collections import Counter

import pytest
from mnemesh_recall.model.findings import Relation, relation, statement_keys, statement_of, text_key

CONTRADICTIONS = [
    ("Ana lives in Lisbon", "Ana lives in Porto"),
    ("Ana lives in Lisbon", "Ana moved to Porto in May"),
    ("Ana lives in Porto, Portugal", "Ana lives in Lisbon, Portugal"),
    ("The budget is 500 euros", "The budget is 700 euros"),
    ("Ana eats meat", "Ana does not eat meat."),
    ("Ana's favourite colour is blue", "Ana's favorite colour is green"),
    ("The user's dog is named Rex", "The user's dog is named Max"),
    ("Ana was born in 1984", "Ana was born in 1985"),
    ("Deploys happen on Tuesdays at 10:00", "Deploys happen on Tuesdays at 11:00"),
]
NEAR = [
    ("Ana lives in Porto.", "Ana now lives in Porto"),
    ("Ana works at Acme as an engineer", "Ana works as an engineer at Acme"),
    ("The user is allergic to peanuts", "The user has a peanut allergic"),
]
DIFFERENT = [
    ("Bob lives in Porto", "Ana lives in Porto"),
    ("Ana ran a marathon in 2019", "Ana ran a marathon in 2021"),
    ("Room 12 has a projector", "Room 14 has a projector"),
    ("Ana's favourite colour is blue", "Ana's favourite food is pizza"),
    ("Ana likes Lisbon", "Ana likes Porto"),
    ("Ana likes Bob", "Bob likes Ana"),
    ("Ana: I took the night train to see my sister", "Bob: I took the night train to see my sister"),
    ("Ana works at Acme", "Ana works on Mondays"),
    ("Ana lived in Porto", "Ana lives in Porto"),
    ("The user lives in Lisbon", "The user lives with two cats"),
    ("Ana is allergic to peanuts", "Ana is allergic to peanuts and shellfish"),
    ("", "..."),
    ("家", "山"),
]


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [(CONTRADICTIONS, Relation.CONTRADICTORY), (NEAR, Relation.NEAR), (DIFFERENT, None)],
    ids=["contradictions", "near", "different"],
)
def test_statements_are_compared_in_either_order(pairs: list[tuple[str, str]], expected: Relation | None) -> None:
    for one, other in pairs:
        for first, second in ((one, other), (other, one)):
            found = relation(first, second)
            assert (None if found is None else found[0]) == expected, (first, second)


def test_key_ignores_what_makes_no_difference() -> None:
    same = ["The user doesn’t like tea.", "  user  does not like TEA ", "A user doesn't like “tea”!"]
    assert len({text_key(text) for text in same}) == 1
    different = [
        "user likes tea",
        "user liked tea",
        "tea likes user",
        "user likes C",
        "user likes C++",
        "",
        "The",
        "-5",
        "5",
    ]
    assert len({text_key(text) for text in different}) == len(different)


def test_related_statements_have_a_key_in_common() -> None:
    related = [*CONTRADICTIONS, *NEAR, ("The user likes tea.", "user likes the TEA")]
    statements = [statement_of(text) for pair in related for text in pair]
    frequency = Counter(word for statement in statements for word in statement.word_set)
    for one, other in related:
        keys = [statement_keys(statement_of(text), frequency) for text in (one, other)]
        assert keys[0] & keys[1], (one, other)
