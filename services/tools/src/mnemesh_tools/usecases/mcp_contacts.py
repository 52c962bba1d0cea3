"""Contacts with MCP servers outside of runs: their tools, their status and their tokens, as they are stored."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import msgspec
import structlog
from mnemesh_kit import deadline
from mnemesh_kit.clock import Clock
from mnemesh_kit.connection_failures import address_of
from mnemesh_kit.errors import MnemeshError
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.ids import IdSource
from mnemesh_kit.principal import Principal

from mnemesh_tools.errors import STDIO_TEXT, McpServerNotFound, McpServerUnauthorized, McpServerUnreachable
from mnemesh_tools.mcp_clients.contracts import Listing, McpContactFailed, McpTarget, McpUnauthorized, OAuthState
from mnemesh_tools.mcp_clients.pool import McpPool
from mnemesh_tools.model.mcp_servers import (
    McpCaller,
    McpContact,
    McpServer,
    McpServerStatus,
    McpTransport,
    TransportType,
)
from mnemesh_tools.store.base import ToolStore, ToolTransaction
from mnemesh_tools.usecases import lookups
from mnemesh_tools.usecases.mcp_listing import ListingWriter, Refresh, checked
from mnemesh_tools.usecases.mcp_targets import McpTargets

_MARGIN_SECONDS = 0.5
"""The part of the caller's time that is left for the answer."""
_log = structlog.get_logger("mnemesh.tools.mcp")


class McpContacts:
    """Reads the tools of servers, and stores what contacts lead to."""

    def __init__(
        self,
        store: ToolStore,
        clock: Clock,
        ids: IdSource,
        targets: McpTargets,
        pool: McpPool,
        seed_builtin_tools: Callable[[Principal], Awaitable[None]],
    ) -> None:
        """Creates the use cases. Built-in tools are stored before a server's, so that they keep their names."""
        self._store = store
        self._clock = clock
        self._ids = ids
        self._targets = targets
        self._pool = pool
        self._seed_builtin_tools = seed_builtin_tools
        pool.listen(self)

    def first(self, transport: McpTransport, before: McpContact) -> McpContact:
        """Returns the status of a server whose settings are new."""
        if transport.type is TransportType.STDIO and not self._targets.allows_programs:
            message = f"This server does not start programs. {STDIO_TEXT}"
            return replace(before, status=McpServerStatus.DISABLED, message=message)
        return replace(before, status=McpServerStatus.UNKNOWN, message=None)

    async def first_refresh(self, caller: Principal, server: McpServer) -> Refresh:
        """Reads the tools of a new server; one over HTTP has less time, because its creator waits. See `refresh`."""
        seconds = None if server.transport.type is TransportType.STDIO else self._pool.limits.create_seconds
        return await self.refresh(caller, server, McpCaller(), None, seconds)

    async def refresh(
        self,
        caller: Principal,
        server: McpServer,
        agent: McpCaller,
        key: RequestKey | None,
        seconds: float | None = None,
    ) -> Refresh:
        """Reads the tools of a server and stores them, within `seconds` or the limits of contacts.

        Raises:
            McpServerUnreachable: The server does not answer.
            McpServerUnauthorized: The server asks for an authorization.
            InvalidArgument: A variable of the settings has no value.
        """
        listing = await self.listing(caller, server.id, server.transport, agent, seconds=seconds)
        await self._seed_builtin_tools(caller)
        return await self._store_listing(caller, server.id, listing, key)

    async def listing(
        self,
        caller: Principal,
        server_id: str,
        transport: McpTransport,
        agent: McpCaller,
        *,
        is_stored: bool = True,
        seconds: float | None = None,
    ) -> Listing:
        """Returns what a server lists. Raises as `refresh`.

        Args:
            caller: Whose server it is.
            server_id: The server; empty for one that is not stored.
            transport: Its settings.
            agent: The agent on whose behalf it is contacted.
            is_stored: The settings are those of the server.
            seconds: The longest time; None is that of a connection and a list.
        """
        target = self._targets.target(caller.organization_id, server_id, transport, agent)
        if not is_stored:
            target = replace(target, is_stored=False)
        limits = self._pool.limits
        seconds, left = seconds or limits.connect_seconds + limits.list_seconds, deadline.remaining()
        if left is not None:
            seconds = min(seconds, max(0.0, left - min(_MARGIN_SECONDS, left / 2)))
        named = server_id or address_of(transport.url) or transport.program.command
        try:
            return await self._pool.probe(target, seconds)
        except McpUnauthorized as error:
            raise McpServerUnauthorized(named, str(error)) from error
        except McpContactFailed as error:
            raise McpServerUnreachable(named, str(error)) from error

    async def note_failure(self, caller: Principal, server_id: str, error: MnemeshError) -> McpServer:
        """Stores why a server was not reached, and returns it."""
        is_refused = isinstance(error, McpServerUnauthorized)
        status = McpServerStatus.UNAUTHORIZED if is_refused else McpServerStatus.UNREACHABLE

        def write(tx: ToolTransaction) -> McpServer:
            stored = lookups.get_mcp_server(tx, server_id)
            after = replace(stored, contact=replace(stored.contact, status=status, message=error.message))
            tx.mcp.update_server(after)
            return after

        _log.warning("mcp_server_unreachable", mcp_server_id=server_id, cause=error.message)
        return await self._store.write(caller.organization_id, write)

    async def tools_changed(self, target: McpTarget, listing: Listing) -> None:
        """See `McpEvents.tools_changed`."""
        try:
            server = await self._store.read(
                target.organization_id, lambda tx: lookups.get_mcp_server(tx, target.server_id)
            )
            caller = Principal(target.organization_id, server.last_updated_by_id)
            await self._store_listing(caller, server.id, listing, None)
        except McpServerNotFound:
            return  # deleted meanwhile

    async def authorization_changed(self, target: McpTarget, state: OAuthState) -> None:
        """See `McpEvents.authorization_changed`."""
        session = self._targets.sealed_session(state, target.server_id)

        def write(tx: ToolTransaction) -> bool:
            stored = tx.mcp.get_server(target.server_id)
            if stored is None or stored.transport.oauth is None or stored.transport.url != target.url:
                return False  # deleted, or its settings have changed meanwhile
            oauth, access = stored.transport.oauth, target.oauth
            if access is None or (oauth.grant, oauth.client_id, oauth.issuer) != (
                access.grant,
                access.client_id,
                access.issuer,
            ):
                return False
            transport = replace(stored.transport, oauth=replace(oauth, session=session))
            tx.mcp.update_server(replace(stored, transport=transport))
            return True

        is_stored = await self._store.write(target.organization_id, write)
        _log.info("mcp_tokens_renewed", mcp_server_id=target.server_id, stored=is_stored)

    async def _store_listing(
        self, caller: Principal, server_id: str, listing: Listing, key: RequestKey | None
    ) -> Refresh:
        tools = await asyncio.to_thread(checked, listing.tools)

        def write(tx: ToolTransaction) -> Refresh:
            stored = lookups.get_mcp_server(tx, server_id)
            writer = ListingWriter(tx, stored, caller.subject_id, self._clock.now(), self._ids.new)
            return writer.write(tools, listing.protocol_version, listing.problems)

        result = await self._store.write_once(
            caller.organization_id,
            key,
            write,
            result_ids=lambda refresh: [msgspec.json.encode(refresh).decode()],
            replay=lambda _tx, recorded: msgspec.json.decode(recorded[0], type=Refresh),
        )
        _log.info(
            "mcp_server_refreshed",
            mcp_server_id=server_id,
            tools=len(tools),
            added=len(result.added),
            updated=len(result.updated),
            removed=len(result.removed),
        )
        return result
