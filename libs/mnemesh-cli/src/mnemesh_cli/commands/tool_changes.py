"""`mnemesh tools`: update, attach, detach."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from mnemesh_cli.commands.resources import run
from mnemesh_cli.completion import completer
from mnemesh_cli.display.records import print_done, print_record
from mnemesh_cli.options import AgentArgument
from mnemesh_client.mnemesh import Mnemesh

ToolArgument = Annotated[
    str, typer.Argument(metavar="TOOL", help="Id or name of the tool.", autocompletion=completer("tool"))
]


def update(
    context: typer.Context,
    tool: ToolArgument,
    description: Annotated[
        str | None,
        typer.Option("--description", "-d", help='What the model reads; "" is the description of the source.'),
    ] = None,
    tag: Annotated[list[str] | None, typer.Option(help="A tag, in place of all others. Can be repeated.")] = None,
    host: Annotated[
        list[str] | None, typer.Option(help="A host that it may connect to, in place of all others. Can be repeated.")
    ] = None,
    approval: Annotated[
        bool | None, typer.Option("--approval/--no-approval", help="Calls wait for an approval.", show_default=False)
    ] = None,
    seconds: Annotated[int | None, typer.Option(min=0, help="Seconds after which it is killed; 0 is 180.")] = None,
    limit: Annotated[int | None, typer.Option(min=0, help="Most characters of a result; 0 is 50000.")] = None,
) -> None:
    """Change the settings of a tool. `upsert` replaces its source."""
    values: dict[str, Any] = {
        "tags": tag,
        "network_hosts": host,
        "default_requires_approval": approval,
        "timeout_seconds": seconds,
        "return_char_limit": limit,
    }
    fields = {name: value for name, value in values.items() if value is not None}
    if description is not None:
        fields["description"] = description or None
    if not fields:
        raise typer.BadParameter("Name at least one change. See `mnemesh tools update --help`.", param_hint="options")

    async def command(mnemesh: Mnemesh) -> None:
        found = await mnemesh.tools.get(tool)
        print_record(await mnemesh.tools.update(found.id, **fields), as_json=context.obj.as_json)

    run(context, command)


def attach(context: typer.Context, tool: ToolArgument, agent: AgentArgument) -> None:
    """Attach a tool to an agent, which can call it from its next step on."""
    _change(context, tool, agent, "attached")


def detach(context: typer.Context, tool: ToolArgument, agent: AgentArgument) -> None:
    """Detach a tool from an agent. The tool is kept."""
    _change(context, tool, agent, "detached")


def _change(context: typer.Context, tool: str, agent: str, verb: str) -> None:
    async def command(mnemesh: Mnemesh) -> None:
        found = await mnemesh.agents.find(agent)
        attaches = verb == "attached"
        await (found.attach_tool if attaches else found.detach_tool)(tool)
        text = f"{verb} {tool} {'to' if attaches else 'from'} {found.name}"
        print_done(text, {verb: tool, "agent_id": found.id}, as_json=context.obj.as_json)

    run(context, command)
