"""The rows of authorizations of MCP servers that have begun."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa

from mnemesh_tools.model.mcp_authorizations import McpAuthorization, McpAuthorizationStatus
from mnemesh_tools.store.sql.tables import mcp_authorizations

_columns = mcp_authorizations.c


def find_authorization(conn: sa.Connection, *conditions: sa.ColumnElement[bool]) -> McpAuthorization | None:
    """Returns the authorization that meets these conditions, or None."""
    row = conn.execute(sa.select(mcp_authorizations).where(*conditions)).first()
    return None if row is None else _from_row(row)


def find_by_state(conn: sa.Connection, state_hash: str) -> McpAuthorization | None:
    """Returns the authorization of any organization with this state, or None."""
    return find_authorization(conn, _columns.state_hash == state_hash)


def put_authorization(conn: sa.Connection, authorization: McpAuthorization, most: int) -> None:
    """Stores an authorization instead of that of its server, and keeps the newest `most` of its organization."""
    conn.execute(mcp_authorizations.delete().where(_columns.server_id == authorization.server_id))
    own = _columns.organization_id == authorization.organization_id
    newest = sa.select(_columns.server_id).where(own).order_by(_columns.created_at.desc()).limit(most - 1)
    conn.execute(mcp_authorizations.delete().where(own, _columns.server_id.not_in(newest)))
    conn.execute(mcp_authorizations.insert().values(_to_row(authorization)))


def update_authorization(conn: sa.Connection, authorization: McpAuthorization) -> None:
    """Overwrites an authorization, unless another one of its server has begun."""
    same = sa.and_(_columns.server_id == authorization.server_id, _columns.state_hash == authorization.state_hash)
    conn.execute(mcp_authorizations.update().where(same).values(_to_row(authorization)))


def purge_authorizations(conn: sa.Connection, now: datetime) -> None:
    """Deletes the authorizations that have expired."""
    conn.execute(mcp_authorizations.delete().where(_columns.expires_at <= now))


def _to_row(authorization: McpAuthorization) -> dict[str, Any]:
    return {
        "server_id": authorization.server_id,
        "organization_id": authorization.organization_id,
        "subject_id": authorization.subject_id,
        "state_hash": authorization.state_hash,
        "sealed": authorization.sealed,
        "status": authorization.status.value,
        "message": authorization.message,
        "created_at": authorization.created_at,
        "expires_at": authorization.expires_at,
    }


def _from_row(row: sa.Row[Any]) -> McpAuthorization:
    return McpAuthorization(
        server_id=row.server_id,
        organization_id=row.organization_id,
        subject_id=row.subject_id,
        state_hash=row.state_hash,
        sealed=row.sealed,
        created_at=row.created_at,
        expires_at=row.expires_at,
        status=McpAuthorizationStatus(row.status),
        message=row.message,
    )
