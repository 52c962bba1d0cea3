"""The store of tools: `ToolStore` runs units of work, and `ToolTransaction` is what each works on.

Example:
    ```python
    def rename(tx: ToolTransaction) -> None:
        tool = tx.get_tool_by_name("roll")
        if tool is not None:
            tx.update_tool(replace(tool, spec=replace(tool.spec, name="toss"), revision=tool.revision + 1))

    await store.write(organization_id, rename)
    ```
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeVar

import msgspec
import sqlalchemy as sa
from mnemesh_kit.audit import note_change
from mnemesh_kit.idempotency import RETENTION, Ledger, RequestKey
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.secret_variables import Resealing, SecretVariable
from mnemesh_kit.sql import Database
from mnemesh_kit.sql.pages import paginate
from mnemesh_kit.time import Clock
from mnemesh_types.tools import ToolFilter

from mnemesh_tools.model.mcp_servers import McpAuthorization, McpTransport
from mnemesh_tools.model.tools import Tool, ToolOrder, ToolSecret, ToolSpec
from mnemesh_tools.store.mcp_servers import (
    McpTransaction,
    existing_servers,
    find_by_state,
    purge_authorizations,
    purge_runs,
    server_rows,
)
from mnemesh_tools.store.tables import (
    builtin_releases,
    mcp_authorizations,
    mcp_servers,
    request_ledger,
    tool_from_row,
    tool_tags,
    tool_to_row,
    tools,
)

T = TypeVar("T")
_BATCH = 1_000
"""The number of ids in one statement."""
_IN_ORGANIZATION = tools.c.organization_id == sa.bindparam("organization")
_BY_ID = sa.select(tools).where(_IN_ORGANIZATION, tools.c.id == sa.bindparam("value"))
_BY_NAME = sa.select(tools).where(_IN_ORGANIZATION, tools.c.name == sa.bindparam("value"))
_TAGS = sa.select(tool_tags.c.tag).where(tool_tags.c.tool_id == sa.bindparam("tool")).order_by(tool_tags.c.position)


def conditions(organization_id: str, filter_: ToolFilter) -> Iterator[sa.ColumnElement[bool]]:
    """Returns the conditions on a row of `tools`. The caller adds the one on the organization."""
    if filter_.tool_ids:
        yield tools.c.id.in_(filter_.tool_ids)
    if filter_.names:
        yield tools.c.name.in_(filter_.names)
    if filter_.types:
        yield tools.c.type.in_([item.value for item in filter_.types])
    if filter_.exclude_types:
        yield tools.c.type.not_in([item.value for item in filter_.exclude_types])
    if filter_.text_search:
        yield tools.c.search_text.contains(filter_.text_search.casefold(), autoescape=True)
    if filter_.tags_any:
        tagged = sa.select(tool_tags.c.tool_id).where(
            tool_tags.c.organization_id == organization_id, tool_tags.c.tag.in_(filter_.tags_any)
        )
        yield tools.c.id.in_(tagged)
    if filter_.mcp_server_id is not None:
        yield tools.c.mcp_server_id == filter_.mcp_server_id


class ToolStore:
    """A transactional store of tools.

    Transactions are serializable: everything that a unit of work has read is still true when it commits. The store
    repeats a unit of work that conflicts with another one, so the work must have no effect outside its transaction.
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._ledger = Ledger(database, request_ledger, clock)

    async def read(self, organization_id: str, work: "Callable[[ToolTransaction], T]") -> T:
        """Runs `work` on one consistent snapshot and returns its result."""
        return await self._database.read(lambda conn: work(ToolTransaction(conn, organization_id)))

    async def write(self, organization_id: str, work: "Callable[[ToolTransaction], T]") -> T:
        """Runs `work` in a transaction and returns its result. An exception rolls the transaction back."""
        return await self._database.write(lambda conn: work(ToolTransaction(conn, organization_id)))

    async def write_once(
        self,
        organization_id: str,
        key: RequestKey | None,
        work: "Callable[[ToolTransaction], T]",
        *,
        result_ids: Callable[[T], Sequence[str]],
        replay: "Callable[[ToolTransaction, Sequence[str]], T]",
    ) -> T:
        """Runs `work` like `write`, unless the request has taken effect before.

        Args:
            organization_id: The organization of the tools.
            key: The idempotency key of the request; None always runs `work`.
            work: The effect, which returns the result of the request.
            result_ids: Returns the strings to record for a result.
            replay: Returns the result of a repeated request from the recorded strings.

        Raises:
            RequestIdReused: The request id was used before with other content.
        """

        def transaction(conn: sa.Connection) -> T:
            tx = ToolTransaction(conn, organization_id)
            results: list[T] = []

            def effect() -> Sequence[str]:
                results.append(work(tx))
                return result_ids(results[0])

            recorded, replayed = self._ledger.once(conn, key, effect)
            return replay(tx, recorded) if replayed else results[0]

        return await self._database.write(transaction, name="tools.write_once")

    async def find_existing_mcp_servers(self, ids: Collection[str]) -> Collection[str]:
        """Returns those of these ids that belong to MCP servers, of any organization."""
        return await self._database.read(lambda conn: existing_servers(conn, ids))

    async def find_mcp_authorization(self, state_hash: str) -> McpAuthorization | None:
        """Returns the authorization of any organization with this hash of its state, or None."""
        return await self._database.read(lambda conn: find_by_state(conn, state_hash))

    async def note_execution(self) -> None:
        """Adds the entry of a client's call that executes something to the audit log, before it is executed."""
        await self._ledger.record(None)

    async def find_recorded(self, key: RequestKey | None) -> Sequence[str] | None:
        """Returns the recorded strings of a request that has taken effect; None for another one.

        Raises:
            RequestIdReused: The request id was used before with other content.
        """
        return await self._ledger.find_recorded(key)

    async def purge_ledger(self) -> int:
        """Deletes idempotency keys that are older than a day, and expired authorizations; returns how many keys."""
        horizon = self._clock.now() - RETENTION

        def purge(conn: sa.Connection) -> int:
            purge_authorizations(conn, self._clock.now())
            return self._ledger.purge(conn) + purge_runs(conn, horizon)

        return await self._database.write(purge)


class ToolTransaction:
    """One transaction on the tools of one organization. Rows of other organizations are not visible in it.

    Names are unique within an organization. Callers check that a name is free before they write it.
    """

    def __init__(self, conn: sa.Connection, organization_id: str) -> None:
        self._conn = conn
        self._organization_id = organization_id
        self._in_organization = tools.c.organization_id == organization_id
        self._mcp = McpTransaction(conn, organization_id)

    @property
    def mcp(self) -> McpTransaction:
        """The MCP servers of the organization, in the same transaction."""
        return self._mcp

    def note_change(self, resource_id: str, now: datetime) -> None:
        """Adds the entry of an audited call to the transaction; see `mnemesh_kit.audit`."""
        note_change(self._conn, now, [resource_id])

    def get_tool(self, tool_id: str) -> Tool | None:
        """Returns the tool with this id, or None."""
        return self._get_tool(_BY_ID, tool_id)

    def get_tool_by_name(self, name: str) -> Tool | None:
        """Returns the tool with this name, or None."""
        return self._get_tool(_BY_NAME, name)

    def get_tools(self, ids: Sequence[str], names: Sequence[str]) -> Sequence[Tool]:
        """Returns the tools with these ids, then those with these names, each once; unknown ones are left out."""
        either = sa.or_(tools.c.id.in_(ids), tools.c.name.in_(names))
        found = self._with_tags(self._conn.execute(sa.select(tools).where(self._in_organization, either)).all())
        by_id, by_name = {tool.id: tool for tool in found}, {tool.spec.name: tool for tool in found}
        requested = [*(by_id.get(tool_id) for tool_id in ids), *(by_name.get(name) for name in names)]
        return tuple({tool.id: tool for tool in requested if tool is not None}.values())

    def list_tools(self, filter_: ToolFilter, order: ToolOrder, page: PageQuery) -> Page[Tool]:
        """Returns a page of the tools that match the filter, sorted by `order` and then by id."""
        stmt = sa.select(tools).where(self._in_organization, *conditions(self._organization_id, filter_))
        key = tools.c[order.value]
        rows = paginate(self._conn, stmt, page, key=key, id=tools.c.id, scope=self._in_organization)
        return rows.with_items(self._with_tags(rows.items))

    def find_tools(self, filter_: ToolFilter, order: ToolOrder) -> Sequence[Tool]:
        """Returns all tools that match the filter, in descending order."""
        stmt = sa.select(tools).where(self._in_organization, *conditions(self._organization_id, filter_))
        key = tools.c[order.value]
        return self._with_tags(self._conn.execute(stmt.order_by(key.desc(), tools.c.id.desc())).all())

    def count_tools(self, filter_: ToolFilter) -> int:
        """Returns the number of tools that match the filter."""
        count = sa.select(sa.func.count()).select_from(tools)
        stmt = count.where(self._in_organization, *conditions(self._organization_id, filter_))
        return int(self._conn.execute(stmt).scalar_one())

    def insert_tools(self, *new: Tool) -> None:
        """Stores new tools."""
        if new:
            self._conn.execute(tools.insert(), [tool_to_row(tool) for tool in new])
            self._insert_tags(*new)

    def update_tool(self, tool: Tool) -> None:
        """Overwrites the tool with the id of `tool`, which was read in this transaction."""
        self._conn.execute(tools.update().where(self._in_organization, tools.c.id == tool.id).values(tool_to_row(tool)))
        self._conn.execute(tool_tags.delete().where(tool_tags.c.tool_id == tool.id))
        self._insert_tags(tool)

    def add_package_lock(self, tool_id: str, spec: ToolSpec, lock: str) -> str:
        """Stores the lock of a tool that still has these requirements and no lock. The tool keeps its revision.

        Returns:
            The lock of these requirements: one that was stored before, or this one.
        """
        stored = self.get_tool(tool_id)
        if stored is None or stored.spec.packages_key != spec.packages_key:
            return lock
        if stored.package_lock is not None:
            return stored.package_lock
        stmt = tools.update().where(self._in_organization, tools.c.id == tool_id)
        self._conn.execute(stmt.values(package_lock=lock))
        return lock

    def delete_tool(self, tool_id: str) -> bool:
        """Deletes a tool; returns False if there is none."""
        # Tags reference the tool with ON DELETE CASCADE.
        return self._conn.execute(tools.delete().where(self._in_organization, tools.c.id == tool_id)).rowcount == 1

    def get_builtin_release(self) -> str | None:
        """Returns the release whose built-in tools the organization has, or None before the first."""
        condition = builtin_releases.c.organization_id == self._organization_id
        return self._conn.execute(sa.select(builtin_releases.c.release).where(condition)).scalar_one_or_none()

    def set_builtin_release(self, release: str) -> None:
        """Records the release whose built-in tools the organization has."""
        condition = builtin_releases.c.organization_id == self._organization_id
        if self._conn.execute(builtin_releases.update().where(condition).values(release=release)).rowcount == 0:
            values = {"organization_id": self._organization_id, "release": release}
            self._conn.execute(builtin_releases.insert().values(values))

    def _get_tool(self, statement: sa.Select[Any], value: str) -> Tool | None:
        row = self._conn.execute(statement, {"organization": self._organization_id, "value": value}).first()
        return None if row is None else tool_from_row(row, tuple(self._conn.scalars(_TAGS, {"tool": row.id})))

    def _with_tags(self, rows: Iterable[sa.Row[Any]]) -> tuple[Tool, ...]:
        rows = tuple(rows)
        tags: dict[str, list[str]] = defaultdict(list)
        ids = [row.id for row in rows]
        for start in range(0, len(ids), _BATCH):
            chosen = tool_tags.c.tool_id.in_(ids[start : start + _BATCH])
            stmt = sa.select(tool_tags.c.tool_id, tool_tags.c.tag).where(chosen)
            for tool_id, tag in self._conn.execute(stmt.order_by(tool_tags.c.position)):
                tags[tool_id].append(tag)
        return tuple(tool_from_row(row, tuple(tags[row.id])) for row in rows)

    def _insert_tags(self, *written: Tool) -> None:
        rows = [
            {"tool_id": tool.id, "organization_id": tool.organization_id, "position": position, "tag": tag}
            for tool in written
            for position, tag in enumerate(tool.spec.tags)
        ]
        if rows:
            self._conn.execute(tool_tags.insert(), rows)


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
        stored = msgspec.json.decode(row.secrets, type=tuple[ToolSecret, ...])
        with report.of_record():
            new = variables(row.id, [secret.stored for secret in stored if secret.stored is not None])
            changed = tuple(replace(secret, stored=one) for secret, one in zip(stored, new, strict=True))
            if changed != stored:
                values = msgspec.json.encode(changed).decode()
                conn.execute(tools.update().where(tools.c.id == row.id).values(secrets=values))
                report.records += 1
    for server in map(server_rows.from_row, conn.execute(sa.select(mcp_servers)).all()):
        with report.of_record():
            after = transport(server.transport, server.id)
            if after != server.transport:
                settings = server_rows.to_row(replace(server, transport=after))["settings"]
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
