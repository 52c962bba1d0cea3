"""OAuth of MCP servers with the SDK's client: authorizations that a person completes, and tokens that are refreshed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import httpx2
from mcp.client.auth import OAuthClientProvider

from mnemesh_tools.mcp_clients.contracts import (
    McpContactFailed,
    McpTarget,
    OAuthBegun,
    OAuthState,
)
from mnemesh_tools.mcp_clients.oauth_clients import Storage, Unauthorized, target_client
from mnemesh_tools.mcp_clients.oauth_codes import PersonNeeded, begin_client, begun, exchange
from mnemesh_tools.model.mcp_oauth import OAuthGrant
from mnemesh_tools.model.mcp_servers import TransportType

OpenClient = Callable[[McpTarget, httpx2.Auth | None, Callable[[int], None]], httpx2.AsyncClient]
Changed = Callable[[McpTarget, OAuthState], Awaitable[None]]


class McpAuthorizations:
    """The OAuth clients of servers. All sessions of a server share one, so that a refresh token is used once."""

    open_client: OpenClient
    """Opens an HTTP client for a server, with its authorization."""

    def __init__(self, connect_seconds: float, changed: Changed) -> None:
        """Creates the clients.

        Args:
            connect_seconds: The longest time to find and ask an authorization server.
            changed: Receives the new tokens of a stored server.
        """
        logging.getLogger("mcp.client.auth").setLevel(logging.CRITICAL)  # its ERROR has traces with tokens
        self._connect_seconds = connect_seconds
        # By the organization and its server.
        self._clients: dict[tuple[str, str], tuple[McpTarget, Storage, httpx2.Auth]] = {}
        self._changed = changed

    def client(self, target: McpTarget) -> httpx2.Auth | None:
        """Returns the authorization of the requests to a server; None if it has none."""
        if target.oauth is None:
            return None
        state = target.oauth.state
        if target.oauth.grant is OAuthGrant.AUTHORIZATION_CODE and (state is None or state.tokens is None):
            return Unauthorized()
        if not target.is_stored or not target.server_id:
            storage = Storage(target.oauth, target.oauth.state, None)
            storage.hide_in(target.redactor)
            return target_client(target, target.oauth, storage)
        key = target.organization_id, target.server_id
        known = self._clients.get(key)
        if known is None or (known[0].url, known[0].oauth) != (target.url, target.oauth):

            async def keep(state: OAuthState) -> None:
                await self._changed(target, state)

            storage = Storage(target.oauth, target.oauth.state, keep)
            known = target, storage, target_client(target, target.oauth, storage)
            self._clients[key] = known
        known[1].hide_in(target.redactor)
        return known[2]

    def forget(self, organization_id: str, server_id: str) -> None:
        """Forgets the client of a server whose settings or tokens have changed."""
        self._clients.pop((organization_id, server_id), None)

    async def start(self, target: McpTarget, redirect_uri: str) -> tuple[str, OAuthBegun] | None:
        """Begins an authorization, and returns the URL that a person opens, and what `complete` needs.

        Returns None if the server does not ask for one.

        Raises:
            McpContactFailed: The server or its authorization server does not answer, or refuses.
        """
        if target.oauth is None:
            return None
        client = begin_client(target.url, target.oauth, redirect_uri)
        try:
            async with asyncio.timeout(self._connect_seconds):
                await self._authorize(target, client)
        except PersonNeeded as needed:
            return begun(client, needed.url, redirect_uri)
        except TimeoutError as error:
            raise McpContactFailed(f"The server did not answer within {self._connect_seconds:g} seconds.") from error
        except Exception as error:
            raise McpContactFailed(_described(target, error)) from error
        return None

    async def complete(self, target: McpTarget, kept: OAuthBegun, code: str, issuer: str | None) -> OAuthState:
        """Exchanges the code that a browser brought, and returns what the authorization left. A code works once.

        Raises:
            McpContactFailed: The settings have changed, or the authorization server refuses.
        """
        oauth = target.oauth
        if oauth is None or oauth.grant is not OAuthGrant.AUTHORIZATION_CODE or target.url != kept.url:
            raise McpContactFailed("The settings of the server have changed.")
        try:
            async with asyncio.timeout(self._connect_seconds), self.open_client(target, None, _ignore) as opened:
                return await exchange(opened, oauth, kept, code, issuer)
        except TimeoutError as error:
            raise McpContactFailed("The authorization server did not answer in time.") from error
        except Exception as error:
            raise McpContactFailed(_described(target, error).replace(code, "[code]")) from error

    async def _authorize(self, target: McpTarget, client: OAuthClientProvider) -> None:
        """Makes a request that the server refuses without an authorization."""
        async with self.open_client(target, client, _ignore) as opened:
            is_sse = target.transport is TransportType.SSE
            headers = {"accept": "text/event-stream" if is_sse else "application/json, text/event-stream"}
            body = None if is_sse else {"jsonrpc": "2.0", "id": 1, "method": "ping"}
            async with opened.stream("GET" if is_sse else "POST", target.url, headers=headers, json=body):
                pass


def _ignore(_: int) -> None:
    """The status of an answer of an authorization is none of a session."""


def _described(target: McpTarget, error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return target.masked(" ".join(str(error).split()) or type(error).__name__)[:500]
