"""Column types that behave the same on both engines."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa


class UtcDateTime(sa.types.TypeDecorator[datetime]):
    """An instant, stored in UTC and returned as an aware datetime. SQLite stores text that sorts by time."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    @property
    def python_type(self) -> type[datetime]:
        """The Python type of the values, which paging needs."""
        return datetime

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        """Converts an aware datetime to UTC. Raises ValueError for a naive one, which is ambiguous."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("A stored datetime must be aware.")
        value = value.astimezone(UTC)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def bind_processor(self, dialect: sa.Dialect) -> Callable[[datetime | None], Any] | None:
        """Returns a function that writes SQLite's text in one step, in the form of SQLAlchemy's own DateTime."""
        return _text if dialect.name == "sqlite" else super().bind_processor(dialect)

    def result_processor(self, dialect: sa.Dialect, coltype: object) -> Callable[[Any], datetime | None] | None:
        """Returns a function that parses SQLite's text in one step: a search reads hundreds of instants."""
        return _instant if dialect.name == "sqlite" else super().result_processor(dialect, coltype)

    def process_result_value(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:  # noqa: ARG002
        """Returns the aware instant, on PostgreSQL."""
        if value is None:
            return None
        # The driver returns the earliest and the latest instant without a zone.
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def _text(value: datetime | None) -> str | None:
    if value is None:
        return None
    if value.tzinfo is None:
        raise ValueError("A stored datetime must be aware.")
    return value.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "microseconds")


def _instant(value: str | None) -> datetime | None:
    return None if value is None else datetime.fromisoformat(f"{value}+00:00")
