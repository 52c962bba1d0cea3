"""The two forms of rerank requests and answers over HTTP. Pure functions of JSON values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final


class AnswerInvalid(ValueError):
    """An answer does not have one score for each text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WireForm:
    """The names of the fields of an API. The path is always `/rerank`."""

    texts: str
    """The field of the request with the texts."""
    results: str | None
    """The field of the answer with the results; None if the answer is the list itself."""
    score: str
    count: str | None = None
    """The field of the request with the number of results to return; None if the API returns all without it."""
    sends_model: bool = True
    more: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the request."""

    def body(self, model: str, query: str, texts: Sequence[str]) -> dict[str, Any]:
        """Returns the body of a request."""
        body: dict[str, Any] = {"query": query, self.texts: list(texts), **self.more}
        if self.sends_model:
            body["model"] = model
        if self.count is not None:
            body[self.count] = len(texts)
        return body

    def scores(self, answer: Any, count: int) -> list[float]:
        """Returns the scores in the order of the texts. Results may come in any order.

        Raises:
            AnswerInvalid: a result is missing, repeated or malformed.
        """
        results = answer.get(self.results) if self.results is not None and isinstance(answer, dict) else answer
        if not isinstance(results, list):
            raise AnswerInvalid("the answer has no list of results")
        if len(results) != count:
            raise AnswerInvalid(f"{len(results)} results for {count} texts")
        found: dict[int, float] = {}
        for result in results:
            index, score = (result.get("index"), result.get(self.score)) if isinstance(result, dict) else (None, None)
            if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < count or index in found:
                raise AnswerInvalid("the indexes of the results are not those of the texts")
            if isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score):
                raise AnswerInvalid("a score is not a finite number")
            found[index] = float(score)
        return [found[index] for index in range(count)]


COHERE: Final = WireForm(texts="documents", results="results", score="relevance_score", count="top_n")
"""Cohere's /v2/rerank; vLLM and other servers have the same."""
JINA: Final = WireForm(
    texts="documents", results="results", score="relevance_score", count="top_n", more={"return_documents": False}
)
VOYAGE: Final = WireForm(texts="documents", results="data", score="relevance_score", count="top_k")
TEI: Final = WireForm(texts="texts", results=None, score="score", sends_model=False, more={"truncate": True})
"""Text Embeddings Inference, which serves one model."""
