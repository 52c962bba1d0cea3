"""Texts as BM25 word weights. Documents keep their stop words, so that a query of nothing else still finds them."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import qdrant_edge as qe

from mnemesh_retrieval.cjk import CJK_CHARACTER
from mnemesh_retrieval.lemmas import other_forms

if TYPE_CHECKING:  # the engine declares its unions to type checkers only
    from qdrant_edge import Stopwords

AVERAGE_WORDS = 64.0
"""The length that BM25 takes for usual: messages and passages are shorter than the pages its default is made for."""


class Bm25Encoder:
    """Stemmed English, lower-cased, accents folded; Chinese and Japanese go by the character, having no spaces."""

    def __init__(self) -> None:
        self._document = qe.Bm25(_config(qe.StopwordsSet()))
        self._query = qe.Bm25(_config(qe.Language.English))

    def document(self, text: str) -> qe.SparseVector:
        """The weights of a stored text; without any for a text without words."""
        return self._document.embed_document(_spaced(text))

    def query(self, text: str) -> qe.SparseVector | None:
        """The words to look for, in all the forms of irregular ones: without stop words unless there is nothing else.
        None: no words at all."""
        spaced = _spaced(" ".join((text, *other_forms(text))))
        for model in (self._query, self._document):
            words = model.embed_query(spaced)
            if words.indices:
                return words
        return None

    def forms(self, text: str) -> dict[int, int]:
        """The numbers of those forms that a query's words are not given in, each with the number of the word given."""
        numbered = ((self._number(form), self._number(word)) for form, word in other_forms(text).items())
        return {form: word for form, word in numbered if form is not None and word is not None}

    @lru_cache(maxsize=4096)  # noqa: B019  # as long-lived as the process
    def _number(self, word: str) -> int | None:
        return next(iter(self._query.embed_query(word).indices), None)


def _spaced(text: str) -> str:
    return text if text.isascii() else CJK_CHARACTER.sub(r" \1 ", text)


def _config(stopwords: Stopwords) -> qe.Bm25Config:
    return qe.Bm25Config(
        avg_len=AVERAGE_WORDS,
        ascii_folding=True,
        language="english",
        stopwords=stopwords,
        tokenizer=qe.TokenizerType.Word,
    )
