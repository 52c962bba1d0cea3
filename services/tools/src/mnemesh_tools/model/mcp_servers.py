"""MCP servers: what clients write, what is stored, and the rules of both."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Final
from urllib.parse import urlsplit

from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.text import require_json_object, require_line, require_text

from mnemesh_tools.model.mcp_oauth import McpOAuth, require_valid_oauth
from mnemesh_tools.model.mcp_programs import NO_PROGRAM, McpProgram, require_valid_program
from mnemesh_tools.model.mcp_secrets import McpSecret, require_valid_secret

MAX_NAME_CHARS: Final = 100
MAX_URL_CHARS: Final = 2_000
MAX_SECRETS: Final = 50
MAX_METADATA_CHARS: Final = 20_000
_HEADER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
_RESERVED_HEADERS: Final = frozenset(
    {"connection", "content-length", "host", "transfer-encoding", "upgrade", "mcp-session-id", "x-agent-id"}
)


class TransportType(Enum):
    """The transport of a server, with its settings."""

    STDIO = "stdio"
    SSE = "sse"
    STREAMABLE_HTTP = "streamable_http"


class McpServerStatus(Enum):
    """The result of the last contact."""

    UNKNOWN = "unknown"
    REACHABLE = "reachable"
    UNREACHABLE = "unreachable"
    DISABLED = "disabled"
    UNAUTHORIZED = "unauthorized"


@dataclass(frozen=True, slots=True)
class McpTransport:
    """The settings by which a server is reached."""

    type: TransportType
    url: str = ""
    auth_header: str | None = None
    """The header of the token; None means Authorization."""
    token: McpSecret | None = None
    secrets: tuple[McpSecret, ...] = ()
    """The headers, or the environment of a program."""
    oauth: McpOAuth | None = None
    program: McpProgram = NO_PROGRAM

    def all_secrets(self) -> tuple[tuple[str, McpSecret], ...]:
        """Returns each secret with its field."""
        kind = "env" if self.type is TransportType.STDIO else "headers"
        oauth = None if self.oauth is None else self.oauth.client_secret
        found = (("auth.token", self.token), ("oauth.client_secret", oauth), *((kind, item) for item in self.secrets))
        return tuple((field, secret) for field, secret in found if secret is not None)

    @property
    def origin(self) -> tuple[object, ...]:
        """The scheme, the host and the port of the URL, or the program: secrets go only where they were written for."""
        if self.type is TransportType.STDIO:
            return self.program.identity
        parts = urlsplit(self.url)
        return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


@dataclass(frozen=True, slots=True)
class McpServerSpec:
    """The fields that a client writes."""

    name: str = ""
    transport: McpTransport | None = None
    metadata: str | None = None


@dataclass(frozen=True, slots=True)
class McpContact:
    """The results of contacts."""

    status: McpServerStatus = McpServerStatus.UNKNOWN
    message: str | None = None
    """The cause of a failure, without secrets."""
    contact_at: datetime | None = None
    refresh_at: datetime | None = None
    tool_count: int = 0
    protocol_version: str | None = None


@dataclass(frozen=True, slots=True)
class McpServer:
    """A stored server. Its values are sealed."""

    id: str
    organization_id: str
    name: str
    transport: McpTransport
    metadata: str | None
    contact: McpContact
    revision: int
    created_at: datetime
    updated_at: datetime
    created_by_id: str
    last_updated_by_id: str


class McpServerOrder(Enum):
    """The keys that lists of servers can be sorted by."""

    CREATE_TIME = "created_at"
    UPDATE_TIME = "updated_at"
    NAME = "name"


@dataclass(frozen=True, slots=True)
class McpServerFilter:
    """The conditions of a list; a server must meet all that are set."""

    ids: tuple[str, ...] = ()
    name: str | None = None
    transports: tuple[TransportType, ...] = ()


@dataclass(frozen=True, slots=True)
class McpCaller:
    """The agent on whose behalf a server is contacted."""

    agent_id: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)


def require_valid_name(name: str) -> str:
    """Returns the name of a server if it keeps the rules.

    Raises:
        InvalidArgument: It does not.
    """
    require_text(name, "mcp_server.name", min_chars=1, max_chars=MAX_NAME_CHARS, allow_blank=False)
    return require_line(name, "mcp_server.name")


def require_valid_metadata(metadata: str | None) -> str | None:
    """Returns the metadata if it is a JSON object.

    Raises:
        InvalidArgument: It is not, or is too long.
    """
    if metadata is not None:
        require_text(metadata, "mcp_server.metadata", max_chars=MAX_METADATA_CHARS)
        require_json_object(metadata, "mcp_server.metadata")
    return metadata


def require_valid_transport(transport: McpTransport | None) -> McpTransport:
    """Returns the settings if each keeps its rule.

    Raises:
        InvalidArgument: One does not. The error names its field.
    """
    if transport is None:
        raise InvalidArgument(
            "mcp_server.transport must be set to stdio, sse or streamable_http.", field="mcp_server.transport"
        )
    prefix = f"mcp_server.{transport.type.value}"
    if len(transport.secrets) > MAX_SECRETS:
        kind = "env" if transport.type is TransportType.STDIO else "headers"
        raise InvalidArgument(f"{prefix}.{kind} must have at most {MAX_SECRETS} entries.", field=f"{prefix}.{kind}")
    if transport.type is TransportType.STDIO:
        _require_valid_stdio(transport, prefix)
    else:
        _require_valid_http(transport, prefix)
    return transport


def _require_valid_http(transport: McpTransport, prefix: str) -> None:
    require_text(transport.url, f"{prefix}.url", min_chars=1, max_chars=MAX_URL_CHARS)
    require_line(transport.url, f"{prefix}.url")
    try:
        parts = urlsplit(transport.url)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_valid = False
    if not is_valid:
        raise InvalidArgument(f"{prefix}.url must be an http or https URL.", field=f"{prefix}.url")
    if parts.username is not None or parts.fragment:
        raise InvalidArgument(
            f"{prefix}.url must have no user name, password or fragment. Use auth or headers.", field=f"{prefix}.url"
        )
    if transport.auth_header is not None:
        _require_header(transport.auth_header, f"{prefix}.auth.header")
    if transport.token is not None:
        require_valid_secret(transport.token, f"{prefix}.auth.token")
    elif transport.auth_header is not None:
        raise InvalidArgument(f"{prefix}.auth.token is required.", field=f"{prefix}.auth.token")
    if transport.oauth is not None:
        if transport.token is not None:
            raise InvalidArgument(f"{prefix}.oauth and {prefix}.auth exclude each other.", field=f"{prefix}.oauth")
        require_valid_oauth(transport.oauth, f"{prefix}.oauth")
        if any(secret.key == "authorization" for secret in transport.secrets):
            raise InvalidArgument(
                f"{prefix}.headers must not have Authorization, which oauth sets.", field=f"{prefix}.headers"
            )
    for index, secret in enumerate(transport.secrets):
        _require_header(secret.name, f"{prefix}.headers[{index}].name")
        require_valid_secret(secret, f"{prefix}.headers[{index}]")
    _require_distinct(transport, f"{prefix}.headers")


def _require_valid_stdio(transport: McpTransport, prefix: str) -> None:
    require_valid_program(transport.program, prefix)
    for index, secret in enumerate(transport.secrets):
        if not _VARIABLE.fullmatch(secret.name):
            place = f"{prefix}.env[{index}].name"
            raise InvalidArgument(f"{place} must be the name of an environment variable.", field=place)
        require_valid_secret(secret, f"{prefix}.env[{index}]", is_header=False)
    _require_distinct(transport, f"{prefix}.env")


def _require_distinct(transport: McpTransport, place: str) -> None:
    if len({secret.key for secret in transport.secrets}) < len(transport.secrets):
        raise InvalidArgument(f"{place} must have each name once.", field=place)


def _require_header(name: str, place: str) -> None:
    if not _HEADER.fullmatch(name):
        raise InvalidArgument(f"{place} must be the name of an HTTP header.", field=place)
    if name.lower() in _RESERVED_HEADERS:
        raise InvalidArgument(f"{place}: mnemesh sets the header {name.lower()} itself.", field=place)
