"""`mnemesh folders`: list, create, show, update, delete, attach, detach."""

from typing import Annotated, Any

import typer
from mnemesh_cli.commands.resources import with_client
from mnemesh_cli.display.records import print_done, print_fields, print_json, print_list
from mnemesh_cli.display.views import FOLDER_COLUMNS, AgentNames, folder_fields
from mnemesh_cli.options import AgentArgument, FolderArgument, YesOption
from mnemesh_client.mnemesh import Mnemesh

app = typer.Typer(no_args_is_help=True, help="Create, list, show, change and delete folders; attach them to agents.")

NO_FOLDERS = "There are no folders. Create one with `mnemesh folders create`."


@app.command("list")
@with_client
async def list_folders(
    mnemesh: Mnemesh,
    context: typer.Context,
    agent: Annotated[
        str | None, typer.Option("--agent", "-a", help="Only folders of this agent, by id or name.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of folders to list.")] = 100,
) -> None:
    """List folders, newest first."""
    agent_id = None if agent is None else (await mnemesh.agents.find(agent)).id
    folders = mnemesh.folders.list(agent_id=agent_id, order="desc", limit=limit)
    empty = NO_FOLDERS if agent is None else "The agent has no folders."
    await print_list(folders, FOLDER_COLUMNS, as_json=context.obj.as_json, empty=empty, limit=limit)


@app.command("create")
@with_client
async def create_folder(
    mnemesh: Mnemesh,
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help='Name of the folder, unique and without "/".')],
    description: Annotated[
        str | None, typer.Option("--description", "-d", help="What the folder contains; its agents read it.")
    ] = None,
    instructions: Annotated[
        str | None, typer.Option(help="How agents should use the folder; its agents read it.")
    ] = None,
    embedder: Annotated[
        str, typer.Option(help="Embedder of the passages, as provider/model.", show_default="the default of the server")
    ] = "",
    chunk_size: Annotated[
        int, typer.Option(min=0, help="Maximum number of tokens of a passage.", show_default="300")
    ] = 0,
) -> None:
    """Create a folder and print its id."""
    folder = await mnemesh.folders.create(
        name, description=description, instructions=instructions, embedder=embedder, chunk_size=chunk_size
    )
    print_done(folder.id, folder, as_json=context.obj.as_json)


@app.command("show")
@with_client
async def show_folder(mnemesh: Mnemesh, context: typer.Context, key: FolderArgument) -> None:
    """Show a folder and the agents that hold it."""
    folder = await mnemesh.folders.find(key)
    agent_ids = [agent_id async for agent_id in mnemesh.folders.agents(folder.id)]
    if context.obj.as_json:
        print_json(folder, agent_ids=agent_ids)
        return
    names = AgentNames(mnemesh)
    print_fields([*folder_fields(folder), *[("agent", await names.label(each)) for each in agent_ids]])


@app.command("update")
@with_client
async def update_folder(
    mnemesh: Mnemesh,
    context: typer.Context,
    key: FolderArgument,
    name: Annotated[str | None, typer.Option(help="The new name.")] = None,
    description: Annotated[
        str | None, typer.Option("--description", "-d", help='The new description; "" removes it.')
    ] = None,
    instructions: Annotated[str | None, typer.Option(help='The new instructions; "" removes them.')] = None,
) -> None:
    """Change the name, description or instructions of a folder."""
    values = {"name": name, "description": description, "instructions": instructions}
    fields: dict[str, Any] = {field: value or None for field, value in values.items() if value is not None}
    if not fields:
        raise typer.BadParameter("Name at least one change. See `mnemesh folders update --help`.", param_hint="options")
    if name == "":
        raise typer.BadParameter("A folder needs a name.", param_hint="--name")
    folder = await mnemesh.folders.find(key)
    updated = await mnemesh.folders.update(folder.id, **fields)
    if context.obj.as_json:
        print_json(updated)
    else:
        print_fields(folder_fields(updated))


@app.command("delete")
@with_client
async def delete_folder(mnemesh: Mnemesh, context: typer.Context, key: FolderArgument, yes: YesOption = False) -> None:
    """Delete a folder with all its files, and detach it from all agents."""
    folder = await mnemesh.folders.find(key)
    if not yes:
        count = "1 file" if folder.file_count == 1 else f"{folder.file_count} files"
        typer.confirm(f"Delete {folder.name} ({folder.id}) with {count}?", abort=True, err=True)
    await mnemesh.folders.delete(folder.id)
    print_done(f"deleted {folder.id}", {"deleted": folder.id}, as_json=context.obj.as_json)


@app.command("attach")
@with_client
async def attach_folder(mnemesh: Mnemesh, context: typer.Context, folder: FolderArgument, agent: AgentArgument) -> None:
    """Attach a folder, with its present and future files, to an agent."""
    await _attach(mnemesh, context, folder, agent, attach=True)


@app.command("detach")
@with_client
async def detach_folder(mnemesh: Mnemesh, context: typer.Context, folder: FolderArgument, agent: AgentArgument) -> None:
    """Detach a folder from an agent. The folder is kept."""
    await _attach(mnemesh, context, folder, agent, attach=False)


async def _attach(mnemesh: Mnemesh, context: typer.Context, key: str, agent_key: str, *, attach: bool) -> None:
    folder, agent = await mnemesh.folders.find(key), await mnemesh.agents.find(agent_key)
    if attach:
        await agent.files.attach(folder.id)
    else:
        await agent.files.detach(folder.id)
    done = f"attached {folder.name} to" if attach else f"detached {folder.name} from"
    record = {"folder_id": folder.id, "agent_id": agent.id}
    print_done(f"{done} {agent.name}", record, as_json=context.obj.as_json)
