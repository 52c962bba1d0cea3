"""`mnemesh agents`: list, create, show, update, delete."""

import json
import os
import textwrap
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from mnemesh.agents.v1 import agents_pb2, agents_service_pb2
from mnemesh_cli.commands.resources import id_column, text_column, with_client
from mnemesh_cli.commands.runs import dollars_text
from mnemesh_cli.connection import NO_AGENTS, require_free_name
from mnemesh_cli.display.records import local_time_text, print_done, print_fields, print_json, print_list
from mnemesh_cli.display.terminal import is_json, output
from mnemesh_cli.display.views import AgentNames, print_memory
from mnemesh_cli.options import AgentArgument, YesOption, completer, text_or_stdin
from mnemesh_client.agent import Agent
from mnemesh_client.inputs import AGENT_TYPES, agent_type, input_messages
from mnemesh_client.mnemesh import Mnemesh
from mnemesh_kit.errors import NotFound, PermissionDenied

ConversationOption = Annotated[
    str | None,
    typer.Option("--conversation", "-c", help="Id of a conversation.", autocompletion=completer("conversation")),
]

_LINE: Final = 100
"""The columns of a line if there is no terminal."""
_PARTNER_TYPES: Final = (agents_pb2.AGENT_TYPE_SLEEPTIME, agents_pb2.AGENT_TYPE_VOICE_SLEEPTIME)


def _type(agent: agents_pb2.Agent) -> str:
    return agents_pb2.AgentType.Name(agent.type).removeprefix("AGENT_TYPE_").lower()


_COLUMNS: Final = (
    id_column(),
    text_column("NAME", lambda agent: agent.name),
    text_column("MODEL", lambda agent: agent.model),
    text_column("TYPE", _type),
    text_column("TAGS", lambda agent: ", ".join(agent.tags)),
)

app = typer.Typer(no_args_is_help=True, help="Create, list, show, change and delete agents.")


@app.command("list")
@with_client
async def list_agents(
    mnemesh: Mnemesh,
    tag: Annotated[list[str] | None, typer.Option(help="Only agents with this tag. Can be repeated.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of agents to list.")] = 100,
) -> None:
    """List agents, newest first."""
    tags = tag or []
    rows = (agent.proto async for agent in mnemesh.agents.list(tags_all=tags, limit=limit))
    await print_list(rows, _COLUMNS, empty=NO_AGENTS, limit=limit)


@app.command("create")
@with_client
async def create_agent(
    mnemesh: Mnemesh,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of the agent.", show_default="chosen by the server")
    ] = "",
    model: Annotated[
        str | None,
        typer.Option(
            envvar="MNEMESH_MODEL", help="Model, as provider/model.", show_default="the default of the server"
        ),
    ] = None,
    type: Annotated[str, typer.Option(help=f"Agent type: {', '.join(AGENT_TYPES)}.")] = "letta_v1",  # noqa: A002
    human: Annotated[
        str | None, typer.Option(help="Initial value of the block about the user.", show_default="empty")
    ] = None,
    persona: Annotated[
        str | None, typer.Option(help="Initial value of the block about the agent itself.", show_default="empty")
    ] = None,
    block: Annotated[list[str] | None, typer.Option(help="Another block, as label=value. Can be repeated.")] = None,
    prompt: Annotated[
        str | None,
        typer.Option(
            help="Key of the system prompt. See `mnemesh prompts list`.", show_default="the prompt of the agent type"
        ),
    ] = None,
    tool: Annotated[list[str] | None, typer.Option(help="A tool, by name or id. Can be repeated.")] = None,
    tool_file: Annotated[
        list[Path] | None, typer.Option(help="A Python file to create a tool from. Can be repeated.")
    ] = None,
    tag: Annotated[list[str] | None, typer.Option(help="A tag of the agent. Can be repeated.")] = None,
    sleeptime: Annotated[
        bool, typer.Option("--sleeptime", help="Create a partner with it that maintains its memory in the background.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Create it even if an agent has the name.")] = False,
    continuation: Annotated[
        str | None, typer.Option(help='Message to the model after tool calls, such as "All tools finished. Continue."')
    ] = None,
) -> None:
    """Create an agent and print its id.

    An agent of a sleeptime type gets the blocks human and persona only if they are named, as it shares those of the
    agent whose memory it maintains.
    """
    missing = None if agent_type(type) in _PARTNER_TYPES else ""
    named = {"human": missing if human is None else human, "persona": missing if persona is None else persona}
    blocks = {**{label: value for label, value in named.items() if value is not None}, **_parse_blocks(block or [])}
    sources = [_read_tool(path) for path in tool_file or []]
    if name and not force:
        await require_free_name(mnemesh, name)
    try:
        agent = await mnemesh.agents.create(
            name,
            model=model or "",
            type=type,
            system_prompt_key=prompt,
            blocks=blocks,
            tools=tool or [],
            tool_sources=sources,
            tags=tag or [],
            continuation_message=continuation,
            enable_sleeptime=sleeptime,
        )
    except NotFound as error:
        if error.field == "tools":
            raise await _describe_unknown_tool(mnemesh, error) from error
        raise
    print_done(agent.id, agent.proto)


async def _describe_unknown_tool(mnemesh: Mnemesh, error: NotFound) -> NotFound:
    """Returns the error with the names that are similar to the unknown one."""
    known = [tool.name async for tool in mnemesh.tools.list(limit=1_000)]
    similar = get_close_matches(error.metadata.get("resource_id", ""), known, n=3)
    meant = f" Did you mean {' or '.join(similar)}?" if similar else ""
    return NotFound(f"{error.message}{meant} `mnemesh tools list --builtin` lists all.", field="tools")


@app.command("show")
@with_client
async def show_agent(mnemesh: Mnemesh, key: AgentArgument) -> None:
    """Show the settings, tools and core memory of an agent."""
    await _print_agent(mnemesh, await mnemesh.agents.find(key))


async def _print_agent(mnemesh: Mnemesh, agent: Agent) -> None:
    """Prints the settings, tools and core memory of an agent; only its settings as JSON."""
    if is_json.get():
        print_json(agent.proto)
        return
    proto, cost = agent.proto, await agent.cost()
    fields = [
        ("id", agent.id),
        ("name", agent.name),
        ("description", proto.description),
        ("type", _type(proto)),
        ("model", agent.model),
        ("tags", ", ".join(proto.tags)),
        ("tools", _wrapped("tools: ", [tool.name for tool in proto.tools])),
        ("created", local_time_text(proto.create_time.ToDatetime(UTC))),
        ("cost", _cost_text(proto, cost)),
    ]
    with suppress(PermissionDenied):  # of a token that is limited to agents
        fields += await _group_rows(mnemesh, agent)
    print_fields(fields)
    print_memory(output(), await agent.memory())


def _wrapped(label: str, names: Sequence[str]) -> str:
    """Returns names in lines that fit, with their label, into the terminal, or into 100 columns without one."""
    console = output()
    width = (min(console.width, _LINE) if console.is_terminal else _LINE) - len(label)
    return textwrap.fill(", ".join(names), max(width, 20), break_long_words=False, break_on_hyphens=False)


def _cost_text(agent: agents_pb2.Agent, dollars: float | None) -> str:
    if dollars is None:
        return "unknown: the price of its models is not known" if agent.HasField("last_run_completion_time") else ""
    return dollars_text(dollars)


async def _group_rows(mnemesh: Mnemesh, agent: Agent) -> list[tuple[str, str]]:
    """Returns the sleeptime partners of an agent, and the groups to which it belongs."""
    rows, names = [], AgentNames(mnemesh)
    async for group in mnemesh.groups.list(agent_id=agent.id):
        kind = group.manager_type.replace("_", "-")
        label = f"{group.description} ({group.id})" if group.description else group.id
        if group.manager_agent_id == agent.id and group.is_sleeptime:
            mark = "" if agent.proto.enable_sleeptime else ", switched off"
            rows += [(f"partner{mark}", await names.label(partner)) for partner in group.agent_ids]
        role = "manager" if group.manager_agent_id == agent.id else "member"
        rows.append(("group", f"{label}, {kind}, {role}"))
    return rows


@app.command("update")
@with_client
async def update_agent(
    mnemesh: Mnemesh,
    key: AgentArgument,
    name: Annotated[str | None, typer.Option(help="The new name.")] = None,
    model: Annotated[str | None, typer.Option(help="The new model, as provider/model.")] = None,
    description: Annotated[str | None, typer.Option(help="The new description.")] = None,
    sleeptime: Annotated[
        bool | None,
        typer.Option(
            "--sleeptime/--no-sleeptime",
            help="Maintain its memory in the background with a partner, created if needed, or stop that.",
        ),
    ] = None,
    extract_facts: Annotated[
        int | None,
        typer.Option(min=0, max=1_000, metavar="TURNS", help="Extract facts after every so many turns; 0 stops that."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Use the name even if another agent has it.")] = False,
) -> None:
    """Change the settings of an agent."""
    values = {"name": name, "model": model, "description": description, "enable_sleeptime": sleeptime}
    fields: dict[str, Any] = {field: value for field, value in values.items() if value is not None}
    if extract_facts is not None:
        fields["memory_extraction"] = _extraction(extract_facts)
    if not fields:
        raise typer.BadParameter("Name at least one change. See `mnemesh agents update --help`.", param_hint="options")
    agent = await mnemesh.agents.find(key)
    if not force and fields.get("name", agent.name) != agent.name:
        await require_free_name(mnemesh, fields["name"])
    await agent.update(**fields)
    await _print_agent(mnemesh, agent)


@app.command("recompile")
@with_client
async def recompile(
    mnemesh: Mnemesh,
    agent: AgentArgument,
    conversation: ConversationOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the system message; change nothing.")] = False,
) -> None:
    """Render the system message of an agent again, with its present memory and settings."""
    request = agents_service_pb2.RecompileAgentRequest(
        agent_id=(await mnemesh.agents.find(agent)).id, conversation_id=conversation, dry_run=dry_run
    )
    done = await mnemesh.agents.stub.RecompileAgent(request)
    text = done.system_text if dry_run else "changed" if done.changed else "not changed"
    print_done(text, done)


@app.command("preview")
@with_client
async def preview(
    mnemesh: Mnemesh,
    agent: AgentArgument,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="A message to send; - reads stdin.")] = "",
    conversation: ConversationOption = None,
) -> None:
    """Print the request that the model would receive, as JSON. Sends nothing."""
    content = text_or_stdin(text)
    request = agents_service_pb2.PreviewRequestRequest(
        agent_id=(await mnemesh.agents.find(agent)).id,
        conversation_id=conversation,
        messages=input_messages(content) if content else (),
    )
    body = json.loads((await mnemesh.agents.stub.PreviewRequest(request)).request_body)
    if is_json.get():
        print_json(body)
    else:
        typer.echo(json.dumps(body, indent=2, ensure_ascii=False))


@app.command("delete")
@with_client
async def delete_agent(mnemesh: Mnemesh, key: AgentArgument, yes: YesOption = False) -> None:
    """Delete an agent and all data that belongs only to it."""
    agent = await mnemesh.agents.find(key)
    if not yes:
        typer.confirm(f"Delete {agent.name} ({agent.id}) and its memory?", abort=True, err=True)
    await agent.delete()
    print_done(f"deleted {agent.id}", {"deleted": agent.id})


def _extraction(turns: int) -> agents_pb2.MemoryExtractionSettings | None:
    """Returns the settings of an extraction after every so many turns; None for 0."""
    mode = agents_pb2.MEMORY_EXTRACTION_MODE_PER_TURN
    return agents_pb2.MemoryExtractionSettings(mode=mode, frequency=turns) if turns else None


def _parse_blocks(options: list[str]) -> dict[str, str]:
    blocks = {}
    for text in options:
        label, separator, value = text.partition("=")
        if not separator:
            raise typer.BadParameter(f"{text!r} must have the form label=value.", param_hint="--block")
        blocks[label] = value
    return blocks


def _read_tool(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise typer.BadParameter(f"{os.fspath(path)}: {error.strerror}", param_hint="--tool-file") from error
