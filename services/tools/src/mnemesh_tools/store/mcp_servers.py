"""The rows of MCP servers, of the tools that they report, and of authorizations and runs."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa
from mnemesh_kit.audit import note_change
from mnemesh_kit.errors import RequestIdReused
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.sql.pages import paginate
from mnemesh_kit.sql.rows import Rows
from mnemesh_types.tools import SchemaStatus

from mnemesh_tools.model.mcp_servers import (
    McpAuthorization,
    McpServer,
    McpServerFilter,
    McpServerOrder,
)
from mnemesh_tools.model.mcp_tools import McpRun, McpTool, McpToolOrder
from mnemesh_tools.model.packages import PackageSet
from mnemesh_tools.store.tables import mcp_authorizations, mcp_package_locks, mcp_runs, mcp_servers, mcp_tools

server_rows: Final = Rows(mcp_servers, McpServer, inline=("contact",), transport="settings")
"""The rows of servers, whose secrets are sealed. The column `transport` has the type of the settings, for lists."""
_TOOLS: Final = Rows(mcp_tools, McpTool, inline=("remote",), tool_id="id")
_AUTHORIZATIONS: Final = Rows(mcp_authorizations, McpAuthorization)


def find_by_state(conn: sa.Connection, state_hash: str) -> McpAuthorization | None:
    """Returns the authorization of any organization with this state, or None."""
    return _find_authorization(conn, mcp_authorizations.c.state_hash == state_hash)


def purge_authorizations(conn: sa.Connection, now: datetime) -> None:
    """Deletes the authorizations that have expired."""
    conn.execute(mcp_authorizations.delete().where(mcp_authorizations.c.expires_at <= now))


def _find_authorization(conn: sa.Connection, *conditions: sa.ColumnElement[bool]) -> McpAuthorization | None:
    row = conn.execute(sa.select(mcp_authorizations).where(*conditions)).first()
    return None if row is None else _AUTHORIZATIONS.from_row(row)


_BATCH = 1_000
"""The number of ids in one statement."""


class McpTransaction:
    """One transaction on the MCP servers of one organization, and on the tools that they report."""

    def __init__(self, conn: sa.Connection, organization_id: str) -> None:
        self._conn = conn
        self._organization_id = organization_id
        self._own_servers = mcp_servers.c.organization_id == organization_id
        self._own_tools = mcp_tools.c.organization_id == organization_id

    def get_server(self, server_id: str) -> McpServer | None:
        """Returns the server with this id, or None."""
        return self._get_server(mcp_servers.c.id == server_id)

    def get_server_by_name(self, name: str) -> McpServer | None:
        """Returns the server with this name, or None."""
        return self._get_server(mcp_servers.c.name == name)

    def list_servers(self, filter_: McpServerFilter, order: McpServerOrder, page: PageQuery) -> Page[McpServer]:
        """Returns a page of the servers that match the filter, sorted by `order` and then by id."""
        stmt = sa.select(mcp_servers).where(self._own_servers)
        if filter_.ids:
            stmt = stmt.where(mcp_servers.c.id.in_(filter_.ids))
        if filter_.name is not None:
            stmt = stmt.where(mcp_servers.c.name == filter_.name)
        if filter_.transports:
            stmt = stmt.where(mcp_servers.c.transport.in_([item.value for item in filter_.transports]))
        key = mcp_servers.c[order.value]
        rows = paginate(self._conn, stmt, page, key=key, id=mcp_servers.c.id, scope=self._own_servers)
        return rows.map(server_rows.from_row)

    def insert_server(self, server: McpServer) -> None:
        """Stores a new server."""
        self._conn.execute(mcp_servers.insert().values(_server_to_row(server)))

    def update_server(self, server: McpServer) -> None:
        """Overwrites the server with the id of `server`, which was read in this transaction."""
        stmt = mcp_servers.update().where(self._own_servers, mcp_servers.c.id == server.id)
        self._conn.execute(stmt.values(_server_to_row(server)))

    def delete_server(self, server_id: str) -> None:
        """Deletes a server and what it reported; the definitions that agents attach are not touched."""
        # Tools reference the server with ON DELETE CASCADE.
        self._conn.execute(mcp_servers.delete().where(self._own_servers, mcp_servers.c.id == server_id))

    def get_tool(self, server_id: str, *, tool_id: str | None = None, name: str | None = None) -> McpTool | None:
        """Returns the tool of a server with this id or this name, or None."""
        key = mcp_tools.c.id == tool_id if tool_id is not None else mcp_tools.c.name == name
        stmt = sa.select(mcp_tools).where(self._own_tools, mcp_tools.c.server_id == server_id, key)
        row = self._conn.execute(stmt).first()
        return None if row is None else _TOOLS.from_row(row)

    def get_tools(self, server_id: str) -> Sequence[McpTool]:
        """Returns all tools of a server, by name."""
        stmt = sa.select(mcp_tools).where(self._own_tools, mcp_tools.c.server_id == server_id)
        return [_TOOLS.from_row(row) for row in self._conn.execute(stmt.order_by(mcp_tools.c.name))]

    def list_tools(
        self, server_id: str, statuses: Sequence[SchemaStatus], order: McpToolOrder, page: PageQuery
    ) -> Page[McpTool]:
        """Returns a page of a server's tools; without statuses, all of them."""
        scope = sa.and_(self._own_tools, mcp_tools.c.server_id == server_id)
        stmt = sa.select(mcp_tools).where(scope)
        if statuses:
            stmt = stmt.where(mcp_tools.c.status.in_([status.value for status in statuses]))
        key = mcp_tools.c[order.value]
        rows = paginate(self._conn, stmt, page, key=key, id=mcp_tools.c.id, scope=scope)
        return rows.map(_TOOLS.from_row)

    def put_tool(self, tool: McpTool) -> None:
        """Stores a tool, or overwrites the one with its id."""
        row = _TOOLS.to_row(tool, organization_id=self._organization_id)
        stmt = mcp_tools.update().where(self._own_tools, mcp_tools.c.id == tool.tool_id)
        if self._conn.execute(stmt.values(row)).rowcount == 0:
            self._conn.execute(mcp_tools.insert().values(row))

    def delete_tools(self, tool_ids: Sequence[str]) -> None:
        for start in range(0, len(tool_ids), _BATCH):
            chosen = mcp_tools.c.id.in_(tool_ids[start : start + _BATCH])
            self._conn.execute(mcp_tools.delete().where(self._own_tools, chosen))

    def get_package_lock(self, server_id: str, packages: PackageSet) -> str | None:
        """Returns the lock of these packages that is stored with a server, or None."""
        stmt = sa.select(mcp_package_locks.c.lock).where(
            self._locks_of(server_id, packages), mcp_package_locks.c.requirements == packages.key
        )
        return self._conn.execute(stmt).scalar_one_or_none()

    def add_package_lock(self, server_id: str, packages: PackageSet, lock: str) -> str:
        """Stores a lock with a server that has none for these packages. It replaces that of other requirements.

        Returns:
            The lock of these packages: one that was stored before, or this one.
        """
        known = self.get_package_lock(server_id, packages)
        if known is not None or self.get_server(server_id) is None:
            return known or lock
        self._conn.execute(mcp_package_locks.delete().where(self._locks_of(server_id, packages)))
        row = {
            "server_id": server_id,
            "ecosystem": packages.ecosystem.value,
            "organization_id": self._organization_id,
            "requirements": packages.key,
            "lock": lock,
        }
        self._conn.execute(mcp_package_locks.insert().values(row))
        return lock

    def begin_run(self, key: RequestKey, at: datetime) -> McpRun | None:
        """Records the beginning of a run, unless the request has begun one before; returns that one.

        Raises:
            RequestIdReused: The request id was used before with other content.
        """
        known = self._conn.execute(sa.select(mcp_runs).where(_of(key))).first()
        if known is not None:
            if known.fingerprint != key.fingerprint:
                raise RequestIdReused(
                    "This request_id was used before with other content. Use a new one.",
                    field="request_id",
                    request_id=key.request_id,
                )
            return McpRun(known.result)
        row = {
            "organization_id": key.organization_id,
            "request_id": key.request_id,
            "fingerprint": key.fingerprint,
            "created_at": at,
        }
        self._conn.execute(mcp_runs.insert().values(row))
        note_change(self._conn, at)
        return None

    def end_run(self, key: RequestKey, result: bytes) -> None:
        """Records the result of a run that has begun."""
        self._conn.execute(mcp_runs.update().where(_of(key)).values(result=result))

    def forget_run(self, key: RequestKey) -> None:
        """Deletes the record of a run that had no effect."""
        self._conn.execute(mcp_runs.delete().where(_of(key)))

    def get_authorization(self, server_id: str) -> McpAuthorization | None:
        """Returns the last authorization of a server that has begun, or None."""
        own, columns = self._organization_id, mcp_authorizations.c
        return _find_authorization(self._conn, columns.organization_id == own, columns.server_id == server_id)

    def put_authorization(self, authorization: McpAuthorization, most: int) -> None:
        """Stores an authorization that begins, instead of that of its server.

        The organization keeps its newest `most`; older ones are deleted.
        """
        columns = mcp_authorizations.c
        self._conn.execute(mcp_authorizations.delete().where(columns.server_id == authorization.server_id))
        own = columns.organization_id == authorization.organization_id
        newest = sa.select(columns.server_id).where(own).order_by(columns.created_at.desc()).limit(most - 1)
        self._conn.execute(mcp_authorizations.delete().where(own, columns.server_id.not_in(newest)))
        self._conn.execute(mcp_authorizations.insert().values(_AUTHORIZATIONS.to_row(authorization)))

    def update_authorization(self, authorization: McpAuthorization) -> None:
        """Overwrites an authorization. Does nothing if another one of its server has begun."""
        columns = mcp_authorizations.c
        same = sa.and_(columns.server_id == authorization.server_id, columns.state_hash == authorization.state_hash)
        self._conn.execute(mcp_authorizations.update().where(same).values(_AUTHORIZATIONS.to_row(authorization)))

    def _locks_of(self, server_id: str, packages: PackageSet) -> sa.ColumnElement[bool]:
        locks = mcp_package_locks.c
        return sa.and_(
            locks.organization_id == self._organization_id,
            locks.server_id == server_id,
            locks.ecosystem == packages.ecosystem.value,
        )

    def _get_server(self, condition: sa.ColumnElement[bool]) -> McpServer | None:
        row = self._conn.execute(sa.select(mcp_servers).where(self._own_servers, condition)).first()
        return None if row is None else server_rows.from_row(row)


def _server_to_row(server: McpServer) -> dict[str, Any]:
    return server_rows.to_row(server, transport=server.transport.type.value)


def existing_servers(conn: sa.Connection, ids: Collection[str]) -> list[str]:
    """Returns those of these ids that belong to servers of any organization."""
    known = list(ids)
    found: list[str] = []
    for start in range(0, len(known), _BATCH):
        stmt = sa.select(mcp_servers.c.id).where(mcp_servers.c.id.in_(known[start : start + _BATCH]))
        found += conn.execute(stmt).scalars().all()
    return found


def purge_runs(conn: sa.Connection, before: datetime) -> int:
    """Deletes the records of runs that began before a time; returns how many."""
    return conn.execute(mcp_runs.delete().where(mcp_runs.c.created_at < before)).rowcount


def _of(key: RequestKey) -> sa.ColumnElement[bool]:
    return sa.and_(mcp_runs.c.organization_id == key.organization_id, mcp_runs.c.request_id == key.request_id)
