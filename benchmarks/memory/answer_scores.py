"""Scores of answers by words: F1 over stems, in the way in which LoCoMo scores its categories."""

import re
import string
from collections import Counter
from functools import cache
from typing import Final

import snowballstemmer

from benchmarks.datasets import Question

_LEFT_OUT: Final = frozenset({"a", "an", "the", "and"})
_NO_PUNCTUATION: Final = str.maketrans("", "", string.punctuation)
_ABSTAINS: Final = re.compile(
    r"no (?:such )?information|not (?:mentioned|available|stated|discussed)|n't (?:mentioned|know|say)", re.IGNORECASE
)


def score(question: Question, answer: str) -> float | None:
    """Returns a score between 0 and 1; None if words cannot score the answer.

    - A question without an answer in the dialogue scores 1 if the answer says so, else 0.
    - An expected list (`multi-hop`) is compared item by item: each expected item counts with its best match.
    - Of expected alternatives (`open-domain`, separated by semicolons) the first is compared.
    """
    if question.is_unanswerable:
        return float(abstains(answer))
    if question.judged_only or question.answer is None:
        return None
    if question.category == "multi-hop":
        expected, given = question.answer.split(","), answer.split(",")
        return sum(max(f1(each, item) for item in given) for each in expected) / len(expected)
    if question.category == "open-domain":
        return f1(question.answer.split(";")[0], answer)
    return f1(question.answer, answer)


def abstains(answer: str) -> bool:
    """Returns whether an answer says that the dialogue does not contain it."""
    return _ABSTAINS.search(answer) is not None


def f1(expected: str, given: str) -> float:
    """Returns the harmonic mean of precision and recall of the stems of `given`. Articles do not count."""
    wanted, found = Counter(_stems(expected)), Counter(_stems(given))
    same = (wanted & found).total()
    return 2 * same / (wanted.total() + found.total()) if same else 0.0


def _stems(text: str) -> list[str]:
    words = text.replace(",", "").lower().translate(_NO_PUNCTUATION).split()
    return [str(_stemmer().stemWord(word)) for word in words if word not in _LEFT_OUT]


@cache
def _stemmer() -> "snowballstemmer.porter_stemmer.PorterStemmer":
    return snowballstemmer.stemmer("porter")
