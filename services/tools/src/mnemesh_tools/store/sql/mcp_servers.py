"""MCP servers and their tools in SQL."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

import sqlalchemy as sa
from mnemesh_kit.errors import RequestIdReused
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.sql.pages import paginate

from mnemesh_tools.model.mcp_authorizations import McpAuthorization
from mnemesh_tools.model.mcp_servers import McpServer, McpServerFilter, McpServerOrder
from mnemesh_tools.model.mcp_tools import McpRun, McpTool, McpToolOrder, SchemaStatus
from mnemesh_tools.model.requirements import PackageSet
from mnemesh_tools.store.sql import mcp_authorizations as authorization_rows
from mnemesh_tools.store.sql.mcp_rows import server_from_row, server_to_row, tool_from_row, tool_to_row
from mnemesh_tools.store.sql.tables import mcp_authorizations, mcp_package_locks, mcp_runs, mcp_servers, mcp_tools

_BATCH = 1_000
"""The number of ids in one statement."""


class SqlMcpTransaction:
    """Implements `McpTransaction`."""

    def __init__(self, conn: sa.Connection, organization_id: str) -> None:
        self._conn = conn
        self._organization_id = organization_id
        self._own_servers = mcp_servers.c.organization_id == organization_id
        self._own_tools = mcp_tools.c.organization_id == organization_id

    def get_server(self, server_id: str) -> McpServer | None:
        """See `McpTransaction.get_server`."""
        return self._get_server(mcp_servers.c.id == server_id)

    def get_server_by_name(self, name: str) -> McpServer | None:
        """See `McpTransaction.get_server_by_name`."""
        return self._get_server(mcp_servers.c.name == name)

    def list_servers(self, filter_: McpServerFilter, order: McpServerOrder, page: PageQuery) -> Page[McpServer]:
        """See `McpTransaction.list_servers`."""
        stmt = sa.select(mcp_servers).where(self._own_servers)
        if filter_.ids:
            stmt = stmt.where(mcp_servers.c.id.in_(filter_.ids))
        if filter_.name is not None:
            stmt = stmt.where(mcp_servers.c.name == filter_.name)
        if filter_.transports:
            stmt = stmt.where(mcp_servers.c.transport.in_([item.value for item in filter_.transports]))
        key = mcp_servers.c[order.value]
        rows = paginate(self._conn, stmt, page, key=key, id=mcp_servers.c.id, scope=self._own_servers)
        return rows.map(server_from_row)

    def insert_server(self, server: McpServer) -> None:
        """See `McpTransaction.insert_server`."""
        self._conn.execute(mcp_servers.insert().values(server_to_row(server)))

    def update_server(self, server: McpServer) -> None:
        """See `McpTransaction.update_server`."""
        stmt = mcp_servers.update().where(self._own_servers, mcp_servers.c.id == server.id)
        self._conn.execute(stmt.values(server_to_row(server)))

    def delete_server(self, server_id: str) -> None:
        """See `McpTransaction.delete_server`."""
        # Tools reference the server with ON DELETE CASCADE.
        self._conn.execute(mcp_servers.delete().where(self._own_servers, mcp_servers.c.id == server_id))

    def get_tool(self, server_id: str, *, tool_id: str | None = None, name: str | None = None) -> McpTool | None:
        """See `McpTransaction.get_tool`."""
        key = mcp_tools.c.id == tool_id if tool_id is not None else mcp_tools.c.name == name
        stmt = sa.select(mcp_tools).where(self._own_tools, mcp_tools.c.server_id == server_id, key)
        row = self._conn.execute(stmt).first()
        return None if row is None else tool_from_row(row)

    def get_tools(self, server_id: str) -> Sequence[McpTool]:
        """See `McpTransaction.get_tools`."""
        stmt = sa.select(mcp_tools).where(self._own_tools, mcp_tools.c.server_id == server_id)
        return [tool_from_row(row) for row in self._conn.execute(stmt.order_by(mcp_tools.c.name))]

    def list_tools(
        self, server_id: str, statuses: Sequence[SchemaStatus], order: McpToolOrder, page: PageQuery
    ) -> Page[McpTool]:
        """See `McpTransaction.list_tools`."""
        scope = sa.and_(self._own_tools, mcp_tools.c.server_id == server_id)
        stmt = sa.select(mcp_tools).where(scope)
        if statuses:
            stmt = stmt.where(mcp_tools.c.status.in_([status.value for status in statuses]))
        key = mcp_tools.c[order.value]
        rows = paginate(self._conn, stmt, page, key=key, id=mcp_tools.c.id, scope=scope)
        return rows.map(tool_from_row)

    def put_tool(self, tool: McpTool) -> None:
        """See `McpTransaction.put_tool`."""
        row = tool_to_row(tool, self._organization_id)
        stmt = mcp_tools.update().where(self._own_tools, mcp_tools.c.id == tool.tool_id)
        if self._conn.execute(stmt.values(row)).rowcount == 0:
            self._conn.execute(mcp_tools.insert().values(row))

    def delete_tools(self, tool_ids: Sequence[str]) -> None:
        """See `McpTransaction.delete_tools`."""
        for start in range(0, len(tool_ids), _BATCH):
            chosen = mcp_tools.c.id.in_(tool_ids[start : start + _BATCH])
            self._conn.execute(mcp_tools.delete().where(self._own_tools, chosen))

    def get_package_lock(self, server_id: str, packages: PackageSet) -> str | None:
        """See `McpTransaction.get_package_lock`."""
        stmt = sa.select(mcp_package_locks.c.lock).where(
            self._locks_of(server_id, packages), mcp_package_locks.c.requirements == packages.key
        )
        return self._conn.execute(stmt).scalar_one_or_none()

    def add_package_lock(self, server_id: str, packages: PackageSet, lock: str) -> str:
        """See `McpTransaction.add_package_lock`."""
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
        """See `McpTransaction.begin_run`."""
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
        return None

    def end_run(self, key: RequestKey, result: bytes) -> None:
        """See `McpTransaction.end_run`."""
        self._conn.execute(mcp_runs.update().where(_of(key)).values(result=result))

    def forget_run(self, key: RequestKey) -> None:
        """See `McpTransaction.forget_run`."""
        self._conn.execute(mcp_runs.delete().where(_of(key)))

    def get_authorization(self, server_id: str) -> McpAuthorization | None:
        """See `McpTransaction.get_authorization`."""
        authorizations = mcp_authorizations.c
        return authorization_rows.find_authorization(
            self._conn,
            authorizations.organization_id == self._organization_id,
            authorizations.server_id == server_id,
        )

    def put_authorization(self, authorization: McpAuthorization, most: int) -> None:
        """See `McpTransaction.put_authorization`."""
        authorization_rows.put_authorization(self._conn, authorization, most)

    def update_authorization(self, authorization: McpAuthorization) -> None:
        """See `McpTransaction.update_authorization`."""
        authorization_rows.update_authorization(self._conn, authorization)

    def _locks_of(self, server_id: str, packages: PackageSet) -> sa.ColumnElement[bool]:
        locks = mcp_package_locks.c
        return sa.and_(
            locks.organization_id == self._organization_id,
            locks.server_id == server_id,
            locks.ecosystem == packages.ecosystem.value,
        )

    def _get_server(self, condition: sa.ColumnElement[bool]) -> McpServer | None:
        row = self._conn.execute(sa.select(mcp_servers).where(self._own_servers, condition)).first()
        return None if row is None else server_from_row(row)


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
