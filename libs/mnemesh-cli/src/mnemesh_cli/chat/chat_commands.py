"""The commands of a chat: messages that begin with a slash. They never reach an agent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final

from rich.console import Console
from rich.text import Text

_ALIASES: Final = {"/exit": "/quit"}


class CommandError(Exception):
    """A line that begins with a slash is no command, or its argument is missing or not allowed."""


@dataclass(frozen=True, slots=True)
class ChatCommand:
    """A command: its name with the slash, its argument as in "[HANDLE]", what it does, and how."""

    name: str
    argument: str
    description: str
    run: Callable[[str], Awaitable[None]]

    @property
    def usage(self) -> str:
        """How it is typed."""
        return f"{self.name} {self.argument}".rstrip()


class ChatCommands:
    """The commands of one chat."""

    def __init__(self, commands: Iterable[ChatCommand]) -> None:
        self._commands = {command.name: command for command in commands}

    @property
    def names(self) -> list[str]:
        """The names, with their slashes."""
        return list(self._commands)

    async def run(self, line: str) -> None:
        """Executes a line that begins with a slash.

        Raises:
            CommandError: there is no such command, or its argument is missing or not allowed.
        """
        name, *rest = line.split(maxsplit=1)
        argument = rest[0].strip() if rest else ""
        command = self._commands.get(_ALIASES.get(name, name))
        if command is None:
            raise CommandError(
                f"There is no command {name}. Use {', '.join(self.names)}; begin a message with a space to send it."
            )
        if bool(argument) > bool(command.argument) or (command.argument[:1].isalpha() and not argument):
            raise CommandError(f"Type `{command.usage}`.")
        await command.run(argument)

    def print_help(self, console: Console) -> None:
        """Prints what each command does, and the keys."""
        lines = [(command.usage, command.description) for command in self._commands.values()]
        keys = [
            ("Enter", "send the message"),
            ("Alt-Enter, Ctrl-J", "begin a new line; a pasted text keeps its lines"),
            ("Up, Down", "earlier messages of this session"),
            ("Ctrl-C", "stop the turn; without a turn, clear the text or leave"),
        ]
        width = max(len(usage) for usage, _ in (*lines, *keys)) + 2
        for usage, description in (*lines, *keys):
            console.print(Text.assemble((f"  {usage:{width}}", "bold"), description))
