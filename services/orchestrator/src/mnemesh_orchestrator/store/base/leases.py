"""The stores of leases and of deltas, and the retention of runs."""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from mnemesh_orchestrator.model.events import RunEvent
from mnemesh_orchestrator.model.journal import Lease, Watched


class LeaseStore(Protocol):
    """The leases of conversations.

    A conversation has one lease holder at a time: a run, or other work, such as a compaction. Each new lease has a
    higher epoch. A lease expires 30 seconds after it was taken, renewed or written under, by the clock of the database.

    Example:
        >>> lease = await leases.acquire(organization_id, agent_id, conversation_id, slot_id, instance_id)
        >>> await leases.renew([lease])
        ()
        >>> await leases.release(lease)
        False
    """

    async def acquire(
        self,
        organization_id: str,
        agent_id: str,
        conversation_id: str,
        slot_id: str,
        instance_id: str,
        *,
        reclaim: bool = True,
    ) -> Lease:
        """Takes the lease of a conversation for work other than a run. Runs that start meanwhile wait.

        Runs that wait for an approval do not block the work. With `reclaim`, a lease of the same instance is left over
        from a crash, and is replaced.

        Raises:
            NotFound: The agent or the conversation does not exist.
            ConversationBusy: A run has not ended (metadata: run_id), or other work holds the lease or waits for it.
        """
        ...

    async def acquire_or_wait(
        self,
        organization_id: str,
        agent_id: str,
        conversation_id: str,
        slot_id: str,
        instance_id: str,
        *,
        reclaim: bool = True,
    ) -> Lease | None:
        """Takes the lease as `acquire` does, or adds the work to the queue and returns None if other work is before
        it.

        The work keeps its position by calling again with the same `slot_id`. A position without calls expires as a
        lease does.

        Raises:
            NotFound: The agent or the conversation does not exist.
        """
        ...

    async def leave_queue(self, conversation_id: str, slot_id: str) -> bool:
        """Removes work from the queue, and releases its lease. Returns whether a run waits in the conversation."""
        ...

    async def leave_queues(self, instance_id: str) -> None:
        """Removes all work of an instance from the queues, after a crash of the instance."""
        ...

    async def release(self, lease: Lease) -> bool:
        """Releases a lease if it is still held. Returns whether a run waits in the conversation."""
        ...

    async def overtake(self, lease: Lease, epoch: int) -> int:
        """Raises the epochs of writes to recall above one that recall knows. Returns the epoch of the lease's writes.

        Later leases of the conversation write under higher epochs.

        Raises:
            LeaseLost: The lease is not held.
            Internal: No higher epoch can be stored.
        """
        ...

    async def holder(self, conversation_id: str) -> Lease | None:
        """Returns the lease of a conversation, held or expired; None if it was released."""
        ...

    async def renew(self, leases: Sequence[Lease]) -> tuple[Lease, ...]:
        """Extends the leases that are still held. Returns those that are not."""
        ...

    async def watch(self, leases: Sequence[Lease], run_ids: Sequence[str]) -> Watched:
        """Returns which of these leases were lost, which of their runs are to be cancelled, and the heads of these
        runs.

        A run that does not exist has no head.
        """
        ...

    async def request_cancel(self, organization_id: str, run_id: str) -> bool:
        """Asks the process that executes a run, now or after a takeover, to cancel it.

        Returns False if the run has ended.
        """
        ...

    async def claimable(self, instance_id: str) -> tuple[str, ...]:
        """Returns the conversations of all organizations with unfinished runs that `instance_id` can claim.

        They have no lease holder, their lease has expired, or `instance_id` holds it. Runs of pools that have not begun
        are those for which there is a place.
        """
        ...

    async def startable(self, organization_id: str) -> tuple[str, ...]:
        """Returns the conversations for whose runs the pools of an organization have a place now, oldest runs first."""
        ...


class DeltaStore(Protocol):
    """The live events of background runs.

    Example:
        >>> await deltas.append(lease, [(0, event)])
        >>> await deltas.replay(lease.run_id, 0, 0, (0, 0)) == (event,)
        True
    """

    async def append(self, lease: Lease, pieces: Sequence[tuple[int, RunEvent]]) -> None:
        """Stores live events that have positions, each with the sequence number of the newest durable event before it.

        Raises:
            LeaseLost: Another process holds the lease.
        """
        ...

    async def replay(self, run_id: str, after: int, since: int, position: tuple[int, int]) -> tuple[RunEvent, ...]:
        """Returns the next stored events, durable and live, in the order in which they happened; none at the end.

        Args:
            run_id: The run.
            after: The sequence number after which the durable events start.
            since: Live events before this durable event are left out.
            position: The position after which the live events start.
        """
        ...


class RunRetention(Protocol):
    """The deletion of old runs.

    Example:
        >>> await retention.purge_runs(clock.now() - timedelta(days=30))
        0
    """

    async def purge_runs(self, before: datetime) -> int:
        """Deletes the runs of all organizations that ended before a time, with their steps and events.

        Returns their number.

        Runs with a pending approval are kept.
        """
        ...
