"""Ranking by words: a passage scores by its own words and by a share of its neighbours' words."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from mnemesh_archival.model.passages import PassagePosition
from mnemesh_archival.model.ranking import best_by_own_words, fuse_lists, rank_by_words, word_rarities
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


def ranked(found: list[WordMatch], positions: list[PassagePosition]) -> list[tuple[int, float]]:
    rarity = {word: 1.0 for match in found for word in match.words}
    return [(id_.int, pytest.approx(score)) for id_, score in rank_by_words(found, rarity, positions)]


def test_share_of_a_word_falls_with_distance() -> None:
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
def test_other_archives_strands_and_times_are_not_neighbours(elsewhere: PassagePosition) -> None:
    assert ranked([match(5, oak=1.0)], [position(5), elsewhere]) == [(5, 1.0)]


def test_matches_rank_before_the_passage_between_them() -> None:
    found = ranked([match(1, oak=1.0), match(3, oak=1.0)], [position(1), position(2), position(3)])
    assert [number for number, _ in found] == [1, 3, 2]
    assert {score.expected for _, score in found} == {1.0}  # type: ignore[attr-defined]


def test_two_words_in_adjacent_passages_beat_one_word() -> None:
    found = [match(1, oak=1.0), match(2, tree=1.0), match(9, oak=1.2)]
    assert [number for number, _ in ranked(found, [position(1), position(2), position(9)])] == [1, 2, 9]


def test_word_of_most_passages_in_scope_scores_low() -> None:
    found = [match(n, oak=1.0, tree=1.0) if n == 1 else match(n, tree=1.0) for n in range(1, 51)]
    rarity = word_rarities(found, 60)
    assert rarity[OAK] > 3
    assert rarity[TREE] < 0.3
    # In the whole collection "tree" is the rarer word, and the engine ranks it first.
    assert best_by_own_words([match(7, 9.0, tree=1.5), match(8, 5.0, oak=1.0)], rarity, 1) == [pid(8)]


def test_more_matches_than_the_archive_size_are_accepted() -> None:
    assert all(value > 0 for value in word_rarities([match(n, oak=1.0) for n in range(1, 9)], 3).values())


def test_vector_ranks_count_by_their_weight() -> None:
    words, meaning = [(pid(1), 3.0), (pid(2), 2.0)], [(pid(2), 0.9), (pid(3), 0.8)]
    assert [id_.int for id_, _ in fuse_lists(words, meaning, 0.0001)] == [1, 2, 3]
    assert [id_.int for id_, _ in fuse_lists(words, meaning, 1.0)] == [2, 1, 3]
