"""The ranking of passages: own and received words, factors, similarities, and what does not match."""

from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from mnemesh_archival.model.passages import Asking, Continuity, PassagePosition
from mnemesh_archival.model.ranking import Likeness, PassageRanking, best_by_own_words, equal_to, word_rarities
from mnemesh_retrieval.index import WordMatch
from mnemesh_retrieval.ranking.scores import DEFAULTS

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
OAK, TREE = 1, 2


def pid(number: int) -> UUID:
    return UUID(int=number)


def match(number: int, **words: float) -> WordMatch:
    return WordMatch(pid(number), 1.0, {{"oak": OAK, "tree": TREE}[word]: weight for word, weight in words.items()})


def position(
    number: int,
    continuity: Continuity = Continuity.DIALOGUE,
    *,
    speaker: str = "",
    asking: Asking = Asking.NONE,
    archive: str = "a",
) -> PassagePosition:
    return PassagePosition(pid(number), archive, "s", number, NOON, continuity, speaker, asking)


def ranked(
    matches: Sequence[WordMatch],
    positions: Sequence[PassagePosition],
    likeness: Likeness | None = None,
    *,
    asked: dict[int, Collection[int]] | None = None,
    named: Collection[str] = (),
    exact: Sequence[int] = (),
) -> dict[int, float]:
    """Returns the scores of passages by number, best first."""
    rarities = {word: 1.0 for each in matches for word in each.words}
    ranking = PassageRanking(positions, matches, rarities, DEFAULTS)
    questions = {pid(number): words for number, words in (asked or {}).items()}
    ranking.score_words(questions, lambda text: [OAK] if text in named else [], {}, ())
    found = ranking.rank([likeness] if likeness else [], [pid(number) for number in exact], 10)
    return {each.id.int: round(each.score, 3) for each in found}


def test_answer_receives_the_words_of_its_question() -> None:
    turns = [position(1, asking=Asking.AT_END), *(position(n) for n in (2, 3, 4))]
    assert ranked([match(1, oak=1.0)], turns, asked={1: [OAK]}) == {2: 1.0, 1: 0.85, 3: 0.3}


@pytest.mark.parametrize("alone", [Continuity.AUTOMATIC, Continuity.SEPARATE])
def test_passages_that_stand_alone_share_nothing(alone: Continuity) -> None:
    facts = [position(1, alone), position(2, alone), position(3, alone)]
    near = Likeness(0.25, 0.3, {pid(1): 0.9, pid(2): 0.2, pid(3): 0.4})
    assert ranked([match(1, oak=1.0)], facts) == {1: 1.0}
    assert ranked([match(1, oak=1.0)], facts, near) == {1: 1.25, 3: 0.111}
    assert ranked([], [position(1), position(2, Continuity.DOCUMENT)], Likeness(1.0, 0.3, {pid(1): 0.9})) == {1: 1.0}


def test_similarity_of_a_neighbour_makes_a_turn_match() -> None:
    turns = [position(1, asking=Asking.SOMEWHERE), position(2), position(3)]
    found = ranked([], turns, Likeness(1.0, 0.3, {pid(1): 0.5, pid(2): 0.2, pid(3): 0.1}))
    assert list(found) == [1, 2]


def test_name_of_a_speaker_counts_for_its_own_passage_only() -> None:
    turns = [position(1, speaker="Oak"), position(2, speaker="Elm"), position(3, speaker="Elm")]
    assert ranked([match(1, oak=1.0)], turns, named=["Oak"]) == {1: 1.25}
    assert ranked([match(1, oak=1.0)], turns) == {1: 1.0, 2: 0.5, 3: 0.3}


def test_matches_rank_before_the_passage_between_them() -> None:
    assert ranked([match(1, oak=1.0), match(3, oak=1.0)], [position(n) for n in (1, 2, 3)]) == {1: 1.0, 3: 1.0, 2: 0.9}


def test_embedders_count_relative_to_their_best() -> None:
    passages = [position(n, Continuity.AUTOMATIC) for n in (1, 2, 3)]
    ranking = PassageRanking(passages, [], {}, DEFAULTS)
    ranking.score_words({}, lambda _: (), {}, ())
    likenesses = [Likeness(0.5, 0.1, {pid(1): 0.8, pid(2): 0.4}), Likeness(0.25, 0.1, {pid(3): 0.2})]
    found = [(each.id.int, each.score, each.vector_score) for each in ranking.rank(likenesses, [], 10)]
    assert found == [(1, 0.5, 0.8), (2, 0.25, 0.4), (3, 0.25, 0.2)]


def test_excluded_neighbours_are_no_hits_and_equal_passages_are_first() -> None:
    ranking = PassageRanking([position(n) for n in (1, 2, 7)], [match(1, oak=1.0)], {OAK: 1.0}, DEFAULTS)
    ranking.score_words({}, lambda _: (), {}, ())
    assert ranking.receivers() == [pid(2)]
    ranking.exclude(ranking.receivers())
    assert [each.id for each in ranking.rank([], [pid(7)], 10)] == [pid(7), pid(1)]


def test_word_of_most_passages_in_scope_scores_low() -> None:
    found = [match(n, oak=1.0, tree=1.0) if n == 1 else match(n, tree=1.0) for n in range(1, 51)]
    rarity = word_rarities(found, 60)
    assert rarity[OAK] > 3
    assert rarity[TREE] < 0.3
    assert best_by_own_words([match(7, tree=1.5), match(8, oak=1.0)], rarity, 1) == [pid(8)]
    assert all(value > 0 for value in word_rarities([match(n, oak=1.0) for n in range(1, 9)], 3).values())


@pytest.mark.parametrize(
    ("query", "expected"),
    [("Ben: Yes!", [1]), ("ada: yes!", [2]), ("yes", [1, 2]), ("Cleo: yes", [1, 2]), ("no", []), ("  ", [])],
)
def test_texts_equal_a_query_as_closely_as_possible(query: str, expected: list[int]) -> None:
    texts: dict[Any, str] = {pid(1): "Ben: Yes!", pid(2): "Ada: Yes!", pid(3): "Perhaps."}
    assert [id_.int for id_ in equal_to(query, texts)] == expected
