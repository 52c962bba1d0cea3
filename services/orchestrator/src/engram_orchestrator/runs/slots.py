"""Turn slots for work that is no run: a reset, a compaction, a fork. No run goes on in the conversation meanwhile."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import structlog
from engram_kit.errors import EngramError
from engram_kit.ids import IdSource

from engram_orchestrator.errors import LeaseLost
from engram_orchestrator.loop.recording import settled
from engram_orchestrator.model.runs import Lease
from engram_orchestrator.runs.keeping import LeaseKeeper
from engram_orchestrator.store.leasing import LeaseStore

_log = structlog.get_logger("engram.runs")


class TurnSlots:
    """Gives the turn slots of idle conversations."""

    def __init__(
        self, store: LeaseStore, keeper: LeaseKeeper, go_on: Callable[[str], Awaitable[None]], ids: IdSource
    ) -> None:
        """`go_on` begins the next run of a conversation, if one waits."""
        self._store = store
        self._keeper = keeper
        self._go_on = go_on
        self._ids = ids

    @asynccontextmanager
    async def take(self, organization_id: str, agent_id: str, conversation_id: str) -> AsyncIterator[Lease]:
        """Holds the turn slot of a conversation for the length of a block.

        Runs that are sent meanwhile wait, on every replica, and go on behind it. The lease has an epoch of its own:
        writes to recall that carry its `run_id` (which names no run) and `epoch` are refused once somebody else has
        taken the conversation over.

        Raises:
            NotFound: the agent or conversation is not there.
            ConversationBusy: a run is under way or waits (`run_id` names it), or something else has the slot.
            LeaseLost: the slot could not be kept, and the block was cancelled.
        """
        holder, lost = asyncio.current_task(), asyncio.Event()

        def lose() -> None:
            lost.set()
            if holder is not None:
                holder.cancel()

        async with self._keeper.claiming(conversation_id):
            lease = await self._store.take_slot(
                organization_id,
                agent_id,
                conversation_id,
                self._ids.new("run"),
                self._keeper.owner,
                reclaim=not self._keeper.holds(conversation_id),
            )
            self._keeper.keep(lease, lose)
        try:
            yield lease
        except asyncio.CancelledError:
            if holder is not None and lost.is_set() and holder.uncancel() == 0:
                raise LeaseLost("The turn slot was lost.", conversation_id=conversation_id) from None
            raise
        finally:
            await settled(self._give_back(lease))

    async def _give_back(self, lease: Lease) -> None:
        self._keeper.drop(lease)
        try:
            waits = await self._store.release(lease)
        except EngramError as error:
            _log.warning("a turn slot lapses by itself", conversation=lease.conversation_id, error=error.message)
            return
        if waits:
            await self._go_on(lease.conversation_id)
