"""`mnemesh tools`: list, show, create, upsert, update, attach, detach, delete, run, search, schema."""

import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from mnemesh.tools.v1 import execution_service_pb2, tools_pb2
from mnemesh_cli.commands.resources import id_column, of_hits, text_column, with_client
from mnemesh_cli.display.records import Column, print_done, print_fields, print_json, print_list, print_record
from mnemesh_cli.display.terminal import is_json, notice, output, print_error
from mnemesh_cli.options import AgentArgument, YesOption, completer
from mnemesh_client.mnemesh import Mnemesh
from mnemesh_client.tools import Language, ToolTypeName
from mnemesh_kit.errors import InvalidArgument
from rich.text import Text

ToolArgument = Annotated[
    str, typer.Argument(metavar="TOOL", help="Id or name of the tool.", autocompletion=completer("tool"))
]

app = typer.Typer(no_args_is_help=True, help="Create, list, show, change, attach, run and delete tools.")

SourceArgument = Annotated[
    Path,
    typer.Argument(
        metavar="FILE", exists=True, dir_okay=False, readable=True, help="Python source, or TypeScript as .ts."
    ),
]
PackageOption = Annotated[
    list[str] | None, typer.Option("--package", help="Package of PyPI, or of npm for TypeScript. Repeatable.")
]
HostOption = Annotated[list[str] | None, typer.Option("--host", help="Host that it may connect to. Repeatable.")]
TagOption = Annotated[list[str] | None, typer.Option("--tag", help="Tag. Repeatable.")]
ApprovalOption = Annotated[bool | None, typer.Option("--approval/--no-approval", help="Calls wait for an approval.")]
LimitOption = Annotated[int, typer.Option(min=1, help="Maximum number of tools.")]
_TYPESCRIPT: Final = (".ts", ".mts")
_SUCCESS: Final = execution_service_pb2.EXECUTION_STATUS_SUCCESS


def _type(tool: tools_pb2.Tool) -> str:
    return tools_pb2.ToolType.Name(tool.type).removeprefix("TOOL_TYPE_").lower()


def _description(tool: tools_pb2.Tool) -> str:
    if tool.description or not tool.json_schema:
        return tool.description
    return str(json.loads(tool.json_schema).get("description") or "")


_COLUMNS: Final = (
    text_column("TOOL", lambda tool: tool.name),
    Column("TYPE", _type),
    text_column("DESCRIPTION", _description),
    id_column(),
)


@app.command("list")
@with_client
async def list_tools(
    mnemesh: Mnemesh,
    limit: LimitOption = 100,
    builtin: Annotated[bool, typer.Option("--builtin", help="With the built-in tools.")] = False,
) -> None:
    """List tools, newest first."""
    hidden: list[ToolTypeName] = [] if builtin else ["builtin"]
    tools = mnemesh.tools.list(exclude_types=hidden, limit=limit)
    empty = "There are no custom tools. Create one with `mnemesh tools create`; --builtin lists the built-in ones."
    empty = "There are no tools." if builtin else empty
    await print_list(tools, _COLUMNS, empty=empty, limit=limit)
    if not builtin and not is_json.get():
        notice("--builtin also lists the built-in tools")


@app.command("search")
@with_client
async def search_tools(
    mnemesh: Mnemesh,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="What the tool should do.")],
    tag: TagOption = None,
    limit: LimitOption = 10,
) -> None:
    """Search tools by what they do, best first."""
    tags = tag or []
    hits = await mnemesh.tools.search(query, tags=tags, limit=limit)
    rows = [hit.tool for hit in hits] if is_json.get() else hits
    await print_list(rows, of_hits("tool", _COLUMNS), empty="No tool matches.")


@app.command("show")
@with_client
async def show_tool(mnemesh: Mnemesh, key: ToolArgument) -> None:
    """Show a tool with its source."""
    tool = await mnemesh.tools.get(key)
    if is_json.get():
        print_json(tool)
        return
    print_fields(_fields(tool))
    if tool.source_code:
        output().print(Text(f"\n{tool.source_code.rstrip()}"), soft_wrap=True)


@app.command("create")
@with_client
async def create_tool(
    mnemesh: Mnemesh,
    file: SourceArgument,
    package: PackageOption = None,
    host: HostOption = None,
    tag: TagOption = None,
    approval: ApprovalOption = None,
) -> None:
    """Create a tool from the last function of a file, and print its id."""
    await _write(mnemesh.tools.create, file, _settings(package, host, tag, approval))


@app.command("upsert")
@with_client
async def upsert_tool(
    mnemesh: Mnemesh,
    file: SourceArgument,
    package: PackageOption = None,
    host: HostOption = None,
    tag: TagOption = None,
    approval: ApprovalOption = None,
) -> None:
    """Create a tool, or replace the one with the same name. Settings that are not given stay. Prints the id."""
    await _write(mnemesh.tools.upsert, file, _settings(package, host, tag, approval))


async def _write(write: Callable[..., Awaitable[tools_pb2.Tool]], file: Path, settings: dict[str, Any]) -> None:
    tool = await write(_read(file), language=_language(file), **settings)
    print_done(tool.id, tool)


@app.command("update")
@with_client
async def update(
    mnemesh: Mnemesh,
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
    found = await mnemesh.tools.get(tool)
    print_record(await mnemesh.tools.update(found.id, **fields))


@app.command("attach")
@with_client
async def attach(mnemesh: Mnemesh, tool: ToolArgument, agent: AgentArgument) -> None:
    """Attach a tool to an agent, which can call it from its next step on."""
    await _change(mnemesh, tool, agent, "attached")


@app.command("detach")
@with_client
async def detach(mnemesh: Mnemesh, tool: ToolArgument, agent: AgentArgument) -> None:
    """Detach a tool from an agent. The tool is kept."""
    await _change(mnemesh, tool, agent, "detached")


async def _change(mnemesh: Mnemesh, tool: str, agent: str, verb: str) -> None:
    found = await mnemesh.agents.find(agent)
    attaches = verb == "attached"
    await (found.attach_tool if attaches else found.detach_tool)(tool)
    text = f"{verb} {tool} {'to' if attaches else 'from'} {found.name}"
    print_done(text, {verb: tool, "agent_id": found.id})


@app.command("delete")
@with_client
async def delete_tool(mnemesh: Mnemesh, key: ToolArgument, yes: YesOption = False) -> None:
    """Delete a tool."""
    tool = await mnemesh.tools.get(key)
    if not yes:
        typer.confirm(f"Delete {tool.name} ({tool.id})?", abort=True, err=True)
    await mnemesh.tools.delete(tool.id)
    print_done(f"deleted {tool.id}", {"deleted": tool.id})


@app.command("run")
@with_client
async def run_tool(
    mnemesh: Mnemesh,
    tool: ToolArgument,
    arguments: Annotated[str, typer.Argument(metavar="JSON", help="Arguments, as a JSON object.")] = "{}",
) -> int:
    """Run a custom tool once and print its result. Exits with 1 if the tool fails."""
    given = _arguments(arguments)
    result = await mnemesh.tools.run((await mnemesh.tools.get(tool)).id, given)
    if is_json.get():
        print_json(result)
    else:
        for text, is_error in ((result.stdout, False), (result.stderr, True)):
            typer.echo(text, err=is_error, nl=bool(text) and not text.endswith("\n"))
        if result.status == _SUCCESS:
            typer.echo(result.result)
        else:
            name = execution_service_pb2.ExecutionStatus.Name(result.status).removeprefix("EXECUTION_STATUS_")
            print_error(f"The tool failed [{name}]: {result.result}")
    return int(result.status != _SUCCESS)


@app.command("schema")
@with_client
async def print_schema(mnemesh: Mnemesh, file: SourceArgument) -> None:
    """Print the schema of the last function of a file as JSON. Stores nothing."""
    source = _read(file)
    schema = await mnemesh.tools.schema(source, language=_language(file))
    print_done(json.dumps(schema, indent=2, ensure_ascii=False), schema)


def _language(file: Path) -> Language:
    return "typescript" if file.suffix in _TYPESCRIPT else "python"


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{file} is not UTF-8 text.", field="FILE") from error


def _arguments(text: str) -> dict[str, Any]:
    try:
        arguments = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"The arguments are not JSON: {error}.", param_hint="JSON") from error
    if not isinstance(arguments, dict):
        raise typer.BadParameter("The arguments are not a JSON object.", param_hint="JSON")
    return arguments


def _settings(
    packages: list[str] | None, hosts: list[str] | None, tags: list[str] | None, approval: bool | None
) -> dict[str, Any]:
    fields: dict[str, Any] = {"packages": packages or [], "hosts": hosts or []}
    if tags:
        fields["tags"] = tags
    if approval is not None:
        fields["default_requires_approval"] = approval
    return fields


def _fields(tool: tools_pb2.Tool) -> Iterator[tuple[str, str]]:
    """Yields the fields of a tool with their labels."""
    is_typescript = tool.source_type == tools_pb2.SOURCE_TYPE_TYPESCRIPT
    yield "id", tool.id
    yield "name", tool.name
    yield "type", _type(tool)
    yield "language", ("TypeScript" if is_typescript else "Python") if tool.source_code else ""
    yield "description", " ".join(_description(tool).split())
    for requirement in (*tool.pip_requirements, *tool.npm_requirements):
        yield "package", f"{requirement.name} {requirement.version}".rstrip()
    if tool.HasField("packages"):
        state = tools_pb2.PackagesState.Name(tool.packages.state).removeprefix("PACKAGES_STATE_").lower()
        yield "packages", f"{state}: {tool.packages.error}" if tool.packages.error else state
    for host in tool.network_hosts:
        yield "host", host
    for secret in tool.secrets:
        yield "secret", secret.name
    yield "tags", ", ".join(tool.tags)
    yield "approval", "required" if tool.default_requires_approval else ""
    yield "parameters", ", ".join(_parameters(tool))


def _parameters(tool: tools_pb2.Tool) -> Iterator[str]:
    """Yields the names of the parameters; those that may be absent with a question mark."""
    schema = json.loads(tool.json_schema or "{}").get("parameters") or {}
    required = schema.get("required") or ()
    for name in schema.get("properties") or ():
        yield name if name in required else f"{name}?"
