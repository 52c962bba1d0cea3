"""The full-text ranking: a word counts in its message and, with a lower weight, in the neighbours."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pytest
from mnemesh_kit.ids import derive_id
from mnemesh_recall.model.ranking import Candidate, Candidates, Key, key_of, rank
from mnemesh_retrieval.ranking.scores import DEFAULTS

NAMES: Final = (
    "-2", "2", "a", "after", "alone", "answer", "asking", "b", "before", "beside", "between", "both", "c", "far",
    "first", "here", "last", "named", "near", "nothing", "oak", "remark", "telling", "tree",
)  # fmt: skip


def candidate(name: str, body: str, beside: str = "", around: str = "", before: str = "", **more: Any) -> Candidate:
    id_, before_id = derive_id("message", name), derive_id("message", before) if before else None
    return Candidate(id_, body, len(body), beside=beside, around=around, before_id=before_id, **more)


def key(name: str) -> Key:
    return key_of(derive_id("message", name))


def ranked(
    found: Sequence[Candidate], weights: Mapping[str, float], similarities: Mapping[str, float] | None = None
) -> list[tuple[str, float]]:
    given = Candidates.of(found, tuple(weights))
    known = {key(name): similarity for name, similarity in (similarities or {}).items()}
    in_order = rank(given, weights, known, 0.25, (), DEFAULTS, depth=10)
    names = {key(name): name for name in NAMES}
    return [(names[each.id], each.score) for each in in_order]


def order(*found: Candidate, **weights: float) -> list[str]:
    return [id_ for id_, _ in ranked(found, weights)]


def test_word_counts_less_with_distance() -> None:
    far, near, here = candidate("far", "x", "", "oak"), candidate("near", "x", "oak"), candidate("here", "oak")
    assert order(far, near, here, oak=1.0) == ["here", "near", "far"]


def test_message_between_two_matches_does_not_outrank_them() -> None:
    between = candidate("between", "oh", "oak and oak and oak / oak and oak and oak")
    first, last = candidate("first", "the oak"), candidate("last", "an oak tree")
    for found in ((first, between, last), (between, last, first)):
        assert order(*found, oak=1.0) == ["first", "between", "last"]
    scores = dict(ranked([first, between, last], {"oak": 1.0}))
    assert scores["between"] == pytest.approx(scores["first"], rel=1e-5)


def test_two_query_words_beat_one_repeated_word() -> None:
    alone, both = candidate("alone", "oak oak oak"), candidate("both", "oak", "tree")
    assert order(alone, both, candidate("tree", "tree"), oak=1.0, tree=1.0)[0] == "both"


def test_long_answer_outranks_a_short_remark() -> None:
    answer = candidate("answer", "oak tree " + "and much more besides " * 5)
    assert order(candidate("remark", "oak"), answer, oak=1.0, tree=1.0)[0] == "answer"


def test_words_of_excluded_messages_count_for_their_neighbours() -> None:
    assert order(candidate("nothing", "x"), candidate("answer", "yes", "oak"), oak=1.0)[0] == "answer"


def test_match_beyond_the_read_part_of_a_text_scores_above_zero() -> None:
    assert all(score > 0 for _, score in ranked([Candidate(derive_id("message", "a"), "x", 9_000)], {"oak": 1.0}))


def test_words_of_a_question_count_for_its_answer_more_than_other_words_beside_it() -> None:
    answer = candidate("answer", "in may", "x", asked="when did you plant the oak")
    beside = candidate("beside", "in may", "when you planted the oak / x")
    assert order(candidate("oak", "oak oak"), beside, answer, oak=1.0) == ["oak", "answer", "beside"]


def test_words_before_a_message_count_more_than_those_after_it() -> None:
    before, after = candidate("before", "x", "oak / x"), candidate("after", "x", "x / oak")
    second_before, second_after = candidate("-2", "x", "", "oak / x"), candidate("2", "x", "", "x / oak")
    texts = (second_after, after, second_before, before, candidate("here", "oak"))
    assert order(*texts, oak=1.0) == ["here", "before", "after", "-2", "2"]


def test_a_question_counts_less_and_the_named_speaker_more() -> None:
    asking = candidate("asking", "oak", ends_in_question=True)
    telling = candidate("telling", "oak")
    named = candidate("named", "oak", about="ada / 8 mai 2023")
    assert order(asking, telling, named, oak=1.0, ada=0.0) == ["named", "telling", "asking"]


def test_similarity_of_the_message_before_counts_most_if_it_asks() -> None:
    near = {"a": 0.1, "b": 0.1, "question": 0.8, "remark": 0.8, "c": 0.15}
    answer = candidate("a", "yes", before="question", asked="oak", has_word=False)
    reply = candidate("b", "yes", before="remark", has_word=False)
    other = candidate("c", "yes", has_word=False)
    assert [id_ for id_, _ in ranked([other, reply, answer], {}, near)] == ["a", "b", "c"]


def test_texts_without_word_and_similarity_are_not_hits() -> None:
    texts = [candidate("far", "x", has_word=False), candidate("near", "x", has_word=False), candidate("oak", "oak")]
    assert [id_ for id_, _ in ranked(texts, {"oak": 1.0}, {"far": -0.1, "near": 0.4})] == ["oak", "near"]
