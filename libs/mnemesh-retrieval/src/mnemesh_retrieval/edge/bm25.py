"""Encodes texts as BM25 word weights. Documents keep stop words, so that a query of only stop words finds them."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import qdrant_edge as qe

from mnemesh_retrieval.cjk import CJK_CHARACTER
from mnemesh_retrieval.lemmas import other_forms

if TYPE_CHECKING:  # the engine declares its unions for type checkers only
    from qdrant_edge import Stopwords

AVERAGE_LENGTH = 64.0
"""The average document length for BM25. Messages and passages are shorter than the default assumes."""


class Bm25Encoder:
    """Encodes stemmed English, lower-cased, with accents folded; each CJK character is a word."""

    def __init__(self) -> None:
        self._document = qe.Bm25(_config(qe.StopwordsSet()))
        self._query = qe.Bm25(_config(qe.Language.English))

    def document(self, text: str) -> qe.SparseVector:
        """Returns the weights of a stored text; empty for a text without words."""
        return self._document.embed_document(_spaced(text))

    def query(self, text: str) -> qe.SparseVector | None:
        """Returns the words to search for, including all forms of irregular ones; None if there are none.

        Stop words are omitted unless there are no other words.
        """
        spaced = _spaced(" ".join((text, *other_forms(text))))
        for model in (self._query, self._document):
            words = model.embed_query(spaced)
            if words.indices:
                return words
        return None

    def forms(self, text: str) -> dict[int, int]:
        """Returns the numbers of the forms that are not in a query, each with the number of the word in the query."""
        numbered = ((self._number(form), self._number(word)) for form, word in other_forms(text).items())
        return {form: word for form, word in numbered if form is not None and word is not None}

    @lru_cache(maxsize=4096)  # noqa: B019  # the encoder lives as long as the process
    def _number(self, word: str) -> int | None:
        return next(iter(self._query.embed_query(word).indices), None)


def _spaced(text: str) -> str:
    return text if text.isascii() else CJK_CHARACTER.sub(r" \1 ", text)


def _config(stopwords: Stopwords) -> qe.Bm25Config:
    return qe.Bm25Config(
        avg_len=AVERAGE_LENGTH,
        ascii_folding=True,
        language="english",
        stopwords=stopwords,
        tokenizer=qe.TokenizerType.Word,
    )
