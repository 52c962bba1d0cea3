"""The expiry of leases by the clock of the database, so that processes with different clocks agree."""

from datetime import timedelta
from typing import Any, Final

import sqlalchemy as sa
from mnemesh_kit.clock import Clock
from mnemesh_kit.sql import Database, UtcDateTime
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

LEASE_TIME: Final = timedelta(seconds=30)
"""The time for which a lease is held without a write or a renewal."""


class LeaseClock:
    """The parameters of statements about leases: `p_now` and `new_lease_expires_at`.

    Without a clock both are None, and PostgreSQL uses its own time instead. SQLite serves one process, whose clock is
    used.
    """

    def __init__(self, clock: Clock | None) -> None:
        self._clock = clock

    @classmethod
    def of(cls, database: Database, clock: Clock) -> "LeaseClock":
        """Returns the lease clock of a database: PostgreSQL's own, or that of the process on SQLite."""
        return cls(None if database.dialect == "postgresql" else clock)

    @property
    def now(self) -> dict[str, Any]:
        """The parameter of a statement that checks whether a lease is held."""
        return {"p_now": self._clock and self._clock.now()}

    @property
    def expiry(self) -> dict[str, Any]:
        """The parameter of a statement that takes or extends a lease."""
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
"""The time `p_now`, or the current time of the database."""
EXPIRY: Final[Any] = _OrExpiry(sa.bindparam("new_lease_expires_at", type_=UtcDateTime()))
"""The time `new_lease_expires_at`, or the expiry of a lease that starts now."""
