"""The stores of the orchestrator, together."""

from dataclasses import dataclass

from mnemesh_orchestrator.store.base.agents import AgentStore
from mnemesh_orchestrator.store.base.approvals import ApprovalStore
from mnemesh_orchestrator.store.base.conversations import ConversationStore
from mnemesh_orchestrator.store.base.identities import IdentityStore
from mnemesh_orchestrator.store.base.leases import DeltaStore, LeaseStore
from mnemesh_orchestrator.store.base.providers import ProviderStore
from mnemesh_orchestrator.store.base.runs import RunStore
from mnemesh_orchestrator.store.base.steps import StepStore


@dataclass(frozen=True, slots=True)
class Stores:
    """The stores of the orchestrator."""

    agents: AgentStore
    runs: RunStore
    conversations: ConversationStore
    leases: LeaseStore
    steps: StepStore
    approvals: ApprovalStore
    deltas: DeltaStore
    identities: IdentityStore
    providers: ProviderStore
