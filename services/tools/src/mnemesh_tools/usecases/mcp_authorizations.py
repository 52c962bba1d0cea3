"""The use cases of authorizing mnemesh at MCP servers with OAuth."""

from dataclasses import replace
from datetime import datetime, timedelta

from mnemesh_kit.call_context import Principal
from mnemesh_kit.errors import InvalidArgument, MnemeshError
from mnemesh_kit.ids import require_id
from mnemesh_kit.text import require_text
from mnemesh_kit.time import Clock
from mnemesh_types.tools import McpCaller, OAuthGrant

from mnemesh_tools.errors import McpAuthorizationNotPending, McpServerUnreachable
from mnemesh_tools.mcp_clients.contracts import McpContactFailed
from mnemesh_tools.mcp_clients.pool import McpPool
from mnemesh_tools.model.mcp_servers import (
    MAX_AUTHORIZATIONS,
    McpAuthorization,
    McpAuthorizationStatus,
    McpServer,
    hash_of_state,
)
from mnemesh_tools.model.mcp_settings import MAX_ID_CHARS, require_redirect_uri
from mnemesh_tools.store.tools import ToolStore, ToolTransaction
from mnemesh_tools.usecases import changes
from mnemesh_tools.usecases.mcp_contacts import McpContacts
from mnemesh_tools.usecases.mcp_targets import McpTargets

_MAX_CODE_CHARS = 10_000
_MAX_REASON_CHARS = 500
_MARGIN_SECONDS = 30.0
"""The time after that of an exchange, after which its process is taken for dead."""


class McpAuthorizationService:
    """Begins and completes authorizations. One that has begun is stored, so that any replica can complete it."""

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
        url, begun = started
        now = self._clock.now()
        authorization = McpAuthorization(
            server_id=server_id,
            organization_id=caller.organization_id,
            subject_id=caller.subject_id,
            state_hash=hash_of_state(begun.state),
            sealed=self._targets.sealed_authorization(begun, server_id),
            created_at=now,
            expires_at=now + self._life,
        )

        def write(tx: ToolTransaction) -> None:
            changes.get_mcp_server(tx, server_id)  # it may have been deleted meanwhile
            tx.mcp.put_authorization(authorization, MAX_AUTHORIZATIONS)

        await self._store.write(caller.organization_id, write)
        return url, begun.state, authorization.expires_at

    async def complete(self, caller: Principal, server_id: str, code: str, state: str, issuer: str | None) -> McpServer:
        """Completes an authorization, stores the tokens sealed, and reads the tools.

        Raises:
            McpServerNotFound: The organization has no such server.
            InvalidArgument: The state is another one, or a field breaks its rule.
            McpAuthorizationNotPending: None was started on this server, or it expired.
            McpServerUnreachable: The authorization server refuses.
        """
        _require_answer(code, state)
        await self._get(caller, server_id)
        begun = await self._store.read(caller.organization_id, lambda tx: tx.mcp.get_authorization(server_id))
        if begun is None or not self._waits(begun):
            raise _not_pending(server_id)
        if begun.state_hash != hash_of_state(state):
            raise InvalidArgument("state is not that of the authorization that was started.", field="state")
        return await self._exchange(caller, await self._claim(begun), code, issuer)

    async def receive(self, state: str, code: str | None, refusal: str | None, issuer: str | None) -> McpAuthorization:
        """Ends an authorization of any organization with the answer that a browser brought; returns it.

        Args:
            state: The state, which proves that the answer belongs to the authorization.
            code: The code; None if the person or the authorization server refused.
            refusal: Why they did.
            issuer: The parameter `iss` of the redirect.

        Raises:
            InvalidArgument: A field breaks its rule.
            McpAuthorizationNotPending: No authorization waits for this state.
        """
        _require_answer("-" if code is None else code, state)
        begun = await self._store.find_mcp_authorization(hash_of_state(state))
        if begun is None or not self._waits(begun):
            raise _not_pending("")
        claimed = await self._claim(begun)
        if code is None:
            reason = " ".join((refusal or "no code was granted").split())[:_MAX_REASON_CHARS]
            return await self._end(claimed, f"The access was not authorized: {reason}")
        try:
            await self._exchange(Principal(begun.organization_id, begun.subject_id), claimed, code, issuer)
        except MnemeshError as error:  # stored for whoever waits
            return replace(claimed, status=McpAuthorizationStatus.FAILED, message=error.message)
        return replace(claimed, status=McpAuthorizationStatus.COMPLETED)

    async def get(self, caller: Principal, server_id: str, state: str) -> McpAuthorization:
        """Returns the authorization of a server with a state.

        Raises:
            McpServerNotFound: The organization has no such server.
            McpAuthorizationNotPending: It expired, or another one was started.
        """
        await self._get(caller, server_id)
        begun = await self._store.read(caller.organization_id, lambda tx: tx.mcp.get_authorization(server_id))
        if begun is None or begun.state_hash != hash_of_state(state):
            raise _not_pending(server_id)
        if begun.expires_at <= self._clock.now():
            raise McpAuthorizationNotPending("The access was not authorized in time.", resource_id=server_id)
        return begun

    @property
    def _life(self) -> timedelta:
        return timedelta(seconds=self._pool.limits.authorization_seconds)

    def _waits(self, authorization: McpAuthorization) -> bool:
        is_pending = authorization.status is McpAuthorizationStatus.PENDING
        return is_pending and self._clock.now() < authorization.expires_at

    async def _claim(self, begun: McpAuthorization) -> McpAuthorization:
        """Reserves an authorization for this process, whose exchange ends soon. Raises McpAuthorizationNotPending."""
        ends = self._clock.now() + timedelta(seconds=self._pool.limits.connect_seconds + _MARGIN_SECONDS)
        claimed = replace(begun, status=McpAuthorizationStatus.CLAIMED, expires_at=ends)

        def write(tx: ToolTransaction) -> None:
            if tx.mcp.get_authorization(begun.server_id) != begun:
                raise _not_pending(begun.server_id)
            tx.mcp.update_authorization(claimed)

        await self._store.write(begun.organization_id, write)
        return claimed

    async def _exchange(self, caller: Principal, claimed: McpAuthorization, code: str, issuer: str | None) -> McpServer:
        """Exchanges the code, stores the outcome, and reads the tools of the server, which it returns."""
        server_id = claimed.server_id
        try:
            server = await self._get(caller, server_id)
            target = self._targets.target(caller.organization_id, server_id, server.transport, McpCaller())
            begun = self._targets.opened_authorization(claimed.sealed, server_id)
            authorizations = await self._pool.authorizations()
            try:
                left = await authorizations.complete(target, begun, code, issuer)
            except McpContactFailed as error:
                raise McpServerUnreachable(server_id, str(error)) from error
            await self._contacts.on_authorization_changed(target, left)
        except MnemeshError as error:
            await self._end(claimed, error.message)
            raise
        await self._pool.close_server(
            caller.organization_id, server_id
        )  # before anyone learns that the server can be used
        await self._end(claimed, None)
        server = await self._get(caller, server_id)
        try:
            return (await self._contacts.refresh(caller, server, McpCaller(), None)).server
        except MnemeshError as error:  # stored as the status of the server
            return await self._contacts.note_failure(caller, server_id, error)

    async def _end(self, claimed: McpAuthorization, failure: str | None) -> McpAuthorization:
        """Stores the outcome for whoever waits, and returns it."""
        status = McpAuthorizationStatus.COMPLETED if failure is None else McpAuthorizationStatus.FAILED
        ended = replace(claimed, status=status, message=failure, expires_at=self._clock.now() + self._life)
        await self._store.write(claimed.organization_id, lambda tx: tx.mcp.update_authorization(ended))
        return ended

    async def _get(self, caller: Principal, server_id: str) -> McpServer:
        require_id(server_id, "mcp_server", "mcp_server_id")
        return await self._store.read(caller.organization_id, lambda tx: changes.get_mcp_server(tx, server_id))


def _require_answer(code: str, state: str) -> None:
    require_text(code, "code", min_chars=1, max_chars=_MAX_CODE_CHARS)
    require_text(state, "state", min_chars=1, max_chars=MAX_ID_CHARS)


def _not_pending(server_id: str) -> McpAuthorizationNotPending:
    named = {"resource_id": server_id} if server_id else {}
    return McpAuthorizationNotPending(
        "No authorization of the MCP server waits to be completed. Start it again.", **named
    )
