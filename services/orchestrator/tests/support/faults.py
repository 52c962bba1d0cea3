"""Faults of calls: the other side is unavailable, its answer is lost, or this process crashes."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

from mnemesh_kit.errors import DeadlineExceeded, MnemeshError, Unavailable

T = TypeVar("T")


class Crash(BaseException):
    """The process crashed here."""


class Faults:
    """Surrounds every call between the orchestrator and its stores, services and model.

    Each call has two points: before it, and after it took effect and before its answer arrived. The process crashes at
    the point `crashes_at` and makes no further calls.
    """

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.unavailable: dict[str, int] = {}
        """Prefixes of the names of calls that fail as Unavailable, and how often they still do."""
        self.lost: dict[str, int] = {}
        """Prefixes of the names of calls whose answer is lost, and how often it still is."""
        self.error: type[MnemeshError] | None = None
        """The error of those calls, if it is not Unavailable."""
        self.crashes_at: int | None = None
        self.has_crashed = False
        self.on_call: Callable[[str], Awaitable[None]] | None = None
        self.on_effect: Callable[[str], Awaitable[None]] | None = None

    @property
    def points(self) -> int:
        """The number of points that were passed."""
        return 2 * len(self.calls)

    async def around(self, name: str, call: Callable[[], Awaitable[T]], away: type[MnemeshError] = Unavailable) -> T:
        """Makes a call, or raises its fault. `away` is the error of an unavailable target."""
        await self.before(name, away)
        point = self.points - 1
        result = await call()
        self.at(point)
        if self.on_effect is not None:
            await self.on_effect(name)
        if _taken(self.lost, name):
            raise (DeadlineExceeded if away is Unavailable else away)(f"{name} was too slow.")
        return result

    async def before(self, name: str, away: type[MnemeshError] = Unavailable) -> None:
        """Records a call, which may fail before it is made."""
        if self.has_crashed:
            raise Crash
        self.calls.append(name)
        self.at(self.points - 2)
        if self.on_call is not None:
            await self.on_call(name)
        if _taken(self.unavailable, name):
            raise (self.error or away)(f"{name} is unavailable.")

    def at(self, point: int) -> None:
        """Crashes if this is the point."""
        if self.has_crashed or point == self.crashes_at:
            self.has_crashed = True
            raise Crash


def watched(target: T, name: str, faults: Faults, away: type[MnemeshError] = Unavailable) -> T:
    """Returns the object with `faults` around every coroutine method."""
    return cast("T", _Watched(target, name, faults, away))


class _Watched:
    def __init__(self, target: Any, name: str, faults: Faults, away: type[MnemeshError]) -> None:
        self._target, self._name, self._faults, self._away = target, name, faults, away

    def __getattr__(self, method: str) -> Any:
        async def call(*args: Any, **kwargs: Any) -> Any:
            created = getattr(self._target, method)
            return await self._faults.around(f"{self._name}.{method}", lambda: created(*args, **kwargs), self._away)

        return call


def _taken(counts: dict[str, int], name: str) -> bool:
    for prefix, left in counts.items():
        if left and name.startswith(prefix):
            counts[prefix] = left - 1
            return True
    return False
