"""The tool store on SQLite and PostgreSQL."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import sqlalchemy as sa
from mnemesh_kit.clock import Clock
from mnemesh_kit.idempotency import Ledger, RequestKey
from mnemesh_kit.paging import Page, PageQuery, paginate
from mnemesh_kit.sql import Database

from mnemesh_tools.errors import ToolNameTaken, ToolNotFound
from mnemesh_tools.model.tools import Tool, ToolFilter, ToolOrder, ToolSpec, ToolType
from mnemesh_tools.store.sql.rows import row_of, tool_of
from mnemesh_tools.store.sql.tables import furnishings, request_ledger, tool_tags, tools

_Merge = Callable[[ToolSpec], ToolSpec]


class SqlToolStore:
    """See `ToolStore`."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._ledger = Ledger(request_ledger, clock)

    async def create(self, tool: Tool, key: RequestKey | None) -> Tool:
        """See `ToolStore.create`."""

        def transaction(conn: sa.Connection) -> Tool:
            ids, _ = self._ledger.once(conn, key, lambda: (_insert(conn, tool),))
            return _by_id(conn, tool.organization_id, ids[0])

        return await self._database.write(transaction)

    async def upsert(self, tool: Tool, merge: _Merge, key: RequestKey | None) -> tuple[Tool, bool]:
        """See `ToolStore.upsert`."""

        def effect(conn: sa.Connection) -> Sequence[str]:
            found = _one(conn, tool.organization_id, tools.c.name == tool.spec.name)
            if found is None:
                return _insert(conn, tool), "created"
            return _replace(conn, found, merge(found.spec), tool), "updated"

        def transaction(conn: sa.Connection) -> tuple[Tool, bool]:
            (tool_id, how), _ = self._ledger.once(conn, key, lambda: effect(conn))
            return _by_id(conn, tool.organization_id, tool_id), how == "created"

        return await self._database.write(transaction)

    async def furnish(self, organization_id: str, release: str, builtins: Sequence[Tool]) -> None:
        """See `ToolStore.furnish`."""
        known = sa.select(furnishings.c.release).where(furnishings.c.organization_id == organization_id)
        if await self._database.read(lambda conn: conn.execute(known).scalar()) == release:
            return

        def transaction(conn: sa.Connection) -> None:
            before = conn.execute(known).scalar()
            if before == release:
                return
            for tool in builtins:
                found = _one(conn, organization_id, tools.c.name == tool.spec.name)
                if found is None:
                    _insert(conn, tool)
                elif found.spec.type is ToolType.BUILTIN:
                    _replace(conn, found, replace(found.spec, json_schema=tool.spec.json_schema), tool)
            values = {"organization_id": organization_id, "release": release}
            if before is None:
                conn.execute(furnishings.insert().values(values))
            else:
                conn.execute(
                    furnishings.update().where(furnishings.c.organization_id == organization_id).values(values)
                )

        await self._database.write(transaction)

    async def update(self, changed: Tool, merge: _Merge, key: RequestKey | None) -> Tool:
        """See `ToolStore.update`."""

        def effect(conn: sa.Connection) -> Sequence[str]:
            found = _by_id(conn, changed.organization_id, changed.id)
            return (_replace(conn, found, merge(found.spec), changed),)

        def transaction(conn: sa.Connection) -> Tool:
            ids, _ = self._ledger.once(conn, key, lambda: effect(conn))
            return _by_id(conn, changed.organization_id, ids[0])

        return await self._database.write(transaction)

    async def delete(self, organization_id: str, tool_id: str, key: RequestKey | None) -> None:
        """See `ToolStore.delete`."""

        def effect(conn: sa.Connection) -> Sequence[str]:
            mine = sa.and_(tools.c.organization_id == organization_id, tools.c.id == tool_id)
            found = conn.execute(sa.select(tools.c.id).where(mine)).scalar()
            if found is not None:
                conn.execute(tool_tags.delete().where(tool_tags.c.tool_id == found))
                conn.execute(tools.delete().where(mine))
            return ()

        def transaction(conn: sa.Connection) -> None:
            self._ledger.once(conn, key, lambda: effect(conn))

        await self._database.write(transaction)

    async def get(self, organization_id: str, tool_id: str) -> Tool:
        """See `ToolStore.get`."""
        return await self._database.read(lambda conn: _by_id(conn, organization_id, tool_id))

    async def get_by_name(self, organization_id: str, name: str) -> Tool:
        """See `ToolStore.get_by_name`."""
        found = await self._database.read(lambda conn: _one(conn, organization_id, tools.c.name == name))
        if found is None:
            raise ToolNotFound(name)
        return found

    async def get_many(self, organization_id: str, ids: tuple[str, ...], names: tuple[str, ...]) -> tuple[Tool, ...]:
        """See `ToolStore.get_many`."""

        def transaction(conn: sa.Connection) -> tuple[Tool, ...]:
            either = sa.or_(tools.c.id.in_(ids), tools.c.name.in_(names))
            found = conn.execute(sa.select(tools).where(tools.c.organization_id == organization_id, either)).all()
            return _tools_of(conn, found)

        found = await self._database.read(transaction)
        by_id, by_name = {tool.id: tool for tool in found}, {tool.spec.name: tool for tool in found}
        asked = [*(by_id.get(tool_id) for tool_id in ids), *(by_name.get(name) for name in names)]
        return tuple({tool.id: tool for tool in asked if tool is not None}.values())

    async def list(self, organization_id: str, where: ToolFilter, order: ToolOrder, query: PageQuery) -> Page[Tool]:
        """See `ToolStore.list`."""
        scope = tools.c.organization_id == organization_id
        stmt = sa.select(tools).where(scope, *_conditions(organization_id, where))

        def transaction(conn: sa.Connection) -> Page[Tool]:
            page = paginate(conn, stmt, query, key=tools.c[order.value], id=tools.c.id, scope=scope)
            return Page(_tools_of(conn, page.items), page.next_cursor)

        return await self._database.read(transaction)

    async def count(self, organization_id: str, where: ToolFilter) -> int:
        """See `ToolStore.count`."""
        stmt = (
            sa.select(sa.func.count())
            .select_from(tools)
            .where(tools.c.organization_id == organization_id, *_conditions(organization_id, where))
        )
        return await self._database.read(lambda conn: conn.execute(stmt).scalar_one())

    async def purge_requests(self) -> int:
        """See `ToolStore.purge_requests`."""
        return await self._database.write(self._ledger.purge)


def _insert(conn: sa.Connection, tool: Tool) -> str:
    _require_free(conn, tool.organization_id, tool.spec.name, tool.id)
    conn.execute(tools.insert().values(row_of(tool)))
    _write_tags(conn, tool)
    return tool.id


def _replace(conn: sa.Connection, found: Tool, spec: ToolSpec, change: Tool) -> str:
    """Writes `spec` over a stored tool; who and when come from `change`."""
    if spec == found.spec:
        return found.id
    _require_free(conn, found.organization_id, spec.name, found.id)
    tool = replace(
        found,
        spec=spec,
        revision=found.revision + 1,
        updated_at=change.updated_at,
        last_updated_by_id=change.last_updated_by_id,
    )
    conn.execute(tools.update().where(tools.c.id == tool.id).values(row_of(tool)))
    conn.execute(tool_tags.delete().where(tool_tags.c.tool_id == tool.id))
    _write_tags(conn, tool)
    return tool.id


def _write_tags(conn: sa.Connection, tool: Tool) -> None:
    if tool.spec.tags:
        rows = [
            {"tool_id": tool.id, "organization_id": tool.organization_id, "position": position, "tag": tag}
            for position, tag in enumerate(tool.spec.tags)
        ]
        conn.execute(tool_tags.insert(), rows)


def _require_free(conn: sa.Connection, organization_id: str, name: str, but: str) -> None:
    holder = sa.select(tools.c.id).where(tools.c.organization_id == organization_id, tools.c.name == name)
    if conn.execute(holder.where(tools.c.id != but)).first() is not None:
        raise ToolNameTaken(name)


def _by_id(conn: sa.Connection, organization_id: str, tool_id: str) -> Tool:
    found = _one(conn, organization_id, tools.c.id == tool_id)
    if found is None:
        raise ToolNotFound(tool_id)
    return found


def _one(conn: sa.Connection, organization_id: str, condition: sa.ColumnElement[bool]) -> Tool | None:
    row = conn.execute(sa.select(tools).where(tools.c.organization_id == organization_id, condition)).first()
    return None if row is None else _tools_of(conn, (row,))[0]


def _tools_of(conn: sa.Connection, rows: Iterable[sa.Row[Any]]) -> tuple[Tool, ...]:
    rows = tuple(rows)
    tags: dict[str, list[str]] = defaultdict(list)
    ids = [row.id for row in rows]
    stmt = sa.select(tool_tags.c.tool_id, tool_tags.c.tag).where(tool_tags.c.tool_id.in_(ids))
    for tool_id, tag in conn.execute(stmt.order_by(tool_tags.c.position)) if ids else ():
        tags[tool_id].append(tag)
    return tuple(tool_of(row, tuple(tags[row.id])) for row in rows)


def _conditions(organization_id: str, where: ToolFilter) -> list[sa.ColumnElement[bool]]:
    found: list[sa.ColumnElement[bool]] = []
    if where.tool_ids:
        found.append(tools.c.id.in_(where.tool_ids))
    if where.names:
        found.append(tools.c.name.in_(where.names))
    if where.types:
        found.append(tools.c.type.in_([item.value for item in where.types]))
    if where.exclude_types:
        found.append(tools.c.type.not_in([item.value for item in where.exclude_types]))
    if where.text_search:
        found.append(tools.c.search_text.contains(where.text_search.casefold(), autoescape=True))
    if where.tags_any:
        tagged = sa.select(tool_tags.c.tool_id).where(
            tool_tags.c.organization_id == organization_id, tool_tags.c.tag.in_(where.tags_any)
        )
        found.append(tools.c.id.in_(tagged))
    if where.mcp_server_id is not None:
        found.append(tools.c.mcp_server_id == where.mcp_server_id)
    return found
