"""The values of MCP servers' settings: sealed when they arrive, opened and filled in for one contact."""

import json
from collections.abc import Mapping
from dataclasses import replace

from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.sealing import SecretBox
from mnemesh_sandbox.redaction import Redactor
from mnemesh_types.tools import McpCaller

from mnemesh_tools.errors import McpTransportDisabled
from mnemesh_tools.mcp_clients.contracts import McpTarget, OAuthAccess, OAuthBegun, OAuthState
from mnemesh_tools.model.mcp_servers import McpTransport, TransportType
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

        oauth = transport.oauth
        if oauth is not None and oauth.client_secret is not None:
            oauth = replace(oauth, client_secret=seal(oauth.client_secret, "oauth"))
        return replace(
            transport,
            token=None if transport.token is None else seal(transport.token, "token"),
            secrets=tuple(seal(secret, _kind(transport)) for secret in transport.secrets),
            oauth=oauth,
        )

    def resealed(self, transport: McpTransport, server_id: str) -> McpTransport:
        """Returns the settings with each value encrypted with the first key. Raises SecretUnreadable."""

        def reseal(secret: McpSecret, kind: str) -> McpSecret:
            if secret.sealed is None:
                return secret
            return replace(secret, sealed=self._box.resealed(secret.sealed, _context(server_id, kind, secret)))

        oauth = transport.oauth
        if oauth is not None and oauth.client_secret is not None:
            oauth = replace(oauth, client_secret=reseal(oauth.client_secret, "oauth"))
        if oauth is not None and oauth.session is not None:
            sealed = self._box.resealed(oauth.session.sealed, _session_context(server_id))
            oauth = replace(oauth, session=replace(oauth.session, sealed=sealed))
        return replace(
            transport,
            token=None if transport.token is None else reseal(transport.token, "token"),
            secrets=tuple(reseal(secret, _kind(transport)) for secret in transport.secrets),
            oauth=oauth,
        )

    def sealed_session(self, state: OAuthState, server_id: str) -> OAuthSession:
        """Returns what an authorization left, sealed. Raises SecretsKeyMissing."""
        return OAuthSession(self._box.seal(state.to_json(), _session_context(server_id)), state.expires_at)

    def sealed_authorization(self, begun: OAuthBegun, server_id: str) -> bytes:
        """Returns what is kept of an authorization that begins, sealed. Raises SecretsKeyMissing."""
        return self._box.seal(begun.to_json(), _authorization_context(server_id))

    def opened_authorization(self, sealed: bytes, server_id: str) -> OAuthBegun:
        """Returns what is kept of an authorization. Raises SecretUnreadable."""
        return OAuthBegun.from_json(self._box.open(sealed, _authorization_context(server_id)))

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
            state = OAuthState.from_json(text)
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


def _kind(transport: McpTransport) -> str:
    return "env" if transport.type is TransportType.STDIO else "headers"


def _session_context(server_id: str) -> str:
    return f"mcp/{server_id}/oauth-session"


def _authorization_context(server_id: str) -> str:
    return f"mcp/{server_id}/authorization"


def _context(server_id: str, kind: str, secret: McpSecret) -> str:
    return f"mcp/{server_id}/{kind}/{secret.key}"
