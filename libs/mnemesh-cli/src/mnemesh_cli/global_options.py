"""The options that every command takes, anywhere on the line: --target, --profile, --json and --wide."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Final

import typer
from mnemesh_cli.connection import Connection
from mnemesh_cli.display.terminal import is_wide
from mnemesh_cli.short_ids import resolve_short_ids
from typer.core import TyperGroup

EXAMPLES: Final[Mapping[str, Sequence[str]]] = {
    "": ("mnemesh up --chat", "mnemesh agents create ada", "mnemesh chat --agent ada", "mnemesh agents list --json"),
    "up": ("mnemesh up", "mnemesh up --chat", "mnemesh up --background --data-dir /srv/mnemesh"),
    "chat": ("mnemesh chat", "mnemesh chat --agent ada", "echo 'What is my name?' | mnemesh chat --agent ada"),
    "search": ('mnemesh search "When is the launch?" --agent ada', 'mnemesh search launch "start date" --in passages'),
    "export": ("mnemesh export ada", "mnemesh export ada --file ada.mnemesh", "mnemesh export ada --format letta"),
    "import": ("mnemesh import ada.mnemesh", "mnemesh import agent.af --model openai/gpt-6-luna"),
    "watch": ("mnemesh watch docs --folder manual", "mnemesh watch docs --folder manual --delete --once --wait"),
    "logs": ("mnemesh logs -f", "mnemesh logs orchestrator -n 50"),
    "agents": ("mnemesh agents list", "mnemesh agents create ada", "mnemesh agents show ada"),
    "agents create": (
        'mnemesh agents create ada --human "Likes tea."',
        "mnemesh agents create ada --model openai/gpt-6-luna --tool web_search --tag team",
        "mnemesh agents create eve --sleeptime",
    ),
    "agents update": (
        "mnemesh agents update ada --model openai/gpt-6-luna",
        "mnemesh agents update ada --extract-facts 5",
    ),
    "approvals": ("mnemesh approvals list", "mnemesh approvals answer ada --approve"),
    "archives": ("mnemesh archives create notes --agent ada", "mnemesh archives list"),
    "blocks": ('mnemesh blocks create rules "Be brief." --agent ada', "mnemesh blocks list --agent ada"),
    "conversations": ("mnemesh conversations list --agent ada", "mnemesh chat --conversation conv-1a2b3c4d"),
    "files": (
        "mnemesh files upload README.md docs --folder manual --wait",
        'mnemesh files search "What happens after a crash?" --agent librarian',
    ),
    "folders": ('mnemesh folders create manual -d "The manual."', "mnemesh folders attach manual librarian"),
    "groups": ("mnemesh groups create ada bob -d duo", "mnemesh chat --group duo"),
    "mcp-servers": (
        "mnemesh mcp-servers create tickets https://tickets.example.com/mcp",
        "mnemesh mcp-servers create time uvx mcp-server-time",
        "mnemesh mcp-servers tools tickets",
    ),
    "memory": (
        "mnemesh memory show ada",
        'mnemesh memory edit ada human --value "Likes tea."',
        "mnemesh memory facts ada",
    ),
    "messages": ('mnemesh messages send ada "My name is Ada."', "mnemesh messages list --agent ada"),
    "passages": (
        'mnemesh passages create "The launch is on Friday." --agent ada',
        "mnemesh passages search launch -a ada",
    ),
    "profiles": (
        "mnemesh profiles set team --address mesh.example.org:50050 --token-file team.token",
        "mnemesh agents list --profile team",
    ),
    "providers": (
        "mnemesh providers create local --type openai_compatible --base-url http://127.0.0.1:8080/v1",
        "mnemesh providers check local",
    ),
    "runs": ("mnemesh runs list --agent ada", "mnemesh runs trace run-1a2b3c4d", "mnemesh runs logs run-1a2b3c4d -f"),
    "tokens": ("mnemesh tokens create --key-file data/auth.keys --days 30",),
    "tools": (
        "mnemesh tools create weather.py",
        'mnemesh tools run weather \'{"city": "Berlin"}\'',
        "mnemesh tools list --builtin",
    ),
}

_KEY: Final = "mnemesh_cli.connection"
_PANEL: Final = "Options of every command"


def with_examples(command: Any, path: str) -> None:
    """Adds the examples of a command to the end of its help, each on a line of its own."""
    if lines := EXAMPLES.get(path):
        command.epilog = "\n\n".join(("Examples:", *lines))


def connection_of(context: typer.Context) -> Connection:
    """Returns what the line says about the mesh and the output. All commands of a line share it."""
    found = context.meta.setdefault(_KEY, Connection())
    assert isinstance(found, Connection)  # noqa: S101  (the type for checkers)
    return found


class MeshGroup(TyperGroup):
    """A group whose commands, at every depth, take the global options."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        _add_to(self)
        with_examples(self, "")

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Returns a command with the global options; None if there is none with the name."""
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            _add_to_all(command, cmd_name)
        return command


def _add_to_all(command: Any, path: str) -> None:
    """Adds the options, the examples and the resolution of short ids to a command, or to all commands of a group."""
    _add_to(command)
    with_examples(command, path)
    inner = getattr(command, "commands", None)
    if inner is None and not isinstance(command.invoke, _Resolving):
        command.invoke = _Resolving(command.invoke)
    for name, each in (inner or {}).items():
        _add_to_all(each, f"{path} {name}")


class _Resolving:
    """Runs a command with whole ids in place of short ones."""

    def __init__(self, invoke: Callable[[Any], Any]) -> None:
        self._invoke = invoke

    def __call__(self, context: Any) -> Any:
        resolve_short_ids(connection_of(context), context.params)
        return self._invoke(context)


def _add_to(command: Any) -> None:
    """Adds the options once.

    Raises:
        ValueError: the command has an option of its own with the name of one of them.
    """
    own = [parameter for parameter in command.params if parameter not in _options()]
    taken = {name for parameter in own for name in (*parameter.opts, *parameter.secondary_opts)}
    for option in _options():
        if not taken.isdisjoint(option.opts):
            raise ValueError(f"{command.name} has an option {option.opts[0]} of its own")
        if option not in command.params:
            command.params.append(option)


def _store_target(context: typer.Context, value: str | None) -> None:
    if value:
        connection_of(context).target = value


def _store_profile(context: typer.Context, value: str | None) -> None:
    if value:
        connection_of(context).profile_name = value


def _store_json(context: typer.Context, value: bool) -> None:
    if value:
        connection_of(context).as_json = True


def _store_wide(value: bool) -> None:
    if value:
        is_wide.set(True)


@cache
def _options() -> tuple[Any, ...]:
    """Returns the options as typer makes them. They have no state, so all commands share them."""
    app = typer.Typer(add_completion=False)

    @app.command()
    def declare(
        target: Annotated[
            str | None,
            typer.Option(
                metavar="HOST:PORT",
                help="Address of the orchestrator. Overrides MNEMESH_TARGET.",
                callback=_store_target,
                rich_help_panel=_PANEL,
            ),
        ] = None,
        profile: Annotated[
            str | None,
            typer.Option(
                metavar="NAME",
                help="A mesh of `mnemesh profiles`. Overrides MNEMESH_PROFILE.",
                callback=_store_profile,
                rich_help_panel=_PANEL,
            ),
        ] = None,
        json: Annotated[
            bool,
            typer.Option(
                "--json", help="Print JSON, one object per row.", callback=_store_json, rich_help_panel=_PANEL
            ),
        ] = False,
        wide: Annotated[
            bool,
            typer.Option(
                "--wide", help="Do not shorten ids and columns of tables.", callback=_store_wide, rich_help_panel=_PANEL
            ),
        ] = False,
    ) -> None:
        del target, profile, json, wide

    options = tuple(typer.main.get_command(app).params)
    for option in options:
        option.expose_value = False
        # The parser stores values by name. No argument of a command has such a name, because it is not an identifier.
        option.name = f"--{option.name}"
    return options
