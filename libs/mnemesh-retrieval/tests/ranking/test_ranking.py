"""The ranking: what neighbours lend, factors, the fusion of scores, and its constants."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from mnemesh_retrieval.ranking.scores import (
    DEFAULTS,
    EXACT,
    Candidate,
    RankingConstants,
    Strands,
    best_of_queries,
    factor,
    fuse_scores,
    limited,
    shared_similarity,
    time_factor,
)
from mnemesh_retrieval.time_expressions.resolver import TimeRange, resolve

NOON = datetime(2023, 5, 8, 12, tzinfo=UTC)


def strands(*positions: int, hours: Sequence[float] = (), of: Sequence[int] = ()) -> Strands:
    """Returns the neighbours of texts at these positions of strand 0, at the same time, unless stated otherwise."""
    times = [hour * 3600 for hour in hours or [0] * len(positions)]
    return Strands.of(of or [0] * len(positions), positions, times, DEFAULTS)


def test_words_of_a_question_are_lent_whole_to_the_answer() -> None:
    dog_and_cat = np.zeros((6, 2))
    dog_and_cat[2] = 2.0, 1.0
    asked = np.zeros((6, 2), bool)
    asked[2, 0] = True
    found = strands(1, 2, 3, 4, 5, 6).received_words(dog_and_cat, asked, DEFAULTS)
    assert found == pytest.approx(np.array([[0.4, 0.2], [0.8, 0.4], [0.0, 0.0], [2.0, 0.5], [0.6, 0.3], [0.0, 0.0]]))


def test_neighbours_are_near_in_position_and_time_and_of_one_strand() -> None:
    found = strands(9, 4, 5, 7, 6, 8, hours=(0, 0, 5, 0, 11, 0), of=(0, 0, 0, 1, 0, 1))
    assert {step: rows.tolist() for step, rows in found.by_distance.items()} == {
        -1: [-1, -1, 1, -1, 2, 3],
        1: [-1, 2, 4, 5, -1, -1],
        -2: [-1, -1, -1, -1, -1, -1],
        2: [-1, -1, -1, -1, -1, -1],
    }
    assert strands(3, 1).by_distance[-2].tolist() == [1, -1]


def test_no_text_has_no_neighbours() -> None:
    assert strands().received_words(np.zeros((0, 3)), np.zeros((0, 3), bool), DEFAULTS).shape == (0, 3)


def test_a_word_weighs_less_than_where_it_weighs_most() -> None:
    own = np.array([[1.0], [0.5], [1.0], [0.0]])
    received = limited(np.array([[0.0], [1.5], [0.3], [0.3]]), own, np.array([1.0]))
    assert (own + received).ravel().tolist() == pytest.approx([1.0, 1.0, 1.0, 0.3])
    assert own[1] + received[1] < own[0] + received[0]
    assert limited(np.array([[0.3]]), np.array([[0.0]]), np.array([np.inf])).tolist() == [[0.3]]


def test_similarity_of_neighbours_counts_more_after_a_question() -> None:
    chain = strands(1, 2, 3)
    asks = np.array([True, False, False])
    found = chain.shared_similarities(np.array([0.5, 0.2, 0.4]), asks, DEFAULTS)
    assert found[1] == pytest.approx(0.2 + 0.6 * 0.5 + 0.15 * 0.4)
    assert found[2] == pytest.approx(0.4 + 0.3 * 0.2)
    assert chain.shared_similarities(np.array([0.0, -0.5, 0.4]), asks, DEFAULTS)[2] == pytest.approx(0.4)
    row = [np.array([value]) for value in (0.2, 0.5, 0.4)]
    assert shared_similarity(*row, DEFAULTS, before_asks=np.array([True])) == pytest.approx(found[1])
    assert chain.largest_nearby(np.array([0.5, 0.2, 0.4])).tolist() == [0.5, 0.5, 0.4]


def test_scores_are_fused_relative_to_the_best() -> None:
    found = fuse_scores(
        [
            Candidate("words", text_score=4.0),
            Candidate("both", text_score=3.0, vector_score=0.5),
            Candidate("similar", vector_score=0.25),
            Candidate("neither", vector_score=-0.1),
        ],
        0.5,
        DEFAULTS,
    )
    assert [(each.id, each.score) for each in found] == [("both", 1.25), ("words", 1.0), ("similar", 0.25)]
    assert (found[0].text_rank, found[0].vector_rank, found[1].vector_score) == (2, 1, None)


def test_candidates_beyond_both_lists_are_left_out() -> None:
    constants = RankingConstants(word_candidates=1, similarity_candidates=1)
    texts = [Candidate(number, text_score=float(number), vector_score=0.1 * number) for number in (1, 2, 3)]
    assert [each.id for each in fuse_scores(texts, 1.0, constants)] == [3]
    assert [each.id for each in fuse_scores(texts, 1.0, constants, depth=2)] == [3, 2]


def test_a_text_without_a_word_is_found_above_the_least_similarity() -> None:
    texts = [Candidate("far", vector_score=0.1), Candidate("near", vector_score=0.3), Candidate("word", 1.0, 0.1)]
    found = fuse_scores(texts, 0.5, DEFAULTS, least_similarity=0.2)
    assert [(each.id, each.vector_score) for each in found] == [("word", 0.1), ("near", 0.3)]


def test_a_text_that_equals_the_query_is_first() -> None:
    equal = Candidate("equal", text_score=0.1, factor=0.85, is_exact=True)
    found = fuse_scores([Candidate("other", text_score=9.0, vector_score=1.0, factor=2.0), equal], 1.0, DEFAULTS)
    assert [each.id for each in found] == ["equal", "other"]


def test_questions_count_less_and_named_speakers_more() -> None:
    assert factor(DEFAULTS, ends_in_question=True, is_named_speaker=True, time=1.3) == pytest.approx(0.85 * 1.25 * 1.3)
    assert factor(DEFAULTS, ends_in_question=False, is_named_speaker=False) == 1.0


def test_several_queries_are_fused_by_their_best_relative_score() -> None:
    first = fuse_scores([Candidate("a", text_score=10.0), Candidate("b", text_score=9.0)], 0.0, DEFAULTS)
    second = fuse_scores([Candidate("b", text_score=2.0), Candidate("c", text_score=1.0)], 0.0, DEFAULTS)
    exact = fuse_scores([Candidate("d", text_score=1.0, is_exact=True), Candidate("e", text_score=4.0)], 0.0, DEFAULTS)
    assert [(each.id, each.score) for each in best_of_queries([first, second])] == [("a", 1.0), ("b", 1.0), ("c", 0.5)]
    assert best_of_queries([first, exact])[0].id == "d"
    assert best_of_queries([exact])[0].score == EXACT + 0.25


def test_the_factor_of_a_day_falls_over_the_week_after() -> None:
    named = resolve("8 May 2023", UTC, None)
    factors = [time_factor(NOON + timedelta(days=days), named, DEFAULTS) for days in (-1, 0, 4, 9)]
    assert factors == [1.0, 1.3, pytest.approx(1.15), 1.0]


def test_a_range_without_a_bound_has_the_whole_factor_on_that_side() -> None:
    until = [TimeRange("before 8 May", None, NOON)]
    since = [TimeRange("since 8 May", NOON, None)]
    for days, before, after in ((-900, 1.3, 1.0), (-1, 1.3, 1.0), (0, 1.3, 1.3), (3.5, pytest.approx(1.15), 1.3)):
        moment = NOON + timedelta(days=days)
        assert time_factor(moment, until, DEFAULTS) == before
        assert time_factor(moment, since, DEFAULTS) == after
    assert time_factor(NOON + timedelta(days=30), [*until, *since], DEFAULTS) == 1.3
    assert time_factor(NOON, [], DEFAULTS) == 1.0
