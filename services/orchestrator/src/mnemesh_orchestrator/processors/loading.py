"""Finds the processors that are switched on among the entry points of installed packages."""

import inspect
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from mnemesh_kit.config import ConfigError

from mnemesh_orchestrator.processors.chain import Named
from mnemesh_orchestrator.processors.port import MEMORY_ORDER

INPUT_GROUP: Final = "mnemesh.input_processors"
TOOL_RESULT_GROUP: Final = "mnemesh.tool_result_processors"


def load(group: str, names: Sequence[str], setting: str) -> tuple[Named, ...]:
    """The named processors of a group by their order; those of one order as the setting has them.

    Raises:
        ConfigError: naming the setting and the processor, where one is not installed, named twice or brought by two
            packages, cannot be imported or made, has no `process` that can be awaited, or no order below MEMORY_ORDER.
    """
    if not names:
        return ()
    installed: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=group):
        installed.setdefault(point.name, []).append(point)
    found = []
    for name in names:
        where = f"{setting} names {name!r}"
        if names.count(name) > 1:
            raise ConfigError(f"{where} twice.")
        points = installed.get(name, [])
        if len({point.value for point in points}) > 1:
            raise ConfigError(f"{where}, which several packages bring: {', '.join(point.value for point in points)}.")
        if not points:
            known = ", ".join(sorted(installed)) or "none"
            raise ConfigError(f"{where}, which no installed package brings in {group} (known: {known}).")
        found.append(Named(name, _made(points[0], where)))
    return tuple(sorted(found, key=lambda named: named.processor.order))


def _made(point: EntryPoint, where: str) -> Any:
    try:
        made = point.load()()
    except Exception as error:
        raise ConfigError(f"{where}, which cannot be made: {type(error).__name__}: {error}.") from error
    order = getattr(made, "order", None)
    if isinstance(order, bool) or not isinstance(order, int):
        raise ConfigError(f"{where}, which has no order: a whole number below {MEMORY_ORDER}.")
    if order >= MEMORY_ORDER:
        raise ConfigError(
            f"{where}, whose order is {order}: memory takes what it keeps at {MEMORY_ORDER}, and nothing may be changed"
            " behind it."
        )
    if not inspect.iscoroutinefunction(getattr(made, "process", None)):
        raise ConfigError(f"{where}, which has no process() that can be awaited.")
    return made
