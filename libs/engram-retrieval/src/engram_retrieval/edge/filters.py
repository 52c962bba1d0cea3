"""Translates the library's filters into the engine's."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import qdrant_edge as qe

from engram_retrieval.edge.words import UNSPACED_RUN
from engram_retrieval.filters import And, Filter, HasId, HasWords, Match, MatchAll, MatchAny, Not, Or, TimeRange
from engram_retrieval.index import instant

if TYPE_CHECKING:  # the engine declares its unions to type checkers only
    from qdrant_edge import ConditionType


def engine_filter(condition: Filter) -> qe.Filter:
    """A filter of the engine that matches the very same points."""
    return qe.Filter(must=[_condition(condition)])


def _condition(condition: Filter) -> ConditionType:
    match condition:
        case Match(field, value):
            return qe.FieldCondition(field, match=qe.MatchValue(value))
        case MatchAny(_, ()) | Or(()):
            return qe.HasIdCondition(set())  # no point; an empty `should` would be no condition at all
        case MatchAny(field, values):
            return qe.FieldCondition(field, match=qe.MatchAny(list(values)))
        case MatchAll(field, values):
            return qe.Filter(must=[qe.FieldCondition(field, match=qe.MatchValue(value)) for value in values])
        case HasWords(field, text):
            return _has_words(field, text)
        case TimeRange(_, None, None):
            return qe.Filter(must=[])
        case TimeRange(field, gte, lt):
            return qe.FieldCondition(field, range=qe.RangeDateTime(gte=_bound(gte), lt=_bound(lt)))
        case HasId(ids):
            return qe.HasIdCondition(set(ids))
        case And(conditions):
            return qe.Filter(must=[_condition(each) for each in conditions])
        case Or(conditions):
            return qe.Filter(should=[_condition(each) for each in conditions])
        case Not(inner):
            return qe.Filter(must_not=[_condition(inner)])


def _has_words(field: str, text: str) -> ConditionType:
    """Runs of characters of scripts without spaces must occur as they are; the text index knows no words in them."""
    runs = UNSPACED_RUN.findall(text)
    conditions: list[ConditionType] = [qe.FieldCondition(field, match=qe.MatchSubstring(run)) for run in runs]
    spaced = UNSPACED_RUN.sub(" ", text)
    if spaced.strip() or not runs:
        conditions.append(qe.FieldCondition(field, match=qe.MatchText(spaced)))
    return qe.Filter(must=conditions)


def _bound(value: datetime | None) -> str | None:
    return instant(value) if value is not None else None
