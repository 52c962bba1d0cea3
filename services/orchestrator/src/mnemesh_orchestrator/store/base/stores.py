"""The stores of the orchestrator, together."""

from dataclasses import dataclass

from mnemesh_orchestrator.store.base.agent_imports import AgentImportStore
from mnemesh_orchestrator.store.base.agents import AgentStore
from mnemesh_orchestrator.store.base.approvals import ApprovalStore
from mnemesh_orchestrator.store.base.batches import BatchStore, CallbackStore
from mnemesh_orchestrator.store.base.conversations import ConversationStore
from mnemesh_orchestrator.store.base.groups import GroupStore
from mnemesh_orchestrator.store.base.identities import IdentityStore
from mnemesh_orchestrator.store.base.leases import DeltaStore, LeaseStore
from mnemesh_orchestrator.store.base.memory_extractions import MemoryExtractionStore
from mnemesh_orchestrator.store.base.partners import PartnerStore
from mnemesh_orchestrator.store.base.providers import ProviderStore
from mnemesh_orchestrator.store.base.run_relations import RunRelationStore
from mnemesh_orchestrator.store.base.runs import RunStore
from mnemesh_orchestrator.store.base.sleeptime import SleeptimeStore
from mnemesh_orchestrator.store.base.steps import StepStore


@dataclass(frozen=True, slots=True)
class Stores:
    """The stores of the orchestrator."""

    agents: AgentStore
    agent_imports: AgentImportStore
    runs: RunStore
    batches: BatchStore
    callbacks: CallbackStore
    run_relations: RunRelationStore
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
    sleeptime: SleeptimeStore
