"""The Protocols of the stores. Each method is one transaction, within one organization unless it says otherwise."""

from mnemesh_orchestrator.model.agents import AgentFilter
from mnemesh_orchestrator.model.approvals import ApprovalFilter
from mnemesh_orchestrator.model.claims import Claim, FinishedRun, StartedRun, UnfinishedDecision
from mnemesh_orchestrator.model.conversations import ConversationFilter, UnfinishedConversation
from mnemesh_orchestrator.model.groups import GroupFilter
from mnemesh_orchestrator.model.identities import IdentityFilter
from mnemesh_orchestrator.model.runs import RunFilter
from mnemesh_orchestrator.model.steps import StepFilter
from mnemesh_orchestrator.store.base.agents import AgentStore
from mnemesh_orchestrator.store.base.approvals import ApprovalStore
from mnemesh_orchestrator.store.base.conversations import ConversationStore
from mnemesh_orchestrator.store.base.groups import GroupStore
from mnemesh_orchestrator.store.base.identities import IdentityStore
from mnemesh_orchestrator.store.base.partners import PartnerStore
from mnemesh_orchestrator.store.base.providers import ProviderStore
from mnemesh_orchestrator.store.base.runs import RunStore
from mnemesh_orchestrator.store.base.sleeptime import SleeptimeStore
from mnemesh_orchestrator.store.base.steps import StepStore

__all__ = [
    "AgentFilter",
    "AgentStore",
    "ApprovalFilter",
    "ApprovalStore",
    "Claim",
    "ConversationFilter",
    "ConversationStore",
    "FinishedRun",
    "GroupFilter",
    "GroupStore",
    "IdentityFilter",
    "IdentityStore",
    "PartnerStore",
    "ProviderStore",
    "RunFilter",
    "RunStore",
    "SleeptimeStore",
    "StartedRun",
    "StepFilter",
    "StepStore",
    "UnfinishedConversation",
    "UnfinishedDecision",
]
