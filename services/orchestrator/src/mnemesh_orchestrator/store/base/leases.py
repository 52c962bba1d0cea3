"""The store's contract beside records: turn slots and their leases, live events that are stored, retention."""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from mnemesh_orchestrator.model.events import RunEvent
from mnemesh_orchestrator.model.leases import Lease, Watched


class LeaseStore(Protocol):
    """The turn slots of conversations: one holder each, of a run or of other work, under an epoch that only rises.

    A lease lapses 30 s after it was given, renewed or written under, by the database's clock.
    """

    async def take_slot(
        self,
        organization_id: str,
        agent_id: str,
        conversation_id: str,
        slot_id: str,
        owner: str,
        *,
        reclaim: bool = True,
    ) -> Lease:
        """Gives the turn slot of a conversation to work that is no run; runs that come meanwhile wait.

        Runs that wait for an approval are passed: they cannot begin. With `reclaim` a slot that this owner has is one
        that it left behind in a crash, and is taken over.

        Raises:
            NotFound: the agent or conversation is not there.
            ConversationBusy: a run is under way or waits ahead (`run_id` names it), or other work has the slot or waits
                for it.
        """
        ...

    async def await_slot(
        self,
        organization_id: str,
        agent_id: str,
        conversation_id: str,
        slot_id: str,
        owner: str,
        *,
        reclaim: bool = True,
    ) -> Lease | None:
        """As `take_slot`, but None where others are ahead: the work has a place in the queue then, among the runs.

        It keeps the place by asking again, under the same `slot_id`. One that is not asked for lapses as a lease does,
        and lets those behind it pass.

        Raises:
            NotFound: the agent or conversation is not there.
        """
        ...

    async def leave_line(self, conversation_id: str, slot_id: str) -> bool:
        """Gives up a place in the queue, or the slot that it came to; whether a run waits in the conversation."""
        ...

    async def leave_lines(self, owner: str) -> None:
        """Gives up every place in a queue that this owner has: it was killed since."""
        ...

    async def release(self, lease: Lease) -> bool:
        """Gives a lease back where it still holds; whether a run waits in the conversation."""
        ...

    async def renew(self, leases: Sequence[Lease]) -> tuple[Lease, ...]:
        """Puts off the expiry of leases that still hold, and gives those that do not."""
        ...

    async def watch(self, leases: Sequence[Lease], run_ids: Sequence[str]) -> Watched:
        """What others did to these leases and to the runs that hold them, and how far other runs have come.

        A run that is not there has no head.
        """
        ...

    async def request_cancel(self, organization_id: str, run_id: str) -> bool:
        """Asks whoever carries a run out to cancel it, now or after a takeover; False where it has ended."""
        ...

    async def claimable(self, owner: str) -> tuple[str, ...]:
        """Conversations of every organization with unfinished runs that nobody, this owner, or a lapsed lease holds."""
        ...


class DeltaStore(Protocol):
    """The live events of background runs."""

    async def append(self, lease: Lease, pieces: Sequence[tuple[int, RunEvent]]) -> None:
        """Stores live events that have places, each with the number of the newest durable event before it.

        Raises:
            LeaseLost: the lease does not hold any more.
        """
        ...

    async def replay(self, run_id: str, after: int, since: int, place: tuple[int, int]) -> tuple[RunEvent, ...]:
        """The next stored events in the order in which they took place; nothing where there is no more.

        Durable ones behind number `after`; live ones behind `place`, and of those that came before durable event
        `since` none.
        """
        ...


class RunRetention(Protocol):
    """What is kept how long."""

    async def purge_runs(self, before: datetime) -> int:
        """Deletes runs of every organization that ended before, with all that hangs on them; how many.

        One whose approval is pending stays.
        """
        ...
