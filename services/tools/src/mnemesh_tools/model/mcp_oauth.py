"""OAuth settings of MCP servers, and the session that an authorization leaves."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from typing import Final
from urllib.parse import urlsplit

from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.text import require_line, require_text

from mnemesh_tools.model.mcp_secrets import McpSecret, require_valid_secret

MAX_ID_CHARS: Final = 2_000
MAX_SCOPE_CHARS: Final = 2_000
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


class OAuthGrant(Enum):
    """The way in which mnemesh gets a token."""

    AUTHORIZATION_CODE = "authorization_code"
    CLIENT_CREDENTIALS = "client_credentials"


@dataclass(frozen=True, slots=True)
class OAuthSession:
    """What an authorization leaves: the registration, the tokens and the endpoints of the authorization server."""

    sealed: bytes
    """As JSON."""
    expires_at: datetime | None = None
    """The end of the access token."""

    def __repr__(self) -> str:
        """Shows no value."""
        return "OAuthSession()"


@dataclass(frozen=True, slots=True)
class McpOAuth:
    """The settings. The name of the client secret is empty."""

    grant: OAuthGrant = OAuthGrant.AUTHORIZATION_CODE
    client_id: str | None = None
    client_secret: McpSecret | None = None
    scope: str | None = None
    issuer: str | None = None
    session: OAuthSession | None = None
    """Written by authorizations and refreshes only."""

    @property
    def settings(self) -> McpOAuth:
        """The settings without the session."""
        return replace(self, session=None)


def require_valid_oauth(oauth: McpOAuth, prefix: str) -> None:
    """Checks the settings.

    Raises:
        InvalidArgument: One breaks its rule. The error names its field.
    """
    for name, text, limit in (("client_id", oauth.client_id, MAX_ID_CHARS), ("scope", oauth.scope, MAX_SCOPE_CHARS)):
        if text is not None:
            require_text(text, f"{prefix}.{name}", min_chars=1, max_chars=limit, allow_blank=False)
            require_line(text, f"{prefix}.{name}")
    if oauth.issuer is not None and not _is_http_url(oauth.issuer):
        raise InvalidArgument(f"{prefix}.issuer must be an http or https URL.", field=f"{prefix}.issuer")
    if oauth.client_secret is not None:
        require_valid_secret(oauth.client_secret, f"{prefix}.client_secret")
    needs = oauth.grant is OAuthGrant.CLIENT_CREDENTIALS
    if oauth.client_id is None and (needs or oauth.client_secret is not None):
        raise InvalidArgument(f"{prefix}.client_id is required.", field=f"{prefix}.client_id")
    if needs and oauth.client_secret is None:
        raise InvalidArgument(f"{prefix}.client_secret is required.", field=f"{prefix}.client_secret")
    if oauth.issuer is None and oauth.client_secret is not None:
        raise InvalidArgument(
            f"{prefix}.issuer is required: the secret is sent to no other authorization server.",
            field=f"{prefix}.issuer",
        )


def require_redirect_uri(uri: str) -> str:
    """Returns the redirect URI if a browser can be sent there safely.

    Raises:
        InvalidArgument: It is not an https URL, and not http on a loopback host.
    """
    require_text(uri, "redirect_uri", min_chars=1, max_chars=MAX_ID_CHARS)
    require_line(uri, "redirect_uri")
    try:
        parts = urlsplit(uri)
        is_valid = (
            (parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK))
            and bool(parts.hostname)
            and not parts.fragment
            and parts.username is None
        )
    except ValueError:
        is_valid = False
    if not is_valid:
        raise InvalidArgument(
            "redirect_uri must be an https URL, or an http URL of a loopback host, without a fragment.",
            field="redirect_uri",
        )
    return uri


def _is_http_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and len(text) <= MAX_ID_CHARS
