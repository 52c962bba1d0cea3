"""How passages are ranked by words: a word counts where it is, and a share of it beside that."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from mnemesh_archival.model.passages import PassagePosition
from mnemesh_archival.model.ranking import by_words, fused, rarities, strongest
from mnemesh_retrieval.index import WordMatch

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
OAK, TREE = 1, 2


def pid(number: int) -> UUID:
    return UUID(int=number)


def match(number: int, score: float = 1.0, **words: float) -> WordMatch:
    return WordMatch(pid(number), score, {{"oak": OAK, "tree": TREE}[word]: weight for word, weight in words.items()})


def position(
    number: int, position: int = 0, *, archive: str = "a", strand: str = "s", hours: float = 0
) -> PassagePosition:
    return PassagePosition(pid(number), archive, strand, position or number, NOON + timedelta(hours=hours))


def ranked(found: list[WordMatch], places: list[PassagePosition]) -> list[tuple[int, float]]:
    rarity = {word: 1.0 for match in found for word in match.words}
    return [(id_.int, pytest.approx(score)) for id_, score in by_words(found, rarity, places)]


def test_a_word_counts_less_the_further_it_is() -> None:
    found = ranked([match(5, oak=1.0)], [position(n) for n in range(1, 10)])
    assert found == [(5, 1.0), (4, 0.6), (6, 0.6), (3, 0.3), (7, 0.3)]


@pytest.mark.parametrize(
    "elsewhere",
    [
        position(6, archive="b"),
        position(6, strand="another file"),
        position(6, hours=6.1),
        position(6, hours=-6.1),
        position(6, position=8),
        position(6, position=5),
    ],
)
def test_what_is_not_of_the_occasion_is_no_neighbour(elsewhere: PassagePosition) -> None:
    assert ranked([match(5, oak=1.0)], [position(5), elsewhere]) == [(5, 1.0)]


def test_holders_come_before_what_stands_between_them() -> None:
    found = ranked([match(1, oak=1.0), match(3, oak=1.0)], [position(1), position(2), position(3)])
    assert [number for number, _ in found] == [1, 3, 2]
    assert {score.expected for _, score in found} == {1.0}  # type: ignore[attr-defined]


def test_words_that_complete_each_other_beat_one_word_alone() -> None:
    found = [match(1, oak=1.0), match(2, tree=1.0), match(9, oak=1.2)]
    assert [number for number, _ in ranked(found, [position(1), position(2), position(9)])] == [1, 2, 9]


def test_a_word_that_most_have_where_the_search_looks_tells_little() -> None:
    found = [match(n, oak=1.0, tree=1.0) if n == 1 else match(n, tree=1.0) for n in range(1, 51)]
    rarity = rarities(found, 60)
    assert rarity[OAK] > 3
    assert rarity[TREE] < 0.3
    # In the whole collection the tree is the rarer one, and leads.
    assert strongest([match(7, 9.0, tree=1.5), match(8, 5.0, oak=1.0)], rarity, 1) == [pid(8)]


def test_more_candidates_than_passages_known_break_nothing() -> None:
    assert all(value > 0 for value in rarities([match(n, oak=1.0) for n in range(1, 9)], 3).values())


def test_ranks_by_meaning_count_by_their_weight() -> None:
    words, meaning = [(pid(1), 3.0), (pid(2), 2.0)], [(pid(2), 0.9), (pid(3), 0.8)]
    assert [id_.int for id_, _ in fused(words, meaning, 0.0001)] == [1, 2, 3]
    assert [id_.int for id_, _ in fused(words, meaning, 1.0)] == [2, 1, 3]
