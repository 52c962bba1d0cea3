"""Identities, and their attachments to agents."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import sqlalchemy as sa
from mnemesh_kit.errors import NotFound
from mnemesh_kit.idempotency import Ledger, RequestKey
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.sql import Database
from mnemesh_kit.sql.pages import matching, paginate
from mnemesh_kit.time import Clock

from mnemesh_orchestrator.errors import IdentifierKeyTaken
from mnemesh_orchestrator.model.agents import LinkKind
from mnemesh_orchestrator.model.identities import Identity, IdentityFilter, IdentityOrder
from mnemesh_orchestrator.store.agent_rows import active, agents_with_link, rewrite
from mnemesh_orchestrator.store.tables import agent_links, identities, request_ledger

_IDENTITY = msgspec.json.Decoder(Identity)
_ENCODE = msgspec.json.Encoder().encode

_c = identities.c


def identity_row(identity: Identity) -> dict[str, Any]:
    return {
        "id": identity.id,
        "organization_id": identity.organization_id,
        # NULL values are never equal, and the key must be unique without a project, too.
        "project_id": identity.provenance.project_id or "",
        "identifier_key": identity.identifier_key,
        "name": identity.name,
        "type": identity.type,
        "document": _ENCODE(identity),
        "created_at": identity.created_at,
        "updated_at": identity.updated_at,
    }


def decode_identity(row: Any) -> Identity:
    return _IDENTITY.decode(row.document)


class IdentityStore:
    """Identities, and their attachments to agents.

    Example:
        >>> identity, is_new = await identities.create(key, identity, [agent.id])
        >>> (await identities.agents(identity.organization_id, identity.id, PageQuery(10, ascending=True))).items
        ('agent-…',)
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._ledger = Ledger(database, request_ledger, clock)

    async def create(
        self, key: RequestKey | None, identity: Identity, agent_ids: Sequence[str], *, merges: bool = False
    ) -> tuple[Identity, bool]:
        """Stores an identity and attaches it to agents. Returns the stored identity, and whether it is new.

        If `merges` is True, an identity with the same key and project keeps its id and creation time, and takes all
        other values.

        Raises:
            IdentifierKeyTaken: An identity with the same key and project exists, and `merges` is False.
        """
        organization_id = identity.organization_id

        def effect(conn: sa.Connection) -> list[str]:
            row = identity_row(identity)
            same = _same_key(row["organization_id"], row["project_id"], row["identifier_key"])
            before = conn.execute(sa.select(identities).where(*same)).first()
            if before is not None and not merges:
                raise IdentifierKeyTaken(identity.identifier_key)
            if before is None:
                conn.execute(identities.insert(), row)
                stored = identity
            else:
                old = decode_identity(before)
                stored = replace(identity, id=old.id, created_at=old.created_at)
                conn.execute(identities.update().where(_c.id == old.id).values(identity_row(stored)))
            for agent_id in agent_ids:
                _attach(conn, stored, agent_id)
            return [stored.id, "" if before is None else "before"]

        def read(conn: sa.Connection, ids: Sequence[str]) -> tuple[Identity, bool]:
            return _find(conn, organization_id, ids[0]), not ids[1]

        return await self._ledger.write_and_read(key, effect, read)

    async def get(self, organization_id: str, identity_id: str) -> Identity:
        """Returns an identity. Raises NotFound."""
        return await self._database.read(lambda conn: _find(conn, organization_id, identity_id))

    async def list(
        self, organization_id: str, filter_: IdentityFilter, order_by: IdentityOrder, page: PageQuery
    ) -> Page[Identity]:
        """Returns a page of identities. Searches ignore case."""
        scope = _c.organization_id == organization_id
        query = sa.select(identities).where(scope, *_conditions(organization_id, filter_))

        def read(conn: sa.Connection) -> Page[Identity]:
            return paginate(conn, query, page, key=_c[order_by], id=_c.id, scope=scope).map(decode_identity)

        return await self._database.read(read)

    async def count(self, organization_id: str, filter_: IdentityFilter) -> int:
        """Returns the number of identities."""
        query = sa.select(sa.func.count()).select_from(identities)
        query = query.where(_c.organization_id == organization_id, *_conditions(organization_id, filter_))
        return await self._database.read(lambda conn: int(conn.execute(query).scalar_one()))

    async def update(
        self,
        key: RequestKey | None,
        organization_id: str,
        identity_id: str,
        change: Callable[[Identity], Identity],
        agent_ids: Sequence[str] | None = None,
    ) -> Identity:
        """Applies a pure function to an identity, stores the result, and returns it.

        With `agent_ids`, the identity is attached to exactly these agents afterwards.

        Raises:
            IdentifierKeyTaken: Another identity of the project has the new key.
        """

        def effect(conn: sa.Connection) -> list[str]:
            old = _find(conn, organization_id, identity_id)
            new = change(old)
            row = identity_row(new)
            same = _same_key(organization_id, row["project_id"], row["identifier_key"])
            if conn.execute(sa.select(_c.id).where(*same, _c.id != identity_id)).first() is not None:
                raise IdentifierKeyTaken(new.identifier_key)
            conn.execute(identities.update().where(_c.id == identity_id).values(row))
            if agent_ids is not None:
                for agent_id in set(agents_with_link(conn, organization_id, LinkKind.IDENTITY, identity_id)) - set(
                    agent_ids
                ):
                    _detach(conn, new, agent_id)
                for agent_id in agent_ids:
                    _attach(conn, new, agent_id)
            return [identity_id]

        return await self._ledger.write_and_read(key, effect, lambda conn, _: _find(conn, organization_id, identity_id))

    async def delete(self, key: RequestKey | None, organization_id: str, identity_id: str) -> None:
        """Deletes an identity and detaches it from its agents. A missing identity is not an error."""

        def effect(conn: sa.Connection) -> tuple[str, ...]:
            row = conn.execute(sa.select(identities).where(*_by_id(organization_id, identity_id))).first()
            if row is not None:
                for agent_id in agents_with_link(conn, organization_id, LinkKind.IDENTITY, identity_id):
                    _detach(conn, decode_identity(row), agent_id)
                conn.execute(identities.delete().where(_c.id == identity_id))
            return ()

        await self._ledger.write_once(key, effect)

    async def attach(self, key: RequestKey | None, organization_id: str, identity_id: str, agent_id: str) -> None:
        """Attaches an identity to an agent. A repeated attachment changes nothing. Raises NotFound."""

        def effect(conn: sa.Connection) -> tuple[str, ...]:
            _attach(conn, _find(conn, organization_id, identity_id), agent_id)
            return ()

        await self._ledger.write_once(key, effect)

    async def detach(self, key: RequestKey | None, organization_id: str, identity_id: str, agent_id: str) -> None:
        """Detaches an identity from an agent. Raises NotFound, also if it is not attached."""

        def effect(conn: sa.Connection) -> tuple[str, ...]:
            identity = _find(conn, organization_id, identity_id)
            if agent_id not in agents_with_link(conn, organization_id, LinkKind.IDENTITY, identity_id):
                raise NotFound(f"The identity is not attached to agent {agent_id}.", resource_id=agent_id)
            _detach(conn, identity, agent_id)
            return ()

        await self._ledger.write_once(key, effect)

    async def is_recorded(self, key: RequestKey | None) -> bool:
        """Returns whether a request was recorded before. Raises RequestIdReused."""
        return await self._ledger.find_recorded(key) is not None

    async def record(self, key: RequestKey | None) -> None:
        """Records a request whose effect was in another service. Raises RequestIdReused."""
        await self._ledger.record(key)

    async def agents(self, organization_id: str, identity_id: str, page: PageQuery) -> Page[str]:
        """Returns a page of the ids of the agents of an identity, ordered by id. Raises NotFound."""
        agent = agent_links.c.agent_id
        scope = sa.and_(
            agent_links.c.organization_id == organization_id,
            agent_links.c.kind == LinkKind.IDENTITY,
            agent_links.c.value == identity_id,
        )

        def read(conn: sa.Connection) -> Page[str]:
            _find(conn, organization_id, identity_id)
            found = paginate(conn, sa.select(agent).where(scope), page, key=agent, id=agent, scope=scope)
            return found.map(lambda row: str(row.agent_id))

        return await self._database.read(read)


def _by_id(organization_id: str, identity_id: str) -> tuple[sa.ColumnElement[bool], ...]:
    return _c.organization_id == organization_id, _c.id == identity_id


def _same_key(organization_id: str, project_id: str, identifier_key: str) -> tuple[sa.ColumnElement[bool], ...]:
    return _c.organization_id == organization_id, _c.project_id == project_id, _c.identifier_key == identifier_key


def _find(conn: sa.Connection, organization_id: str, identity_id: str) -> Identity:
    row = conn.execute(sa.select(identities).where(*_by_id(organization_id, identity_id))).first()
    if row is None:
        raise NotFound(f"There is no identity {identity_id}.", resource_id=identity_id)
    return decode_identity(row)


def _attach(conn: sa.Connection, identity: Identity, agent_id: str) -> None:
    agent = active(conn, identity.organization_id, agent_id)
    if identity.id not in agent.identity_ids:
        rewrite(conn, replace(agent, identity_ids=(*agent.identity_ids, identity.id)))


def _detach(conn: sa.Connection, identity: Identity, agent_id: str) -> None:
    try:
        agent = active(conn, identity.organization_id, agent_id)
    except NotFound:
        return  # the agent is being deleted with its links
    rewrite(conn, replace(agent, identity_ids=tuple(i for i in agent.identity_ids if i != identity.id)))


def _conditions(organization_id: str, filter_: IdentityFilter) -> list[sa.ColumnElement[bool]]:
    conditions = matching(
        (
            (_c.identifier_key, filter_.identifier_key),
            (_c.name, filter_.name),
            (_c.project_id, filter_.project_id),
            (_c.type, filter_.types),
        )
    )
    if filter_.identity_ids is not None:
        conditions.append(_c.id.in_(filter_.identity_ids))
    if filter_.name_search:
        conditions.append(_c.name.icontains(filter_.name_search, autoescape=True))
    if filter_.agent_id is not None:
        attached = sa.select(agent_links.c.value).where(
            agent_links.c.organization_id == organization_id,
            agent_links.c.kind == LinkKind.IDENTITY,
            agent_links.c.agent_id == filter_.agent_id,
        )
        conditions.append(_c.id.in_(attached))
    return conditions
