"""Runs that a process has claimed, and the results of requests to start one."""

from dataclasses import dataclass

from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.model.approvals import Resumption
from mnemesh_orchestrator.model.conversations import Conversation
from mnemesh_orchestrator.model.journal import JournalEntry
from mnemesh_orchestrator.model.leases import Lease
from mnemesh_orchestrator.model.runs import Run


@dataclass(frozen=True, slots=True)
class Claim:
    """A run that this process has claimed, with the records that it needs to execute it.

    `resumed` is true if another claim came before, so that there can be a journal. `cancelled` is true if the run is
    to be cancelled. `claims` is the number of earlier claims, and `stalled` the number of the last takeovers in a row
    that found no progress.
    """

    run: Run
    agent: Agent
    conversation: Conversation
    lease: Lease
    resumed: bool = False
    cancelled: bool = False
    claims: int = 0
    stalled: int = 0


@dataclass(frozen=True, slots=True)
class StartedRun:
    """The result of a request to start a run. `claim` is set if the run can start at once."""

    run: Run
    replayed: bool = False
    claim: Claim | None = None


@dataclass(frozen=True, slots=True)
class UnfinishedDecision:
    """A decision about an approval whose run failed before it had executed all approved calls.

    `entries` are the journal entries of these calls, of every run that tried.
    """

    resumption: Resumption
    entries: tuple[JournalEntry, ...]
