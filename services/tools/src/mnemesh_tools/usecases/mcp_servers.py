"""The use cases of MCP servers: registration, refreshes and tests."""

import asyncio
from collections.abc import Collection
from dataclasses import replace
from datetime import datetime, timedelta

import msgspec
from mnemesh_kit.audit import attribute
from mnemesh_kit.call_context import Principal
from mnemesh_kit.errors import InvalidArgument, MnemeshError
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.ids import IdSource, require_id
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.text import require_no_nul, require_text
from mnemesh_kit.time import Clock
from mnemesh_types.tools import McpCaller, McpServerStatus, OAuthGrant, ProgramHealth

from mnemesh_tools.errors import (
    McpAuthorizationNotPending,
    McpServerNameTaken,
    McpServerRevisionMismatch,
    McpServerUnauthorized,
    McpServerUnreachable,
)
from mnemesh_tools.mcp_clients.contracts import McpContactFailed
from mnemesh_tools.mcp_clients.pool import McpPool
from mnemesh_tools.model.mcp_servers import (
    MAX_AUTHORIZATIONS,
    McpAuthorization,
    McpAuthorizationStatus,
    McpContact,
    McpServer,
    McpServerFilter,
    McpServerOrder,
    McpServerSpec,
    McpTransport,
    TransportType,
    hash_of_state,
    merge_transport,
    require_valid_metadata,
    require_valid_name,
    require_valid_transport,
    with_kept_secrets,
)
from mnemesh_tools.model.mcp_settings import MAX_ID_CHARS, require_redirect_uri, require_valid_secret
from mnemesh_tools.store.tools import ToolStore, ToolTransaction
from mnemesh_tools.usecases import changes
from mnemesh_tools.usecases.mcp_contacts import CheckedTool, McpContacts, McpTargets, Refresh, checked, unusable
from mnemesh_tools.usecases.mcp_programs import McpPrograms

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
        attribute(Principal(begun.organization_id, begun.subject_id))
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


class McpServerService:
    """Manages the MCP servers of organizations."""

    def __init__(
        self,
        store: ToolStore,
        clock: Clock,
        ids: IdSource,
        targets: McpTargets,
        pool: McpPool,
        contacts: McpContacts,
        programs: McpPrograms,
    ) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids
        self._targets = targets
        self._pool = pool
        self._contacts = contacts
        self._programs = programs

    async def create_server(self, caller: Principal, spec: McpServerSpec, key: RequestKey | None) -> McpServer:
        """Stores a server and reads its tools. An unreachable server is stored, too.

        Raises:
            InvalidArgument: A field breaks its rule.
            McpServerNameTaken: The organization has a server with this name.
            SecretsKeyMissing: This server has no key to store secrets with.
        """
        require_valid_name(spec.name)
        require_valid_metadata(spec.metadata)
        transport = with_kept_secrets(require_valid_transport(spec.transport), None)
        server_id, now = self._ids.new("mcp_server"), self._clock.now()
        server = McpServer(
            id=server_id,
            organization_id=caller.organization_id,
            name=spec.name,
            transport=self._targets.sealed(transport, server_id),
            metadata=spec.metadata,
            contact=self._contacts.first(transport, McpContact()),
            revision=1,
            created_at=now,
            updated_at=now,
            created_by_id=caller.subject_id,
            last_updated_by_id=caller.subject_id,
        )

        def insert(tx: ToolTransaction) -> McpServer:
            if tx.mcp.get_server_by_name(server.name) is not None:
                raise McpServerNameTaken(server.name)
            tx.mcp.insert_server(server)
            return server

        stored = await self._store.write_once(
            caller.organization_id,
            key,
            insert,
            result_ids=lambda created: [created.id],
            replay=lambda tx, ids: changes.get_mcp_server(tx, ids[0]),
        )
        if stored.contact.status is not McpServerStatus.UNKNOWN:
            return stored
        try:
            return (await self._contacts.refresh_first(caller, stored)).server
        except MnemeshError as error:  # stored as the status of the server
            return await self._contacts.note_failure(caller, stored.id, error)

    async def get_server(self, caller: Principal, server_id: str) -> McpServer:
        """Returns a server. Raises McpServerNotFound."""
        require_id(server_id, "mcp_server", "mcp_server_id")
        return await self._store.read(caller.organization_id, lambda tx: changes.get_mcp_server(tx, server_id))

    async def list_servers(
        self, caller: Principal, filter_: McpServerFilter, order: McpServerOrder, page: PageQuery
    ) -> Page[McpServer]:
        """Returns a page of the servers that match the filter."""
        for text in (*filter_.ids, filter_.name or ""):
            require_no_nul(text, "mcp_server_ids" if text in filter_.ids else "name")
        return await self._store.read(caller.organization_id, lambda tx: tx.mcp.list_servers(filter_, order, page))

    async def update_server(
        self,
        caller: Principal,
        server_id: str,
        spec: McpServerSpec,
        written: Collection[str],
        base_revision: int | None,
        key: RequestKey | None,
    ) -> McpServer:
        """Writes the fields `written`. A secret without a value keeps the stored one.

        Raises:
            InvalidArgument: A field breaks its rule.
            McpServerNotFound: The organization has no such server.
            McpServerRevisionMismatch: The server has another revision.
            McpServerNameTaken: Another server has the new name.
            SecretsKeyMissing: This server has no key to store secrets with.
        """
        require_id(server_id, "mcp_server", "mcp_server.id")
        paths = [path for path in written if path not in ("name", "metadata")]
        sealed = None
        if spec.transport is not None and paths:
            _require_valid_values(spec.transport)
            sealed = self._targets.sealed(spec.transport, server_id)

        def update(tx: ToolTransaction) -> McpServer:
            before = changes.get_mcp_server(tx, server_id)
            if base_revision is not None and base_revision != before.revision:
                raise McpServerRevisionMismatch(server_id, before.revision)
            transport = require_valid_transport(merge_transport(before.transport, sealed, paths))
            name = require_valid_name(spec.name) if "name" in written else before.name
            metadata = require_valid_metadata(spec.metadata) if "metadata" in written else before.metadata
            same = tx.mcp.get_server_by_name(name)
            if same is not None and same.id != server_id:
                raise McpServerNameTaken(name)
            if (transport, name, metadata) == (before.transport, before.name, before.metadata):
                return before
            is_moved = transport != before.transport
            after = replace(
                before,
                name=name,
                metadata=metadata,
                transport=transport,
                contact=self._contacts.first(transport, before.contact) if is_moved else before.contact,
                revision=before.revision + 1,
                updated_at=self._clock.now(),
                last_updated_by_id=caller.subject_id,
            )
            tx.mcp.update_server(after)
            return after

        stored = await self._store.write_once(
            caller.organization_id,
            key,
            update,
            result_ids=lambda updated: [updated.id],
            replay=lambda tx, ids: changes.get_mcp_server(tx, ids[0]),
        )
        await self._pool.close_server(caller.organization_id, server_id)
        return stored

    async def delete_server(self, caller: Principal, server_id: str, key: RequestKey | None) -> None:
        """Deletes a server and its tools. Succeeds if the server does not exist."""
        require_id(server_id, "mcp_server", "mcp_server_id")

        def delete(tx: ToolTransaction) -> bool:
            exists = tx.mcp.get_server(server_id) is not None
            for tool in tx.mcp.get_tools(server_id):
                tx.delete_tool(tool.tool_id)
            tx.mcp.delete_server(server_id)
            return exists

        was_deleted = await self._store.write_once(
            caller.organization_id,
            key,
            delete,
            result_ids=lambda exists: [server_id] if exists else [],
            replay=lambda _tx, ids: bool(ids),
        )
        if was_deleted:  # else the id may be that of another organization's server
            await self._pool.close_server(caller.organization_id, server_id)
            await self._programs.delete(caller.organization_id, server_id)

    def program_health(self, server: McpServer) -> ProgramHealth | None:
        """Returns the processes of a stdio server on this host; None if none was started."""
        return self._programs.health(server.organization_id, server.id)

    async def refresh_server(
        self, caller: Principal, server_id: str, agent: McpCaller, key: RequestKey | None
    ) -> Refresh:
        """Reads the tools of a server again.

        Raises:
            McpServerNotFound: The organization has no such server.
            McpServerUnreachable: The server does not answer. Only its status changes.
            McpServerUnauthorized: The server asks for an authorization. Only its status changes.
            McpTransportDisabled: This server does not start programs.
            InvalidArgument: A variable of the settings has no value.
        """
        recorded = await self._store.find_recorded(key)
        if recorded is not None:
            return msgspec.json.decode(recorded[0], type=Refresh)
        server = await self.get_server(caller, server_id)
        try:
            return await self._contacts.refresh(caller, server, agent, key)
        except (McpServerUnreachable, McpServerUnauthorized) as error:
            await self._contacts.note_failure(caller, server_id, error)
            raise

    async def test_server(
        self, caller: Principal, server_id: str | None, spec: McpServerSpec | None, agent: McpCaller
    ) -> tuple[McpContact, list[CheckedTool]]:
        """Connects with stored settings, or with those of a request, and stores nothing.

        Raises:
            InvalidArgument: A field breaks its rule.
            McpServerNotFound: The organization has no such server.
        """
        stored = None if not server_id else await self.get_server(caller, server_id)
        if spec is not None:
            given = require_valid_transport(spec.transport)
            transport = with_kept_secrets(given, None if stored is None else stored.transport)
        elif stored is not None:
            transport = stored.transport
        else:
            raise InvalidArgument("target must be set to mcp_server_id or mcp_server.", field="mcp_server_id")
        contact = self._contacts.first(transport, McpContact())
        if contact.status is McpServerStatus.DISABLED:
            return contact, []
        try:
            listing = await self._contacts.list_tools(
                caller, server_id or "", transport, agent, is_stored=stored is not None and spec is None
            )
        except McpServerUnreachable as error:
            return McpContact(McpServerStatus.UNREACHABLE, error.message), []
        except McpServerUnauthorized as error:
            return McpContact(McpServerStatus.UNAUTHORIZED, error.message), []
        tools = await asyncio.to_thread(checked, listing.tools)
        message = unusable(tools, listing.problems)
        return McpContact(McpServerStatus.REACHABLE, message, protocol_version=listing.protocol_version), tools


def _require_valid_values(transport: McpTransport) -> None:
    """Checks the values of a request before they are sealed.

    Raises:
        InvalidArgument: One breaks its rule.
    """
    is_header = transport.type is not TransportType.STDIO
    for field, secret in transport.all_secrets():
        require_valid_secret(secret, f"mcp_server.{transport.type.value}.{field}", is_header=is_header)
