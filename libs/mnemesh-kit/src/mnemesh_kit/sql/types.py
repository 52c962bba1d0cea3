"""Column types that mean the same on both engines."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa


class UtcDateTime(sa.types.TypeDecorator[datetime]):
    """An instant: stored in UTC, returned aware. SQLite keeps it as text that sorts in time order."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    @property
    def python_type(self) -> type[datetime]:
        """What values of this type are in Python; paging reads it."""
        return datetime

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        """Refuses naive datetimes: nobody knows what they mean."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a stored datetime must be aware")
        value = value.astimezone(UTC)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def result_processor(self, dialect: sa.Dialect, coltype: object) -> Callable[[Any], datetime | None] | None:
        """Reads SQLite's text in one step: a search reads hundreds of instants, and the usual way takes three."""
        return _instant if dialect.name == "sqlite" else super().result_processor(dialect, coltype)

    def process_result_value(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:  # noqa: ARG002
        """Gives the aware instant back, on PostgreSQL."""
        if value is None:
            return None
        # The driver gives the ends of time without a zone.
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def _instant(value: str | None) -> datetime | None:
    return None if value is None else datetime.fromisoformat(f"{value}+00:00")
