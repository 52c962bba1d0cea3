"""Translates filters into those of the server."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from qdrant_client import models

from mnemesh_retrieval.filter_translation import translate_filter
from mnemesh_retrieval.filters import Filter, Scalar


def server_filter(condition: Filter) -> models.Filter:
    """Returns a filter of the server that matches the same points."""
    return models.Filter(must=[translate_filter(condition, _FilterBuilder())])


class _FilterBuilder:
    """See FilterBuilder in `filter_translation`."""

    def equals(self, field: str, value: Scalar) -> models.Condition:
        return models.FieldCondition(key=field, match=models.MatchValue(value=value))

    def among(self, field: str, values: Sequence[str]) -> models.Condition:
        return models.FieldCondition(key=field, match=models.MatchAny(any=list(values)))

    def words(self, field: str, text: str) -> models.Condition:
        return models.FieldCondition(key=field, match=models.MatchText(text=text))

    def substring(self, field: str, text: str) -> models.Condition:
        return models.FieldCondition(key=field, match=models.MatchSubstring(substring=text))

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
