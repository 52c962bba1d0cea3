"""The tools service over gRPC: stored tools, MCP servers, programs, the web, and the records of exported tools."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

import grpc
from google.protobuf.duration_pb2 import Duration
from mnemesh.tools.v1 import execution_service_pb2 as execution_rpc
from mnemesh.tools.v1 import mcp_servers_service_pb2 as mcp_rpc
from mnemesh.tools.v1 import tools_pb2 as pb
from mnemesh.tools.v1 import tools_service_pb2 as rpc
from mnemesh.tools.v1 import web_service_pb2 as web_rpc
from mnemesh.tools.v1.execution_service_pb2_grpc import ExecutionServiceStub
from mnemesh.tools.v1.mcp_servers_service_pb2_grpc import McpServerServiceStub
from mnemesh.tools.v1.tools_service_pb2_grpc import ToolServiceStub
from mnemesh.tools.v1.web_service_pb2_grpc import WebServiceStub
from mnemesh.types.v1 import message_pb2
from mnemesh_kit.errors import DeadlineExceeded, InvalidArgument, MnemeshError, Unavailable
from mnemesh_kit.paging import whole_answer
from mnemesh_types.blocks import Block
from mnemesh_types.messages import ImagePart
from mnemesh_types.tools import SearchResult
from mnemesh_types.twin import Conversion

from mnemesh_orchestrator.clients import deadlines
from mnemesh_orchestrator.clients.records import copy_of, record_of, stamp
from mnemesh_orchestrator.model.files import returned_images
from mnemesh_orchestrator.model.rules import (
    AnswerCall,
    CallProgress,
    CustomTool,
    OnProgress,
    Program,
    ProgramResult,
    ToolResult,
    WebPart,
    WebQuery,
)
from mnemesh_orchestrator.model.transfers import ExportScope, ImportTarget, Outcome, Record, RecordType

if TYPE_CHECKING:
    from mnemesh.tools.v1.execution_service_pb2_grpc import ExecutionServiceAsyncStub
    from mnemesh.tools.v1.mcp_servers_service_pb2_grpc import McpServerServiceAsyncStub

_UNREACHABLE: Final = "MCP_SERVER_UNREACHABLE"
_LATE: Final = (
    "The tool {name} did not end in time, its outcome is unknown. It was not run again; check before you repeat it."
)

_PROGRAM_SECONDS: Final = 180
_LANGUAGES: Final = {
    "python": execution_rpc.CODE_LANGUAGE_PYTHON,
    "javascript": execution_rpc.CODE_LANGUAGE_JAVASCRIPT,
    "typescript": execution_rpc.CODE_LANGUAGE_TYPESCRIPT,
    "js": execution_rpc.CODE_LANGUAGE_JAVASCRIPT,
    "ts": execution_rpc.CODE_LANGUAGE_TYPESCRIPT,
    "r": execution_rpc.CODE_LANGUAGE_R,
    "java": execution_rpc.CODE_LANGUAGE_JAVA,
}

_TOOL_SECONDS: Final = 180
_MCP_SECONDS: Final = 60

_SEARCH_SECONDS: Final = 30.0
_FETCH_SECONDS: Final = 90.0
"""Longer than a download, the waits for its slots, and the reading of the page."""

_MAX_BATCH: Final = 500
_KINDS: Final = frozenset({pb.TOOL_TYPE_UNSPECIFIED, pb.TOOL_TYPE_CUSTOM, pb.TOOL_TYPE_CLIENT})
_NO_SERVER: Final = "The organization has no MCP tool with this name. Connect its server, then attach the tool."
_BUILTIN: Final = "The tool is built in, and needs no record."

_PROGRESS: Final = Conversion(mcp_rpc.McpProgress, CallProgress, progress="done")
_WEB_QUERY: Final = Conversion(web_rpc.SearchWebRequest, WebQuery, category=None)
_TOOL: Final = Conversion(
    pb.Tool,
    CustomTool,
    default_requires_approval="requires_approval",
    enable_parallel_execution="parallel",
    mcp_server_id=None,
    mcp_tool_name=None,
)


async def run_on_mcp_server(
    stub: "McpServerServiceAsyncStub",
    tool: CustomTool,
    arguments: str,
    agent_id: str,
    variables: Mapping[str, str],
    seconds: int,
    on_progress: OnProgress,
) -> ToolResult:
    """Runs a tool within `seconds`; see `ToolsClient.run_on_mcp_server`."""
    request = mcp_rpc.StreamMcpServerToolRequest(
        mcp_server_id=tool.mcp_server_id or "",
        tool=mcp_rpc.McpToolReference(name=tool.mcp_tool_name),
        arguments=arguments,
        caller=mcp_rpc.McpCaller(agent_id=agent_id, variables=variables),
        timeout=Duration(seconds=seconds),
    )
    call: Any = stub.StreamMcpServerTool(request, timeout=seconds + deadlines.EXECUTE_MARGIN)
    try:
        # Closing the responses early cancels the call.
        async with aclosing(aiter(call)) as responses:
            async for response in responses:
                if response.WhichOneof("message") == "result":
                    return _mcp_result(response.result)
                on_progress(_PROGRESS.from_proto(response.progress))
    except Unavailable as error:
        if error.reason != _UNREACHABLE:
            raise
        return ToolResult(ok=False, text=f"Error: {error.message} The tool was not run.")
    except DeadlineExceeded:
        return ToolResult(ok=False, text=_LATE.format(name=tool.name))
    raise Unavailable("The tools service ended the call without a result.")


def _mcp_result(response: mcp_rpc.RunMcpServerToolResponse) -> ToolResult:
    images, notes = returned_images(
        tuple(
            ImagePart(part.image.inline.data, part.image.inline.media_type)
            for part in response.content
            if part.HasField("image")
        )
    )
    texts = [part.text.text for part in response.content if part.HasField("text")] + list(notes)
    is_ok = response.status == message_pb2.TOOL_RETURN_STATUS_SUCCESS
    return ToolResult(is_ok, "\n".join(texts) or response.structured_content, images=images)


async def run_program(stub: "ExecutionServiceAsyncStub", program: Program, answer: AnswerCall | None) -> ProgramResult:
    """Runs a program; see `ToolsClient.run_program`."""
    request = execution_rpc.RunCodeRequest(language=_LANGUAGES[program.language], code=program.code)
    request.timeout.seconds = _PROGRAM_SECONDS
    seconds = _PROGRAM_SECONDS + deadlines.EXECUTE_MARGIN
    if answer is None:
        return _program_result(await stub.RunCode(request, timeout=seconds))
    tools = [execution_rpc.CallableTool(name=name, parameters=parameters) for name, parameters in program.tools.items()]
    results: asyncio.Queue[execution_rpc.RunCodeWithToolsRequest] = asyncio.Queue()
    results.put_nowait(
        execution_rpc.RunCodeWithToolsRequest(start=execution_rpc.RunCodeStart(program=request, tools=tools))
    )

    async def outgoing() -> AsyncIterator[execution_rpc.RunCodeWithToolsRequest]:
        while True:
            yield await results.get()

    call: Any = stub.RunCodeWithTools(outgoing(), timeout=seconds)
    # Closing the responses early ends the call, and with it the program.
    async with aclosing(aiter(call)) as responses:
        async for response in responses:
            if response.WhichOneof("message") == "result":
                return _program_result(response.result)
            given = await answer(response.call.name, response.call.arguments)
            result = execution_rpc.CodeToolResult(call_id=response.call.call_id, ok=given.ok, text=given.text)
            results.put_nowait(execution_rpc.RunCodeWithToolsRequest(result=result))
    raise Unavailable("The tools service ended the program without a result.")


def _program_result(response: execution_rpc.RunCodeResponse) -> ProgramResult:
    ok = response.status == execution_rpc.EXECUTION_STATUS_SUCCESS
    return ProgramResult(ok, response.result, response.stdout, response.stderr)


class ToolsClient:
    """Custom tools."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._tools = ToolServiceStub(channel)
        self._execution = ExecutionServiceStub(channel)
        self._mcp = McpServerServiceStub(channel)
        # The time limits of the tools as of their last definitions. The service stops a tool if its caller gives up,
        # so the deadline of a call must exceed the limit of the tool.
        self._seconds: dict[str, int] = {}

    async def definitions(self, ids: Sequence[str] = (), names: Sequence[str] = ()) -> tuple[CustomTool, ...]:
        """Returns stored tools by id and name. Unknown tools are left out."""
        request = rpc.BatchGetToolsRequest(tool_ids=ids, names=names)
        response = await whole_answer(self._tools.BatchGetTools, request, seconds=deadlines.READ, field="tools")
        self._seconds |= {tool.id: tool.timeout_seconds for tool in response.tools if tool.timeout_seconds}
        return tuple(tool_from_proto(tool) for tool in response.tools)

    async def upsert_source(self, request_id: str, source_code: str) -> CustomTool:
        """Stores Python source as a tool, under the name of its last function."""
        tool = pb.Tool(type=pb.TOOL_TYPE_CUSTOM, source_type=pb.SOURCE_TYPE_PYTHON, source_code=source_code)
        request = rpc.UpsertToolRequest(request_id=request_id, tool=tool)
        response = await self._tools.UpsertTool(request, timeout=deadlines.WRITE)
        return tool_from_proto(response.tool)

    async def execute(
        self,
        tool_id: str,
        arguments: str,
        *,
        agent_id: str,
        agent_name: str,
        project_id: str | None,
        blocks: Sequence[Block],
        environment: Mapping[str, str],
    ) -> tuple[ToolResult, Mapping[str, str]]:
        """Runs a tool in the sandbox once. Returns its result and the block values that it changed."""
        request = execution_rpc.ExecuteToolRequest(
            tool_id=tool_id,
            arguments=arguments,
            environment=environment,
            agent_state=execution_rpc.AgentState(
                agent_id=agent_id,
                name=agent_name,
                blocks={block.label: block.value for block in blocks},
                project_id=project_id,
                block_properties={
                    block.label: execution_rpc.AgentBlock(description=block.description or "", limit=block.limit)
                    for block in blocks
                },
            ),
        )
        seconds = self._seconds.get(tool_id, _TOOL_SECONDS) + deadlines.EXECUTE_MARGIN
        response = await self._execution.ExecuteTool(request, timeout=seconds)
        images, notes = returned_images(tuple(ImagePart(image.data, image.media_type) for image in response.images))
        result = ToolResult(
            ok=response.status == execution_rpc.EXECUTION_STATUS_SUCCESS,
            text="\n".join(filter(None, (response.result, *notes))),
            images=images,
            stdout=tuple(response.stdout.splitlines()),
            stderr=tuple(response.stderr.splitlines()),
        )
        return result, dict(response.changed_blocks)

    async def run_program(self, program: Program, answer: AnswerCall | None = None) -> ProgramResult:
        """Runs a program in the sandbox once. `answer` runs the tools that it calls, one after another."""
        return await run_program(self._execution, program, answer)

    async def run_on_mcp_server(
        self,
        tool: CustomTool,
        arguments: str,
        agent_id: str,
        variables: Mapping[str, str],
        on_progress: OnProgress,
    ) -> ToolResult:
        """Runs a tool of an MCP server once, with variables for the settings of the server.

        `on_progress` receives what the server reports meanwhile. A server that does not answer is a result that says
        so. A cancellation of the caller cancels the call on the server.
        """
        seconds = self._seconds.get(tool.id, _MCP_SECONDS)
        return await run_on_mcp_server(self._mcp, tool, arguments, agent_id, variables, seconds, on_progress)


def tool_from_proto(tool: pb.Tool) -> CustomTool:
    """Returns the tool of a message."""
    is_remote = tool.type == pb.TOOL_TYPE_MCP
    return _TOOL.from_proto(
        tool,
        builtin=tool.type == pb.TOOL_TYPE_BUILTIN,
        mcp_server_id=tool.mcp_server_id if is_remote else None,
        mcp_tool_name=tool.mcp_tool_name or tool.name,
    )


class WebClient:
    """The web. What it returns was written by others, and is not an instruction to anyone."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._web = WebServiceStub(channel)

    async def search(self, query: WebQuery) -> tuple[SearchResult, ...]:
        """Returns what a search found, best first. A server without a provider of searches raises MnemeshError."""
        category = "UNSPECIFIED" if query.category is None else query.category.upper().replace(" ", "_")
        number = web_rpc.WebSearchCategory.Value(f"WEB_SEARCH_CATEGORY_{category}")
        request = _WEB_QUERY.to_proto(query, category=number)
        response = await self._web.SearchWeb(request, timeout=_SEARCH_SECONDS)
        return tuple(map(SearchResult.from_proto, response.results))

    async def fetch(self, url: str, start: int) -> WebPart:
        """Returns a part of the readable text of a page, from the character `start` on."""
        response = await self._web.FetchWebpage(
            web_rpc.FetchWebpageRequest(url=url, start=start), timeout=_FETCH_SECONDS
        )
        return WebPart.from_proto(response)


class ToolRecords:
    """RecordPart of the tools service."""

    types = (RecordType.TOOL,)

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = ToolServiceStub(channel)

    async def export(self, kind: RecordType, scope: ExportScope) -> AsyncIterator[Record]:
        for start in range(0, len(scope.tool_ids), _MAX_BATCH):
            request = rpc.BatchGetToolsRequest(tool_ids=scope.tool_ids[start : start + _MAX_BATCH])
            response = await self._definitions(request)
            for tool in response.tools:
                tool.ClearField("packages")
                yield record_of(kind, tool.id, tool)

    async def _definitions(self, request: rpc.BatchGetToolsRequest) -> rpc.BatchGetToolsResponse:
        return await whole_answer(self._stub.BatchGetTools, request, seconds=deadlines.IMPORT, field="tools")

    async def find(self, target: ImportTarget, records: Sequence[Record]) -> Mapping[str, str]:  # noqa: ARG002
        names = {record.body.name: record.id for record in records}
        request = rpc.BatchGetToolsRequest(names=list(names))
        response = await self._definitions(request)
        return {names[tool.name]: tool.id for tool in response.tools}

    async def restore(
        self, request_id: str, target: ImportTarget, records: Sequence[Record], existing: Mapping[str, str]
    ) -> Outcome:
        skipped: list[tuple[Record, str]] = []
        for number, record in enumerate(records):
            if record.body.type not in _KINDS:
                if record.id not in existing:
                    skipped.append((record, _NO_SERVER if record.body.type == pb.TOOL_TYPE_MCP else _BUILTIN))
                continue
            try:
                await self._restore(f"{request_id}/{number}", target, record, exists=record.id in existing)
            except InvalidArgument as error:  # one tool that cannot be used costs itself, not the agent
                skipped.append((record, f"{record.body.name}: {error.message}"))
            except MnemeshError as error:
                if error.reason != "ALREADY_EXISTS":
                    raise
        return Outcome(len(existing), tuple(skipped))

    async def _restore(self, request_id: str, target: ImportTarget, record: Record, *, exists: bool) -> None:
        tool = copy_of(record.body)
        if tool.type == pb.TOOL_TYPE_UNSPECIFIED:
            tool.type = pb.TOOL_TYPE_CUSTOM
        for secret in tool.secrets:
            secret.ClearField("value")
        if exists:
            if target.options.override_existing_tools:
                del tool.secrets[:]
                request = rpc.UpsertToolRequest(request_id=request_id, tool=tool)
                await self._stub.UpsertTool(request, timeout=deadlines.IMPORT)
            return
        tool.id = target.ids.of("tool", record.id)
        stamp(tool, target)
        create = rpc.CreateToolRequest(request_id=request_id, tool=tool, restore=True)
        await self._stub.CreateTool(create, timeout=deadlines.IMPORT)
