"""The transports under sessions: HTTP with its authorization, and programs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import httpx2
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mnemesh_sandbox.streams import Talk

from mnemesh_tools.mcp_clients import http
from mnemesh_tools.mcp_clients.contracts import MAX_EVENT_BYTES, Allowed, McpLimits, McpTarget
from mnemesh_tools.mcp_clients.stdio import ProgramEnded, ProgramOutput, program_streams
from mnemesh_tools.model.mcp_servers import TransportType


class Programs(Protocol):
    """Starts the programs of servers."""

    def run(self, target: McpTarget, talk: Talk, output: Callable[[], str]) -> Coroutine[Any, Any, str]:
        """Runs a program until the talk with it ends, and returns why it ended."""
        ...

    def crashed(self, target: McpTarget) -> None:
        """Records that a program ended by itself."""
        ...


@dataclass(frozen=True, slots=True)
class Transports:
    """What transports need."""

    allowed: Allowed | None
    """Decides which addresses may be reached; None permits all of them."""
    limits: McpLimits
    programs: Programs
    authorization: Callable[[McpTarget], httpx2.Auth | None]

    @asynccontextmanager
    async def open(
        self, target: McpTarget, output: ProgramOutput, on_status: Callable[[int], None]
    ) -> AsyncIterator[Any]:
        """Yields the streams of messages of a server.

        Args:
            target: The server.
            output: Keeps what a program writes beside its messages.
            on_status: Receives the HTTP status of each answer.
        """
        if target.transport is TransportType.STDIO:
            run = partial(self.programs.run, target, output=lambda: output.text)
            try:
                async with program_streams(run, output) as streams:
                    yield streams
            except ProgramEnded:
                self.programs.crashed(target)
                raise
            return

        def client(*_: Any, **__: Any) -> httpx2.AsyncClient:
            return self.http_client(target, self.authorization(target), on_status)

        if target.transport is TransportType.SSE:
            async with sse_client(target.url, httpx_client_factory=client) as streams:
                yield streams
            return
        async with (
            client() as opened,
            streamable_http_client(target.url, http_client=opened, max_sse_event_size=MAX_EVENT_BYTES) as streams,
        ):
            yield streams

    def http_client(
        self, target: McpTarget, auth: httpx2.Auth | None, on_status: Callable[[int], None]
    ) -> httpx2.AsyncClient:
        """Returns an HTTP client for a server."""
        return http.open_http_client(target.headers, self.allowed, self.limits.connect_seconds, on_status, auth)
