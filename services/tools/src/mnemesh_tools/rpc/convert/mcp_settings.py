"""The programs, OAuth settings and secrets of MCP servers."""

from __future__ import annotations

from typing import Final

from mnemesh.tools.v1 import mcp_servers_pb2 as pb
from mnemesh_kit.time import timestamp_to_proto

from mnemesh_tools.model.mcp_oauth import McpOAuth, OAuthGrant
from mnemesh_tools.model.mcp_programs import McpProgram, ProgramHealth
from mnemesh_tools.model.mcp_secrets import McpSecret
from mnemesh_tools.model.mcp_servers import McpTransport, TransportType
from mnemesh_tools.rpc.convert.fields import (
    enum_from_proto,
    optional_field,
    requirements_from_proto,
    requirements_to_proto,
)

_GRANTS: Final = {
    pb.MCP_AUTHORIZATION_GRANT_UNSPECIFIED: OAuthGrant.AUTHORIZATION_CODE,
    pb.MCP_AUTHORIZATION_GRANT_AUTHORIZATION_CODE: OAuthGrant.AUTHORIZATION_CODE,
    pb.MCP_AUTHORIZATION_GRANT_CLIENT_CREDENTIALS: OAuthGrant.CLIENT_CREDENTIALS,
}
_GRANT_NUMBERS: Final = {grant: number for number, grant in _GRANTS.items() if number}


def mcp_program_from_proto(message: pb.StdioTransport) -> McpTransport:
    """Returns the settings of a program."""
    return McpTransport(
        TransportType.STDIO,
        secrets=tuple(secret_from_proto(value) for value in message.env),
        program=McpProgram(
            message.command,
            tuple(message.args),
            requirements_from_proto(message.pip_requirements),
            requirements_from_proto(message.npm_requirements),
            tuple(message.network_hosts),
            message.persistent_directory,
        ),
    )


def mcp_program_to_proto(transport: McpTransport) -> pb.StdioTransport:
    """Returns the message of a program, without values of secrets."""
    program = transport.program
    return pb.StdioTransport(
        command=program.command,
        args=program.args,
        env=[secret_to_proto(secret) for secret in transport.secrets],
        pip_requirements=requirements_to_proto(program.pip_requirements),
        npm_requirements=requirements_to_proto(program.npm_requirements),
        network_hosts=program.network_hosts,
        persistent_directory=program.persistent_directory,
    )


def program_health_to_proto(health: ProgramHealth) -> pb.McpProgramHealth:
    """Returns the message of the processes of a server."""
    return pb.McpProgramHealth(
        running=health.running,
        starts=health.starts,
        crashes=health.crashes,
        start_time=None if health.started_at is None else timestamp_to_proto(health.started_at),
        stderr=health.stderr,
    )


def oauth_from_proto(message: pb.McpOAuth) -> McpOAuth:
    """Returns the OAuth settings. Raises InvalidArgument if the grant is unknown."""
    has_secret = message.HasField("client_secret")
    return McpOAuth(
        enum_from_proto(_GRANTS, message.grant, "oauth.grant"),
        optional_field(message, "client_id"),
        McpSecret("", optional_field(message.client_secret, "value")) if has_secret else None,
        optional_field(message, "scope"),
        optional_field(message, "issuer"),
    )


def oauth_to_proto(oauth: McpOAuth) -> pb.McpOAuth:
    """Returns the message of the OAuth settings, without the secret and the tokens."""
    session = oauth.session
    return pb.McpOAuth(
        grant=_GRANT_NUMBERS[oauth.grant],
        client_id=oauth.client_id,
        client_secret=None if oauth.client_secret is None else secret_to_proto(oauth.client_secret),
        scope=oauth.scope,
        issuer=oauth.issuer,
        authorized=session is not None,
        expire_time=None if session is None or session.expires_at is None else timestamp_to_proto(session.expires_at),
    )


def secret_from_proto(message: pb.McpSecret) -> McpSecret:
    """Returns a secret of a request."""
    return McpSecret(message.name, optional_field(message, "value"))


def secret_to_proto(secret: McpSecret) -> pb.McpSecret:
    """Returns the message of a secret. Only a value that consists of variables is stored as text."""
    return pb.McpSecret(name=secret.name, value=secret.value, has_value=secret.has_value)
