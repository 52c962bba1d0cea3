"""The contract of what stores runs, their journal and events."""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.paging import Page, PageQuery

from mnemesh_orchestrator.model.agents import Correction
from mnemesh_orchestrator.model.approvals import Approval, ApprovalAnswer
from mnemesh_orchestrator.model.claims import Claim, StartedRun, UnfinishedDecision
from mnemesh_orchestrator.model.events import RunEvent
from mnemesh_orchestrator.model.journal import JournalEntry
from mnemesh_orchestrator.model.leases import Lease
from mnemesh_orchestrator.model.runs import Run, RunFilter
from mnemesh_orchestrator.model.steps import Step, StepTrace


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

    async def find_repeated(self, key: RequestKey | None, run: Run) -> Run | None:
        """The run that `start` would answer with instead of storing this one: of the same request, or an otid of it.

        Raises:
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
        corrections: Sequence[Correction] = (),
    ) -> bool:
        """Ends a run, releases its lease, and tells whether another waits in the conversation.

        `corrections` are the agent's from then on, where there are any.

        From then on an `approval` is pending. The journal is forgotten, but for the calls of a decision that a failed
        run may not have carried out: see `undone`.
        """
        ...

    async def unfinished_decision(self, conversation_id: str, approval_id: str) -> UnfinishedDecision | None:
        """What was decided about an approval of the conversation, and what came of it; None where nothing is known."""
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
