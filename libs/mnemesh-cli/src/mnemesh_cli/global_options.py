"""The options that every command has, and short ids in place of whole ones."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from mnemesh_cli.connection import Connection
from mnemesh_cli.display.terminal import is_json, is_wide
from typer.core import TyperGroup

if TYPE_CHECKING:
    from mnemesh_client.mnemesh import Mnemesh

_MOST: Final = 10_000
_SHOWN: Final = 5
_TEXTS: Final = frozenset(
    {
        *("text", "query", "queries", "value", "name", "description", "summary", "reason", "content"),
        *("paths", "args", "tag", "human", "persona"),
    }
)
"""Parameters whose value may be any text."""
_NAMED: Final = ("agent", "file", "group", "mcp_server", "provider", "source", "tool")
"""The kinds whose rows have names, which may look like the beginning of an id: "agent-1"."""


async def _of_agents(mnemesh: "Mnemesh", noun: str) -> AsyncIterator[Any]:
    """Yields the facts or the episodes of all agents."""
    async for agent in mnemesh.agents.list(order="desc", limit=_MOST):
        async for row in getattr(mnemesh, noun).list(agent_id=agent.id, limit=_MOST):
            yield row


_LISTS: "Final[Mapping[str, Callable[[Mnemesh], AsyncIterator[Any]]]]" = {
    "agent": lambda mnemesh: mnemesh.agents.list(order="desc", limit=_MOST),
    "archive": lambda mnemesh: mnemesh.archives.list(order="desc", limit=_MOST),
    "block": lambda mnemesh: mnemesh.blocks.list(order="desc", limit=_MOST),
    "budget": lambda mnemesh: mnemesh.budgets.list(limit=_MOST),
    "episode": lambda mnemesh: _of_agents(mnemesh, "episodes"),
    "fact": lambda mnemesh: _of_agents(mnemesh, "facts"),
    "conv": lambda mnemesh: mnemesh.conversations.list(order="desc", limit=_MOST),
    "file": lambda mnemesh: mnemesh.files.list(order="desc", limit=_MOST),
    "group": lambda mnemesh: mnemesh.groups.list(order="desc", limit=_MOST),
    "identity": lambda mnemesh: mnemesh.identities.list(limit=_MOST),
    "mcp_server": lambda mnemesh: mnemesh.mcp_servers.list(order="desc", limit=_MOST),
    "message": lambda mnemesh: mnemesh.messages.list(order="desc", limit=_MOST),
    "passage": lambda mnemesh: mnemesh.passages.list(order="desc", limit=_MOST),
    "provider": lambda mnemesh: mnemesh.providers.list(limit=_MOST),
    "run": lambda mnemesh: mnemesh.runs.list(order="desc", limit=_MOST),
    "schedule": lambda mnemesh: mnemesh.schedules.list(limit=_MOST),
    "source": lambda mnemesh: mnemesh.folders.list(order="desc", limit=_MOST),
    "webhook": lambda mnemesh: mnemesh.webhooks.list(limit=_MOST),
    "tool": lambda mnemesh: mnemesh.tools.list(order="desc", limit=_MOST),
}
"""By the kind with which ids begin: what yields the newest rows of it."""
_UNNAMED: Final = [kind for kind in _LISTS if kind not in _NAMED]
_SHORT: Final = re.compile(
    rf"(?P<kind>{'|'.join(_NAMED)})-[0-9a-f][0-9a-f-]{{3,34}}|(?P<other>{'|'.join(_UNNAMED)})-[0-9a-f][0-9a-f-]{{0,34}}"
)


def resolve_short_ids(connection: Connection, values: dict[str, Any]) -> None:
    """Replaces the short ids among the arguments of a line by whole ones. What may be a name stays.

    Raises:
        NotFound: no id begins with a short one.
        InvalidArgument: several ids begin with a short one. The message has the candidates.
    """
    found = {text for name, value in values.items() if name not in _TEXTS for text in _short(value)}
    if not found:
        return
    whole = asyncio.run(_resolve(connection, found))
    for name, value in values.items():
        if name in _TEXTS:
            continue
        if isinstance(value, str):
            values[name] = whole.get(value, value)
        elif isinstance(value, list | tuple):
            values[name] = type(value)(whole.get(each, each) if isinstance(each, str) else each for each in value)


def _short(value: Any) -> list[str]:
    values = value if isinstance(value, list | tuple) else [value]
    return [each for each in values if isinstance(each, str) and _SHORT.fullmatch(each)]


async def _resolve(connection: Connection, shorts: set[str]) -> dict[str, str]:
    from mnemesh_kit.errors import InvalidArgument, NotFound  # noqa: PLC0415

    whole: dict[str, str] = {}
    async with connection.open() as mnemesh:
        for short in sorted(shorts):
            match = _SHORT.fullmatch(short)
            assert match is not None  # noqa: S101  (it was matched before)
            ids: list[str] = []
            async for row in _LISTS[match["kind"] or match["other"]](mnemesh):
                if getattr(row, "name", None) == short:
                    ids = []  # it is a name
                    break
                if row.id.startswith(short):
                    ids.append(row.id)
            if len(ids) > 1:
                listed = ", ".join(ids[:_SHOWN]) + (", …" if len(ids) > _SHOWN else "")
                raise InvalidArgument(f"{len(ids)} ids begin with {short}: {listed}.", field="id")
            if ids:
                whole[short] = ids[0]
            elif match["other"]:
                raise NotFound(f"No id begins with {short}.", resource_id=short)
    return whole


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
    "budgets": ("mnemesh budgets set --per day --tokens 1000000", "mnemesh budgets list"),
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


def _store_json(value: bool) -> None:
    if value:
        is_json.set(True)


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
