"""The store's contract: each method is one transaction, and within one organization unless it says otherwise."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from engram_kit.idempotency import RequestKey
from engram_kit.paging import Page, PageQuery

from engram_orchestrator.model.agents import Agent, AgentType, Conversation, ConversationOrigin
from engram_orchestrator.model.events import RunEvent
from engram_orchestrator.model.runs import (
    Approval,
    ApprovalAnswer,
    JournalEntry,
    Lease,
    Run,
    RunStatus,
    Step,
    StepTrace,
)


@dataclass(frozen=True, slots=True)
class AgentFilter:
    """Which agents; everything that is given must hold. Only ACTIVE ones are ever found."""

    agent_ids: tuple[str, ...] = ()
    name: str | None = None
    text_search: str | None = None
    tags_any: tuple[str, ...] = ()
    tags_all: tuple[str, ...] = ()
    types: tuple[AgentType, ...] = ()
    hidden: bool | None = None
    last_stop_reason: str | None = None


@dataclass(frozen=True, slots=True)
class ConversationFilter:
    """Which conversations; everything that is given must hold. Only ACTIVE ones of ACTIVE agents are ever found."""

    agent_id: str | None = None
    archived: bool | None = None
    summary_search: str | None = None


@dataclass(frozen=True, slots=True)
class UnfinishedConversation:
    """A conversation that is being made or unmade; `origin` is set where it is being made."""

    conversation: Conversation
    origin: ConversationOrigin | None


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Which runs; everything that is given must hold."""

    agent_ids: tuple[str, ...] = ()
    statuses: tuple[RunStatus, ...] = ()
    background: bool | None = None
    stop_reason: str | None = None
    conversation_id: str | None = None
    active: bool | None = None


@dataclass(frozen=True, slots=True)
class StepFilter:
    """Which steps."""

    run_id: str | None = None
    agent_id: str | None = None
    model: str | None = None
    feedback: str | None = None
    tags_any: tuple[str, ...] = ()
    trace_id: str | None = None


@dataclass(frozen=True, slots=True)
class ApprovalFilter:
    """Which pending approvals; everything that is given must hold."""

    organization_id: str | None = None
    agent_ids: tuple[str, ...] = ()
    run_ids: tuple[str, ...] = ()
    conversation_id: str | None = None
    asked_before: datetime | None = None


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


class AgentStore(Protocol):
    """Agents and their conversations."""

    async def begin_creation(self, key: RequestKey | None, agent: Agent, creation: bytes) -> tuple[str, bool]:
        """Stores a CREATING agent with its default conversation and the whole of its request.

        Returns the agent's id and whether the request came before (then nothing is stored).

        Raises:
            RequestIdReused: with other content.
        """
        ...

    async def unfinished(self) -> tuple[tuple[Agent, bytes], ...]:
        """Every CREATING and DELETING agent of every organization, with its creation request (empty when DELETING)."""
        ...

    async def creation(self, organization_id: str, agent_id: str) -> tuple[Agent, bytes] | None:
        """A CREATING agent and its request; None in any other state."""
        ...

    async def activate(self, agent: Agent) -> bool:
        """Writes a CREATING agent as ACTIVE; False where it is not CREATING any more, and nothing is written."""
        ...

    async def abandon(self, agent_id: str, key: RequestKey | None) -> bool:
        """Marks a CREATING agent DELETING and forgets the request that began it; False where it is not CREATING."""
        ...

    async def forget(self, agent_id: str) -> None:
        """Removes the agent with all that hangs on it."""
        ...

    async def get(self, organization_id: str, agent_id: str) -> Agent:
        """An ACTIVE agent.

        Raises:
            NotFound: it is not there, not yet, or not any more.
        """
        ...

    async def list(self, organization_id: str, where: AgentFilter, order_by: str, page: PageQuery) -> Page[Agent]:
        """A page by "created_at", "updated_at" or "last_run_completed_at" (agents that never ran last)."""
        ...

    async def count(self, organization_id: str, where: AgentFilter) -> int:
        """How many agents match."""
        ...

    async def update(
        self, key: RequestKey | None, organization_id: str, agent_id: str, change: Callable[[Agent], Agent]
    ) -> Agent:
        """Applies a pure function to an ACTIVE agent's record and stores the result; a repeat changes nothing.

        What `change` raises changes nothing.

        Raises:
            NotFound: it is not ACTIVE.
        """
        ...

    async def once(self, key: RequestKey | None) -> bool:
        """Records a request whose effect lies in another room; whether it had come before.

        Raises:
            RequestIdReused: with other content.
        """
        ...

    async def outcome(self, key: RequestKey) -> str | None:
        """What a request that is repeated was noted to come to; None where it is the first.

        Raises:
            RequestIdReused: with other content.
        """
        ...

    async def note_outcome(self, key: RequestKey, outcome: str) -> str:
        """Notes what a request comes to before it has its effect; the first note stands, and comes back.

        Raises:
            RequestIdReused: with other content.
        """
        ...

    async def begin_deletion(self, organization_id: str, agent_id: str) -> bool:
        """Marks an agent DELETING and takes its conversations' leases away; False where there is none.

        True again for an agent that is DELETING: who asks again takes the deletion up.
        """
        ...

    async def tags(self, organization_id: str, page: PageQuery, text_search: str | None) -> Page[str]:
        """Tags in use, by the alphabet."""
        ...


class ConversationStore(Protocol):
    """Conversations. The default one of each agent is made and unmade with it, by AgentStore."""

    async def begin_creation(
        self, key: RequestKey | None, conversation: Conversation, origin: ConversationOrigin
    ) -> tuple[str, bool]:
        """Stores a CREATING conversation; its id, and whether the request came before (then nothing is stored).

        Raises:
            NotFound: the agent is not ACTIVE, or the conversation that it forks is not there.
            ConversationBusy: a run is under way in the conversation that it forks, or its turn slot is taken.
            RequestIdReused: with other content.
        """
        ...

    async def unfinished(self, conversation_id: str | None = None) -> tuple[UnfinishedConversation, ...]:
        """What is CREATING or DELETING, in every organization, or that one alone."""
        ...

    async def activate(self, conversation: Conversation, last_message_at: datetime | None) -> None:
        """Writes a CREATING conversation as ACTIVE; one that is not CREATING stays as it is."""
        ...

    async def abandon(self, conversation_id: str, key: RequestKey | None) -> bool:
        """Marks what is CREATING as DELETING and forgets the request that began it; False where it is not CREATING."""
        ...

    async def get(self, organization_id: str, conversation_id: str) -> Conversation:
        """An ACTIVE conversation.

        Raises:
            NotFound: it is not there, not yet, or not any more.
        """
        ...

    async def list(
        self, organization_id: str, where: ConversationFilter, order_by: str, page: PageQuery
    ) -> Page[Conversation]:
        """A page by "created_at", "updated_at" or "last_message_at" (those without messages last)."""
        ...

    async def update(
        self,
        key: RequestKey | None,
        organization_id: str,
        conversation_id: str,
        change: Callable[[Conversation], Conversation],
    ) -> Conversation:
        """Applies a pure function to a conversation's record and stores the result; a repeat changes nothing.

        Raises:
            NotFound
        """
        ...

    async def begin_deletion(
        self, key: RequestKey | None, organization_id: str, conversation_id: str
    ) -> Conversation | None:
        """Marks a conversation DELETING; what it is while its parts are still to be deleted, also at a repeat.

        Raises:
            NotFound
            FailedPrecondition: it is its agent's default one.
            ConversationBusy: a run is under way in it, or waits, or its turn slot is taken.
        """
        ...

    async def forget(self, conversation_id: str) -> None:
        """Removes what is DELETING."""
        ...


class RunStore(Protocol):
    """Runs with their leases, journal and events.

    Writes of a run carry its lease and take effect only while it holds: any
    of them raises LeaseLost where another holder's epoch is higher.
    """

    async def start(
        self,
        key: RequestKey | None,
        run: Run,
        owner: str,
        *,
        reject_busy: bool,
        answer: ApprovalAnswer | None = None,
    ) -> StartedRun:
        """Stores a run and its input at the end of its conversation's queue, and claims it where the slot is free.

        With an `answer` it also decides the approval that the conversation waits for, and is claimed ahead of every
        run that waits. The same answer again is the run that it began.

        Raises:
            PendingApproval: the conversation waits for an approval, and this is no answer.
            NoPendingApproval: this is an answer, and nothing waits for it.
            ApprovalMismatch: it is not exactly about the calls that wait.
            NotFound: the agent or conversation is not there.
            ConversationBusy: another run is unfinished, or the turn slot is taken, and `reject_busy` is set.
            RequestIdReused: with other content.
        """
        ...

    async def claim_next(self, conversation_id: str, owner: str) -> Claim | None:
        """Claims the lowest unfinished run of a conversation, raising the epoch.

        None where there is none, where another owner's lease holds, where the agent is not ACTIVE, or while the
        conversation waits for an approval.
        """
        ...

    async def write(
        self,
        lease: Lease,
        *,
        entries: Sequence[JournalEntry] = (),
        events: Sequence[RunEvent] = (),
        steps: Sequence[Step] = (),
        traces: Sequence[StepTrace] = (),
    ) -> None:
        """Writes all that is given in one transaction, and puts off the lease's expiry.

        An entry or event that is there already fails the whole; a step or trace that is there is written anew.
        """
        ...

    async def finish(
        self,
        lease: Lease,
        run: Run,
        events: Sequence[RunEvent],
        steps: Sequence[Step],
        traces: Sequence[StepTrace] = (),
        approval: Approval | None = None,
    ) -> bool:
        """Ends a run, releases its lease, and tells whether another waits in the conversation.

        From then on an `approval` is pending.
        """
        ...

    async def journal(self, run_id: str) -> tuple[JournalEntry, ...]:
        """The entries of an unfinished run."""
        ...

    async def get(self, organization_id: str, run_id: str) -> Run:
        """A run.

        Raises:
            NotFound
        """
        ...

    async def list(self, organization_id: str, where: RunFilter, page: PageQuery) -> Page[Run]:
        """A page by creation."""
        ...

    async def cancel_waiting(self, run: Run, events: Sequence[RunEvent]) -> bool:
        """Ends a run that was never claimed; False where it was."""
        ...

    async def delete(self, organization_id: str, run_id: str) -> None:
        """Removes the record of an ended run.

        Raises:
            RunUnderWay: it has not ended.
        """
        ...

    async def events(self, run_id: str, after: int, limit: int) -> tuple[RunEvent, ...]:
        """Stored events with higher numbers, in order."""
        ...

    async def purge_requests(self, before: datetime) -> int:
        """Forgets ledger rows of requests older than that."""
        ...


class StepStore(Protocol):
    """Steps that are over. Runs write them; see RunStore."""

    async def get(self, organization_id: str, step_id: str) -> Step:
        """A finished step.

        Raises:
            NotFound
        """
        ...

    async def list(self, organization_id: str, where: StepFilter, page: PageQuery) -> Page[Step]:
        """A page by creation."""
        ...

    async def trace(self, organization_id: str, step_id: str) -> StepTrace:
        """What went to the model and came back.

        Raises:
            NotFound: the step is not there, or no trace of it is kept any more.
        """
        ...

    async def judge(
        self, key: RequestKey | None, organization_id: str, step_id: str, feedback: str | None, tags: Sequence[str]
    ) -> Step:
        """Sets a person's verdict and tags, or clears them.

        Raises:
            NotFound
        """
        ...

    async def purge_traces(self, before: datetime) -> int:
        """Forgets traces written before then; how many."""
        ...


class ApprovalStore(Protocol):
    """Requests for approval that wait. They are made and decided by RunStore, with the runs that do so."""

    async def pending(self, where: ApprovalFilter) -> tuple[Approval, ...]:
        """The pending ones of ACTIVE conversations of ACTIVE agents, the oldest first."""
        ...

    async def withdraw(self, conversation_id: str) -> None:
        """Takes a pending one back: nobody can answer it any more. Where there is none nothing happens."""
        ...
