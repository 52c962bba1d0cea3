"""The input, the results and the errors of a contact with a server."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from mnemesh_kit.network import IpAddress
from mnemesh_kit.unicode import well_formed
from mnemesh_sandbox.redaction import Redactor
from mnemesh_types.tools import OAuthGrant

from mnemesh_tools.model.mcp_servers import TransportType
from mnemesh_tools.model.mcp_settings import NO_PROGRAM, McpProgram
from mnemesh_tools.model.mcp_tools import McpImage, RemoteTool

MAX_ANSWER_BYTES: Final = 16 * 1024 * 1024
MAX_EVENT_BYTES: Final = 8 * 1024 * 1024

Allowed = Callable[[IpAddress], bool]
"""Decides whether an address may be reached."""


@dataclass(frozen=True, slots=True)
class McpLimits:
    """The longest times of contacts, in seconds."""

    connect_seconds: float = 30.0
    create_seconds: float = 10.0
    """The longest contact with a new server over HTTP; programs may install packages first."""
    list_seconds: float = 30.0
    execute_seconds: float = 60.0
    idle_seconds: float = 300.0
    """After this time without a call, a session is closed."""
    sessions: int = 256
    """The number of open sessions; beyond it, idle ones are closed."""
    authorization_seconds: float = 600.0
    """The longest time in which a person completes an authorization, and in which its outcome can be read."""
    settle_seconds: float = 2.0
    """The time between the notification of a server that its tools changed, and the reading of them."""


@dataclass(frozen=True, slots=True)
class OAuthState:
    """What is kept of an authorization. The parts are JSON texts of the SDK's models."""

    client: str | None = None
    tokens: str | None = None
    metadata: str | None = None
    """Of the authorization server."""
    resource: str | None = None
    """The metadata of the MCP server as a protected resource."""
    authorization_server: str | None = None
    expires_at: datetime | None = None
    """The end of the access token."""

    def __repr__(self) -> str:
        """Shows no value."""
        return "OAuthState()"

    def secrets(self) -> dict[str, str]:
        """Returns the tokens, and the secret of the registration, by name."""
        found = {**json.loads(self.client or "{}"), **json.loads(self.tokens or "{}")}
        names = ("client_secret", "access_token", "refresh_token")
        return {name: found[name] for name in names if isinstance(found.get(name), str)}


@dataclass(frozen=True, slots=True)
class OAuthBegun:
    """What is kept of an authorization that waits for a person. The first parts are those of OAuthState."""

    client: str
    metadata: str | None
    resource: str | None
    authorization_server: str | None
    scope: str | None
    state: str
    verifier: str
    """The secret whose challenge is in the URL for the person."""
    redirect_uri: str
    url: str
    """The MCP server."""

    def __repr__(self) -> str:
        """Shows no value."""
        return "OAuthBegun()"


@dataclass(frozen=True, slots=True)
class OAuthAccess:
    """The OAuth settings of a server."""

    grant: OAuthGrant
    client_id: str | None = None
    client_secret: str | None = None
    scope: str | None = None
    issuer: str | None = None
    state: OAuthState | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        """Shows no value."""
        return f"OAuthAccess({self.grant.value!r})"


@dataclass(frozen=True, slots=True)
class McpTarget:
    """A server with the values of one caller. Equal targets share a session."""

    organization_id: str
    server_id: str
    transport: TransportType
    url: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    oauth: OAuthAccess | None = None
    program: McpProgram = NO_PROGRAM
    environment: tuple[tuple[str, str], ...] = ()
    partition: str = ""
    """Stands for the values of the caller's variables in the settings of a program."""
    is_stored: bool = True
    """False for settings that are only tried."""
    redactor: Redactor = field(default_factory=lambda: Redactor({}), compare=False)
    """Knows the values that no text may contain which the server returns."""

    def __repr__(self) -> str:
        """Shows no value."""
        return f"McpTarget({self.server_id!r}, {self.transport.value!r})"

    def masked(self, text: str) -> str:
        """Returns a well-formed text without the secrets of the target. It must not be cut before."""
        return well_formed(self.redactor.redacted(text))


@dataclass(frozen=True, slots=True)
class Listing:
    """The tools of a server."""

    tools: tuple[RemoteTool, ...]
    protocol_version: str
    problems: tuple[str, ...] = ()
    """Why some of its tools are not among them."""


@dataclass(frozen=True, slots=True)
class RemoteResult:
    """The result of a tool."""

    ok: bool
    content: tuple[str | McpImage, ...]
    structured: dict[str, Any] | None = None


OnAuthorizationChanged = Callable[[McpTarget, OAuthState], Awaitable[None]]
"""Receives the tokens of a server when they were renewed."""
OnToolsChanged = Callable[[McpTarget, Listing], Awaitable[None]]
"""Receives the tools of a server that announced that they changed."""


class McpContactFailed(Exception):
    """The server cannot be reached, or refuses. No tool was run. The message has no secret."""


class McpUnauthorized(McpContactFailed):
    """The server asks for an authorization by a person."""


class McpCallLost(Exception):
    """The connection broke during a call, so its outcome is unknown. The message has no secret."""


class McpCallTimedOut(Exception):
    """A call did not end in time. Its outcome is unknown. The message is the progress that the server reported last."""
