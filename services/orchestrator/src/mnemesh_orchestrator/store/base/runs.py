"""The store of runs, their journal and their events."""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.paging import Page, PageQuery

from mnemesh_orchestrator.model.agents import Correction
from mnemesh_orchestrator.model.approvals import Approval, ApprovalAnswer
from mnemesh_orchestrator.model.events import RunEvent
from mnemesh_orchestrator.model.journal import Claim, FinishedRun, JournalEntry, Lease, StartedRun, UnfinishedDecision
from mnemesh_orchestrator.model.runs import Run, RunFilter
from mnemesh_orchestrator.model.sleeptime import SleeptimeTurn
from mnemesh_orchestrator.model.steps import Step, StepTrace


class RunStore(Protocol):
    """Runs with their journal and durable events.

    The writes of a run have its lease as an argument. They raise LeaseLost, and write nothing, if another process holds
    the lease.

    Example:
        >>> started = await runs.start(key, run, instance_id, reject_busy=False)
        >>> await runs.write(started.claim.lease, events=[event])
        >>> await runs.events(run.id, 0, 10) == (event,)
        True
    """

    async def start(
        self,
        key: RequestKey | None,
        run: Run,
        instance_id: str,
        *,
        reject_busy: bool,
        answer: ApprovalAnswer | None = None,
    ) -> StartedRun:
        """Stores a run at the end of the queue of its conversation, and claims it if nothing else holds the
        conversation.

        With an `answer`, the run decides the pending approval of the conversation, and is claimed before the waiting
        runs. A repeat returns the first run: by its key, by the otids of its messages, or by the same decisions.

        Raises:
            OtidReused: Another run has an otid with other content, or only some of the messages.
            RunUnderWay: The run retries an input that another run has retried since.
            PendingApproval: The conversation waits for an approval, and `answer` is None.
            NoPendingApproval: No approval is pending, or it was decided differently.
            ApprovalMismatch: The decisions do not match the pending calls.
            NotFound: The agent or the conversation does not exist.
            ConversationBusy: `reject_busy` is set, and another run has not ended or other work holds the lease.
            RequestIdReused: The key was used before with other content.
        """
        ...

    async def find_repeated(self, key: RequestKey | None, run: Run) -> Run | None:
        """Returns the run that `start` would return instead of storing this one, or None.

        Raises:
            RequestIdReused: The key was used before with other content.
            OtidReused: Another run has an otid with other content, or only some of the messages.
        """
        ...

    async def newest_attempt(self, organization_id: str, run_id: str) -> Run:
        """Returns the newest run with the input of a run: the run itself, or its latest retry. Raises NotFound."""
        ...

    async def claim_next(self, conversation_id: str, instance_id: str) -> Claim | None:
        """Claims the first unfinished run of a conversation under a new epoch.

        Returns None if there is no such run, another process holds the lease, the agent is not ACTIVE, the
        conversation waits for an approval, or the run is a sleeptime run and its organization has no place for it.
        The claim has the number of takeovers since the run last made progress: a
        journal entry or a durable event.
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
        is_repeat: bool = False,
    ) -> None:
        """Stores entries, events, steps and traces in one transaction, and extends the lease.

        An entry or event that exists already fails the transaction. A step or trace that exists is replaced. With
        `is_repeat`, an earlier attempt of the same write may have been stored; if it was, nothing more is stored.
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
        *,
        sleeptime: SleeptimeTurn | None = None,
        extraction_turns: int | None = None,
        keeps_lease: bool = False,
        is_repeat: bool = False,
    ) -> FinishedRun:
        """Ends a run, releases its lease, and returns the run as it was stored, and the runs that can begin now.

        With `sleeptime`, the run is a completed turn of an agent with partners: it is counted, and the sleeptime runs
        that it starts are stored in the same transaction. Their ids are added to the run and to its UsageEvent.

        With `keeps_lease`, the lease is extended instead, for work that follows the run.

        `approval` is pending afterwards. `corrections` replace the agent's if there are any. The journal is deleted,
        except for the calls of a decision that a failed run may not have executed; see `unfinished_decision`. With
        `is_repeat`, an earlier attempt may have been stored; if it was, nothing more is stored.
        """
        ...

    async def store_transcript(
        self, lease: Lease, run: Run, events: Sequence[RunEvent], rest: Run | None, last_message_id: str | None
    ) -> Run:
        """Stores the input of a sleeptime run that has begun, with its events, and extends the lease.

        Returns the run as it is stored: if it has an input already, nothing changes.

        Args:
            lease: The lease of the run.
            run: The run with its input.
            events: The events that show the input.
            rest: A new run for the messages that did not fit. It is the next run of the conversation.
            last_message_id: The last message of the transcript, if nothing is left; the group shows it.
        """
        ...

    async def unfinished_decision(self, conversation_id: str, approval_id: str) -> UnfinishedDecision | None:
        """Returns the decision about an approval and its journal entries of all runs, or None if the approval is not
        decided.
        """
        ...

    async def journal(self, run_id: str) -> tuple[JournalEntry, ...]:
        """Returns the journal entries of an unfinished run, in any order."""
        ...

    async def get(self, organization_id: str, run_id: str) -> Run:
        """Returns a run. Raises NotFound."""
        ...

    async def list(self, organization_id: str, filter_: RunFilter, page: PageQuery) -> Page[Run]:
        """Returns a page of runs ordered by creation."""
        ...

    async def cancel_waiting(self, run: Run, events: Sequence[RunEvent]) -> bool:
        """Ends a run that was never claimed. Returns False, and changes nothing, if it was."""
        ...

    async def delete(self, organization_id: str, run_id: str) -> None:
        """Deletes the record of an ended run, with its approvals that were decided.

        Raises:
            NotFound: The run does not exist.
            RunUnderWay: The run has not ended.
        """
        ...

    async def sent_by(self, organization_id: str, sender_id: str) -> tuple[str, ...]:
        """Returns the ids of the runs of an organization whose input has a message of a sender, and of the runs that
        answered their approvals. Reads all runs.
        """
        ...

    async def events(self, run_id: str, after: int, limit: int) -> tuple[RunEvent, ...]:
        """Returns at most `limit` durable events with sequence numbers above `after`, in order."""
        ...

    async def unrecorded_inputs(self, limit: int) -> tuple[Run, ...]:
        """Returns ended runs of all organizations whose input recall may not have, those that ended first first.

        Those of a conversation in which a run is RUNNING are left out: their inputs would stand between its messages.
        """
        ...

    async def unrecorded_inputs_of(self, conversation_id: str) -> tuple[Run, ...]:
        """Returns the ended runs of a conversation whose input recall may not have, in the order of their queue."""
        ...

    async def mark_input_recorded(self, run_id: str) -> None:
        """Notes that recall has the input of an ended run."""
        ...

    async def purge_requests(self, before: datetime) -> int:
        """Deletes the idempotency keys that were used before a time, except those of runs. Returns their number."""
        ...
