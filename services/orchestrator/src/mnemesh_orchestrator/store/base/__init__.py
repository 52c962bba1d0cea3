"""The Protocols of the stores. Each method is one transaction, within one organization unless it says otherwise."""

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
    "AgentStore",
    "ApprovalStore",
    "ConversationStore",
    "GroupStore",
    "IdentityStore",
    "PartnerStore",
    "ProviderStore",
    "RunStore",
    "SleeptimeStore",
    "StepStore",
]
