"""`mnemesh groups`: list, create, show, update, delete, send, cancel, messages, reset."""

import inspect
import json
import re
from collections.abc import Callable
from datetime import UTC, timedelta
from enum import StrEnum
from operator import itemgetter
from typing import Annotated, Any, Final, TypeVar

import typer
from mnemesh.agents.v1 import groups_pb2
from mnemesh.agents.v1.runs_service_pb2 import CANCEL_OUTCOME_CANCELLED, CancelOutcome
from mnemesh_cli.chat.group_chat import GroupDisplay
from mnemesh_cli.chat.render import JsonRenderer, LiveRenderer, PlainRenderer
from mnemesh_cli.commands.resources import with_client
from mnemesh_cli.display.records import Column, Kind, local_time_text, print_done, print_json, print_list
from mnemesh_cli.display.terminal import is_json, notice, output, print_error
from mnemesh_cli.display.views import AgentNames, message_text, print_group, role_name
from mnemesh_cli.options import GroupArgument, YesOption
from mnemesh_client.groups import Group, manager_field_names
from mnemesh_client.mnemesh import Mnemesh
from rich.text import Text

T = TypeVar("T")
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd])")

app = typer.Typer(no_args_is_help=True, help="Create groups of agents, send them messages, show and delete them.")
NO_GROUPS = "There are no groups. Create one with `mnemesh groups create`."


class GroupType(StrEnum):
    """The types of managers, as the command line names them."""

    ROUND_ROBIN = "round-robin"
    SUPERVISOR = "supervisor"
    DYNAMIC = "dynamic"
    SLEEPTIME = "sleeptime"
    VOICE_SLEEPTIME = "voice-sleeptime"
    SWARM = "swarm"

    @property
    def field(self) -> str:
        """The field of ManagerConfig."""
        return self.value.replace("-", "_")


_SETTINGS: Final[dict[str, Any]] = {
    "manager": Annotated[
        str | None,
        typer.Option(help="Id or name of the managing agent. For supervisor, dynamic, sleeptime and voice-sleeptime."),
    ],
    "max_turns": Annotated[
        int | None,
        typer.Option(min=1, help="Turns per message. For round-robin and dynamic.", show_default="one per member"),
    ],
    "termination_token": Annotated[
        str | None, typer.Option(help="Words that end the round. For dynamic.", show_default="DONE!")
    ],
    "frequency": Annotated[
        int | None,
        typer.Option(min=1, help="Members run after every n-th turn of the manager. For sleeptime.", show_default="1"),
    ],
    "interval": Annotated[
        str | None,
        typer.Option(
            help="Members run at least this often, such as 30m or 12h, if there are new messages. For sleeptime."
        ),
    ],
    "inactivity": Annotated[
        str | None,
        typer.Option(help="Members run when the manager has had no turn for this time, such as 10m. For sleeptime."),
    ],
    "max_steps": Annotated[
        int | None,
        typer.Option(min=1, help="Steps of a member's run. For sleeptime and voice-sleeptime.", show_default="50"),
    ],
    "max_buffer": Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Messages in the window above which older ones are passed on. For voice-sleeptime.",
            show_default="30",
        ),
    ],
    "min_buffer": Annotated[
        int | None,
        typer.Option(min=1, help="Messages that stay in the window. For voice-sleeptime.", show_default="15"),
    ],
    "metadata": Annotated[str | None, typer.Option(help="A JSON object.")],
    "shared_block": Annotated[
        list[str] | None,
        typer.Option("--shared-block", help="Id of a block that all agents of the group share. Can be repeated."),
    ],
}
"""The options that create and update have in common, by parameter."""

_FIELDS: Final = {
    "manager": "manager_agent_id",
    "max_turns": "max_turns",
    "termination_token": "termination_token",
    "frequency": "sleeptime_agent_frequency",
    "interval": "interval",
    "inactivity": "inactivity",
    "max_steps": "max_steps",
    "max_buffer": "max_message_buffer_length",
    "min_buffer": "min_message_buffer_length",
}
"""Options of the manager and the fields of the manager configs that they set."""
GROUP_FIELDS: Final = ("description", "metadata")
"""Options with the name of the field of Group that they set."""


async def manager_fields(mnemesh: Mnemesh, group_type: str, options: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields of a manager config that options set.

    Args:
        mnemesh: the client, to find the manager by its name.
        group_type: the field of ManagerConfig.
        options: the values of the options by parameter name; None is not set.

    Raises:
        typer.BadParameter: an option does not belong to the type, or its value is invalid.
    """
    fields: dict[str, Any] = {}
    for option, value in options.items():
        if value is None:
            continue
        fields[manager_field(group_type, option)] = (
            _duration(option, value) if option in ("interval", "inactivity") else value
        )
    if (manager := fields.get("manager_agent_id")) is not None:
        fields["manager_agent_id"] = (await mnemesh.agents.find(manager)).id
    return fields


def manager_field(group_type: str, option: str) -> str:
    """Returns the field of a manager config that an option sets.

    Raises:
        typer.BadParameter: the type has no such field.
    """
    field = _FIELDS[option]
    if field not in manager_field_names(group_type):
        configs = groups_pb2.ManagerConfig.DESCRIPTOR.fields_by_name
        types = [name.replace("_", "-") for name in configs if field in manager_field_names(name)]
        problem = f"A {group_type.replace('_', '-')} group has no such setting. It is for {', '.join(types)}."
        raise typer.BadParameter(problem, param_hint=option_name(option))
    return field


def cleared_fields(group_type: str, names: list[str]) -> dict[str, None]:
    """Returns the fields that `--clear` names, each with None.

    Raises:
        typer.BadParameter: there is no such option, or the type has no such field.
    """
    fields: dict[str, None] = {}
    for name in names:
        option = name.removeprefix("--").replace("-", "_")
        if option in GROUP_FIELDS:
            fields[option] = None
        elif option in _FIELDS and option != "manager":
            fields[manager_field(group_type, option)] = None
        else:
            known = ", ".join(each.replace("_", "-") for each in (*GROUP_FIELDS, *_FIELDS) if each != "manager")
            raise typer.BadParameter(f"{name!r} cannot be cleared. Use one of {known}.", param_hint="--clear")
    return fields


def require_json_object(text: str | None) -> str | None:
    """Returns the value of `--metadata`. Raises BadParameter if it is not a JSON object."""
    if text is not None:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise typer.BadParameter(f"{text!r} is not a JSON object.", param_hint="--metadata")
    return text


def option_name(parameter: str) -> str:
    """Returns an option as it is typed."""
    return f"--{parameter.replace('_', '-')}"


def _duration(option: str, text: str) -> timedelta:
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None:
        raise typer.BadParameter(
            f"{text!r} is not a duration. Write a number and a unit: 90s, 30m, 12h or 1d.",
            param_hint=option_name(option),
        )
    return timedelta(seconds=float(match[1]) * _UNITS[match[2]])


def _with_settings(command: Callable[..., T]) -> Callable[..., T]:
    """Adds the options of `_SETTINGS` to a command, which gets their values by keyword."""
    signature = inspect.signature(command, eval_str=True)
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    shared = [inspect.Parameter(name, kind, default=None, annotation=each) for name, each in _SETTINGS.items()]
    parameters = [*list(signature.parameters.values())[:-1], *shared]
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return command


_COLUMNS = tuple(
    Column(
        name.upper(), itemgetter(name), flexible=name not in ("id", "type"), kind=Kind.ID if name == "id" else Kind.TEXT
    )
    for name in ("id", "description", "type", "members", "manager")
)


@app.command("list")
@with_client
async def list_groups(
    mnemesh: Mnemesh,
    agent: Annotated[
        str | None,
        typer.Option("--agent", "-a", help="Only groups of this agent, by id or name, as a member or as the manager."),
    ] = None,
    type: Annotated[list[GroupType] | None, typer.Option(help="Only this type. Can be repeated.")] = None,  # noqa: A002
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of groups to list.")] = 100,
) -> None:
    """List groups, newest first."""
    types = type or []
    agent_id = None if agent is None else (await mnemesh.agents.find(agent)).id
    names = AgentNames(mnemesh)
    filters: dict[str, Any] = {"agent_id": agent_id, "manager_types": [each.field for each in types]}
    groups = mnemesh.groups.list(**filters, order="desc", limit=limit)
    if is_json.get():
        await print_list((group.proto async for group in groups), (), empty=NO_GROUPS)
        return
    rows = [
        {
            "id": group.id,
            "description": group.description,
            "type": group.manager_type.replace("_", "-"),
            "members": ", ".join([await names.name(member) for member in group.agent_ids]),
            "manager": await names.name(group.manager_agent_id) if group.manager_agent_id else "",
        }
        async for group in groups
    ]
    await print_list(rows, _COLUMNS, empty=NO_GROUPS, limit=limit)


@app.command("create")
@with_client
@_with_settings
async def create_group(
    mnemesh: Mnemesh,
    members: Annotated[
        list[str] | None,
        typer.Argument(metavar="AGENT", help="Ids or names of the members, in the order in which they speak."),
    ] = None,
    type: Annotated[GroupType, typer.Option(help="How the group answers.")] = GroupType.ROUND_ROBIN,  # noqa: A002
    description: Annotated[str, typer.Option("--description", "-d", help="By which the group can be found.")] = "",
    hidden: Annotated[bool, typer.Option("--hidden", help="Mark the group as hidden.")] = False,
    **settings: Any,
) -> None:
    """Create a group of agents and print its id.

    The manager is not named among the members.
    """
    if settings["manager"] is None and type not in (GroupType.ROUND_ROBIN, GroupType.SWARM):
        raise typer.BadParameter(f"A {type.value} group needs a manager.", param_hint="--manager")
    fields = _group_fields(settings, description=description, hidden=hidden)
    manager = await manager_fields(mnemesh, type.field, settings)
    agent_ids = [(await mnemesh.agents.find(member)).id for member in members or []]
    group = await mnemesh.groups.create(agent_ids, manager_type=type.field, **fields, **manager)
    print_done(group.id, group.proto)


@app.command("show")
@with_client
async def show_group(mnemesh: Mnemesh, key: GroupArgument) -> None:
    """Show the members and settings of a group."""
    await _print_group(mnemesh, await mnemesh.groups.find(key))


async def _print_group(mnemesh: Mnemesh, group: Group) -> None:
    if is_json.get():
        print_json(group.proto)
    else:
        await print_group(mnemesh, group)


@app.command("update")
@with_client
@_with_settings
async def update_group(
    mnemesh: Mnemesh,
    key: GroupArgument,
    add: Annotated[list[str] | None, typer.Option(help="Id or name of a new member. Can be repeated.")] = None,
    remove: Annotated[
        list[str] | None, typer.Option(help="Id or name of a member that leaves. Can be repeated.")
    ] = None,
    description: Annotated[str | None, typer.Option("--description", "-d", help="The new description.")] = None,
    hidden: Annotated[bool | None, typer.Option("--hidden/--visible", help="Mark the group as hidden or not.")] = None,
    clear: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Reset a setting to its default, such as max-turns. Can be repeated."),
    ] = None,
    **settings: Any,
) -> None:
    """Change the members and settings of a group. A running answer keeps the earlier ones.

    --shared-block replaces all shared blocks.
    """
    fields = _group_fields(settings, description=description, hidden=hidden)
    if not (add or remove or clear or fields or any(value is not None for value in settings.values())):
        raise typer.BadParameter("Name at least one change. See `mnemesh groups update --help`.", param_hint="options")
    group = await mnemesh.groups.find(key)
    fields |= cleared_fields(group.manager_type, clear or [])
    fields |= await manager_fields(mnemesh, group.manager_type, settings)
    if add or remove:
        fields["agent_ids"] = await _change_members(mnemesh, group, add or [], remove or [])
    await _print_group(mnemesh, await group.update(**fields))


def _group_fields(settings: dict[str, Any], **values: Any) -> dict[str, Any]:
    """Returns the fields of Group that are set, and removes theirs from the settings: the others are the manager's."""
    values["shared_block_ids"] = settings.pop("shared_block")
    values["metadata"] = require_json_object(settings.pop("metadata"))
    return {name: value for name, value in values.items() if value is not None}


async def _change_members(mnemesh: Mnemesh, group: Group, add: list[str], remove: list[str]) -> list[str]:
    agent_ids = group.agent_ids
    for key in remove:
        # The id of a deleted agent can be removed too.
        agent_id = key if key in agent_ids else (await mnemesh.agents.find(key)).id
        if agent_id not in agent_ids:
            raise typer.BadParameter(f"{key!r} is not a member of the group.", param_hint="--remove")
        agent_ids.remove(agent_id)
    for key in add:
        agent_id = (await mnemesh.agents.find(key)).id
        if agent_id in agent_ids:
            raise typer.BadParameter(f"{key!r} is a member of the group already.", param_hint="--add")
        agent_ids.append(agent_id)
    return agent_ids


@app.command("delete")
@with_client
async def delete_group(mnemesh: Mnemesh, key: GroupArgument, yes: YesOption = False) -> None:
    """Delete a group and cancel its runs. Its agents and their messages are kept."""
    group = await mnemesh.groups.find(key)
    if not yes:
        typer.confirm(f"Delete the group {group.description or group.id}?", abort=True, err=True)
    await group.delete()
    print_done(f"deleted {group.id}", {"deleted": group.id})


@app.command("send")
@with_client
async def send(
    mnemesh: Mnemesh,
    key: GroupArgument,
    message: Annotated[str, typer.Argument(metavar="MESSAGE", help="The text.")],
    background: Annotated[
        bool, typer.Option("--background", help="Print the id of the run, and do not wait for the answers.")
    ] = False,
) -> int:
    """Send a message to a group and print the answers, each with the name of the speaker; with --json each event."""
    group = await mnemesh.groups.find(key)
    if background:
        started = await group.start(message)
        print_done(started.id, started)
        return 0
    console = output()
    live = console.is_terminal and not is_json.get()
    text = LiveRenderer(console) if live else PlainRenderer(console)
    display, failed = GroupDisplay(JsonRenderer(console) if is_json.get() else text), False
    async for item in group.send(message, stream_tokens=live):
        display.show(item)
        failed = failed or item.event.HasField("error")
        if item.event.message.HasField("approval_request"):
            command = f"mnemesh chat --group {group.id}"
            print_error(f"{item.agent_name} is waiting for an approval; run `{command}` in a terminal")
            return 1
    return int(failed)


@app.command("cancel")
@with_client
async def cancel(mnemesh: Mnemesh, key: GroupArgument) -> None:
    """Cancel the runs of a group that have not ended, with the turns of its agents in them."""
    group = await mnemesh.groups.find(key)
    outcomes = await group.cancel()
    cancelled = [run_id for run_id, outcome in outcomes.items() if outcome == CANCEL_OUTCOME_CANCELLED]
    if is_json.get():
        print_json({run_id: CancelOutcome.Name(outcome) for run_id, outcome in outcomes.items()})
        return
    for run_id in cancelled:
        output().print(f"cancelled {run_id}", markup=False)
    if not cancelled:
        notice("The group has no runs that have not ended.")


@app.command("messages")
@with_client
async def messages(
    mnemesh: Mnemesh,
    key: GroupArgument,
    agent: Annotated[
        str | None, typer.Option("--agent", "-a", help="Only messages of this agent, by id or name.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of messages.")] = 50,
) -> None:
    """List the newest messages that the agents of a group wrote or received in its runs, oldest first."""
    group = await mnemesh.groups.find(key)
    agent_id = None if agent is None else (await mnemesh.agents.find(agent)).id
    names, console = AgentNames(mnemesh), output()
    newest = [message async for message in group.messages(agent_id=agent_id, order="desc", limit=limit)]
    newest.reverse()
    # The server lists them as they were stored: those of a turn after those of the agents that it asked.
    for message in sorted(newest, key=lambda each: each.create_time.ToNanoseconds()):
        if is_json.get():
            print_json(message)
            continue
        time = local_time_text(message.create_time.ToDatetime(UTC))
        name = await names.name(message.agent_id)
        head = (Text(time, style="dim"), Text(name, style="bold"), Text(f"{role_name(message):9}", style="cyan"))
        console.print(*head, Text(message_text(message)))
    if not newest:
        notice("The group has no messages.")


@app.command("reset")
@with_client
async def reset(mnemesh: Mnemesh, key: GroupArgument, yes: YesOption = False) -> None:
    """Remove all messages from the context windows of a group's agents. The messages can still be searched."""
    group = await mnemesh.groups.find(key)
    if not yes:
        label = group.description or group.id
        typer.confirm(f"Remove all messages from the windows of the agents of {label}?", abort=True, err=True)
    await group.reset()
    print_done(f"reset {group.id}", {"reset": group.id})
