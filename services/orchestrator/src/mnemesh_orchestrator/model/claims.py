"""Runs that a process has claimed, and the results of requests to start one."""

from dataclasses import dataclass

from mnemesh_orchestrator.model.agent_types import MessageBuffer
from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.model.approvals import Resumption
from mnemesh_orchestrator.model.conversations import Conversation
from mnemesh_orchestrator.model.groups import GroupPlan
from mnemesh_orchestrator.model.journal import JournalEntry
from mnemesh_orchestrator.model.leases import Lease
from mnemesh_orchestrator.model.runs import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A run that this process has claimed: a TurnClaim or a GroupClaim.

    `resumed` is true if another claim came before, so that there can be a journal. `cancelled` is true if the run is
    to be cancelled. `claims` is the number of earlier claims, and `stalled` the number of the last takeovers in a row
    that found no progress.
    """

    run: Run
    lease: Lease
    resumed: bool = False
    cancelled: bool = False
    claims: int = 0
    stalled: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnClaim(Claim):
    """The claim of an agent's turn, with the records that it needs."""

    agent: Agent
    conversation: Conversation
    buffer: MessageBuffer | None = None
    """The limits on the window of a voice agent with partners; None takes those of the agent's type."""
    has_unrecorded_inputs: bool = False
    """Recall may not have the inputs of earlier runs of the conversation. They are stored before that of this run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupClaim(Claim):
    """The claim of a run of a group."""

    plan: GroupPlan


@dataclass(frozen=True, slots=True)
class StartedRun:
    """The result of a request to start a run. `claim` is set if the run can start at once.

    `frees_first` is true if the first run of the conversation waits for a place and can start without one, because this
    run waits after it.
    """

    run: Run
    replayed: bool = False
    claim: Claim | None = None
    frees_first: bool = False


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """The result of the end of a run.

    `run` is the run as it is stored, with the runs that its end started. `has_next` is true if another run of the
    conversation waits. `started` are the conversations of the runs that its end started.
    """

    run: Run
    has_next: bool = False
    started: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UnfinishedDecision:
    """A decision about an approval whose run failed before it had executed all approved calls.

    `entries` are the journal entries of these calls, of every run that tried.
    """

    resumption: Resumption
    entries: tuple[JournalEntry, ...]
