"""Tools, folders and files of an agent."""

from datetime import datetime
from typing import Any, Final

import msgspec
from mnemesh.agents.v1 import agents_pb2 as agents
from mnemesh.agents.v1 import agents_service_pb2 as rpc
from mnemesh.files.v1 import agent_files_service_pb2 as files_rpc
from mnemesh.files.v1 import files_pb2
from mnemesh.tools.v1 import tools_service_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_letta.convert.values import json_text, moment_of, present, set_present

from mnemesh_gateway.http.errors import invalid_field
from mnemesh_gateway.letta.agent_states import AgentState, folders_of, read_state
from mnemesh_gateway.letta.folders import Source
from mnemesh_gateway.letta.mesh import PageQuery, cut, list_page
from mnemesh_gateway.letta.messages import output_of, text_of
from mnemesh_gateway.letta.operations import Call, NoQuery, Operations, read
from mnemesh_gateway.letta.tools import Tool, ToolResult


class RunTool(msgspec.Struct, kw_only=True):
    """The arguments of a tool."""

    args: dict[str, Any] = {}


class Approval(msgspec.Struct, kw_only=True):
    """Whether calls of a tool wait for an approval."""

    requires_approval: bool | None = None


class AgentFile(msgspec.Struct, kw_only=True):
    """A file as an agent holds it."""

    id: str
    file_id: str
    file_name: str
    folder_id: str
    folder_name: str
    is_open: bool
    last_accessed_at: datetime | None = None
    visible_content: str | None = None
    start_line: int | None = None
    end_line: int | None = None


class AgentFiles(msgspec.Struct, kw_only=True):
    """A page of files."""

    files: list[AgentFile]
    next_cursor: str | None = None
    has_more: bool = False


class ListAgentFiles(PageQuery, kw_only=True):
    """The query of a list of files."""

    cursor: str | None = None
    is_open: bool | None = None


operations = Operations()
_RUN_SECONDS: Final = 300.0


class ApprovalQuery(msgspec.Struct, kw_only=True):
    """Whether calls wait for an approval, as older clients say it."""

    requires_approval: bool | None = None


@operations.get("/agents/{agent_id}/tools")
async def list_tools_for_agent(call: Call[PageQuery, None]) -> list[Tool]:
    """Lists the tools of an agent."""
    state = await read_state(call.mesh, call.path["agent_id"])
    return cut(state.tools, call.query, lambda tool: tool.id)


@operations.patch("/agents/{agent_id}/tools/attach/{tool_id}")
async def attach_tool_to_agent(call: Call[NoQuery, None]) -> AgentState:
    """Attaches a tool to an agent."""
    request = rpc.AttachToolRequest(agent_id=call.path["agent_id"], tool_id=call.path["tool_id"])
    await call.write(call.mesh.agents.AttachTool, request)
    return await read_state(call.mesh, call.path["agent_id"])


@operations.patch("/agents/{agent_id}/tools/detach/{tool_id}")
async def detach_tool_from_agent(call: Call[NoQuery, None]) -> AgentState:
    """Detaches a tool from an agent."""
    tool = (await read(call.mesh.tools.GetTool, tools_service_pb2.GetToolRequest(tool_id=call.path["tool_id"]))).tool
    await call.write(call.mesh.agents.DetachTool, rpc.DetachToolRequest(agent_id=call.path["agent_id"], name=tool.name))
    return await read_state(call.mesh, call.path["agent_id"])


@operations.patch("/agents/{agent_id}/tools/approval/{tool_name}", optional_body=True)
async def modify_approval_for_tool(call: Call[ApprovalQuery, Approval]) -> AgentState:
    """Sets whether calls of a tool by an agent wait for an approval."""
    required = call.body.requires_approval
    required = call.query.requires_approval if required is None else required
    if required is None:
        raise invalid_field("Field required", "body", "requires_approval")
    request = rpc.SetToolApprovalRequest(
        agent_id=call.path["agent_id"],
        tool_name=call.path["tool_name"],
        requires_approval=required,
    )
    await call.write(call.mesh.agents.SetToolApproval, request)
    return await read_state(call.mesh, call.path["agent_id"])


@operations.post("/agents/{agent_id}/tools/{tool_name}/run", optional_body=True)
async def run_tool_for_agent(call: Call[NoQuery, RunTool]) -> ToolResult:
    """Runs a tool of an agent outside a turn."""
    request = rpc.RunToolRequest(
        agent_id=call.path["agent_id"],
        tool_name=call.path["tool_name"],
        arguments=json_text(call.body.args) or "{}",
    )
    result = (await call.write(call.mesh.agents.RunTool, request, seconds=_RUN_SECONDS)).tool_return
    text, stdout, stderr = text_of(result.content), output_of(result.stdout), output_of(result.stderr)
    failed = result.status == message_pb2.TOOL_RETURN_STATUS_ERROR
    # The error of a built-in tool is on stderr alone.
    returned = None if failed and any(text in output for output in stderr or ()) else text
    return ToolResult(status="error" if failed else "success", func_return=returned, stdout=stdout, stderr=stderr)


@operations.get("/agents/{agent_id}/folders")
@operations.get("/agents/{agent_id}/sources")
async def list_folders_for_agent(call: Call[PageQuery, None]) -> list[Source]:
    """Lists the folders of an agent."""
    folders = await folders_of(call.mesh, (await _agent(call)).id)
    return cut(folders, call.query, lambda folder: folder.id, limit=100)


@operations.patch("/agents/{agent_id}/folders/attach/{folder_id}")
@operations.patch("/agents/{agent_id}/sources/attach/{folder_id}")
async def attach_folder_to_agent(call: Call[NoQuery, None]) -> AgentState:
    """Attaches a folder to an agent, and opens its files."""
    agent = await _agent(call)
    request = files_rpc.AttachFolderRequest(agent_id=agent.id, folder_id=call.path["folder_id"], open_files=True)
    await call.write(call.mesh.agent_files.AttachFolder, request)
    return await read_state(call.mesh, agent.id)


@operations.patch("/agents/{agent_id}/folders/detach/{folder_id}")
@operations.patch("/agents/{agent_id}/sources/detach/{folder_id}")
async def detach_folder_from_agent(call: Call[NoQuery, None]) -> AgentState:
    """Detaches a folder from an agent."""
    agent = await _agent(call)
    request = files_rpc.DetachFolderRequest(agent_id=agent.id, folder_id=call.path["folder_id"])
    await call.write(call.mesh.agent_files.DetachFolder, request)
    return await read_state(call.mesh, agent.id)


@operations.get("/agents/{agent_id}/files")
async def list_files_for_agent(call: Call[ListAgentFiles, None]) -> AgentFiles:
    """Lists the files in the folders of an agent."""
    agent, query = await _agent(call), call.query
    limit = 20 if query.limit is None else query.limit
    page = PageQuery(before=query.before, after=query.after or query.cursor, limit=limit + 1, order=query.order)
    request = files_rpc.ListAgentFilesRequest(agent_id=agent.id, include_content=True)
    set_present(request, is_open=query.is_open)
    rows = await list_page(call.mesh.agent_files.ListAgentFiles, request, "files", page, default="asc")
    names = {folder.id: folder.name for folder in await folders_of(call.mesh, agent.id)} if rows else {}
    found = [_file(row, names) for row in rows[:limit]]
    more = len(rows) > limit
    return AgentFiles(files=found, next_cursor=found[-1].file_id if more and found else None, has_more=more)


@operations.patch("/agents/{agent_id}/files/close-all")
async def close_all_files_for_agent(call: Call[NoQuery, None]) -> list[str]:
    """Closes the open files of an agent and returns their names."""
    agent = await _agent(call)
    request = files_rpc.CloseFilesRequest(agent_id=agent.id, all=True)
    return list((await call.write(call.mesh.agent_files.CloseFiles, request)).closed)


@operations.patch("/agents/{agent_id}/files/{file_id}/open")
async def open_file_for_agent(call: Call[NoQuery, None]) -> list[str]:
    """Opens a file and returns the names of the files that were closed for it."""
    agent = await _agent(call)
    reference = files_rpc.FileReference(file_id=call.path["file_id"])
    request = files_rpc.OpenFilesRequest(agent_id=agent.id, files=[files_rpc.FileRequest(file=reference)])
    return list((await call.write(call.mesh.agent_files.OpenFiles, request)).evicted)


@operations.patch("/agents/{agent_id}/files/{file_id}/close")
async def close_file_for_agent(call: Call[NoQuery, None]) -> dict[str, str]:
    """Closes a file."""
    agent = await _agent(call)
    reference = files_rpc.FileReference(file_id=call.path["file_id"])
    request = files_rpc.CloseFilesRequest(agent_id=agent.id, files=[reference])
    await call.write(call.mesh.agent_files.CloseFiles, request)
    return {"message": f"File {call.path['file_id']} was closed."}


async def _agent(call: Call[Any, Any]) -> agents.Agent:
    return (await read(call.mesh.agents.GetAgent, rpc.GetAgentRequest(agent_id=call.path["agent_id"]))).agent


def _file(file: files_pb2.AgentFile, folders: dict[str, str]) -> AgentFile:
    view = file.view
    return AgentFile(
        id="file_agent-" + file.file_id.partition("-")[2],
        file_id=file.file_id,
        file_name=file.name,
        folder_id=file.folder_id,
        folder_name=folders.get(file.folder_id, ""),
        is_open=file.is_open,
        last_accessed_at=moment_of(file, "last_access_time"),
        visible_content=present(file, "visible_content"),
        start_line=present(view, "start_line"),
        end_line=present(view, "end_line"),
    )
