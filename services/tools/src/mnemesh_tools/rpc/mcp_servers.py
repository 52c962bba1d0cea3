"""The servicer of `mnemesh.tools.v1.McpServerService`."""

from __future__ import annotations

from mnemesh.tools.v1 import mcp_servers_service_pb2_grpc


class McpServersServicer(mcp_servers_service_pb2_grpc.McpServerServiceServicer):
    """Serves `mnemesh.tools.v1.McpServerService`. No RPC is implemented: the base class answers UNIMPLEMENTED."""
