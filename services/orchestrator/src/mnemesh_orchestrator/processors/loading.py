"""Loads the enabled processors from the entry points of installed packages."""

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
    """Returns the named processors of a group by their order; those of equal order in the order of the setting.

    Raises:
        ConfigError: names the setting and the processor if it is not installed, is named twice, is provided by several
            packages, cannot be imported or created, has no awaitable `process`, or has no order below MEMORY_ORDER.
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
        raise ConfigError(f"{where}, which cannot be created: {type(error).__name__}: {error}.") from error
    order = getattr(made, "order", None)
    if isinstance(order, bool) or not isinstance(order, int):
        raise ConfigError(f"{where}, which has no order: a whole number below {MEMORY_ORDER}.")
    if order >= MEMORY_ORDER:
        raise ConfigError(
            f"{where}, whose order is {order}. It must be below {MEMORY_ORDER}, the order of memory: nothing may "
            "change a text after it is stored."
        )
    if not inspect.iscoroutinefunction(getattr(made, "process", None)):
        raise ConfigError(f"{where}, which has no awaitable process().")
    return made
