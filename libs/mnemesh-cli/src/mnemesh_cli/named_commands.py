"""Commands by name, each of which is imported and built when a line first uses it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import typer


class NamedCommands(Mapping[str, Any]):
    """The commands of a group. Reading one imports its module; listing the names imports nothing."""

    def __init__(self, package: str, places: Mapping[str, str]) -> None:
        """Prepares the commands.

        Args:
            package: of the modules.
            places: name of the command → `module:object`. The object is a function, which is a command, or an app of
                typer, which is a group.
        """
        self._package = package
        self._places = places
        self._built: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        """The command with a name; KeyError if there is none."""
        if name not in self._built:
            module, _, attribute = self._places[name].partition(":")
            self._built[name] = _command(name, getattr(import_module(f"{self._package}.{module}"), attribute))
        return self._built[name]

    def __contains__(self, name: object) -> bool:
        """Returns whether there is a command with a name. Mapping would import it to find out."""
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        """The names, in the order of the help."""
        return iter(self._places)

    def __len__(self) -> int:
        """How many commands there are."""
        return len(self._places)


def _command(name: str, declared: Any) -> Any:
    if isinstance(declared, typer.Typer):
        group = typer.main.get_group(declared)
        group.name = name
        return group
    alone = typer.Typer(add_completion=False)
    alone.command(name)(declared)
    return typer.main.get_command(alone)
