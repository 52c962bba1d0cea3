"""The full-text ranking: a word counts in its message and, with a lower weight, in the neighbours."""

from __future__ import annotations

from mnemesh_recall.store.sql.fulltext.documents import Candidate
from mnemesh_recall.store.sql.fulltext.ranking import ranked


def candidate(id_: str, body: str, beside: str = "", around: str = "", about: str = "") -> Candidate:
    return Candidate(id_, body, len(body), beside, around, about)


def order(*found: Candidate, **weights: float) -> list[str]:
    return [id_ for id_, _ in ranked(found, weights)]


def test_word_counts_less_with_distance() -> None:
    far, near, here = candidate("far", "x", "", "oak"), candidate("near", "x", "oak"), candidate("here", "oak")
    assert order(far, near, here, oak=1.0) == ["here", "near", "far"]


def test_message_between_two_matches_does_not_outrank_them() -> None:
    between = candidate("between", "oh", "oak and oak and oak and oak and oak and oak")
    first, last = candidate("first", "the oak"), candidate("last", "an oak tree")
    assert order(first, between, last, oak=1.0) == ["first", "between", "last"]
    scores = dict(ranked([first, between, last], {"oak": 1.0}))
    assert scores["between"] == scores["first"]


def test_two_query_words_beat_one_repeated_word() -> None:
    alone, both = candidate("alone", "oak oak oak"), candidate("both", "oak", "tree")
    assert order(alone, both, candidate("tree", "tree"), oak=1.0, tree=1.0)[0] == "both"


def test_long_answer_outranks_a_short_remark() -> None:
    answer = candidate("answer", "oak tree " + "and much more besides " * 5)
    assert order(candidate("remark", "oak"), answer, oak=1.0, tree=1.0)[0] == "answer"


def test_words_of_excluded_messages_count_for_their_neighbours() -> None:
    assert order(candidate("nothing", "x"), candidate("answer", "yes", "oak"), oak=1.0)[0] == "answer"


def test_match_beyond_the_read_part_of_a_text_scores_above_zero() -> None:
    assert all(score > 0 for _, score in ranked([Candidate("a", "x", 9_000, "", "", "")], {"oak": 1.0}))
