"""Translates filters into those of the server."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from qdrant_client import models

from mnemesh_retrieval.filter_translation import translate_filter
from mnemesh_retrieval.filters import Filter, Scalar
from mnemesh_retrieval.server.features import Features, runs_as_words, runs_field


def server_filter(condition: Filter, features: Features) -> models.Filter:
    """Returns a filter of a server with these features that matches the same points."""
    return models.Filter(must=[translate_filter(condition, _FilterBuilder(features))])


class _FilterBuilder:
    """See FilterBuilder in `filter_translation`."""

    def __init__(self, features: Features) -> None:
        self._features = features

    def equals(self, field: str, value: Scalar) -> models.Condition:
        return models.FieldCondition(key=field, match=models.MatchValue(value=value))

    def among(self, field: str, values: Sequence[str]) -> models.Condition:
        return models.FieldCondition(key=field, match=models.MatchAny(any=list(values)))

    def words(self, field: str, text: str) -> models.Condition:
        return models.FieldCondition(key=field, match=models.MatchText(text=text))

    def substring(self, field: str, text: str) -> models.Condition:
        if self._features.substrings:
            return models.FieldCondition(key=field, match=models.MatchSubstring(substring=text))
        return models.FieldCondition(key=runs_field(field), match=models.MatchPhrase(phrase=runs_as_words(text)))

    def between(self, field: str, gte: datetime | None, lt: datetime | None) -> models.Condition:
        return models.FieldCondition(key=field, range=models.DatetimeRange(gte=gte, lt=lt))

    def ids(self, ids: Sequence[UUID]) -> models.Condition:
        return models.HasIdCondition(has_id=[str(id_) for id_ in ids])

    def every(self, conditions: Sequence[models.Condition]) -> models.Condition:
        return models.Filter(must=list(conditions))

    def some(self, conditions: Sequence[models.Condition]) -> models.Condition:
        return models.Filter(should=list(conditions))

    def none(self, condition: models.Condition) -> models.Condition:
        return models.Filter(must_not=[condition])
