"""Encrypts the secrets of tools and MCP servers with the first key, while the service is stopped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import sqlalchemy as sa
from mnemesh_kit.sealing import Resealing
from mnemesh_kit.secret_variables import SecretVariable

from mnemesh_tools.model.mcp_servers import McpTransport
from mnemesh_tools.store.sql.mcp_rows import server_from_row, server_to_row
from mnemesh_tools.store.sql.rows import secret_from_json, secret_to_json
from mnemesh_tools.store.sql.tables import mcp_authorizations, mcp_servers, tools


def reseal(
    conn: sa.Connection,
    variables: Callable[[str, Sequence[SecretVariable]], tuple[SecretVariable, ...]],
    transport: Callable[[McpTransport, str], McpTransport],
    authorization: Callable[[bytes, str], bytes],
) -> Resealing:
    """Writes all secrets as these functions return them. Revisions and times do not change.

    Args:
        conn: A write transaction.
        variables: Returns the environment variables of an owner, encrypted with the first key.
        transport: Returns the settings of the MCP server with an id, encrypted with the first key.
        authorization: Returns what is kept of an authorization of that server, encrypted with the first key.
    """
    report = Resealing()
    for row in conn.execute(sa.select(tools.c.id, tools.c.secrets)).all():
        stored = tuple(secret_from_json(*values) for values in row.secrets)
        with report.of_record():
            new = variables(row.id, [secret.stored for secret in stored if secret.stored is not None])
            changed = tuple(replace(secret, stored=one) for secret, one in zip(stored, new, strict=True))
            if changed != stored:
                values = [secret_to_json(secret) for secret in changed]
                conn.execute(tools.update().where(tools.c.id == row.id).values(secrets=values))
                report.records += 1
    for server in map(server_from_row, conn.execute(sa.select(mcp_servers)).all()):
        with report.of_record():
            after = transport(server.transport, server.id)
            if after != server.transport:
                settings = server_to_row(replace(server, transport=after))["settings"]
                conn.execute(mcp_servers.update().where(mcp_servers.c.id == server.id).values(settings=settings))
                report.records += 1
    for row in conn.execute(sa.select(mcp_authorizations.c.server_id, mcp_authorizations.c.sealed)).all():
        with report.of_record():
            sealed = authorization(row.sealed, row.server_id)
            if sealed != row.sealed:
                same = mcp_authorizations.c.server_id == row.server_id
                conn.execute(mcp_authorizations.update().where(same).values(sealed=sealed))
                report.records += 1
    return report
