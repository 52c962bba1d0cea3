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
    """A run that this process now carries out, with what it needs to begin.

    `taken_up` says that it had been begun before, so that there may be a journal; `cancelled` that it is to be ended.
    `claims` is how often somebody began to carry it out before.
    """

    run: Run
    agent: Agent
    conversation: Conversation
    lease: Lease
    taken_up: bool = False
    cancelled: bool = False
    claims: int = 0


@dataclass(frozen=True, slots=True)
class StartedRun:
    """What became of a request to run: `claim` is set where the run may begin at once."""

    run: Run
    replayed: bool = False
    claim: Claim | None = None


@dataclass(frozen=True, slots=True)
class UnfinishedDecision:
    """A decision about calls that waited, whose run failed before it had carried all of them out.

    `entries` are what is journalled of them, by any run that tried.
    """

    resumption: Resumption
    entries: tuple[JournalEntry, ...]
