"""The use cases of authorizing mnemesh at MCP servers with OAuth."""

from __future__ import annotations

from datetime import datetime, timedelta

from mnemesh_kit.clock import Clock
from mnemesh_kit.errors import InvalidArgument, MnemeshError
from mnemesh_kit.ids import require_id
from mnemesh_kit.principal import Principal
from mnemesh_kit.text import require_text

from mnemesh_tools.errors import McpAuthorizationNotPending, McpServerUnreachable
from mnemesh_tools.mcp_clients.contracts import McpContactFailed
from mnemesh_tools.mcp_clients.pool import McpPool
from mnemesh_tools.model.mcp_oauth import MAX_ID_CHARS, OAuthGrant, require_redirect_uri
from mnemesh_tools.model.mcp_servers import McpCaller, McpServer
from mnemesh_tools.store.base import ToolStore
from mnemesh_tools.usecases import lookups
from mnemesh_tools.usecases.mcp_contacts import McpContacts
from mnemesh_tools.usecases.mcp_targets import McpTargets

_MAX_CODE_CHARS = 10_000


class McpAuthorizationService:
    """Begins and completes authorizations. One that has begun is in the memory of this process."""

    def __init__(
        self, store: ToolStore, clock: Clock, targets: McpTargets, pool: McpPool, contacts: McpContacts
    ) -> None:
        self._store = store
        self._clock = clock
        self._targets = targets
        self._pool = pool
        self._contacts = contacts

    async def start(self, caller: Principal, server_id: str, redirect_uri: str) -> tuple[str, str, datetime]:
        """Begins an authorization; returns the URL that a person opens, the state, and the end of the time for it.

        Raises:
            McpServerNotFound: The organization has no such server.
            InvalidArgument: The redirect URI is not possible.
            McpAuthorizationNotPending: The settings or the server need no authorization by a person.
            McpServerUnreachable: The server or its authorization server does not answer, or refuses.
        """
        require_redirect_uri(redirect_uri)
        server = await self._get(caller, server_id)
        oauth = server.transport.oauth
        if oauth is None or oauth.grant is not OAuthGrant.AUTHORIZATION_CODE:
            raise McpAuthorizationNotPending(
                "The settings of the MCP server have no oauth with the grant AUTHORIZATION_CODE.",
                resource_id=server_id,
            )
        target = self._targets.target(caller.organization_id, server.id, server.transport, McpCaller())
        authorizations = await self._pool.authorizations()
        try:
            started = await authorizations.start(target, redirect_uri)
        except McpContactFailed as error:
            raise McpServerUnreachable(server_id, str(error)) from error
        if started is None:
            raise McpAuthorizationNotPending("The MCP server does not ask for an authorization.", resource_id=server_id)
        ends = self._clock.now() + timedelta(seconds=self._pool.limits.authorization_seconds)
        return *started, ends

    async def complete(self, caller: Principal, server_id: str, code: str, state: str, issuer: str | None) -> McpServer:
        """Completes an authorization, stores the tokens sealed, and reads the tools.

        Raises:
            McpServerNotFound: The organization has no such server.
            InvalidArgument: The state is another one, or a field breaks its rule.
            McpAuthorizationNotPending: None was started on this server, or it expired.
            McpServerUnreachable: The authorization server refuses.
        """
        require_text(code, "code", min_chars=1, max_chars=_MAX_CODE_CHARS)
        require_text(state, "state", min_chars=1, max_chars=MAX_ID_CHARS)
        await self._get(caller, server_id)
        authorizations = await self._pool.authorizations()
        pending = authorizations.state(server_id)
        if pending is None:
            raise McpAuthorizationNotPending(
                "No authorization of the MCP server waits to be completed. Start it again.", resource_id=server_id
            )
        if pending != state:
            raise InvalidArgument("state is not that of the authorization that was started.", field="state")
        try:
            target, left = await authorizations.complete(server_id, code, state, issuer)
        except McpContactFailed as error:
            raise McpServerUnreachable(server_id, str(error)) from error
        await self._contacts.authorization_changed(target, left)
        await self._pool.close_server(server_id)
        server = await self._get(caller, server_id)
        try:
            return (await self._contacts.refresh(caller, server, McpCaller(), None)).server
        except MnemeshError as error:  # stored as the status of the server
            return await self._contacts.note_failure(caller, server_id, error)

    async def _get(self, caller: Principal, server_id: str) -> McpServer:
        require_id(server_id, "mcp_server", "mcp_server_id")
        return await self._store.read(caller.organization_id, lambda tx: lookups.get_mcp_server(tx, server_id))
