"""When a lease lapses, by the database's clock: processes whose own clocks differ still agree on who holds what."""

from datetime import timedelta
from typing import Any, Final

import sqlalchemy as sa
from mnemesh_kit.clock import Clock
from mnemesh_kit.sql import Database, UtcDateTime
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

LEASE_TIME: Final = timedelta(seconds=30)
"""How long a lease holds without a write or a renewal."""


class LeaseClock:
    """The two instants that statements about leases take: `p_now` and `new_lease_expires_at`.

    Without a clock both are None, and PostgreSQL puts its own time in their
    place. SQLite serves one process, whose clock is the database's.
    """

    def __init__(self, clock: Clock | None) -> None:
        self._clock = clock

    @classmethod
    def of(cls, database: Database, clock: Clock) -> "LeaseClock":
        """The times of a service's database: PostgreSQL's own, or the process's where it is alone."""
        return cls(None if database.dialect == "postgresql" else clock)

    @property
    def now(self) -> dict[str, Any]:
        """The parameter of a statement that asks whether a lease holds."""
        return {"p_now": self._clock and self._clock.now()}

    @property
    def expiry(self) -> dict[str, Any]:
        """The parameter of a statement that gives or extends a lease."""
        return {"new_lease_expires_at": self._clock and self._clock.now() + LEASE_TIME}


class _OrNow(FunctionElement[Any]):
    type = UtcDateTime()
    inherit_cache = True


class _OrExpiry(FunctionElement[Any]):
    type = UtcDateTime()
    inherit_cache = True


@compiles(_OrNow)
@compiles(_OrExpiry)
def _as_given(element: FunctionElement[Any], compiler: Any, **options: Any) -> str:
    return str(compiler.process(element.clauses, **options))


@compiles(_OrNow, "postgresql")
def _or_now(element: FunctionElement[Any], compiler: Any, **options: Any) -> str:
    return f"coalesce({compiler.process(element.clauses, **options)}, clock_timestamp())"


@compiles(_OrExpiry, "postgresql")
def _or_expiry(element: FunctionElement[Any], compiler: Any, **options: Any) -> str:
    given = compiler.process(element.clauses, **options)
    return f"coalesce({given}, clock_timestamp() + interval '{LEASE_TIME.total_seconds():g} seconds')"


NOW: Final[Any] = _OrNow(sa.bindparam("p_now", type_=UtcDateTime()))
"""The instant in `p_now`, or the database's own."""
EXPIRY: Final[Any] = _OrExpiry(sa.bindparam("new_lease_expires_at", type_=UtcDateTime()))
"""The instant in `new_lease_expires_at`, or that of the database and the time of a lease."""
