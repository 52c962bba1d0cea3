"""The store's contract: each method is one transaction, and within one organization unless it says otherwise."""

from mnemesh_orchestrator.store.base.agents import AgentFilter, AgentStore
from mnemesh_orchestrator.store.base.approvals import ApprovalFilter, ApprovalStore
from mnemesh_orchestrator.store.base.conversations import ConversationFilter, ConversationStore, UnfinishedConversation
from mnemesh_orchestrator.store.base.identities import IdentityFilter, IdentityStore
from mnemesh_orchestrator.store.base.providers import ProviderStore
from mnemesh_orchestrator.store.base.runs import Claim, RunFilter, RunStore, StartedRun, Undone
from mnemesh_orchestrator.store.base.steps import StepFilter, StepStore

__all__ = [
    "AgentFilter",
    "AgentStore",
    "ApprovalFilter",
    "ApprovalStore",
    "Claim",
    "ConversationFilter",
    "ConversationStore",
    "IdentityFilter",
    "IdentityStore",
    "ProviderStore",
    "RunFilter",
    "RunStore",
    "StartedRun",
    "StepFilter",
    "StepStore",
    "Undone",
    "UnfinishedConversation",
]
