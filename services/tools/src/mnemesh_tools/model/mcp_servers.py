"""MCP servers, the changes of their settings, and the authorizations that wait for a user."""

import hashlib
import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from typing import Final
from urllib.parse import urlsplit

from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.text import require_json_object, require_line, require_text
from mnemesh_types.tools import McpServerStatus

from mnemesh_tools.model.mcp_settings import (
    NO_PROGRAM,
    McpOAuth,
    McpProgram,
    McpSecret,
    require_valid_oauth,
    require_valid_program,
    require_valid_secret,
)

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


_HOST_CHANGED: Final = "the URL names another host, port or scheme"
_PROGRAM_CHANGED: Final = "the settings start another program (command, packages, or arguments of an interpreter)"


def merge_transport(stored: McpTransport, changes: McpTransport | None, written: Collection[str]) -> McpTransport:
    """Returns the stored settings with the paths `written` taken from `changes`.

    Args:
        stored: The current settings.
        changes: The settings of the request; None if it has none.
        written: The name of a transport, or paths such as `sse.url`.

    Raises:
        InvalidArgument: A path belongs to another transport than the current one, or removes the transport.
    """
    merged = stored
    for path in written:
        kind, _, name = path.partition(".")
        if not name:
            if changes is None or changes.type.value != kind:
                raise InvalidArgument(f"mcp_server.{kind} is required.", field=f"mcp_server.{kind}")
            merged = changes
            continue
        if merged.type.value != kind:
            raise InvalidArgument(
                f"update_mask names {path}, but the transport of the server is {merged.type.value}.",
                field="update_mask",
            )
        given = changes if changes is not None and changes.type is merged.type else McpTransport(merged.type)
        merged = _with_field(merged, given, name)
    return with_kept_secrets(merged, stored)


def _with_field(transport: McpTransport, given: McpTransport, name: str) -> McpTransport:
    match name:
        case "auth":
            return replace(transport, auth_header=given.auth_header, token=given.token)
        case "headers" | "env":
            return replace(transport, secrets=given.secrets)
        case "url" | "oauth":
            return replace(transport, **{name: getattr(given, name)})
        case _:
            return replace(transport, program=replace(transport.program, **{name: getattr(given.program, name)}))


def with_kept_secrets(transport: McpTransport, stored: McpTransport | None) -> McpTransport:
    """Returns the settings with the stored value of each secret that has none.

    A stored value is sent only to the origin that it was written for: it is not kept if the URL names another one, or
    if the settings start another program.

    Raises:
        InvalidArgument: No value is stored under the name of such a secret, or it must not be kept.
    """
    prefix = f"mcp_server.{transport.type.value}"
    same_kind = stored is not None and (stored.type is TransportType.STDIO) == (transport.type is TransportType.STDIO)
    is_moved = same_kind and stored is not None and stored.origin != transport.origin
    known = {} if stored is None or not same_kind else {(kind, item.key): item for kind, item in stored.all_secrets()}
    # A client that another authorization server knows is another client.
    if known and _issuer(stored) != _issuer(transport):
        known.pop(("oauth.client_secret", ""), None)
    kept: dict[tuple[str, str], McpSecret] = {}
    for kind, secret in transport.all_secrets():
        before = known.get((kind, secret.key))
        found = secret if secret.has_value or before is None else before
        place = f"{prefix}.{kind}.value"
        if not found.has_value:
            name = f"{prefix}.{kind}: {secret.name}" if secret.name else place
            raise InvalidArgument(f"{name} has no value, and none is stored.", field=place)
        if is_moved and before is not None and found.sealed is not None and found.sealed == before.sealed:
            name = f" of {secret.name}" if secret.name else ""
            cause = _PROGRAM_CHANGED if transport.type is TransportType.STDIO else _HOST_CHANGED
            raise InvalidArgument(f"{place}{name} is required again, because {cause}.", field=place)
        kept[kind, secret.key] = replace(found, name=secret.name)
    kind = "env" if transport.type is TransportType.STDIO else "headers"
    return replace(
        transport,
        token=kept.get(("auth.token", "")),
        oauth=_with_kept_session(transport, stored, kept.get(("oauth.client_secret", ""))),
        secrets=tuple(kept[kind, secret.key] for secret in transport.secrets),
    )


def _with_kept_session(
    transport: McpTransport, stored: McpTransport | None, client_secret: McpSecret | None
) -> McpOAuth | None:
    """Returns the OAuth settings; with the stored session if it is that of the same client at the same server."""
    if transport.oauth is None:
        return None
    oauth = replace(transport.oauth, client_secret=client_secret, session=None)
    if stored is None or stored.oauth is None or stored.url != transport.url or stored.oauth.settings != oauth:
        return oauth
    return stored.oauth


def _issuer(transport: McpTransport | None) -> str | None:
    return None if transport is None or transport.oauth is None else transport.oauth.issuer


MAX_AUTHORIZATIONS: Final = 1_000
"""The authorizations of an organization; a further one replaces the oldest."""


class McpAuthorizationStatus(Enum):
    """How far an authorization is."""

    PENDING = "pending"
    """It waits for a person."""
    CLAIMED = "claimed"
    """A process exchanges the code for tokens. A code works once, so no other process tries it."""
    COMPLETED = "completed"
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        """True if the outcome is known."""
        return self in (McpAuthorizationStatus.COMPLETED, McpAuthorizationStatus.FAILED)


@dataclass(frozen=True, slots=True)
class McpAuthorization:
    """The last authorization of a server that has begun. Any process can complete it."""

    server_id: str
    organization_id: str
    subject_id: str
    """Who began it."""
    state_hash: str
    sealed: bytes
    """What the exchange of the code needs, as JSON."""
    created_at: datetime
    expires_at: datetime
    status: McpAuthorizationStatus = McpAuthorizationStatus.PENDING
    message: str | None = None
    """Why it failed, without secrets."""

    def __repr__(self) -> str:
        """Shows no value."""
        return f"McpAuthorization({self.server_id!r}, {self.status.value!r})"


def hash_of_state(state: str) -> str:
    """Returns the hash of an OAuth state. Who knows the state may end the authorization, so it is not stored."""
    return hashlib.sha256(state.encode()).hexdigest()
