"""Translates filters into those of the engine."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

import qdrant_edge as qe

from mnemesh_retrieval.filter_translation import translate_filter
from mnemesh_retrieval.filters import Filter, Scalar
from mnemesh_retrieval.index import instant

if TYPE_CHECKING:  # the engine declares its unions for type checkers only
    from qdrant_edge import ConditionType


def engine_filter(condition: Filter) -> qe.Filter:
    """Returns a filter of the engine that matches the same points."""
    return qe.Filter(must=[translate_filter(condition, _FilterBuilder())])


class _FilterBuilder:
    """See FilterBuilder in `filter_translation`."""

    def equals(self, field: str, value: Scalar) -> ConditionType:
        return qe.FieldCondition(field, match=qe.MatchValue(value))

    def among(self, field: str, values: Sequence[str]) -> ConditionType:
        return qe.FieldCondition(field, match=qe.MatchAny(list(values)))

    def words(self, field: str, text: str) -> ConditionType:
        return qe.FieldCondition(field, match=qe.MatchText(text))

    def substring(self, field: str, text: str) -> ConditionType:
        return qe.FieldCondition(field, match=qe.MatchSubstring(text))

    def between(self, field: str, gte: datetime | None, lt: datetime | None) -> ConditionType:
        return qe.FieldCondition(field, range=qe.RangeDateTime(gte=_bound(gte), lt=_bound(lt)))

    def ids(self, ids: Sequence[UUID]) -> ConditionType:
        return qe.HasIdCondition(set(ids))

    def every(self, conditions: Sequence[ConditionType]) -> ConditionType:
        return qe.Filter(must=list(conditions))

    def some(self, conditions: Sequence[ConditionType]) -> ConditionType:
        return qe.Filter(should=list(conditions))

    def none(self, condition: ConditionType) -> ConditionType:
        return qe.Filter(must_not=[condition])


def _bound(value: datetime | None) -> str | None:
    return instant(value) if value is not None else None
