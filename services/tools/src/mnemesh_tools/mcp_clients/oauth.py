"""OAuth of MCP servers with the SDK's client: authorizations that a person completes, and tokens that are refreshed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qs, urlsplit

import httpx2
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider

from mnemesh_tools.mcp_clients.contracts import (
    McpContactFailed,
    McpTarget,
    OAuthState,
)
from mnemesh_tools.mcp_clients.oauth_clients import Storage, Unauthorized, code_client, registration, target_client
from mnemesh_tools.mcp_clients.tasks import end_task
from mnemesh_tools.model.mcp_oauth import OAuthGrant
from mnemesh_tools.model.mcp_servers import TransportType

MAX_PENDING: Final = 1_000
OpenClient = Callable[[McpTarget, httpx2.Auth | None, Callable[[int], None]], httpx2.AsyncClient]
Changed = Callable[[McpTarget, OAuthState], Awaitable[None]]


@dataclass(slots=True)
class _Pending:
    """An authorization that waits for a person."""

    task: asyncio.Task[None]
    state: str
    answer: asyncio.Future[AuthorizationCodeResult]
    storage: Storage
    target: McpTarget


class McpAuthorizations:
    """The OAuth clients of servers. All sessions of a server share one, so that a refresh token is used once."""

    open_client: OpenClient
    """Opens an HTTP client for a server, with its authorization."""

    def __init__(self, connect_seconds: float, wait_seconds: float, changed: Changed) -> None:
        """Creates the clients.

        Args:
            connect_seconds: The longest time to find and ask an authorization server.
            wait_seconds: The longest time that a person has.
            changed: Receives the new tokens of a stored server.
        """
        logging.getLogger("mcp.client.auth").setLevel(logging.CRITICAL)  # its ERROR has traces with tokens
        self._connect_seconds = connect_seconds
        self._wait_seconds = wait_seconds
        self._clients: dict[str, tuple[McpTarget, httpx2.Auth]] = {}
        self._pending: dict[str, _Pending] = {}
        self._changed = changed

    def client(self, target: McpTarget) -> httpx2.Auth | None:
        """Returns the authorization of the requests to a server; None if it has none."""
        if target.oauth is None:
            return None
        state = target.oauth.state
        if target.oauth.grant is OAuthGrant.AUTHORIZATION_CODE and (state is None or state.tokens is None):
            return Unauthorized()
        if not target.is_stored or not target.server_id:
            return target_client(target, target.oauth, Storage(target.oauth, target.oauth.state, None))
        known = self._clients.get(target.server_id)
        if known is None or (known[0].url, known[0].oauth) != (target.url, target.oauth):

            async def keep(state: OAuthState) -> None:
                await self._changed(target, state)

            known = target, target_client(target, target.oauth, Storage(target.oauth, target.oauth.state, keep))
            self._clients[target.server_id] = known
        return known[1]

    def forget(self, server_id: str) -> None:
        """Forgets the client of a server whose settings or tokens have changed."""
        self._clients.pop(server_id, None)

    def state(self, server_id: str) -> str | None:
        """Returns the state of the authorization of a server that waits; None if none does."""
        pending = self._pending.get(server_id)
        return None if pending is None else pending.state

    async def start(self, target: McpTarget, redirect_uri: str) -> tuple[str, str] | None:
        """Begins an authorization, and returns the URL that a person opens, and the state.

        Returns None if the server does not ask for one.

        Raises:
            McpContactFailed: The server or its authorization server does not answer, or refuses.
        """
        oauth = target.oauth
        if oauth is None:
            return None
        self._cancel(target.server_id)
        if len(self._pending) >= MAX_PENDING:
            self._cancel(next(iter(self._pending)))
        loop = asyncio.get_running_loop()
        url: asyncio.Future[str] = loop.create_future()
        answer: asyncio.Future[AuthorizationCodeResult] = loop.create_future()

        async def redirect(found: str) -> None:
            url.set_result(found)

        async def callback() -> AuthorizationCodeResult:
            return await answer

        storage = Storage(oauth, registration(oauth.state, redirect_uri), None)
        client = code_client(target.url, oauth, storage, redirect_uri, redirect, callback)
        task = asyncio.create_task(self._authorize(target, client), name="mcp-authorization")
        await asyncio.wait([task, url], timeout=self._connect_seconds, return_when=asyncio.FIRST_COMPLETED)  # type: ignore[type-var]
        if url.done():
            state = parse_qs(urlsplit(url.result()).query).get("state", [""])[0]
            self._pending[target.server_id] = _Pending(task, state, answer, storage, target)
            task.add_done_callback(lambda _: self._forget_pending(target.server_id, task))
            return url.result(), state
        if not task.done():
            await end_task(task)
            raise McpContactFailed(f"The server did not answer within {self._connect_seconds:g} seconds.")
        error = task.exception()
        if error is not None:
            raise McpContactFailed(_described(target, error)) from error
        return None

    async def complete(self, server_id: str, code: str, state: str, issuer: str | None) -> tuple[McpTarget, OAuthState]:
        """Completes the authorization of a server that waits, and returns what it left. A state works once.

        Raises:
            McpContactFailed: The authorization server refuses.
        """
        pending = self._pending.pop(server_id)
        pending.answer.set_result(AuthorizationCodeResult(code=code, state=state, iss=issuer))
        try:
            await asyncio.wait({pending.task}, timeout=self._connect_seconds)
        finally:
            await end_task(pending.task)
        if pending.storage.state.tokens is not None:  # the request after it does not matter
            return pending.target, pending.storage.state
        error = None if pending.task.cancelled() else pending.task.exception()
        if error is None:
            raise McpContactFailed("The authorization server did not answer in time.")
        raise McpContactFailed(_described(pending.target, error).replace(code, "[code]")) from error

    async def close(self) -> None:
        """Ends the authorizations that wait."""
        tasks = {pending.task for pending in self._pending.values()}
        for server_id in list(self._pending):
            self._cancel(server_id)
        await asyncio.gather(*(end_task(task) for task in tasks))

    async def _authorize(self, target: McpTarget, client: OAuthClientProvider) -> None:
        """Makes a request that the server refuses without an authorization."""
        async with asyncio.timeout(self._wait_seconds), self.open_client(target, client, lambda _: None) as opened:
            is_sse = target.transport is TransportType.SSE
            headers = {"accept": "text/event-stream" if is_sse else "application/json, text/event-stream"}
            body = None if is_sse else {"jsonrpc": "2.0", "id": 1, "method": "ping"}
            async with opened.stream("GET" if is_sse else "POST", target.url, headers=headers, json=body):
                pass

    def _cancel(self, server_id: str) -> None:
        pending = self._pending.pop(server_id, None)
        if pending is not None:
            pending.task.cancel()

    def _forget_pending(self, server_id: str, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            task.exception()
        pending = self._pending.get(server_id)
        if pending is not None and pending.task is task:
            del self._pending[server_id]


def _described(target: McpTarget, error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return target.masked(" ".join(str(error).split()) or type(error).__name__)[:500]
