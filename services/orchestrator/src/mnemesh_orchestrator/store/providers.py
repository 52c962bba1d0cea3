"""Providers, and overrides of models."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from mnemesh_kit.idempotency import Ledger, RequestKey
from mnemesh_kit.secret_variables import Resealing, SecretVariable
from mnemesh_kit.sql import Database
from mnemesh_kit.sql.prepared import Prepared
from mnemesh_kit.time import Clock

from mnemesh_orchestrator.errors import ProviderNameTaken, ProviderNotFound
from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.model.models import ModelOverride, OwnModels, ProviderRecord, SealedCredentials
from mnemesh_orchestrator.store.tables import agents, model_overrides, model_revisions, providers, request_ledger

_ENCODE = msgspec.json.Encoder().encode
_RECORD = msgspec.json.Decoder(ProviderRecord)
_OVERRIDE = msgspec.json.Decoder(ModelOverride)

_AGENT = msgspec.json.Decoder(Agent)
_PROVIDER = msgspec.json.Decoder(ProviderRecord)
_REVISIONS: Final = Prepared(sa.select(model_revisions))
"""Prepared, as it is executed every two seconds."""


class ProviderStore:
    """The providers and overrides that organizations have registered. The store of providers implements it."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._ledger = Ledger(database, request_ledger, clock)

    async def read_own(self, organization_id: str) -> OwnModels:
        """Returns the providers, ordered by creation, and the overrides of an organization.

        Without changes, revision is 0.
        """

        def read(conn: sa.Connection) -> OwnModels:
            own = (
                sa.select(providers.c.document)
                .where(providers.c.organization_id == organization_id)
                .order_by(providers.c.created_at, providers.c.id)
            )
            overrides = (
                sa.select(model_overrides.c.document)
                .where(model_overrides.c.organization_id == organization_id)
                .order_by(model_overrides.c.handle)
            )
            revision = sa.select(model_revisions.c.revision).where(model_revisions.c.organization_id == organization_id)
            return OwnModels(
                conn.execute(revision).scalar() or 0,
                tuple(_RECORD.decode(row) for row in conn.execute(own).scalars()),
                tuple(_OVERRIDE.decode(row) for row in conn.execute(overrides).scalars()),
            )

        return await self._database.read(read)

    async def revisions(self) -> Mapping[str, int]:
        """Returns the revisions by organization. Organizations without changes are left out."""
        rows = await self._database.read(lambda conn: _REVISIONS.all(conn, {}))
        return {row.organization_id: row.revision for row in rows}

    async def find_recorded_result(self, key: RequestKey | None) -> tuple[str, ...] | None:
        """Returns the result of a request that took effect before, or None."""
        return await self._ledger.find_recorded(key)

    async def get(self, organization_id: str, provider_id: str) -> ProviderRecord:
        """Returns a provider. Raises ProviderNotFound."""
        return await self._database.read(lambda conn: _find(conn, organization_id, provider_id))

    async def create(self, key: RequestKey | None, record: ProviderRecord) -> str:
        """Stores a provider and returns its id; for a repeat, the id of the first provider.

        Raises:
            ProviderNameTaken: Another provider of the organization has the name.
        """

        def effect(conn: sa.Connection) -> Sequence[str]:
            taken = sa.select(providers.c.id).where(
                providers.c.organization_id == record.organization_id, providers.c.name == record.name
            )
            if conn.execute(taken).first() is not None:
                raise ProviderNameTaken(record.name)
            row = {"id": record.id, "organization_id": record.organization_id, "name": record.name}
            times = {"created_at": record.created_at, "updated_at": record.updated_at}
            conn.execute(providers.insert(), {**row, **times, "document": _ENCODE(record)})
            _raise_revision(conn, record.organization_id)
            return [record.id]

        return (await self._ledger.write_once(key, effect))[0][0]

    async def update(
        self,
        key: RequestKey | None,
        organization_id: str,
        provider_id: str,
        change: Callable[[ProviderRecord], ProviderRecord],
        result: Sequence[str] = (),
    ) -> ProviderRecord:
        """Applies a pure function to a provider, stores the result, and returns it. A repeat changes nothing.

        The id, name, type and creation time do not change. `recorded_result` returns `result` afterwards.

        Raises:
            ProviderNotFound: The provider does not exist.
        """

        def effect(conn: sa.Connection) -> Sequence[str]:
            record = _find(conn, organization_id, provider_id)
            changed = change(record)
            stored = replace(
                changed,
                id=record.id,
                organization_id=record.organization_id,
                draft=replace(changed.draft, name=record.name, type=record.draft.type),
                created_at=record.created_at,
                updated_at=self._clock.now(),
            )
            values = {"document": _ENCODE(stored), "updated_at": stored.updated_at}
            conn.execute(providers.update().where(providers.c.id == provider_id).values(values))
            _raise_revision(conn, organization_id)
            return result or [provider_id]

        return await self._ledger.write_and_read(key, effect, lambda conn, _: _find(conn, organization_id, provider_id))

    async def delete(self, key: RequestKey | None, organization_id: str, provider_id: str) -> None:
        """Deletes a provider, its credentials and the overrides of its models. A missing provider is not an error."""

        def effect(conn: sa.Connection) -> Sequence[str]:
            where = (providers.c.organization_id == organization_id, providers.c.id == provider_id)
            name = conn.execute(sa.select(providers.c.name).where(*where)).scalar()
            if name is not None:
                conn.execute(providers.delete().where(*where))
                of_provider = sa.func.substr(model_overrides.c.handle, 1, len(name) + 1) == f"{name}/"
                conn.execute(
                    model_overrides.delete().where(model_overrides.c.organization_id == organization_id, of_provider)
                )
                _raise_revision(conn, organization_id)
            return [provider_id]

        await self._ledger.write_once(key, effect)

    async def record_result(self, key: RequestKey | None, result: Sequence[str]) -> None:
        """Records the result of a request whose effect is not in this store. Raises RequestIdReused."""
        await self._ledger.record(key, result)

    async def override(
        self,
        key: RequestKey | None,
        organization_id: str,
        handle: str,
        change: Callable[[ModelOverride], ModelOverride],
    ) -> None:
        """Applies a pure function to the override of a model.

        A repeat changes nothing. An empty override is deleted.
        """
        where = (model_overrides.c.organization_id == organization_id, model_overrides.c.handle == handle)

        def effect(conn: sa.Connection) -> Sequence[str]:
            row = conn.execute(sa.select(model_overrides.c.document).where(*where)).scalar()
            changed = change(ModelOverride(handle) if row is None else _OVERRIDE.decode(row))
            conn.execute(model_overrides.delete().where(*where))
            if not changed.is_empty:
                values = {"organization_id": organization_id, "handle": handle, "document": _ENCODE(changed)}
                conn.execute(model_overrides.insert(), {**values, "updated_at": self._clock.now()})
            _raise_revision(conn, organization_id)
            return [handle]

        await self._ledger.write_once(key, effect)


def _find(conn: sa.Connection, organization_id: str, provider_id: str) -> ProviderRecord:
    query = sa.select(providers.c.document).where(
        providers.c.organization_id == organization_id, providers.c.id == provider_id
    )
    document: Any = conn.execute(query).scalar()
    if document is None:
        raise ProviderNotFound(provider_id)
    return _RECORD.decode(document)


def _raise_revision(conn: sa.Connection, organization_id: str) -> None:
    where = model_revisions.c.organization_id == organization_id
    raised = conn.execute(model_revisions.update().where(where).values(revision=model_revisions.c.revision + 1))
    if not raised.rowcount:
        conn.execute(model_revisions.insert(), {"organization_id": organization_id, "revision": 1})


def reseal(
    conn: sa.Connection,
    variables: Callable[[str, Sequence[SecretVariable]], tuple[SecretVariable, ...]],
    credentials: Callable[[ProviderRecord], SealedCredentials],
) -> Resealing:
    """Writes all secrets as `variables` and `credentials` return them. Revisions and times do not change.

    Args:
        conn: a write transaction.
        variables: returns the environment variables of an owner, encrypted with the first key.
        credentials: returns the credentials of a provider, encrypted with the first key.
    """
    report = Resealing()
    for row in conn.execute(sa.select(agents.c.id, agents.c.document)).all():
        agent = _AGENT.decode(row.document)
        with report.of_record():
            secrets = variables(agent.id, agent.secrets)
            if secrets != agent.secrets:
                document = _ENCODE(replace(agent, secrets=secrets))
                conn.execute(agents.update().where(agents.c.id == row.id).values(document=document))
                report.records += 1
    for row in conn.execute(sa.select(providers.c.id, providers.c.document)).all():
        record = _PROVIDER.decode(row.document)
        with report.of_record():
            sealed = credentials(record)
            if sealed != record.credentials:
                document = _ENCODE(replace(record, credentials=sealed))
                conn.execute(providers.update().where(providers.c.id == row.id).values(document=document))
                report.records += 1
    return report
