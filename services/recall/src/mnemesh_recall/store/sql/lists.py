"""Lists of values as one parameter, so that a statement has the same text whatever their number."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY

Condition = sa.ColumnElement[bool]
_LISTED: Final = "listed"


def among(column: sa.Column[Any]) -> Mapping[str, Condition]:
    """Returns, by SQL dialect, the condition that a column has one of the values that `listed` passes."""
    value = sa.func.json_each(sa.bindparam(_LISTED, type_=sa.Text)).table_valued("value").c.value
    return {
        "sqlite": column.in_(sa.select(value)),
        "postgresql": column == sa.any_(sa.bindparam(_LISTED, type_=ARRAY(column.type))),
    }


def listed(conn: sa.Connection, values: Sequence[str]) -> dict[str, Any]:
    """Returns the parameter for the condition of `among`."""
    return {_LISTED: json.dumps(values) if conn.dialect.name == "sqlite" else list(values)}
