"""The commands of the command line, by their paths."""

from collections.abc import Iterator
from typing import Any

import typer
from mnemesh_cli.main import app


def commands(group: Any, path: str = "mnemesh") -> Iterator[tuple[str, Any]]:
    """Yields the commands of a group and of its groups, with their paths."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def all_commands() -> dict[str, Any]:
    """Returns every command by its path, such as `mnemesh agents list`."""
    root = typer.main.get_command(app)
    context = typer.Context(root)
    for name in root.commands:  # type: ignore[attr-defined]
        root.get_command(context, name)  # type: ignore[attr-defined]
    return dict(commands(root))
