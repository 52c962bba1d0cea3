"""Updates of the settings of MCP servers: what an update mask names, and which stored secrets are kept."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Final

from mnemesh_kit.errors import InvalidArgument

from mnemesh_tools.model.mcp_oauth import McpOAuth
from mnemesh_tools.model.mcp_secrets import McpSecret
from mnemesh_tools.model.mcp_servers import McpTransport, TransportType

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
