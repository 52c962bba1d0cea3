"""All stores over one SQL database."""

from mnemesh_kit.clock import Clock
from mnemesh_kit.sql import Database

from mnemesh_orchestrator.store.base.stores import Stores
from mnemesh_orchestrator.store.sql.agents import SqlAgentStore
from mnemesh_orchestrator.store.sql.approvals import SqlApprovalStore
from mnemesh_orchestrator.store.sql.conversations import SqlConversationStore
from mnemesh_orchestrator.store.sql.deltas import SqlDeltaStore
from mnemesh_orchestrator.store.sql.identities import SqlIdentityStore
from mnemesh_orchestrator.store.sql.lease_clock import LeaseClock
from mnemesh_orchestrator.store.sql.leases import SqlLeaseStore
from mnemesh_orchestrator.store.sql.providers import SqlProviderStore
from mnemesh_orchestrator.store.sql.runs import SqlRunStore
from mnemesh_orchestrator.store.sql.steps import SqlStepStore


def sql_stores(database: Database, clock: Clock) -> Stores:
    """Returns the stores over a migrated database."""
    lease_clock = LeaseClock.of(database, clock)
    return Stores(
        agents=SqlAgentStore(database, clock),
        runs=SqlRunStore(database, clock, lease_clock),
        conversations=SqlConversationStore(database, clock, lease_clock),
        leases=SqlLeaseStore(database, lease_clock),
        steps=SqlStepStore(database, clock),
        approvals=SqlApprovalStore(database, clock),
        deltas=SqlDeltaStore(database, lease_clock),
        identities=SqlIdentityStore(database, clock),
        providers=SqlProviderStore(database, clock),
    )
