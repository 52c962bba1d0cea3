"""MCP servers whose tools agents can call."""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import Any, Literal

from google.protobuf import field_mask_pb2
from google.protobuf.duration_pb2 import Duration
from mnemesh.tools.v1 import mcp_servers_pb2, mcp_servers_service_pb2, mcp_servers_service_pb2_grpc
from mnemesh_kit.errors import InvalidArgument

from mnemesh_client.inputs import package_requirements
from mnemesh_client.paging import Order, paginate, sort_order
from mnemesh_client.transport import Channel, closing

Transport = Literal["streamable_http", "sse"]
_CONTACT_SECONDS = 70.0
_MARGIN_SECONDS = 40.0


class McpServersClient:
    """Calls of McpServerService, as `client.mcp_servers`.

    Errors: NotFound; AlreadyExists for a name in use; Unavailable MCP_SERVER_UNREACHABLE.
    """

    def __init__(self, channel: Channel) -> None:
        self.stub = mcp_servers_service_pb2_grpc.McpServerServiceStub(channel)

    async def create(
        self,
        name: str,
        url: str,
        *,
        transport: Transport = "streamable_http",
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
        oauth: mcp_servers_pb2.McpOAuth | None = None,
    ) -> mcp_servers_pb2.McpServer:
        """Registers a server and reads its tools. Its status says whether it was reached.

        Args:
            name: The name of the server.
            url: Its URL.
            transport: The transport.
            token: The token of the header Authorization.
            headers: Further headers. Tokens and headers may contain variables, as "{{ NAME | default }}".
            oauth: The settings of OAuth, in place of a token. McpOAuth() is an authorization by a person.
        """
        server = _server(name, url, transport, token, headers, oauth)
        request = mcp_servers_service_pb2.CreateMcpServerRequest(mcp_server=server)
        return (await self.stub.CreateMcpServer(request, timeout=_CONTACT_SECONDS)).mcp_server

    async def create_program(
        self,
        name: str,
        command: str,
        args: Sequence[str] = (),
        *,
        packages: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        hosts: Sequence[str] = (),
        persistent: bool = False,
    ) -> mcp_servers_pb2.McpServer:
        """Registers a program that the tools service starts, and reads its tools.

        Args:
            name: The name of the server.
            command: The program; "uvx" and "npx" stand for the package that the arguments name.
            args: Its arguments.
            packages: The Python packages that contain it.
            environment: Its environment. Values may contain variables, as "{{ NAME | default }}".
            hosts: The hosts that it may connect to.
            persistent: Its home outlives the process.
        """
        transport = mcp_servers_pb2.StdioTransport(
            command=command,
            args=args,
            env=[mcp_servers_pb2.McpSecret(name=key, value=value) for key, value in (environment or {}).items()],
            pip_requirements=package_requirements(packages),
            network_hosts=hosts,
            persistent_directory=persistent,
        )
        server = mcp_servers_pb2.McpServer(name=name, stdio=transport)
        request = mcp_servers_service_pb2.CreateMcpServerRequest(mcp_server=server)
        return (await self.stub.CreateMcpServer(request, timeout=_CONTACT_SECONDS)).mcp_server

    async def update(
        self, server_id: str, *, name: str | None = None, url: str | None = None, token: str | None = None
    ) -> mcp_servers_pb2.McpServer:
        """Changes what is not None. The tools stay as they are until `refresh`.

        Args:
            server_id: The server.
            name: Its new name.
            url: Its new URL. If it names another host, port or scheme, the token must be given again.
            token: The new token of the header Authorization.

        Raises:
            InvalidArgument: the server is a program, which has no URL and no token.
        """
        change, paths = mcp_servers_pb2.McpServer(id=server_id), []
        if name is not None:
            change.name = name
            paths.append("name")
        if url is not None or token is not None:
            kind = (await self.get(server_id)).WhichOneof("transport")
            if kind not in ("sse", "streamable_http"):
                raise InvalidArgument("The MCP server is a program, which has no URL and no token.", field="url")
            transport = getattr(change, kind)
            transport.SetInParent()
            if url is not None:
                transport.url = url
                paths.append(f"{kind}.url")
            if token is not None:
                transport.auth.token.value = token
                paths.append(f"{kind}.auth")
        request = mcp_servers_service_pb2.UpdateMcpServerRequest(
            mcp_server=change, update_mask=field_mask_pb2.FieldMask(paths=paths)
        )
        return (await self.stub.UpdateMcpServer(request)).mcp_server

    async def get(self, server_id: str) -> mcp_servers_pb2.McpServer:
        """Returns a server."""
        request = mcp_servers_service_pb2.GetMcpServerRequest(mcp_server_id=server_id)
        return (await self.stub.GetMcpServer(request)).mcp_server

    def list(self, *, order: Order | None = None, limit: int | None = None) -> AsyncIterator[mcp_servers_pb2.McpServer]:
        """Yields servers, oldest first unless `order` is "desc"."""
        request = mcp_servers_service_pb2.ListMcpServersRequest(order=sort_order(order))
        return paginate(self.stub.ListMcpServers, request, "mcp_servers", limit)

    async def delete(self, server_id: str) -> None:
        """Deletes a server and its tools."""
        await self.stub.DeleteMcpServer(mcp_servers_service_pb2.DeleteMcpServerRequest(mcp_server_id=server_id))

    def tools(self, server_id: str, *, limit: int | None = None) -> AsyncIterator[mcp_servers_pb2.McpTool]:
        """Yields the tools that were last read, by name. Their `tool_id` attaches them to agents."""
        request = mcp_servers_service_pb2.ListMcpServerToolsRequest(mcp_server_id=server_id)
        return paginate(self.stub.ListMcpServerTools, request, "tools", limit)

    async def tool(self, server_id: str, name: str) -> mcp_servers_pb2.McpTool:
        """Returns the tool of a server with a name."""
        request = mcp_servers_service_pb2.GetMcpServerToolRequest(
            mcp_server_id=server_id, tool=mcp_servers_service_pb2.McpToolReference(name=name)
        )
        return (await self.stub.GetMcpServerTool(request)).tool

    async def start_authorization(
        self, server_id: str, redirect_uri: str
    ) -> mcp_servers_service_pb2.StartMcpAuthorizationResponse:
        """Begins an authorization by a person. Returns the `authorization_url` to open, with its `state`.

        Args:
            server_id: the server, which was created with `McpOAuth()`.
            redirect_uri: where the authorization server sends the person afterwards, with `code` and `state`.
        """
        request = mcp_servers_service_pb2.StartMcpAuthorizationRequest(
            mcp_server_id=server_id, redirect_uri=redirect_uri
        )
        return await self.stub.StartMcpAuthorization(request, timeout=_CONTACT_SECONDS)

    async def complete_authorization(
        self, server_id: str, code: str, state: str, *, iss: str | None = None
    ) -> mcp_servers_pb2.McpServer:
        """Ends the authorization with what the redirect brought. Returns the server, whose tools were read."""
        request = mcp_servers_service_pb2.CompleteMcpAuthorizationRequest(
            mcp_server_id=server_id, code=code, state=state, iss=iss
        )
        return (await self.stub.CompleteMcpAuthorization(request, timeout=_CONTACT_SECONDS)).mcp_server

    async def receive_authorization(
        self, state: str, *, code: str | None = None, error: str | None = None, iss: str | None = None
    ) -> mcp_servers_service_pb2.ReceiveMcpAuthorizationResponse:
        """Ends the authorization with this state, whichever caller started it, and returns its outcome.

        Args:
            state: the state that the redirect brought.
            code: its code; None if it brought an error.
            error: the error that it brought.
            iss: its parameter `iss`.
        """
        request = mcp_servers_service_pb2.ReceiveMcpAuthorizationRequest(state=state, iss=iss)
        if code is not None:
            request.code = code
        elif error is not None:
            request.error = error
        return await self.stub.ReceiveMcpAuthorization(request, timeout=_CONTACT_SECONDS)

    async def authorization(self, server_id: str, state: str) -> mcp_servers_service_pb2.GetMcpAuthorizationResponse:
        """Returns how far an authorization is that `start_authorization` began with this state."""
        request = mcp_servers_service_pb2.GetMcpAuthorizationRequest(mcp_server_id=server_id, state=state)
        return await self.stub.GetMcpAuthorization(request)

    async def refresh(self, server_id: str) -> mcp_servers_service_pb2.RefreshMcpServerResponse:
        """Reads the tools again. Returns those that were added, updated and removed."""
        request = mcp_servers_service_pb2.RefreshMcpServerRequest(mcp_server_id=server_id)
        return await self.stub.RefreshMcpServer(request, timeout=_CONTACT_SECONDS)

    async def test(self, server_id: str) -> mcp_servers_service_pb2.TestMcpServerResponse:
        """Connects to a server and returns its tools, or why it cannot be reached. Stores nothing."""
        request = mcp_servers_service_pb2.TestMcpServerRequest(mcp_server_id=server_id)
        return await self.stub.TestMcpServer(request, timeout=_CONTACT_SECONDS)

    async def run(
        self,
        server_id: str,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        seconds: int = 60,
    ) -> mcp_servers_service_pb2.RunMcpServerToolResponse:
        """Runs a tool by its name on the server, once. A tool that fails returns a result with the status ERROR."""
        request = mcp_servers_service_pb2.RunMcpServerToolRequest(
            mcp_server_id=server_id,
            tool=mcp_servers_service_pb2.McpToolReference(name=tool),
            arguments=json.dumps(dict(arguments or {})),
            timeout=Duration(seconds=seconds),
        )
        return await self.stub.RunMcpServerTool(request, timeout=seconds + _MARGIN_SECONDS)

    async def stream(
        self,
        server_id: str,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        seconds: int = 60,
    ) -> AsyncGenerator[mcp_servers_service_pb2.StreamMcpServerToolResponse, None]:
        """Runs a tool as `run`, and yields its `progress` as the server reports it, then its `result`.

        Closing the generator early cancels the call on the server.
        """
        request = mcp_servers_service_pb2.StreamMcpServerToolRequest(
            mcp_server_id=server_id,
            tool=mcp_servers_service_pb2.McpToolReference(name=tool),
            arguments=json.dumps(dict(arguments or {})),
            timeout=Duration(seconds=seconds),
        )
        source = self.stub.StreamMcpServerTool(request, timeout=seconds + _MARGIN_SECONDS)
        async with closing(source) as responses:
            async for response in responses:
                yield response


def _server(
    name: str,
    url: str,
    transport: Transport,
    token: str | None,
    headers: Mapping[str, str] | None,
    oauth: mcp_servers_pb2.McpOAuth | None,
) -> mcp_servers_pb2.McpServer:
    auth = None if token is None else mcp_servers_pb2.HttpAuth(token=mcp_servers_pb2.McpSecret(value=token))
    values = [mcp_servers_pb2.McpSecret(name=key, value=value) for key, value in (headers or {}).items()]
    if transport == "sse":
        return mcp_servers_pb2.McpServer(
            name=name, sse=mcp_servers_pb2.SseTransport(url=url, auth=auth, headers=values, oauth=oauth)
        )
    settings = mcp_servers_pb2.StreamableHttpTransport(url=url, auth=auth, headers=values, oauth=oauth)
    return mcp_servers_pb2.McpServer(name=name, streamable_http=settings)
