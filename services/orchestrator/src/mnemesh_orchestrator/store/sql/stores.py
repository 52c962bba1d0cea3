"""All stores over one SQL database."""

from mnemesh_kit.clock import Clock
from mnemesh_kit.sql import Database

from mnemesh_orchestrator.model.runs import PoolLimits
from mnemesh_orchestrator.store.base.stores import Stores
from mnemesh_orchestrator.store.sql.agent_imports import SqlAgentImportStore
from mnemesh_orchestrator.store.sql.agents import SqlAgentStore
from mnemesh_orchestrator.store.sql.approvals import SqlApprovalStore
from mnemesh_orchestrator.store.sql.batches import SqlBatchStore, SqlCallbackStore
from mnemesh_orchestrator.store.sql.conversations import SqlConversationStore
from mnemesh_orchestrator.store.sql.deltas import SqlDeltaStore
from mnemesh_orchestrator.store.sql.groups import SqlGroupStore
from mnemesh_orchestrator.store.sql.identities import SqlIdentityStore
from mnemesh_orchestrator.store.sql.leases import SqlLeaseStore
from mnemesh_orchestrator.store.sql.memory_extractions import SqlMemoryExtractionStore
from mnemesh_orchestrator.store.sql.partners import SqlPartnerStore
from mnemesh_orchestrator.store.sql.providers import SqlProviderStore
from mnemesh_orchestrator.store.sql.run_pools import RunPools
from mnemesh_orchestrator.store.sql.run_relations import SqlRunRelationStore
from mnemesh_orchestrator.store.sql.runs import SqlRunStore
from mnemesh_orchestrator.store.sql.sleeptime import SqlSleeptimeStore
from mnemesh_orchestrator.store.sql.steps import SqlStepStore
from mnemesh_orchestrator.store.sql.turn_statements import LeaseClock


def sql_stores(database: Database, clock: Clock, limits: PoolLimits = PoolLimits()) -> Stores:  # noqa: B008 -- frozen
    """Returns the stores over a migrated database.

    Args:
        database: The database.
        clock: The clock.
        limits: The places of the pools of an organization.
    """
    pools = RunPools(limits)
    lease_clock = LeaseClock.of(database, clock)
    return Stores(
        agents=SqlAgentStore(database, clock),
        agent_imports=SqlAgentImportStore(database, clock),
        runs=SqlRunStore(database, clock, lease_clock, pools),
        batches=SqlBatchStore(database, lease_clock),
        callbacks=SqlCallbackStore(database, clock),
        run_relations=SqlRunRelationStore(database),
        conversations=SqlConversationStore(database, clock, lease_clock),
        leases=SqlLeaseStore(database, lease_clock, pools),
        steps=SqlStepStore(database, clock),
        approvals=SqlApprovalStore(database, clock),
        deltas=SqlDeltaStore(database, lease_clock),
        identities=SqlIdentityStore(database, clock),
        extractions=SqlMemoryExtractionStore(database, clock),
        groups=SqlGroupStore(database, clock),
        partners=SqlPartnerStore(database, clock),
        providers=SqlProviderStore(database, clock),
        sleeptime=SqlSleeptimeStore(database, clock),
    )
