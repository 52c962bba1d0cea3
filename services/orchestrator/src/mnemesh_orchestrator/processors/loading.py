"""Loads the enabled processors from the entry points of installed packages."""

import inspect
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from mnemesh_kit.config import ConfigError

from mnemesh_orchestrator.processors.chain import NamedProcessor
from mnemesh_orchestrator.processors.port import MEMORY_ORDER

INPUT_GROUP: Final = "mnemesh.input_processors"
TOOL_RESULT_GROUP: Final = "mnemesh.tool_result_processors"


def load(group: str, names: Sequence[str], setting: str) -> tuple[NamedProcessor, ...]:
    """Returns the named processors of a group by their order; those of equal order in the order of the setting.

    Raises:
        ConfigError: names the setting and the processor if it is not installed, is named twice, is provided by several
            packages, cannot be imported or created, has no awaitable `process`, or has no order below MEMORY_ORDER.
    """
    if not names:
        return ()
    installed: dict[str, list[EntryPoint]] = {}
    for entry_point in entry_points(group=group):
        installed.setdefault(entry_point.name, []).append(entry_point)
    processors = []
    for name in names:
        subject = f"{setting} names {name!r}"
        if names.count(name) > 1:
            raise ConfigError(f"{subject} twice.")
        candidates = installed.get(name, [])
        if len({item.value for item in candidates}) > 1:
            raise ConfigError(
                f"{subject}, which several packages provide: {', '.join(item.value for item in candidates)}."
            )
        if not candidates:
            known = ", ".join(sorted(installed)) or "none"
            raise ConfigError(f"{subject}, which no installed package provides in {group} (known: {known}).")
        processors.append(NamedProcessor(name, _create(candidates[0], subject)))
    return tuple(sorted(processors, key=lambda named: named.processor.order))


def _create(entry_point: EntryPoint, subject: str) -> Any:
    try:
        processor = entry_point.load()()
    except Exception as error:
        raise ConfigError(f"{subject}, which cannot be created: {type(error).__name__}: {error}.") from error
    order = getattr(processor, "order", None)
    if isinstance(order, bool) or not isinstance(order, int):
        raise ConfigError(f"{subject}, which has no order: a whole number below {MEMORY_ORDER}.")
    if order >= MEMORY_ORDER:
        raise ConfigError(
            f"{subject}, whose order is {order}. It must be below {MEMORY_ORDER}, the order of memory: nothing may "
            "change a text after it is stored."
        )
    if not inspect.iscoroutinefunction(getattr(processor, "process", None)):
        raise ConfigError(f"{subject}, which has no awaitable process().")
    return processor
