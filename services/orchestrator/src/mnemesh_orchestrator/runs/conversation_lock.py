"""Turn slots for work that is no run: a reset, a compaction, a fork. No run goes on in the conversation meanwhile."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import structlog
from mnemesh_kit.deadline import remaining
from mnemesh_kit.errors import MnemeshError
from mnemesh_kit.ids import IdSource

from mnemesh_orchestrator.errors import LeaseLost
from mnemesh_orchestrator.loop.journal import shielded
from mnemesh_orchestrator.model.leases import Lease
from mnemesh_orchestrator.model.run_config import OnBusy
from mnemesh_orchestrator.runs.lease_renewal import LeaseRenewer
from mnemesh_orchestrator.store.base.leases import LeaseStore

T = TypeVar("T", bound=Lease | None)

_log = structlog.get_logger("mnemesh.runs")

PAUSE_SECONDS: Final = 0.2
"""Between two questions whether it is one's turn; each keeps the place in the queue."""
PATIENCE_SECONDS: Final = 600.0
"""Nobody waits longer for a turn."""
RESERVE_SECONDS: Final = 1.0
"""What is left of the caller's time, but no more than a tenth of it, to say that the turn did not come."""


class ConversationLock:
    """Gives the turn slots of conversations, in the order in which they and runs were asked for."""

    def __init__(
        self, store: LeaseStore, keeper: LeaseRenewer, start_next: Callable[[str], Awaitable[None]], ids: IdSource
    ) -> None:
        """`start_next` begins the next run of a conversation, if one waits."""
        self._store = store
        self._keeper = keeper
        self._go_on = start_next
        self._ids = ids

    @asynccontextmanager
    async def take(
        self, organization_id: str, agent_id: str, conversation_id: str, on_busy: OnBusy = OnBusy.WAIT
    ) -> AsyncIterator[Lease]:
        """Holds the turn slot of a conversation for the length of a block.

        Where it is taken, the block begins when those who came before are done, runs and others, on every replica; or
        not at all, with REJECT or where the deadline of the call comes first. Runs that are sent after that wait, and
        go on behind it. The lease has an epoch of its own: writes to recall that carry its `run_id` (which names no
        run) and `epoch` are refused once somebody else has taken the conversation over.

        Raises:
            NotFound: the agent or conversation is not there.
            ConversationBusy: the turn did not come in time; a run that is under way or waits is named by `run_id`.
            LeaseLost: the slot could not be kept, and the block was cancelled.
        """
        holder, lost = asyncio.current_task(), asyncio.Event()

        def lose() -> None:
            lost.set()
            if holder is not None:
                holder.cancel()

        place = _Place(organization_id, agent_id, conversation_id, self._ids.new("run"))
        try:
            lease = await self._turn(place, lose, on_busy)
        except BaseException as error:
            if place.in_line or not isinstance(error, MnemeshError):
                await shielded(self._leave(place))
            raise
        try:
            yield lease
        except asyncio.CancelledError:
            if holder is not None and lost.is_set() and holder.uncancel() == 0:
                raise LeaseLost("The turn slot was lost.", conversation_id=conversation_id) from None
            raise
        finally:
            await shielded(self._give_back(lease))

    async def _turn(self, place: "_Place", lose: Callable[[], None], on_busy: OnBusy) -> Lease:
        loop = asyncio.get_running_loop()
        last = loop.time() + (_patience() if on_busy is OnBusy.WAIT else 0)
        while (left := last - loop.time()) > 0:
            place.in_line = True
            lease = await self._asked(self._store.await_slot, place, lose)
            if lease is not None:
                return lease
            await asyncio.sleep(min(left, PAUSE_SECONDS))
        return await self._asked(self._store.take_slot, place, lose)

    async def _asked(self, ask: Callable[..., Coroutine[Any, Any, T]], place: "_Place", lose: Callable[[], None]) -> T:
        async with self._keeper.claiming(place.conversation_id):
            asking = ask(
                place.organization_id,
                place.agent_id,
                place.conversation_id,
                place.slot_id,
                self._keeper.owner,
                reclaim=not self._keeper.holds(place.conversation_id),
            )
            lease = await shielded(asking)
            if lease is not None:
                self._keeper.keep(lease, lose)
            return lease

    async def _leave(self, place: "_Place") -> None:
        """Lets those pass who are behind somebody whose turn will not come."""
        try:
            if await self._store.leave_line(place.conversation_id, place.slot_id):
                await self._go_on(place.conversation_id)
        except MnemeshError as error:
            _log.warning("a place in a queue lapses by itself", conversation=place.conversation_id, error=error.message)

    async def _give_back(self, lease: Lease) -> None:
        self._keeper.drop(lease)
        try:
            waits = await self._store.release(lease)
        except MnemeshError as error:
            _log.warning("a turn slot lapses by itself", conversation=lease.conversation_id, error=error.message)
            return
        if waits:
            await self._go_on(lease.conversation_id)


@dataclass(slots=True)
class _Place:
    """Whose turn it is to be."""

    organization_id: str
    agent_id: str
    conversation_id: str
    slot_id: str
    in_line: bool = False


def _patience() -> float:
    left = remaining()
    return PATIENCE_SECONDS if left is None else min(PATIENCE_SECONDS, left - min(RESERVE_SECONDS, left / 10))
