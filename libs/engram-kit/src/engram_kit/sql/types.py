"""Column types that mean the same on both engines."""

from __future__ import annotations

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

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> datetime | None:  # noqa: ARG002
        """Gives the aware instant back."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)  # type: ignore[no-any-return]
