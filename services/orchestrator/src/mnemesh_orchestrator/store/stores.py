"""All stores over one database."""

from dataclasses import dataclass

from mnemesh_kit.sql import Database
from mnemesh_kit.time import Clock

from mnemesh_orchestrator.model.runs import PoolLimits
from mnemesh_orchestrator.store.agent_imports import AgentImportStore
from mnemesh_orchestrator.store.agents import AgentStore, PartnerStore
from mnemesh_orchestrator.store.approvals import ApprovalStore
from mnemesh_orchestrator.store.budgets import Budgets, BudgetStore
from mnemesh_orchestrator.store.callbacks import CallbackStore
from mnemesh_orchestrator.store.conversations import ConversationStore
from mnemesh_orchestrator.store.deltas import DeltaStore
from mnemesh_orchestrator.store.groups import GroupStore
from mnemesh_orchestrator.store.identities import IdentityStore
from mnemesh_orchestrator.store.leases import LeaseStore
from mnemesh_orchestrator.store.memory_extractions import MemoryExtractionStore
from mnemesh_orchestrator.store.providers import ProviderStore
from mnemesh_orchestrator.store.run_pools import RunPools
from mnemesh_orchestrator.store.run_relations import BatchStore, RunRelationStore, RunRetention
from mnemesh_orchestrator.store.run_rows import StepStore
from mnemesh_orchestrator.store.runs import RunStore
from mnemesh_orchestrator.store.schedules import ScheduleStore
from mnemesh_orchestrator.store.sleeptime import SleeptimeStore
from mnemesh_orchestrator.store.turn_statements import LeaseClock
from mnemesh_orchestrator.store.webhooks import WebhookStore


@dataclass(frozen=True, slots=True)
class Stores:
    """The stores of the orchestrator."""

    agents: AgentStore
    agent_imports: AgentImportStore
    runs: RunStore
    batches: BatchStore
    callbacks: CallbackStore
    run_relations: RunRelationStore
    retention: RunRetention
    conversations: ConversationStore
    leases: LeaseStore
    steps: StepStore
    approvals: ApprovalStore
    deltas: DeltaStore
    identities: IdentityStore
    extractions: MemoryExtractionStore
    groups: GroupStore
    partners: PartnerStore
    providers: ProviderStore
    schedules: ScheduleStore
    sleeptime: SleeptimeStore
    webhooks: WebhookStore
    budgets: BudgetStore


def sql_stores(
    database: Database,
    clock: Clock,
    limits: PoolLimits = PoolLimits(),  # noqa: B008 -- frozen
    budgets: Budgets = Budgets(),  # noqa: B008 -- frozen
) -> Stores:
    """Returns the stores over a migrated database.

    Args:
        limits: The places of the pools of an organization.
        budgets: The operator's limits of organizations.
    """
    pools = RunPools(limits)
    lease_clock = LeaseClock.of(database, clock)
    return Stores(
        agents=AgentStore(database, clock),
        agent_imports=AgentImportStore(database, clock),
        runs=RunStore(database, clock, lease_clock, pools, budgets),
        batches=BatchStore(database, lease_clock),
        callbacks=CallbackStore(database, clock),
        run_relations=RunRelationStore(database),
        retention=RunRetention(database),
        conversations=ConversationStore(database, clock, lease_clock),
        leases=LeaseStore(database, lease_clock, pools),
        steps=StepStore(database, clock),
        approvals=ApprovalStore(database, clock),
        deltas=DeltaStore(database, lease_clock),
        identities=IdentityStore(database, clock),
        extractions=MemoryExtractionStore(database, clock),
        groups=GroupStore(database, clock),
        partners=PartnerStore(database, clock),
        providers=ProviderStore(database, clock),
        schedules=ScheduleStore(database, clock, lease_clock),
        sleeptime=SleeptimeStore(database, clock),
        webhooks=WebhookStore(database, clock),
        budgets=BudgetStore(database, clock, budgets),
    )
