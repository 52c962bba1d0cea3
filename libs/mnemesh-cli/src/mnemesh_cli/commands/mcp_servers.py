"""`mnemesh mcp-servers`, and `mnemesh mcp`: the servers whose tools agents use, and the server of their memory."""

import asyncio
from typing import Annotated, Any
from urllib.parse import parse_qs, urlsplit

import typer
from mnemesh.tools.v1 import mcp_servers_pb2, mcp_servers_service_pb2
from mnemesh_cli.commands.resources import enum_text, id_column, text_column, with_client
from mnemesh_cli.connection import Connection
from mnemesh_cli.display.records import Column, count_text, print_done, print_list, print_record
from mnemesh_cli.display.terminal import print_error
from mnemesh_cli.options import YesOption
from mnemesh_client.mnemesh import Mnemesh
from mnemesh_kit.config import StartupError
from mnemesh_kit.errors import NotFound
from mnemesh_kit.extras import install_hint
from typer.core import TyperCommand


def mcp(
    context: typer.Context,
    agent: Annotated[
        str | None,
        typer.Option(
            "--agent",
            "-a",
            help="Name or id of the agent whose memory is used by default.",
            show_default="the only agent",
        ),
    ] = None,
) -> None:
    """Serve the memory of agents to an MCP client, on standard input and output."""
    asyncio.run(_serve(context.obj, agent))


async def _serve(connection: Connection, agent: str | None) -> None:
    try:
        from mnemesh_client.mcp_server import memory_server  # noqa: PLC0415 -- an extra
    except ModuleNotFoundError as error:
        raise StartupError(f"The package mcp is not installed. {install_hint('mnemesh-cli', 'mcp')}") from error
    async with connection.open() as mnemesh:
        if agent is not None:
            agent = (await mnemesh.agents.find(agent)).id
        await memory_server(lambda _: mnemesh, agent).run_stdio_async()


app = typer.Typer(no_args_is_help=True, help="Create, list, change and authorize MCP servers, and read their tools.")

ServerArgument = Annotated[str, typer.Argument(metavar="SERVER", help="Id or name of the MCP server.")]
_REACHABLE = mcp_servers_pb2.MCP_SERVER_STATUS_REACHABLE
_COLUMNS = (
    text_column("NAME", lambda row: row.name),
    Column("TRANSPORT", lambda row: (row.WhichOneof("transport") or "").removeprefix("streamable_")),
    Column("STATUS", lambda row: enum_text(mcp_servers_pb2.McpServerStatus, row.status, "MCP_SERVER_STATUS_")),
    Column("TOOLS", lambda row: str(row.tool_count), right=True),
    id_column(),
)
_TOOL_COLUMNS = (
    text_column("NAME", lambda row: row.name),
    Column(
        "SCHEMA", lambda row: enum_text(mcp_servers_pb2.McpSchemaStatus, row.schema_health.status, "MCP_SCHEMA_STATUS_")
    ),
    id_column("tool_id"),
    text_column(
        "NOT OFFERED BECAUSE", lambda row: "" if row.HasField("json_schema") else " ".join(row.schema_health.reasons)
    ),
)
_URLS = ("http://", "https://")
_REDIRECT = "http://127.0.0.1:8765/callback"


class _CreateCommand(TyperCommand):
    """Options may be anywhere on the line, except after a program: these are the arguments of the program."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses the line. Options after NAME count if a URL follows it."""
        ctx.allow_interspersed_args = False
        values, _, _ = self.make_parser(ctx).parse_args(list(args))
        ctx.allow_interspersed_args = str(values.get("target")).startswith((*_URLS, "-"))
        return super().parse_args(ctx, args)


@app.command("create", cls=_CreateCommand)
@with_client
async def create_server(
    mnemesh: Mnemesh,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the server.")],
    target: Annotated[str, typer.Argument(metavar="URL_OR_PROGRAM", help="URL, or program to start.")],
    args: Annotated[list[str] | None, typer.Argument(metavar="ARGS", help="Arguments of the program.")] = None,
    sse: Annotated[bool, typer.Option("--sse", help="Use the older HTTP transport.")] = False,
    token_file: Annotated[typer.FileText | None, typer.Option(help="File with the token, or - for stdin.")] = None,
    oauth: Annotated[bool, typer.Option("--oauth", help="A person authorizes mnemesh: see `authorize`.")] = False,
    package: Annotated[list[str] | None, typer.Option(help="Python package of the program. Repeatable.")] = None,
    host: Annotated[list[str] | None, typer.Option(help="Host that the program may connect to. Repeatable.")] = None,
    persistent: Annotated[bool, typer.Option("--persistent", help="Keep the home of the program.")] = False,
) -> None:
    """Create an MCP server and print its id. What follows a program is passed to it: options come before its name."""
    token = None if token_file is None else token_file.read().strip()
    is_url = target.startswith(_URLS)
    if is_url and args:
        raise typer.BadParameter("A URL has no arguments.", param_hint="ARGS")
    if not is_url and (sse or oauth or token is not None):
        raise typer.BadParameter("a program has no --sse, --oauth and --token-file")
    if oauth and token is not None:
        raise typer.BadParameter("--oauth excludes --token-file")
    if is_url:
        fields: dict[str, Any] = {"transport": "sse" if sse else "streamable_http", "token": token}
        if oauth:
            fields["oauth"] = mcp_servers_pb2.McpOAuth()
    else:
        fields = {"args": args or [], "packages": package or [], "hosts": host or [], "persistent": persistent}
    create = mnemesh.mcp_servers.create if is_url else mnemesh.mcp_servers.create_program
    server = await create(name, target, **fields)
    print_done(server.id, server)
    if server.status != _REACHABLE:
        text = f"{name} was created, but its tools were not read: {server.status_message}"
        print_error(f"{text} Then read them with `mnemesh mcp-servers refresh {name}`.")
    elif server.status_message:
        print_error(server.status_message)


@app.command("list")
@with_client
async def list_servers(mnemesh: Mnemesh) -> None:
    """List MCP servers."""
    empty = "There are no MCP servers. Create one with `mnemesh mcp-servers create`."
    await print_list(mnemesh.mcp_servers.list(), _COLUMNS, empty=empty)


@app.command("show")
@with_client
async def show_server(mnemesh: Mnemesh, key: ServerArgument) -> None:
    """Show a server, without its secrets."""
    print_record(await _find(mnemesh, key))


@app.command("tools")
@with_client
async def list_tools(mnemesh: Mnemesh, key: ServerArgument) -> None:
    """List the tools that were last read."""
    tools = mnemesh.mcp_servers.tools((await _find(mnemesh, key)).id)
    await print_list(tools, _TOOL_COLUMNS, empty="The server has no tools.")


@app.command("refresh")
@with_client
async def refresh_server(mnemesh: Mnemesh, key: ServerArgument) -> None:
    """Read the tools of a server again."""
    answer = await mnemesh.mcp_servers.refresh((await _find(mnemesh, key)).id)
    changes = f"{len(answer.added)} added, {len(answer.updated)} updated, {len(answer.removed)} removed"
    print_done(f"{count_text(answer.mcp_server.tool_count, 'tool')}: {changes}", answer)
    if answer.mcp_server.status_message:
        print_error(answer.mcp_server.status_message)


@app.command("update")
@with_client
async def update_server(
    mnemesh: Mnemesh,
    key: ServerArgument,
    name: Annotated[str | None, typer.Option(help="The new name.")] = None,
    url: Annotated[str | None, typer.Option(help="The new URL. Another host needs the token again.")] = None,
    token_file: Annotated[typer.FileText | None, typer.Option(help="File with the token, or - for stdin.")] = None,
) -> None:
    """Change the name, URL or token of a server. `refresh` reads its tools again."""
    token = None if token_file is None else token_file.read().strip()
    if name is None and url is None and token is None:
        raise typer.BadParameter(
            "Name at least one change. See `mnemesh mcp-servers update --help`.", param_hint="options"
        )
    changes = {"name": name, "url": url, "token": token}
    server = await mnemesh.mcp_servers.update((await _find(mnemesh, key)).id, **changes)
    print_done(f"updated {server.id}", {"updated": server.id})


@app.command("delete")
@with_client
async def delete_server(mnemesh: Mnemesh, key: ServerArgument, yes: YesOption = False) -> None:
    """Delete a server and its tools."""
    server = await _find(mnemesh, key)
    if not yes:
        typer.confirm(f"Delete {server.name} ({server.id}) and its tools?", abort=True, err=True)
    await mnemesh.mcp_servers.delete(server.id)
    print_done(f"deleted {server.id}", {"deleted": server.id})


@app.command("authorize")
@with_client
async def authorize_server(
    mnemesh: Mnemesh,
    key: ServerArgument,
    redirect_uri: Annotated[str, typer.Option(help="Where the browser is sent afterwards.")] = _REDIRECT,
) -> None:
    """Authorize mnemesh at a server with OAuth: open the printed URL, then paste the URL that the browser ends at."""
    stub, server = mnemesh.mcp_servers.stub, await _find(mnemesh, key)
    started = await stub.StartMcpAuthorization(
        mcp_servers_service_pb2.StartMcpAuthorizationRequest(mcp_server_id=server.id, redirect_uri=redirect_uri)
    )
    print_done(started.authorization_url, started)
    pasted = await asyncio.to_thread(typer.prompt, "URL in the browser afterwards", err=True)
    found = {name: values[0] for name, values in parse_qs(urlsplit(pasted.strip()).query).items()}
    if not {"code", "state"} <= found.keys():
        raise typer.BadParameter(f"the URL has no code: {found.get('error', 'nothing was granted')}")
    request = mcp_servers_service_pb2.CompleteMcpAuthorizationRequest(
        mcp_server_id=server.id, code=found["code"], state=found["state"], iss=found.get("iss")
    )
    done = (await stub.CompleteMcpAuthorization(request)).mcp_server
    print_done(f"authorized {done.id}, {count_text(done.tool_count, 'tool')}", done)


async def _find(mnemesh: Mnemesh, key: str) -> mcp_servers_pb2.McpServer:
    """Returns a server by id or name. Raises NotFound."""
    if key.startswith("mcp_server-"):
        return await mnemesh.mcp_servers.get(key)
    request = mcp_servers_service_pb2.ListMcpServersRequest(name=key, page_size=1)
    found = (await mnemesh.mcp_servers.stub.ListMcpServers(request)).mcp_servers
    if not found:
        raise NotFound(f"There is no MCP server named {key}.", resource_id=key)
    return found[0]
