"""The servicer of `mnemesh.tools.v1.McpServerService`: decodes, calls a use case, encodes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, Generic, TypeVar

import grpc
from mnemesh.tools.v1 import mcp_servers_pb2, mcp_servers_service_pb2_grpc
from mnemesh.tools.v1 import mcp_servers_service_pb2 as pb
from mnemesh_kit.call_context import current_principal
from mnemesh_kit.idempotency import request_key
from mnemesh_kit.paging import bounded, next_page_token, page_query
from mnemesh_kit.time import timestamp_to_proto
from mnemesh_types.twin import enum_from_proto, number_of, optional_field

from mnemesh_tools.model.mcp_servers import McpServer, McpServerOrder
from mnemesh_tools.model.mcp_tools import McpProgress, McpRunResult, McpToolOrder, OnProgress, no_progress
from mnemesh_tools.rpc.convert.mcp_servers import (
    listed_tool_to_proto,
    mcp_caller_from_proto,
    mcp_server_filter_from_proto,
    mcp_server_spec_from_proto,
    mcp_server_to_proto,
    mcp_tool_to_proto,
    request_without_secrets,
    run_result_to_proto,
    schema_statuses_from_proto,
    timeout_from_proto,
    tool_key_from_proto,
    within_an_answer,
    written_paths_from_proto,
)
from mnemesh_tools.usecases.mcp_servers import McpAuthorizationService, McpServerService
from mnemesh_tools.usecases.mcp_tools import McpToolService

T = TypeVar("T")


class Latest(Generic[T]):
    """The newest value that was not read yet."""

    def __init__(self) -> None:
        self._value: T | None = None
        self._is_closed = False
        self._changed = asyncio.Event()

    def put(self, value: T) -> None:
        """Replaces the value."""
        self._value = value
        self._changed.set()

    def close(self) -> None:
        """Lets the reader end, once it has read the last value."""
        self._is_closed = True
        self._changed.set()

    async def next(self) -> T | None:
        """Waits for a value and returns it; None after the last one."""
        await self._changed.wait()
        value, self._value = self._value, None
        if not self._is_closed:
            self._changed.clear()
        return value


_PROGRESS_SECONDS: Final = 0.1
"""The shortest time between two reports of progress."""
Context = grpc.aio.ServicerContext[Any, Any]


class McpServersServicer(mcp_servers_service_pb2_grpc.McpServerServiceServicer):
    """Serves `mnemesh.tools.v1.McpServerService`."""

    def __init__(
        self,
        servers: McpServerService,
        tools: McpToolService,
        authorizations: McpAuthorizationService,
        fingerprint: Callable[[str], str],
    ) -> None:
        """Serves the use cases; `fingerprint` stands for a secret where requests are compared."""
        self._servers = servers
        self._tools = tools
        self._authorizations = authorizations
        self._fingerprint = fingerprint

    async def CreateMcpServer(self, request: pb.CreateMcpServerRequest, context: Context) -> pb.CreateMcpServerResponse:
        spec = mcp_server_spec_from_proto(request.mcp_server)
        key = request_key(request_without_secrets(request, self._fingerprint), "CreateMcpServer")
        server = await self._servers.create_server(current_principal(), spec, key)
        return pb.CreateMcpServerResponse(mcp_server=self._message(server))

    async def GetMcpServer(self, request: pb.GetMcpServerRequest, context: Context) -> pb.GetMcpServerResponse:
        server = await self._servers.get_server(current_principal(), request.mcp_server_id)
        return pb.GetMcpServerResponse(mcp_server=self._message(server))

    async def ListMcpServers(self, request: pb.ListMcpServersRequest, context: Context) -> pb.ListMcpServersResponse:
        query = page_query(request)
        filter_, order = (
            mcp_server_filter_from_proto(request),
            enum_from_proto(McpServerOrder, request.order_by, "order_by"),
        )
        found = await self._servers.list_servers(current_principal(), filter_, order, query)
        page = bounded(query, found.map(self._message))
        return pb.ListMcpServersResponse(mcp_servers=page.items, next_page_token=next_page_token(query, page))

    async def UpdateMcpServer(self, request: pb.UpdateMcpServerRequest, context: Context) -> pb.UpdateMcpServerResponse:
        server = await self._servers.update_server(
            current_principal(),
            request.mcp_server.id,
            mcp_server_spec_from_proto(request.mcp_server),
            written_paths_from_proto(request.update_mask),
            request.base_revision if request.HasField("base_revision") else None,
            request_key(request_without_secrets(request, self._fingerprint), "UpdateMcpServer"),
        )
        return pb.UpdateMcpServerResponse(mcp_server=self._message(server))

    async def DeleteMcpServer(self, request: pb.DeleteMcpServerRequest, context: Context) -> pb.DeleteMcpServerResponse:
        key = request_key(request, "DeleteMcpServer")
        await self._servers.delete_server(current_principal(), request.mcp_server_id, key)
        return pb.DeleteMcpServerResponse()

    async def ListMcpServerTools(
        self, request: pb.ListMcpServerToolsRequest, context: Context
    ) -> pb.ListMcpServerToolsResponse:
        query = page_query(request)
        statuses = schema_statuses_from_proto(request.schema_statuses)
        order = enum_from_proto(McpToolOrder, request.order_by, "order_by")
        found = await self._tools.list_tools(current_principal(), request.mcp_server_id, statuses, order, query)
        page = bounded(query, found.map(mcp_tool_to_proto))
        return pb.ListMcpServerToolsResponse(tools=page.items, next_page_token=next_page_token(query, page))

    async def GetMcpServerTool(
        self, request: pb.GetMcpServerToolRequest, context: Context
    ) -> pb.GetMcpServerToolResponse:
        key = tool_key_from_proto(request.tool)
        tool = await self._tools.get_tool(current_principal(), request.mcp_server_id, key)
        return pb.GetMcpServerToolResponse(tool=mcp_tool_to_proto(tool))

    async def RefreshMcpServer(
        self, request: pb.RefreshMcpServerRequest, context: Context
    ) -> pb.RefreshMcpServerResponse:
        result = await self._servers.refresh_server(
            current_principal(),
            request.mcp_server_id,
            mcp_caller_from_proto(request.caller),
            request_key(_without_variables(request), "RefreshMcpServer"),
        )
        groups = (result.added, result.updated, result.removed)
        messages = iter(within_an_answer(mcp_tool_to_proto(tool) for group in groups for tool in group))
        added, updated, removed = ([next(messages) for _ in group] for group in groups)
        return pb.RefreshMcpServerResponse(
            mcp_server=self._message(result.server), added=added, updated=updated, removed=removed
        )

    async def RunMcpServerTool(
        self, request: pb.RunMcpServerToolRequest, context: Context
    ) -> pb.RunMcpServerToolResponse:
        return run_result_to_proto(await self._run(request, "RunMcpServerTool", no_progress))

    async def StreamMcpServerTool(
        self, request: pb.StreamMcpServerToolRequest, context: Context
    ) -> AsyncIterator[pb.StreamMcpServerToolResponse]:
        """Runs a tool, and passes on its progress."""
        latest = Latest[McpProgress]()
        running = asyncio.create_task(self._run(request, "StreamMcpServerTool", latest.put))
        running.add_done_callback(lambda _: latest.close())
        try:
            while (progress := await latest.next()) is not None:
                yield pb.StreamMcpServerToolResponse(progress=progress.to_proto())
                await asyncio.wait({running}, timeout=_PROGRESS_SECONDS)
            yield pb.StreamMcpServerToolResponse(result=run_result_to_proto(running.result()))
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def TestMcpServer(self, request: pb.TestMcpServerRequest, context: Context) -> pb.TestMcpServerResponse:
        """Connects to a server, and stores nothing."""
        has_settings = request.WhichOneof("target") == "mcp_server"
        server_id = request.mcp_server.id if has_settings else request.mcp_server_id
        spec = mcp_server_spec_from_proto(request.mcp_server) if has_settings else None
        contact, tools = await self._servers.test_server(
            current_principal(), server_id or None, spec, mcp_caller_from_proto(request.caller)
        )
        return pb.TestMcpServerResponse(
            status=number_of(contact.status),
            status_message=contact.message,
            tools=within_an_answer(listed_tool_to_proto(tool) for tool in tools),
            protocol_version=contact.protocol_version,
        )

    async def StartMcpAuthorization(
        self, request: pb.StartMcpAuthorizationRequest, context: Context
    ) -> pb.StartMcpAuthorizationResponse:
        url, state, ends = await self._authorizations.start(
            current_principal(), request.mcp_server_id, request.redirect_uri
        )
        return pb.StartMcpAuthorizationResponse(
            authorization_url=url, state=state, expire_time=timestamp_to_proto(ends)
        )

    async def CompleteMcpAuthorization(
        self, request: pb.CompleteMcpAuthorizationRequest, context: Context
    ) -> pb.CompleteMcpAuthorizationResponse:
        server = await self._authorizations.complete(
            current_principal(),
            request.mcp_server_id,
            request.code,
            request.state,
            request.iss if request.HasField("iss") else None,
        )
        return pb.CompleteMcpAuthorizationResponse(mcp_server=self._message(server))

    async def ReceiveMcpAuthorization(
        self, request: pb.ReceiveMcpAuthorizationRequest, context: Context
    ) -> pb.ReceiveMcpAuthorizationResponse:
        code = optional_field(request, "code")
        refusal = request.error_description or request.error
        ended = await self._authorizations.receive(request.state, code, refusal, optional_field(request, "iss"))
        return pb.ReceiveMcpAuthorizationResponse(status=number_of(ended.status), status_message=ended.message)

    async def GetMcpAuthorization(
        self, request: pb.GetMcpAuthorizationRequest, context: Context
    ) -> pb.GetMcpAuthorizationResponse:
        found = await self._authorizations.get(current_principal(), request.mcp_server_id, request.state)
        return pb.GetMcpAuthorizationResponse(
            status=number_of(found.status),
            status_message=found.message,
            expire_time=timestamp_to_proto(found.expires_at),
        )

    async def _run(
        self,
        request: pb.RunMcpServerToolRequest | pb.StreamMcpServerToolRequest,
        method: str,
        on_progress: OnProgress,
    ) -> McpRunResult:
        return await self._tools.run_tool(
            current_principal(),
            request.mcp_server_id,
            tool_key_from_proto(request.tool),
            request.arguments,
            mcp_caller_from_proto(request.caller),
            timeout_from_proto(request),
            request_key(_without_variables(request), method),
            on_progress,
        )

    def _message(self, server: McpServer) -> mcp_servers_pb2.McpServer:
        return mcp_server_to_proto(server, self._servers.program_health(server))


def _without_variables(request: Any) -> Any:
    """Returns a copy of a request without the caller's variables, of which nothing is stored."""
    copy = type(request)()
    copy.CopyFrom(request)
    copy.caller.variables.clear()
    return copy
