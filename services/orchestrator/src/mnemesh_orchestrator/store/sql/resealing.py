"""Encrypts the secrets of agents and providers with the first key, while the service is stopped."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec
import sqlalchemy as sa
from mnemesh_kit.sealing import Resealing
from mnemesh_kit.secret_variables import SecretVariable

from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.model.providers import ProviderRecord, SealedCredentials
from mnemesh_orchestrator.store.sql.tables import agents, providers

_ENCODE = msgspec.json.Encoder().encode
_AGENT = msgspec.json.Decoder(Agent)
_PROVIDER = msgspec.json.Decoder(ProviderRecord)


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
