"""The pool of sessions: one per server and caller, opened on demand, renewed after a failure, closed when idle."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from mnemesh_kit.metrics import Gauge, Metric

from mnemesh_tools.mcp_clients.contracts import (
    Allowed,
    Listing,
    McpContactFailed,
    McpLimits,
    McpTarget,
    OAuthState,
    OnAuthorizationChanged,
    OnToolsChanged,
    RemoteResult,
)
from mnemesh_tools.model.mcp_servers import TransportType
from mnemesh_tools.model.mcp_tools import OnProgress, no_progress

if TYPE_CHECKING:
    from mnemesh_tools.mcp_clients.oauth import McpAuthorizations
    from mnemesh_tools.mcp_clients.sessions import McpSession
    from mnemesh_tools.mcp_clients.transports import Programs, Transports

T = TypeVar("T")


class McpPool:
    """Contacts servers through shared sessions."""

    def __init__(self, allowed: Allowed | None, limits: McpLimits, programs: "Programs") -> None:
        """Creates an empty pool.

        Args:
            allowed: Decides which addresses may be reached; None permits all of them.
            limits: The longest times.
            programs: Starts the programs of servers.
        """
        for library in ("mcp", "httpx2"):  # their INFO has URLs, and their DEBUG arguments
            logging.getLogger(library).setLevel(logging.WARNING)
        self._allowed = allowed
        self.limits = limits
        self._programs = programs
        self._on_authorization: OnAuthorizationChanged | None = None
        self._on_tools: OnToolsChanged | None = None
        self._parts: tuple[Transports, McpAuthorizations] | None = None
        self._changed: dict[McpTarget, asyncio.Task[None]] = {}
        self._sessions: dict[McpTarget, McpSession] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._locks: dict[McpTarget, asyncio.Lock] = {}

    def listen(self, on_authorization: OnAuthorizationChanged, on_tools: OnToolsChanged) -> None:
        """Reports what happens outside of calls."""
        self._on_authorization, self._on_tools = on_authorization, on_tools

    async def probe(self, target: McpTarget, seconds: float) -> Listing:
        """Returns the tools of a server: through a session of its own, which is closed again, or that of its program.

        Raises:
            McpContactFailed: The server does not answer in time, or refuses.
        """
        ends = time.monotonic() + seconds

        async def read(session: "McpSession") -> Listing:
            return await session.list_tools(min(self.limits.list_seconds, max(0.0, ends - time.monotonic())))

        if target.transport is TransportType.STDIO and target.is_stored:
            return await self._with_session(target, read, ends)
        session = await self._new_session(target)
        try:
            await session.connect(min(self.limits.connect_seconds, seconds))
            return await read(session)
        finally:
            await session.close()

    async def call_tool(
        self,
        target: McpTarget,
        name: str,
        arguments: dict[str, Any],
        seconds: float,
        on_progress: OnProgress = no_progress,
    ) -> RemoteResult:
        """Runs a tool once, in the session of the target.

        Raises:
            McpContactFailed: The server does not answer, or refuses. The tool was not run.
            McpCallLost: The connection broke during the call.
            McpCallTimedOut: The call did not end in time.
        """
        ends = time.monotonic() + seconds

        async def call(session: "McpSession") -> RemoteResult:
            return await session.call_tool(name, arguments, max(0.0, ends - time.monotonic()), on_progress)

        return await self._with_session(target, call, ends)

    async def close_server(self, organization_id: str, server_id: str) -> None:
        """Closes the sessions of a server of an organization, whose settings have changed."""
        self._programs.forget(organization_id, server_id)
        if self._parts is not None:
            self._parts[1].forget(organization_id, server_id)
        key = organization_id, server_id
        await self._close([target for target in self._sessions if (target.organization_id, target.server_id) == key])

    async def close_idle(self) -> None:
        """Closes the sessions that were not used for a while, and those that have ended."""
        before = time.monotonic() - self.limits.idle_seconds
        await self._close(
            [
                target
                for target, session in self._sessions.items()
                if not session.is_open or (session.calls == 0 and session.used_at < before)
            ]
        )

    async def close(self) -> None:
        """Closes all sessions."""
        tasks = [*self._changed.values(), *self._ending]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._close(list(self._sessions))

    async def authorizations(self) -> "McpAuthorizations":
        """Returns the OAuth clients of servers."""
        return (await self._load())[1]

    def metrics(self) -> list[Metric]:
        return [Gauge("mnemesh_tools_mcp_sessions", "Open sessions with MCP servers.", lambda: len(self._sessions))]

    async def _load(self) -> "tuple[Transports, McpAuthorizations]":
        """Imports the SDK in a thread, at the first contact: that takes longer than the start of the service."""
        if self._parts is None:
            oauth = await asyncio.to_thread(import_module, "mnemesh_tools.mcp_clients.oauth")
            module = await asyncio.to_thread(import_module, "mnemesh_tools.mcp_clients.sessions")
            if self._parts is None:
                authorizations: McpAuthorizations = oauth.McpAuthorizations(
                    self.limits.connect_seconds, self._on_authorization_changed
                )
                transports: Transports = module.Transports(
                    self._allowed, self.limits, self._programs, authorizations.client
                )
                authorizations.open_client = transports.http_client
                self._parts = transports, authorizations
        return self._parts

    async def _new_session(self, target: McpTarget) -> "McpSession":
        transports, _ = await self._load()
        module = import_module("mnemesh_tools.mcp_clients.sessions")
        session: McpSession = module.McpSession(target, transports, lambda: self._note_change(target))
        return session

    def _note_change(self, target: McpTarget) -> None:
        """Reads the tools of a server that announced a change; once for several announcements."""
        if target.is_stored and self._on_tools is not None and target not in self._changed:
            task = self._changed[target] = asyncio.create_task(self._read_changed(target, self._on_tools))
            task.add_done_callback(lambda _: self._changed.pop(target, None))

    async def _read_changed(self, target: McpTarget, on_tools: OnToolsChanged) -> None:
        await asyncio.sleep(self.limits.settle_seconds)
        session = self._sessions.get(target)
        if session is None or not session.is_open:
            return
        try:
            listing = await session.list_tools(self.limits.list_seconds)
        except McpContactFailed:
            return  # the next refresh shows the cause
        await on_tools(target, listing)

    async def _on_authorization_changed(self, target: McpTarget, state: OAuthState) -> None:
        if self._on_authorization is not None:
            await self._on_authorization(target, state)

    async def _with_session(self, target: McpTarget, call: "Callable[[McpSession], Awaitable[T]]", ends: float) -> T:
        """Runs a call. If the pooled session is not usable any more, the call runs once more in a new one."""
        known = self._sessions.get(target)
        if known is not None and known.is_open:
            try:
                return await call(known)
            except McpContactFailed:
                await self._retire(target, known)
        session = await self._session(target, ends)
        try:
            return await call(session)
        except BaseException as error:
            if isinstance(error, McpContactFailed) or not session.is_open:
                await self._retire(target, session)
            raise

    async def _session(self, target: McpTarget, ends: float) -> "McpSession":
        lock = self._locks.setdefault(target, asyncio.Lock())
        try:
            async with lock:
                known = self._sessions.get(target)
                if known is not None and known.is_open:
                    return known
                await self._make_room_for_program(target)
                session = await self._new_session(target)
                await session.connect(max(0.0, min(self.limits.connect_seconds, ends - time.monotonic())))
                self._sessions[target] = session
        finally:
            if not lock.locked():
                self._locks.pop(target, None)
        await self._make_room()
        return session

    async def _make_room_for_program(self, target: McpTarget) -> None:
        """Ends an idle program if the organization can have no further one."""
        if target.transport is TransportType.STDIO and self._programs.is_full(target.organization_id):
            idle = [
                known
                for known, session in self._sessions.items()
                if known.transport is TransportType.STDIO and session.calls == 0
            ]
            own = [known for known in idle if known.organization_id == target.organization_id]
            # Others lose theirs only if all places are taken.
            chosen = own or (idle if self._programs.is_full("") else [])
            chosen.sort(key=lambda known: self._sessions[known].used_at)
            await self._close(chosen[:1])

    async def _make_room(self) -> None:
        excess = len(self._sessions) - self.limits.sessions
        if excess > 0:
            idle = [target for target, session in self._sessions.items() if session.calls == 0]
            idle.sort(key=lambda target: self._sessions[target].used_at)
            await self._close(idle[:excess])

    async def _retire(self, target: McpTarget, session: "McpSession") -> None:
        """Gives a session to no further call. It ends with the calls that still use it."""
        if self._sessions.get(target) is session:
            del self._sessions[target]
        if session.calls:
            ending = asyncio.create_task(session.close_when_unused())
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)
        else:
            await session.close()

    async def _close(self, targets: list[McpTarget]) -> None:
        sessions = [session for target in targets if (session := self._sessions.pop(target, None)) is not None]
        await asyncio.gather(*(session.close() for session in sessions))
