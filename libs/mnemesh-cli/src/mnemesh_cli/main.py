"""The `mnemesh` command: its subcommands, and how errors are printed."""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Annotated, Any, Final, cast

import typer
from mnemesh_cli.display.terminal import is_json, is_wide, reported_errors
from mnemesh_cli.global_options import MeshGroup, connection_of
from mnemesh_kit.private_files import make_new_files_private


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


_COMMANDS: Final = {
    "up": "up:up",
    "down": "up:down",
    "doctor": "doctor:doctor",
    "status": "status:status",
    "logs": "logs:logs",
    "top": "status:top",
    "maintain": "maintain:maintain",
    "backup": "backup:backup",
    "restore": "backup:restore",
    "verify": "backup:verify",
    "chat": "chat:chat",
    "search": "messages:search",
    "sleep": "sleep:sleep",
    "watch": "folders:watch",
    "mcp": "mcp_servers:mcp",
    "export": "export_import:export",
    "import": "export_import:import_",
    "audit": "audit:audit",
    "whoami": "version:whoami",
    "version": "version:version",
    "agents": "agents:app",
    "approvals": "runs:approvals_app",
    "archives": "archives:app",
    "blocks": "blocks:app",
    "budgets": "budgets:app",
    "certs": "tokens:certs_app",
    "conversations": "messages:conversations_app",
    "episodes": "memory:episodes_app",
    "facts": "memory:facts_app",
    "files": "files:app",
    "folders": "folders:app",
    "groups": "groups:app",
    "identities": "identities:app",
    "mcp-servers": "mcp_servers:app",
    "memory": "memory:app",
    "messages": "messages:app",
    "models": "models:app",
    "passages": "archives:passages_app",
    "profiles": "profiles:app",
    "prompts": "models:prompts_app",
    "providers": "models:providers_app",
    "runs": "runs:app",
    "schedules": "schedules:app",
    "tokens": "tokens:app",
    "tools": "tools:app",
    "webhooks": "webhooks:app",
}
"""The commands and groups, in the order of the help: the module of `mnemesh_cli.commands` and the name in it."""


class _RootGroup(MeshGroup):
    """The whole command line. A line imports only the modules of its own command: all of them take twice as long."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = cast("Any", NamedCommands("mnemesh_cli.commands", _COMMANDS))


app = typer.Typer(
    cls=_RootGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Run a mesh of mnemesh services and work with its agents.",
)


def _print_version(value: bool) -> None:
    if value:
        from mnemesh_cli.commands.version import print_and_exit  # noqa: PLC0415  (as _COMMANDS: only if used)

        print_and_exit(value)


@app.callback()
def main_options(
    context: typer.Context,
    _version: Annotated[
        bool,
        typer.Option("--version", help="Print the version of this program.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Gives commands the connection that the options of the line describe."""
    context.obj = connection_of(context)


def main() -> None:
    """Runs the command line.

    Exits with 1 after an error, 2 if an argument or a setting is wrong or the mesh cannot start, 3 if something that
    the line names does not exist, and 4 if the mesh cannot be reached.
    """
    make_new_files_private()
    is_json.set(False)
    is_wide.set(False)
    with reported_errors():
        app(prog_name="mnemesh")
