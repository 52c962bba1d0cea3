"""Authorizations of MCP servers that wait for a person.

The tools service stores them, so the browser may come back to any gateway. The one that waits asks how far it is.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from mnemesh.tools.v1 import mcp_servers_service_pb2 as rpc
from mnemesh_kit.errors import DeadlineExceeded, Unavailable

from mnemesh_gateway.errors import McpAccessDenied
from mnemesh_gateway.letta.mesh import Mesh

POLL_SECONDS: Final = 1.0
_CALL_SECONDS: Final = 10.0


async def answered(mesh: Mesh, server_id: str, state: str, seconds: float) -> None:
    """Waits until an authorization is completed.

    Raises:
        DeadlineExceeded: The person did not answer in time.
        McpAccessDenied: The person or the authorization server refused.
        FailedPrecondition: Another authorization of the server was started.
        Unavailable: This gateway stops.
    """
    request = rpc.GetMcpAuthorizationRequest(mcp_server_id=server_id, state=state)
    try:
        async with asyncio.timeout(seconds):
            while True:
                try:
                    found = await mesh.mcp_servers.GetMcpAuthorization(request, timeout=_CALL_SECONDS)
                except (Unavailable, DeadlineExceeded):
                    found = rpc.GetMcpAuthorizationResponse()  # the service restarts
                if found.status == rpc.MCP_AUTHORIZATION_STATUS_COMPLETED:
                    return
                if found.status == rpc.MCP_AUTHORIZATION_STATUS_FAILED:
                    raise McpAccessDenied(found.status_message)
                with suppress(TimeoutError):
                    await asyncio.wait_for(mesh.stopping.wait(), POLL_SECONDS)
                    raise Unavailable("The gateway stops. Connect to the MCP server again.")
    except TimeoutError as error:
        raise DeadlineExceeded("The access was not authorized in time.") from error
