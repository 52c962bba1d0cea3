"""How messages are ranked by words: a word counts where it is, and a share of it beside that."""

from __future__ import annotations

from mnemesh_recall.store.sql.fulltext.documents import Candidate
from mnemesh_recall.store.sql.fulltext.ranking import ranked


def candidate(id_: str, body: str, beside: str = "", around: str = "", about: str = "") -> Candidate:
    return Candidate(id_, body, len(body), beside, around, about)


def order(*found: Candidate, **weights: float) -> list[str]:
    return [id_ for id_, _ in ranked(found, weights)]


def test_a_word_counts_less_the_further_it_is() -> None:
    far, near, here = candidate("far", "x", "", "oak"), candidate("near", "x", "oak"), candidate("here", "oak")
    assert order(far, near, here, oak=1.0) == ["here", "near", "far"]


def test_a_message_between_two_that_say_a_word_is_not_more_about_it_than_they_are() -> None:
    between = candidate("between", "oh", "oak and oak and oak and oak and oak and oak")
    first, last = candidate("first", "the oak"), candidate("last", "an oak tree")
    assert order(first, between, last, oak=1.0) == ["first", "between", "last"]
    scores = dict(ranked([first, between, last], {"oak": 1.0}))
    assert scores["between"] == scores["first"]


def test_words_that_complete_each_other_beat_one_word_alone() -> None:
    alone, both = candidate("alone", "oak oak oak"), candidate("both", "oak", "tree")
    assert order(alone, both, candidate("tree", "tree"), oak=1.0, tree=1.0)[0] == "both"


def test_a_long_answer_is_not_lost_behind_short_remarks() -> None:
    answer = candidate("answer", "oak tree " + "and much more besides " * 5)
    assert order(candidate("remark", "oak"), answer, oak=1.0, tree=1.0)[0] == "answer"


def test_words_of_messages_that_the_search_leaves_out_count_for_their_neighbours() -> None:
    assert order(candidate("nothing", "x"), candidate("answer", "yes", "oak"), oak=1.0)[0] == "answer"


def test_a_word_beyond_what_is_read_of_a_long_text_is_there() -> None:
    assert all(score > 0 for _, score in ranked([Candidate("a", "x", 9_000, "", "", "")], {"oak": 1.0}))
