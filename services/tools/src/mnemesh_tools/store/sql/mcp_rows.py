"""Conversions between the rows of MCP servers and domain values."""

from __future__ import annotations

import base64
from datetime import datetime
from typing import Any

import msgspec
import sqlalchemy as sa

from mnemesh_tools.model.mcp_oauth import McpOAuth, OAuthGrant, OAuthSession
from mnemesh_tools.model.mcp_programs import McpProgram
from mnemesh_tools.model.mcp_secrets import McpSecret
from mnemesh_tools.model.mcp_servers import McpContact, McpServer, McpServerStatus, McpTransport, TransportType
from mnemesh_tools.model.mcp_tools import McpTool, RemoteTool, SchemaStatus
from mnemesh_tools.model.tools import Requirement, ToolSpec


def server_to_row(server: McpServer) -> dict[str, Any]:
    """Returns the column values of a server, whose secrets are sealed."""
    transport, contact = server.transport, server.contact
    return {
        "id": server.id,
        "organization_id": server.organization_id,
        "name": server.name,
        "transport": transport.type.value,
        "settings": {
            "url": transport.url,
            "auth_header": transport.auth_header,
            "token": None if transport.token is None else _secret_to_json(transport.token),
            "secrets": [_secret_to_json(secret) for secret in transport.secrets],
            "oauth": None if transport.oauth is None else _oauth_to_json(transport.oauth),
            **_program_to_json(transport.program),
        },
        "metadata_json": server.metadata,
        "status": contact.status.value,
        "status_message": contact.message,
        "contact_at": contact.contact_at,
        "refresh_at": contact.refresh_at,
        "tool_count": contact.tool_count,
        "protocol_version": contact.protocol_version,
        "revision": server.revision,
        "created_at": server.created_at,
        "updated_at": server.updated_at,
        "created_by_id": server.created_by_id,
        "last_updated_by_id": server.last_updated_by_id,
    }


def server_from_row(row: sa.Row[Any]) -> McpServer:
    """Returns the server of a row."""
    settings = row.settings
    return McpServer(
        id=row.id,
        organization_id=row.organization_id,
        name=row.name,
        transport=McpTransport(
            type=TransportType(row.transport),
            url=settings["url"],
            auth_header=settings["auth_header"],
            token=None if settings["token"] is None else _secret_from_json(settings["token"]),
            secrets=tuple(_secret_from_json(value) for value in settings["secrets"]),
            oauth=_oauth_from_json(settings.get("oauth")),
            program=_program_from_json(settings),
        ),
        metadata=row._mapping["metadata_json"],
        contact=McpContact(
            status=McpServerStatus(row.status),
            message=row.status_message,
            contact_at=row.contact_at,
            refresh_at=row.refresh_at,
            tool_count=row.tool_count,
            protocol_version=row.protocol_version,
        ),
        revision=row.revision,
        created_at=row.created_at,
        updated_at=row.updated_at,
        created_by_id=row.created_by_id,
        last_updated_by_id=row.last_updated_by_id,
    )


def tool_to_row(tool: McpTool, organization_id: str) -> dict[str, Any]:
    """Returns the column values of a tool."""
    remote = tool.remote
    return {
        "id": tool.tool_id,
        "organization_id": organization_id,
        "server_id": tool.server_id,
        "name": remote.name,
        "description": remote.description,
        "input_schema": remote.input_schema,
        "output_schema": remote.output_schema,
        "annotations": remote.annotations,
        "json_schema": tool.json_schema,
        "status": tool.status.value,
        "reasons": list(tool.reasons),
        "owner_settings": None if tool.owner_settings is None else msgspec.json.encode(tool.owner_settings).decode(),
        "created_at": tool.created_at,
        "updated_at": tool.updated_at,
    }


def tool_from_row(row: sa.Row[Any]) -> McpTool:
    """Returns the tool of a row."""
    return McpTool(
        tool_id=row.id,
        server_id=row.server_id,
        remote=RemoteTool(row.name, row.description, row.input_schema, row.output_schema, row.annotations),
        json_schema=row.json_schema,
        status=SchemaStatus(row.status),
        reasons=tuple(row.reasons),
        owner_settings=None if row.owner_settings is None else msgspec.json.decode(row.owner_settings, type=ToolSpec),
        created_at=row.created_at,
        updated_at=row.updated_at,
    )


def _secret_to_json(secret: McpSecret) -> dict[str, str | None]:
    sealed = None if secret.sealed is None else base64.b64encode(secret.sealed).decode()
    return {"name": secret.name, "value": secret.value, "sealed": sealed}


def _secret_from_json(value: dict[str, Any]) -> McpSecret:
    sealed = value["sealed"]
    return McpSecret(value["name"], value["value"], None if sealed is None else base64.b64decode(sealed))


def _program_to_json(program: McpProgram) -> dict[str, Any]:
    return {
        "command": program.command,
        "args": list(program.args),
        "pip_requirements": [[item.name, item.version] for item in program.pip_requirements],
        "npm_requirements": [[item.name, item.version] for item in program.npm_requirements],
        "network_hosts": list(program.network_hosts),
        "persistent_directory": program.persistent_directory,
    }


def _program_from_json(settings: dict[str, Any]) -> McpProgram:
    return McpProgram(
        settings["command"],
        tuple(settings["args"]),
        tuple(Requirement(name, version) for name, version in settings["pip_requirements"]),
        tuple(Requirement(name, version) for name, version in settings["npm_requirements"]),
        tuple(settings["network_hosts"]),
        settings["persistent_directory"],
    )


def _oauth_to_json(oauth: McpOAuth) -> dict[str, Any]:
    session = oauth.session
    return {
        "grant": oauth.grant.value,
        "client_id": oauth.client_id,
        "client_secret": None if oauth.client_secret is None else _secret_to_json(oauth.client_secret),
        "scope": oauth.scope,
        "issuer": oauth.issuer,
        "session": None if session is None else base64.b64encode(session.sealed).decode(),
        "expires_at": None if session is None or session.expires_at is None else session.expires_at.isoformat(),
    }


def _oauth_from_json(value: dict[str, Any] | None) -> McpOAuth | None:
    if value is None:
        return None
    expires_at = None if value["expires_at"] is None else datetime.fromisoformat(value["expires_at"])
    session = None if value["session"] is None else OAuthSession(base64.b64decode(value["session"]), expires_at)
    secret = None if value["client_secret"] is None else _secret_from_json(value["client_secret"])
    return McpOAuth(OAuthGrant(value["grant"]), value["client_id"], secret, value["scope"], value["issuer"], session)
