"""Contacts with MCP servers outside of runs: their tools, their status and their tokens, as they are stored."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

import msgspec
import structlog
from mnemesh_kit import call_context
from mnemesh_kit.call_context import Principal
from mnemesh_kit.errors import InvalidArgument, MnemeshError
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.ids import IdSource
from mnemesh_kit.network import address_of
from mnemesh_kit.secret_variables import SecretBox
from mnemesh_kit.time import Clock
from mnemesh_sandbox.redaction import Redactor
from mnemesh_types.tools import McpCaller, McpServerStatus, SchemaHealth, SchemaStatus

from mnemesh_tools.errors import (
    STDIO_TEXT,
    McpServerNotFound,
    McpServerUnauthorized,
    McpServerUnreachable,
    McpTransportDisabled,
)
from mnemesh_tools.mcp_clients.contracts import (
    Listing,
    McpContactFailed,
    McpTarget,
    McpUnauthorized,
    OAuthAccess,
    OAuthBegun,
    OAuthState,
)
from mnemesh_tools.mcp_clients.pool import McpPool
from mnemesh_tools.model.mcp_servers import McpContact, McpServer, McpTransport, TransportType
from mnemesh_tools.model.mcp_settings import (
    AGENT_VARIABLE,
    McpSecret,
    OAuthSession,
    consists_of_variables,
    filled,
    is_header_value,
    require_valid_variables,
    started_program,
    variables_of,
)
from mnemesh_tools.model.mcp_tools import (
    McpTool,
    RemoteTool,
    bounded_tool,
    model_schema,
    new_spec,
    schema_health,
    tool_name,
)
from mnemesh_tools.model.tools import Tool, ToolSpec
from mnemesh_tools.store.tools import ToolStore, ToolTransaction
from mnemesh_tools.usecases import changes


class McpTargets:
    """Seals each value for the one server that it belongs to, and opens it for a contact."""

    def __init__(self, box: SecretBox, *, allows_programs: bool) -> None:
        self._box = box
        self.allows_programs = allows_programs

    def fingerprint(self, secret: str) -> str:
        """Returns a text that identifies a value and reveals nothing of it. Raises SecretsKeyMissing."""
        return secret if consists_of_variables(secret) else self._box.fingerprint(secret)

    def sealed(self, transport: McpTransport, server_id: str) -> McpTransport:
        """Returns the settings with each value of the request sealed, unless it consists of variables.

        Raises:
            SecretsKeyMissing: This server has no key to store secrets with.
        """

        def seal(secret: McpSecret, kind: str) -> McpSecret:
            if secret.value is None or consists_of_variables(secret.value):
                return secret
            return McpSecret(secret.name, sealed=self._box.seal(secret.value, _context(server_id, kind, secret)))

        return _with_secrets(transport, seal)

    def resealed(self, transport: McpTransport, server_id: str) -> McpTransport:
        """Returns the settings with each value encrypted with the first key. Raises SecretUnreadable."""

        def reseal(secret: McpSecret, kind: str) -> McpSecret:
            if secret.sealed is None:
                return secret
            return replace(secret, sealed=self._box.resealed(secret.sealed, _context(server_id, kind, secret)))

        changed = _with_secrets(transport, reseal)
        oauth = changed.oauth
        if oauth is None or oauth.session is None:
            return changed
        sealed = self._box.resealed(oauth.session.sealed, _session_context(server_id))
        return replace(changed, oauth=replace(oauth, session=replace(oauth.session, sealed=sealed)))

    def sealed_session(self, state: OAuthState, server_id: str) -> OAuthSession:
        """Returns what an authorization left, sealed. Raises SecretsKeyMissing."""
        return OAuthSession(
            self._box.seal(msgspec.json.encode(state).decode(), _session_context(server_id)), state.expires_at
        )

    def sealed_authorization(self, begun: OAuthBegun, server_id: str) -> bytes:
        """Returns what is kept of an authorization that begins, sealed. Raises SecretsKeyMissing."""
        return self._box.seal(msgspec.json.encode(begun).decode(), _authorization_context(server_id))

    def opened_authorization(self, sealed: bytes, server_id: str) -> OAuthBegun:
        """Returns what is kept of an authorization. Raises SecretUnreadable."""
        return msgspec.json.decode(self._box.open(sealed, _authorization_context(server_id)), type=OAuthBegun)

    def resealed_authorization(self, sealed: bytes, server_id: str) -> bytes:
        """Returns what is kept of an authorization, encrypted with the first key. Raises SecretUnreadable."""
        return self._box.resealed(sealed, _authorization_context(server_id))

    def target(self, organization_id: str, server_id: str, transport: McpTransport, caller: McpCaller) -> McpTarget:
        """Returns what a contact needs.

        Raises:
            InvalidArgument: A variable has no value.
            McpTransportDisabled: This server does not start programs.
            SecretUnreadable: A value cannot be opened with the keys of this server.
        """
        if transport.type is TransportType.STDIO and not self.allows_programs:
            raise McpTransportDisabled(transport.type.value)
        require_valid_variables(caller.variables)
        values = _Values(self._box, server_id, caller)
        is_program = transport.type is TransportType.STDIO
        named = {
            (secret.name if is_program else secret.key): values.of(secret, _kind(transport), is_header=not is_program)
            for secret in transport.secrets
        }
        settings = McpTarget(organization_id, server_id, transport.type, transport.url)
        if is_program:
            settings = replace(
                settings,
                program=started_program(transport.program),
                environment=tuple(sorted(named.items())),
                partition=self._partition(values.used),
            )
        else:
            own = {} if caller.agent_id is None else {"x-agent-id": caller.agent_id}
            if transport.token is not None:
                token, name = values.of(transport.token, "token"), transport.auth_header or "Authorization"
                own[name.lower()] = f"Bearer {token}" if name.lower() == "authorization" and " " not in token else token
            settings = replace(
                settings, headers=tuple(sorted({**own, **named}.items())), oauth=self._oauth(transport, values)
            )
        return replace(settings, redactor=values.redactor)

    def _oauth(self, transport: McpTransport, values: "_Values") -> OAuthAccess | None:
        oauth = transport.oauth
        if oauth is None:
            return None
        secret = None if oauth.client_secret is None else values.of(oauth.client_secret, "oauth")
        state = None
        if oauth.session is not None:
            text = self._box.open(oauth.session.sealed, _session_context(values.server_id))
            state = msgspec.json.decode(text, type=OAuthState)
            values.note(state.secrets())
        return OAuthAccess(oauth.grant, oauth.client_id, secret, oauth.scope, oauth.issuer, state)

    def _partition(self, used: Mapping[str, str]) -> str:
        """Returns a text that differs for different values of the caller's variables, and reveals nothing of them."""
        if not used:
            return ""
        return self._box.fingerprint(json.dumps(sorted(used.items())))[:32]


class _Values:
    """The values of one contact, opened and filled in."""

    def __init__(self, box: SecretBox, server_id: str, caller: McpCaller) -> None:
        self._box = box
        self.server_id = server_id
        own = {} if caller.agent_id is None else {AGENT_VARIABLE: caller.agent_id}
        self._variables = {**own, **caller.variables}
        self.used: dict[str, str] = {}
        """The variables of the caller in the settings."""
        self._agent_id = caller.agent_id
        self._secret: dict[str, str] = {}

    @property
    def redactor(self) -> Redactor:
        """Removes the values from what the server returns."""
        return Redactor(self._secret)

    def note(self, values: Mapping[str, str]) -> None:
        """Notes further values that are secret, by name."""
        self._secret |= values

    def of(self, secret: McpSecret, kind: str, *, is_header: bool = True) -> str:
        """Returns the value of a secret.

        Raises:
            InvalidArgument: A variable has no value, or the value is not possible in a header.
            SecretUnreadable: It cannot be opened.
        """
        text = secret.value
        if text is None:
            text = self._box.open(secret.sealed or b"", _context(self.server_id, kind, secret))
        missing: set[str] = set()
        result = filled(text, self._variables, missing)
        if missing:
            names = ", ".join(sorted(missing))
            raise InvalidArgument(
                f"The settings of the MCP server need a value of: {names[:500]}.", field="caller.variables"
            )
        if is_header and not is_header_value(result):
            raise InvalidArgument(
                "The settings of the MCP server yield a header that is not printable ASCII characters.",
                field="caller.variables",
            )
        if "\0" in result:
            raise InvalidArgument(
                "The settings of the MCP server yield a variable with a NUL character.", field="caller.variables"
            )
        names_used = variables_of(text) & self._variables.keys()
        self.used |= {name: self._variables[name] for name in names_used}
        self._secret |= {name: self._variables[name] for name in names_used - {AGENT_VARIABLE}}
        if result != self._agent_id:  # the server may name the agent
            self._secret[secret.name or kind] = result
            if " " in result:  # a scheme, and a token
                self._secret[f"{secret.name or kind}.value"] = result.partition(" ")[2]
        return result


def _with_secrets(transport: McpTransport, changed: Callable[[McpSecret, str], McpSecret]) -> McpTransport:
    """Returns the settings with each secret as a function of it and of its kind returns it."""
    oauth = transport.oauth
    if oauth is not None and oauth.client_secret is not None:
        oauth = replace(oauth, client_secret=changed(oauth.client_secret, "oauth"))
    return replace(
        transport,
        token=None if transport.token is None else changed(transport.token, "token"),
        secrets=tuple(changed(secret, _kind(transport)) for secret in transport.secrets),
        oauth=oauth,
    )


def _kind(transport: McpTransport) -> str:
    return "env" if transport.type is TransportType.STDIO else "headers"


def _session_context(server_id: str) -> str:
    return f"mcp/{server_id}/oauth-session"


def _authorization_context(server_id: str) -> str:
    return f"mcp/{server_id}/authorization"


def _context(server_id: str, kind: str, secret: McpSecret) -> str:
    return f"mcp/{server_id}/{kind}/{secret.key}"


_SHOWN: Final = 10
_SHOWN_CHARS: Final = 300


@dataclass(frozen=True, slots=True)
class Refresh:
    """The server after a refresh, and the tools that the refresh changed."""

    server: McpServer
    added: tuple[McpTool, ...] = ()
    updated: tuple[McpTool, ...] = ()
    removed: tuple[McpTool, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckedTool:
    """A tool as its server reports it, bounded, with the health of its schema."""

    remote: RemoteTool
    health: SchemaHealth


def checked(tools: Sequence[RemoteTool]) -> list[CheckedTool]:
    """Returns the tools with the health of each schema. Takes CPU time: not for the event loop."""
    return [CheckedTool(bounded_tool(tool), schema_health(tool)) for tool in tools]


def unusable(tools: Sequence[CheckedTool], problems: Sequence[str]) -> str | None:
    """Returns which tools of a server cannot be offered to models, and why; None if all can.

    Args:
        tools: The tools that are stored.
        problems: Why others are not.
    """
    named = [
        f"{tool.remote.name} ({' '.join(tool.health.reasons).rstrip('.')})"
        for tool in tools
        if tool.health.status is SchemaStatus.INVALID
    ]
    found = [*named, *problems]
    if not found:
        return None
    shown = "; ".join(text[:_SHOWN_CHARS] for text in found[:_SHOWN])
    more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return f"{len(found)} of {len(tools) + len(problems)} tools cannot be offered to models: {shown}{more}."


class ListingWriter:
    """Stores what a server lists, within the caller's transaction."""

    def __init__(
        self, tx: ToolTransaction, server: McpServer, subject_id: str, now: datetime, new_id: Callable[[str], str]
    ) -> None:
        self._tx = tx
        self._server = server
        self._subject_id = subject_id
        self._now = now
        self._new_id = new_id

    def write(self, tools: Sequence[CheckedTool], protocol_version: str, problems: Sequence[str]) -> Refresh:
        """Adds new tools, overwrites changed ones under their ids, and deletes those that are missing."""
        known = {tool.remote.name: tool for tool in self._tx.mcp.get_tools(self._server.id)}
        added, updated = [], []
        for item in tools:
            before = known.pop(item.remote.name, None)
            after = self._written(item, before)
            if before is None:
                added.append(after)
            elif before.remote != after.remote:
                updated.append(after)
        removed = list(known.values())
        self._tx.mcp.delete_tools([tool.tool_id for tool in removed])
        for tool in removed:
            self._tx.delete_tool(tool.tool_id)
        contact = McpContact(
            status=McpServerStatus.REACHABLE,
            message=unusable(tools, problems),
            contact_at=self._now,
            refresh_at=self._now,
            tool_count=len(tools),
            protocol_version=protocol_version,
        )
        server = replace(self._server, contact=contact)
        self._tx.mcp.update_server(server)
        return Refresh(server, tuple(added), tuple(updated), tuple(removed))

    def _written(self, item: CheckedTool, before: McpTool | None) -> McpTool:
        tool_id = self._new_id("tool") if before is None else before.tool_id
        changed = before is None or before.remote != item.remote
        settings = None if before is None else before.owner_settings
        if item.health.status is SchemaStatus.INVALID:
            schema, settings = None, self._withdrawn(tool_id) or settings
        else:
            schema, settings = self._attachable(tool_id, item, settings, changed=changed), None
        after = McpTool(
            tool_id=tool_id,
            server_id=self._server.id,
            remote=item.remote,
            json_schema=schema,
            owner_settings=settings,
            status=item.health.status,
            reasons=item.health.reasons,
            created_at=self._now if before is None else before.created_at,
            updated_at=self._now if before is None or changed else before.updated_at,
        )
        if after != before:
            self._tx.mcp.put_tool(after)
        return after

    def _withdrawn(self, tool_id: str) -> ToolSpec | None:
        """Deletes the definition of a tool whose schema is invalid, and returns what its owner had set."""
        stored = self._tx.get_tool(tool_id)
        if stored is None:
            return None
        self._tx.delete_tool(tool_id)
        return replace(stored.spec, secrets=())

    def _attachable(self, tool_id: str, item: CheckedTool, settings: ToolSpec | None, *, changed: bool) -> str:
        """Writes the definition that agents attach, and returns its schema.

        The owner's settings of the definition stay, such as the approval and the limits: those of `settings` if the
        schema was invalid before.
        """
        stored = self._tx.get_tool(tool_id)
        if stored is None:
            if settings is not None and self._is_free(settings.name):
                name = settings.name
            else:
                name = tool_name(item.remote.name, self._server.name, self._is_free)
            spec = new_spec(self._server.id, name, item.remote)
            if settings is not None:
                spec = replace(settings, name=name, json_schema=spec.json_schema)
            self._tx.insert_tools(self._definition(tool_id, spec))
            return spec.json_schema
        if changed:
            schema = model_schema(stored.spec.name, item.remote)
            merged = replace(stored.spec, json_schema=schema)
            changes.update_tool(self._tx, stored, merged, self._subject_id, self._now)
            return schema
        return stored.spec.json_schema

    def _is_free(self, name: str) -> bool:
        return self._tx.get_tool_by_name(name) is None

    def _definition(self, tool_id: str, spec: ToolSpec) -> Tool:
        return Tool(
            id=tool_id,
            organization_id=self._server.organization_id,
            spec=spec,
            revision=1,
            created_at=self._now,
            updated_at=self._now,
            created_by_id=self._subject_id,
            last_updated_by_id=self._subject_id,
        )


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
        pool.listen(self.on_authorization_changed, self.on_tools_changed)

    def first(self, transport: McpTransport, before: McpContact) -> McpContact:
        """Returns the status of a server whose settings are new."""
        if transport.type is TransportType.STDIO and not self._targets.allows_programs:
            message = f"This server does not start programs. {STDIO_TEXT}"
            return replace(before, status=McpServerStatus.DISABLED, message=message)
        return replace(before, status=McpServerStatus.UNKNOWN, message=None)

    async def refresh_first(self, caller: Principal, server: McpServer) -> Refresh:
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
        listing = await self.list_tools(caller, server.id, server.transport, agent, seconds=seconds)
        await self._seed_builtin_tools(caller)
        return await self._store_listing(caller, server.id, listing, key)

    async def list_tools(
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
        seconds, left = seconds or limits.connect_seconds + limits.list_seconds, call_context.remaining()
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
            stored = changes.get_mcp_server(tx, server_id)
            after = replace(stored, contact=replace(stored.contact, status=status, message=error.message))
            tx.mcp.update_server(after)
            return after

        _log.warning("mcp_server_unreachable", mcp_server_id=server_id, cause=error.message)
        return await self._store.write(caller.organization_id, write)

    async def on_tools_changed(self, target: McpTarget, listing: Listing) -> None:
        """Stores the tools of a server that announced that they changed, and were read again."""
        try:
            server = await self._store.read(
                target.organization_id, lambda tx: changes.get_mcp_server(tx, target.server_id)
            )
            caller = Principal(target.organization_id, server.last_updated_by_id)
            await self._store_listing(caller, server.id, listing, None)
        except McpServerNotFound:
            return  # deleted meanwhile

    async def on_authorization_changed(self, target: McpTarget, state: OAuthState) -> None:
        """Stores the tokens of a server that were renewed."""
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
            tx.note_change(target.server_id, self._clock.now())
            return True

        is_stored = await self._store.write(target.organization_id, write)
        _log.info("mcp_tokens_renewed", mcp_server_id=target.server_id, stored=is_stored)

    async def _store_listing(
        self, caller: Principal, server_id: str, listing: Listing, key: RequestKey | None
    ) -> Refresh:
        tools = await asyncio.to_thread(checked, listing.tools)

        def write(tx: ToolTransaction) -> Refresh:
            stored = changes.get_mcp_server(tx, server_id)
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
