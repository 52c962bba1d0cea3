"""`mnemesh groups`: list, create, show, update, delete; the other commands are in `group_messages`."""

from __future__ import annotations

import asyncio
from operator import itemgetter
from typing import Annotated, Any

import typer
from mnemesh_cli.commands import group_messages
from mnemesh_cli.commands.group_options import (
    FrequencyOption,
    GroupType,
    InactivityOption,
    IntervalOption,
    ManagerOption,
    MaxBufferOption,
    MaxStepsOption,
    MaxTurnsOption,
    MetadataOption,
    MinBufferOption,
    SharedBlockOption,
    TokenOption,
    cleared_fields,
    manager_fields,
    require_json_object,
)
from mnemesh_cli.connection import Connection
from mnemesh_cli.display.group_views import AgentNames, print_group
from mnemesh_cli.display.records import print_done, print_json, print_list
from mnemesh_cli.display.table import Column, Kind
from mnemesh_cli.options import GroupArgument, YesOption
from mnemesh_client.group import Group
from mnemesh_client.mnemesh import Mnemesh

app = typer.Typer(no_args_is_help=True, help="Create groups of agents, send them messages, show and delete them.")

_COLUMNS = tuple(
    Column(
        name.upper(),
        itemgetter(name),
        flexible=name not in ("id", "type"),
        kind=Kind.ID if name == "id" else Kind.TEXT,
    )
    for name in ("id", "description", "type", "members", "manager")
)
NO_GROUPS = "There are no groups. Create one with `mnemesh groups create`."


@app.command("list")
def list_groups(
    context: typer.Context,
    agent: Annotated[
        str | None,
        typer.Option("--agent", "-a", help="Only groups of this agent, by id or name, as a member or as the manager."),
    ] = None,
    type: Annotated[list[GroupType] | None, typer.Option(help="Only this type. Can be repeated.")] = None,  # noqa: A002
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of groups to list.")] = 100,
) -> None:
    """List groups, newest first."""
    asyncio.run(_list(context.obj, agent, type or [], limit))


async def _list(connection: Connection, agent: str | None, types: list[GroupType], limit: int) -> None:
    async with connection.open() as mnemesh:
        agent_id = None if agent is None else (await mnemesh.agents.find(agent)).id
        names = AgentNames(mnemesh)
        filters: dict[str, Any] = {"agent_id": agent_id, "manager_types": [each.field for each in types]}
        groups = mnemesh.groups.list(**filters, order="desc", limit=limit)
        if connection.as_json:
            await print_list((group.proto async for group in groups), (), as_json=True, empty=NO_GROUPS)
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
        await print_list(rows, _COLUMNS, as_json=False, empty=NO_GROUPS, limit=limit)


@app.command("create")
def create_group(
    context: typer.Context,
    members: Annotated[
        list[str] | None,
        typer.Argument(metavar="AGENT", help="Ids or names of the members, in the order in which they speak."),
    ] = None,
    type: Annotated[GroupType, typer.Option(help="How the group answers.")] = GroupType.ROUND_ROBIN,  # noqa: A002
    description: Annotated[str, typer.Option("--description", "-d", help="By which the group can be found.")] = "",
    manager: ManagerOption = None,
    max_turns: MaxTurnsOption = None,
    termination_token: TokenOption = None,
    frequency: FrequencyOption = None,
    interval: IntervalOption = None,
    inactivity: InactivityOption = None,
    max_steps: MaxStepsOption = None,
    max_buffer: MaxBufferOption = None,
    min_buffer: MinBufferOption = None,
    shared_block: SharedBlockOption = None,
    metadata: MetadataOption = None,
    hidden: Annotated[bool, typer.Option("--hidden", help="Mark the group as hidden.")] = False,
) -> None:
    """Create a group of agents and print its id.

    The manager is not named among the members.
    """
    options = {
        "manager": manager,
        "max_turns": max_turns,
        "termination_token": termination_token,
        "frequency": frequency,
        "interval": interval,
        "inactivity": inactivity,
        "max_steps": max_steps,
        "max_buffer": max_buffer,
        "min_buffer": min_buffer,
    }
    if manager is None and type not in (GroupType.ROUND_ROBIN, GroupType.SWARM):
        raise typer.BadParameter(f"A {type.value} group needs a manager.", param_hint="--manager")
    fields = {
        "description": description,
        "shared_block_ids": shared_block or [],
        "metadata": require_json_object(metadata),
        "hidden": hidden,
    }
    asyncio.run(_create(context.obj, members or [], type, options, fields))


async def _create(
    connection: Connection, members: list[str], kind: GroupType, options: dict[str, Any], fields: dict[str, Any]
) -> None:
    async with connection.open() as mnemesh:
        manager = await manager_fields(mnemesh, kind.field, options)
        agent_ids = [(await mnemesh.agents.find(member)).id for member in members]
        group = await mnemesh.groups.create(agent_ids, manager_type=kind.field, **fields, **manager)
        print_done(group.id, group.proto, as_json=connection.as_json)


@app.command("show")
def show_group(context: typer.Context, group: GroupArgument) -> None:
    """Show the members and settings of a group."""
    asyncio.run(_show(context.obj, group))


async def _show(connection: Connection, key: str) -> None:
    async with connection.open() as mnemesh:
        await _print_group(mnemesh, await mnemesh.groups.find(key), as_json=connection.as_json)


async def _print_group(mnemesh: Mnemesh, group: Group, *, as_json: bool) -> None:
    if as_json:
        print_json(group.proto)
    else:
        await print_group(mnemesh, group)


@app.command("update")
def update_group(
    context: typer.Context,
    group: GroupArgument,
    add: Annotated[list[str] | None, typer.Option(help="Id or name of a new member. Can be repeated.")] = None,
    remove: Annotated[
        list[str] | None, typer.Option(help="Id or name of a member that leaves. Can be repeated.")
    ] = None,
    description: Annotated[str | None, typer.Option("--description", "-d", help="The new description.")] = None,
    manager: ManagerOption = None,
    max_turns: MaxTurnsOption = None,
    termination_token: TokenOption = None,
    frequency: FrequencyOption = None,
    interval: IntervalOption = None,
    inactivity: InactivityOption = None,
    max_steps: MaxStepsOption = None,
    max_buffer: MaxBufferOption = None,
    min_buffer: MinBufferOption = None,
    shared_block: SharedBlockOption = None,
    metadata: MetadataOption = None,
    hidden: Annotated[bool | None, typer.Option("--hidden/--visible", help="Mark the group as hidden or not.")] = None,
    clear: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Reset a setting to its default, such as max-turns. Can be repeated."),
    ] = None,
) -> None:
    """Change the members and settings of a group. A running answer keeps the earlier ones.

    --shared-block replaces all shared blocks.
    """
    options = {
        "manager": manager,
        "max_turns": max_turns,
        "termination_token": termination_token,
        "frequency": frequency,
        "interval": interval,
        "inactivity": inactivity,
        "max_steps": max_steps,
        "max_buffer": max_buffer,
        "min_buffer": min_buffer,
    }
    values = {
        "description": description,
        "shared_block_ids": shared_block,
        "metadata": require_json_object(metadata),
        "hidden": hidden,
    }
    fields = {name: value for name, value in values.items() if value is not None}
    if not (add or remove or clear or fields or any(value is not None for value in options.values())):
        raise typer.BadParameter("Name at least one change. See `mnemesh groups update --help`.", param_hint="options")
    asyncio.run(_update(context.obj, group, (add or [], remove or []), clear or [], options, fields))


async def _update(
    connection: Connection,
    key: str,
    members: tuple[list[str], list[str]],
    clear: list[str],
    options: dict[str, Any],
    fields: dict[str, Any],
) -> None:
    async with connection.open() as mnemesh:
        group = await mnemesh.groups.find(key)
        fields |= cleared_fields(group.manager_type, clear)
        fields |= await manager_fields(mnemesh, group.manager_type, options)
        if any(members):
            fields["agent_ids"] = await _changed_members(mnemesh, group, *members)
        await _print_group(mnemesh, await group.update(**fields), as_json=connection.as_json)


async def _changed_members(mnemesh: Mnemesh, group: Group, add: list[str], remove: list[str]) -> list[str]:
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
def delete_group(context: typer.Context, group: GroupArgument, yes: YesOption = False) -> None:
    """Delete a group and cancel its runs. Its agents and their messages are kept."""
    asyncio.run(_delete(context.obj, group, yes))


async def _delete(connection: Connection, key: str, confirmed: bool) -> None:
    async with connection.open() as mnemesh:
        group = await mnemesh.groups.find(key)
        if not confirmed:
            typer.confirm(f"Delete the group {group.description or group.id}?", abort=True, err=True)
        await group.delete()
        print_done(f"deleted {group.id}", {"deleted": group.id}, as_json=connection.as_json)


app.command("send")(group_messages.send)
app.command("cancel")(group_messages.cancel)
app.command("messages")(group_messages.messages)
app.command("reset")(group_messages.reset)
